"""The runner plays many episodes at once, writes each down, and never does the same work twice.

An episode has a key made of what it is (phase, arm, task, number). A key that the journal has finished is served from
the journal; one that was cut off is played again, with the answers its first try already paid for. What the
infrastructure breaks is retried, then recorded as a gap; a fault that would break every episode stops the run instead.
"""

import asyncio
from collections import Counter
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

from envs import Benchmark
from harness.agent import Player
from harness.episode import Tell
from harness.finished import Finished
from harness.journal import Journal, JournalError
from harness.known import Known
from harness.model import Completion
from harness.record import Earlier, Record, Tape
from harness.rollout import Broken, Ended, rollout
from harness.rollout import Job as Job
from harness.throttle import Throttles
from harness.trajectory import Call, Trajectory, Turn
from harness.watchdog import watched

_CURE = "Cure: mend that, then give the same command again; nothing that had finished is lost"
#: Told the index of a job and what became of it.
Each = Callable[[int, Trajectory | Finished], None]
STUBBORN = 20  # losses in a row, beside the episodes at once, after which a run that went well stops


class RunStopped(Exception):
    """The run cannot go on; what finished is kept, and the same command goes on from there."""


class RecipeStopped(RunStopped):
    """A recipe cannot go on (no usable proposal, task or budget is left); what was found until then still counts."""


@dataclass
class Progress:
    """What a display needs: finished, in all, gaps, the sum of scores, and what is `waiting` for long ("": nothing)."""

    total: int = 0
    done: int = 0
    gaps: int = 0
    scores: float = 0.0
    phase: str = ""
    waiting: str = ""
    arm: str = ""
    retried: int = 0  # calls that failed and were then answered


class Stage(Protocol):
    """Somewhere else where rollouts run; turns come back to `record` as they are taken."""

    async def play(
        self, job: Job, seed: int, record: Callable[[Turn], Turn], known: Known, tell: Tell, choosy: bool
    ) -> Ended:
        """Play `job` there, asking nothing that is `known`; a place that is lost is a gap that another try mends."""
        ...


@dataclass
class Runner:
    """Plays jobs on `benchmark` into `journal`. `concurrency` episodes at once; `retries` of a broken world.

    `calls` and `worlds`: the most calls of one provider, and steps of worlds, at once (None: no limit of ours).
    A batch that lost all it played stops the run; so do `patience` losses in a row before anything went well (as many
    as there are at once, if that is more), many more of them later, and a provider that has gone. `on_episode`
    is told each trajectory that ends.
    """

    benchmark: Benchmark
    journal: Journal
    seed: int = 0
    concurrency: int = 4
    retries: int = 3
    patience: int = 3
    calls: int | None = None
    worlds: int | None = None
    watch: Callable[[Progress], None] | None = None
    on_episode: Callable[[Trajectory], None] | None = None
    elsewhere: Stage | None = None
    tape: Callable[[str], Tape] | None = None
    _record: Record = field(init=False, repr=False)

    def __post_init__(self) -> None:
        self._record = Record(self.journal)
        self.throttles = Throttles(self.calls)
        self._lost = 0  # episodes in a row
        self._succeeded = self._had_choices = False
        self._worlds = asyncio.Semaphore(self.worlds) if self.worlds else None

    async def run(self, jobs: Sequence[Job], *, settle: bool = True) -> list[Trajectory]:
        """Trajectories of `jobs`, in their order. Raises RunStopped, ModelRefused, HarnessError or JournalError.

        A batch that is to be built upon is settled: its gaps stay gaps, so that what was decided on it stays true.
        Other gaps are missing data that the next call fills.
        """
        results: list[Trajectory | None] = [None] * len(jobs)

        def keep(index: int, found: Trajectory | Finished) -> None:
            results[index] = found if isinstance(found, Trajectory) else self.journal.trajectory(found.id)

        await self.play(jobs, keep, settle=settle)
        return [result for result in results if result is not None]

    async def play(self, jobs: Sequence[Job], each: Each, *, settle: bool = True, fill: bool = True) -> None:
        """As `run`, but hands over each episode as soon as it is known, with the index of its job, and keeps none.

        One that the journal knows comes without its turns.
        Without `fill` a gap of an earlier call stays a gap also where the batch was not settled.
        """
        batch = _Batch(self, jobs, each, settle, fill)
        queue = iter(batch.served())

        async def worker() -> None:
            for index in queue:
                batch.ended(index, await self._play(jobs[index], batch.tell))

        with watched(batch.tell):
            await _together([worker() for _ in range(min(self.concurrency, len(batch.waiting)))])
        batch.close()

    async def _play(self, job: Job, tell: Tell) -> Ended:
        first = sum(1 for _ in self.journal.events("start", job.key))
        for attempt in range(first, first + self.retries + 1):
            ended = await self._attempt(job, attempt, tell)
            result = ended.trajectory
            if ended.broken != "mendable" or attempt == first + self.retries:
                if ended.trace:
                    self.journal.append("bug", {"attempt": attempt, "trace": ended.trace}, job.key)
                self.journal.finish(result, attempt)
                return ended
            unfinished = [call.model_dump(mode="json", exclude_defaults=True) for call in result.unfinished]
            self.journal.append(
                "lost",
                {"attempt": attempt, "fault": result.fault, "reason": result.reason, "unfinished": unfinished},
                job.key,
            )
            tell(f"{result.reason}; trying again")
            await asyncio.sleep(0.2 * 2 ** (attempt - first))
        raise AssertionError("unreachable")

    async def _attempt(self, job: Job, attempt: int, tell: Tell) -> Ended:
        """One try, written down turn by turn."""
        earlier = self._record.earlier(job.key) if attempt else Earlier()
        tape = self.tape(job.key) if self.tape is not None else None
        self.journal.append("start", {"attempt": attempt}, job.key, soon=True)

        def lookup(digest: str, turn: int, number: int) -> Completion | None:
            taped = tape.answer(digest, turn, number) if tape is not None else None
            return taped or earlier.answer(digest) or self._record.answer(digest)

        def paid(call: Call) -> Call:
            if call.cached and earlier.pays(call.digest):  # paid by this very episode before it was cut off
                return call.model_copy(update={"cached": False})
            return call

        turns: list[Turn] = []

        def record(turn: Turn) -> Turn:
            calls = tuple(map(paid, turn.calls))
            if tape is not None:
                calls = tuple(tape.told(call, len(turns), number) for number, call in enumerate(calls))
            if calls != turn.calls:
                turn = turn.model_copy(update={"calls": calls})
            self.journal.step(job.key, attempt, turn, soon=True)
            turns.append(turn)
            return turn

        if self.elsewhere is not None:
            known = tape.known(earlier) if tape is not None else earlier.known()
            ended = await self.elsewhere.play(job, self.seed, record, known, tell, self._had_choices)
        else:
            ended = await rollout(
                self.benchmark, job, seed=self.seed, record=record, lookup=lookup, tell=tell, throttles=self.throttles,
                worlds=self._worlds, choosy=self._had_choices,
            )  # fmt: skip
        self._had_choices |= ended.had_choices
        unfinished = tuple(map(paid, ended.trajectory.unfinished))
        asked = (*(call for turn in turns for call in turn.calls), *unfinished)
        whole = {"turns": tuple(turns), "unfinished": unfinished, "lost": earlier.lost(asked)}
        return replace(ended, trajectory=ended.trajectory.model_copy(update=whole))


class _Batch:
    """The jobs of one call: which are known already, what to tell of the others, and when it is enough."""

    def __init__(self, runner: Runner, jobs: Sequence[Job], each: Each, settle: bool, fill: bool) -> None:
        keys = [job.key for job in jobs]
        if len(set(keys)) != len(keys):
            raise ValueError(f"two jobs have the same key: {next(key for key in keys if keys.count(key) > 1)}")
        self._runner, self._jobs, self._each, self._settle = runner, jobs, each, settle
        phase, arm = (jobs[0].phase, jobs[0].arm) if jobs else ("", "")
        self._name = f"{phase}/{arm}" if jobs else ""
        self._settled = settle and runner.journal.last("batch", self._name) is not None
        self._keep_gaps = self._settled or not fill
        self.progress = Progress(total=len(jobs), phase=phase, arm=arm)
        self.waiting: list[int] = []
        self._failures: list[tuple[str, Broken]] = []
        self._succeeded = False

    def served(self) -> list[int]:
        """Hand over what the journal knows; the indexes of the others."""
        journal = self._runner.journal
        for index, job in enumerate(self._jobs):
            found = journal.ended(job.key)
            if found is None or (found.status == "gap" and not self._keep_gaps):
                self.waiting.append(index)
            else:
                _same(found, job.player, journal)
                self._count(index, found)
                self._succeeded |= _well(found)
                if found.status != "gap" and not _well(found):
                    self._failures.append((found.reason, "buggy"))
        self._runner._succeeded |= self._succeeded
        return self.waiting

    def tell(self, text: str) -> None:
        """What is waited for."""
        self.progress.waiting = text
        if self._runner.watch is not None:
            self._runner.watch(self.progress)

    def ended(self, index: int, ended: Ended) -> None:
        """One episode has ended. Raises RunStopped when that is enough of a bad thing."""
        runner, result = self._runner, ended.trajectory
        if runner.on_episode is not None:
            runner.on_episode(result)
        self._count(index, result)
        if _well(result):
            self._succeeded = runner._succeeded = True
            runner._lost = 0
            return
        self._failures.append((result.reason, ended.broken))
        runner._lost += ended.broken != "lasting" or not self._succeeded
        early = max(runner.patience, runner.concurrency)  # of many at once, those that are lost end first
        enough = STUBBORN + runner.concurrency if self._succeeded else early
        if ended.broken == "gone":
            raise RunStopped(f"{result.reason}. {_CURE}")
        if runner._lost >= enough:
            raise self._stopped(result.reason)

    def close(self) -> None:
        """After all have ended. Raises RunStopped when all that was played was lost."""
        runner, journal = self._runner, self._runner.journal
        lasting = all(kind == "lasting" for _, kind in self._failures)
        # What is the same at each try, where others went well, must not hold a run up for ever.
        if self._failures and not self._succeeded and not (runner._succeeded and lasting):
            raise self._stopped(self._failures[-1][0])
        if self._settle and self._jobs and not self._settled:
            journal.append("batch", {"episodes": self.progress.done, "gaps": self.progress.gaps}, self._name)

    def _count(self, index: int, result: Trajectory | Finished) -> None:
        progress = self.progress
        progress.done += 1
        progress.gaps += result.status == "gap"
        progress.scores += result.score or 0.0
        progress.retried += Counter(dict(result.retried)).total()
        self._each(index, result)
        if self._runner.watch is not None:
            self._runner.watch(progress)

    def _stopped(self, reason: str) -> RunStopped:
        lost, end = max(1, self._runner._lost), "last" if self._runner._succeeded else "first"
        which = f"the {end} {lost} episodes were all lost" if lost > 1 else f"the {end} episode was lost"
        which = "the only episode was lost" if self.progress.total == 1 else which
        return RunStopped(f"{which}: {reason}. {_CURE}")


def _well(found: Trajectory | Finished) -> bool:
    """Whether an episode shows that things work: it was scored, and did not break down before its first action."""
    return found.status != "gap" and not (found.fault == "bug" and not found.turns)


def _same(found: Finished, player: Player, journal: Journal) -> None:
    """Refuse an episode of the record that another harness or model played: building on it would mix two runs."""
    if (found.harness, found.model) != (player.version, player.model_name):
        raise JournalError(
            f"{journal.folder}: episode {found.id} was played by harness {found.harness} with {found.model}, not by "
            f"{player.version} with {player.model_name}. Cure: choose another folder with --out"
        )


async def _together(tasks: Sequence[Coroutine[Any, Any, None]]) -> None:
    """Run workers until all end; the first error cancels the rest and is raised by itself."""
    running = [asyncio.ensure_future(task) for task in tasks]
    try:
        await asyncio.gather(*running)
    except BaseException:
        for task in running:
            task.cancel()
        await asyncio.gather(*running, return_exceptions=True)
        raise
