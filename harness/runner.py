"""The runner plays many episodes at once, writes each down, and never does the same work twice.

An episode has a key made of what it is (phase, arm, task, number). A key that the journal has finished is served from
the journal; one that was cut off is played again, with the answers its first try already paid for. What the
infrastructure breaks is retried, then recorded as a gap; a fault that would break every episode stops the run instead.
"""

import asyncio
import time
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from envs import Benchmark, EnvFault, Task
from harness.agent import Player
from harness.border import border
from harness.episode import Episode, EpisodeLimit, NoChoices, Tell
from harness.journal import Journal, JournalError
from harness.model import Completion, ContextOverflow, ModelFault
from harness.record import Earlier, Record
from harness.trajectory import Call, Trajectory, Turn

#: What broke: "mendable" by another try now, "passing" by itself, or "lasting", the same whenever it is tried again.
Broken = Literal["", "mendable", "passing", "lasting"]


class RunStopped(Exception):
    """The run cannot go on; what finished is kept, and the same command goes on from there."""


class RecipeStopped(RunStopped):
    """A recipe cannot go on (no usable proposal, task or budget is left); what was found until then still counts."""


@dataclass(frozen=True)
class Job:
    """One episode to play, named by phase, arm, task id and number; arms with the same task and number share luck."""

    player: Player
    task: Task
    number: int = 0
    arm: str = "agent"
    phase: str = "run"

    @property
    def key(self) -> str:
        """The episode's name in the journal."""
        return f"{self.phase}/{self.arm}/{self.task.id}/{self.number}"


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


@dataclass
class Runner:
    """Plays jobs on `benchmark` into `journal`. `concurrency` episodes at once; `retries` of a broken world.

    A batch that lost all it played stops the run, and so do `patience` losses in a row, also over several batches.
    """

    benchmark: Benchmark
    journal: Journal
    seed: int = 0
    concurrency: int = 4
    retries: int = 3
    patience: int = 3
    watch: Callable[[Progress], None] | None = None
    _record: Record = field(init=False, repr=False)

    def __post_init__(self) -> None:
        self._record = Record(self.journal)
        self._lost = 0  # episodes in a row
        self._succeeded = self._had_choices = False

    async def run(self, jobs: Sequence[Job], *, settle: bool = True) -> list[Trajectory]:
        """Trajectories of `jobs`, in their order. Raises RunStopped, ModelRefused, HarnessError or JournalError.

        A batch that is to be built upon is settled: its gaps stay gaps, so that what was decided on it stays true.
        Other gaps are missing data that the next call fills.
        """
        keys = [job.key for job in jobs]
        if len(set(keys)) != len(keys):
            raise ValueError(f"two jobs have the same key: {next(key for key in keys if keys.count(key) > 1)}")
        phase = jobs[0].phase if jobs else ""
        batch = f"{phase}/{jobs[0].arm}" if jobs else ""
        progress = Progress(total=len(jobs), phase=phase, arm=jobs[0].arm if jobs else "")
        settled = settle and self.journal.last("batch", batch) is not None
        results: list[Trajectory | None] = [None] * len(jobs)
        waiting: list[int] = []
        for index, key in enumerate(keys):
            found = self.journal.trajectory(key)
            if found is None or (found.status == "gap" and not settled):
                waiting.append(index)
            else:
                _same(found, jobs[index].player, self.journal)
                results[index] = found
                self._count(progress, found)
        queue = iter(waiting)
        failures: list[tuple[str, Broken]] = []
        succeeded = bool(progress.done - progress.gaps)
        self._succeeded |= succeeded

        def tell(text: str) -> None:
            progress.waiting = text
            if self.watch is not None:
                self.watch(progress)

        async def worker() -> None:
            nonlocal succeeded
            for index in queue:
                result, broken = await self._play(jobs[index], tell)
                results[index] = result
                self._count(progress, result)
                if result.status != "gap":
                    succeeded = self._succeeded = True
                    self._lost = 0
                else:
                    failures.append((result.reason, broken))
                    self._lost += 1
                    if not succeeded and self._lost >= self.patience:
                        raise self._stopped(result.reason)

        await _together([worker() for _ in range(min(self.concurrency, len(waiting)))])
        # What is the same at each try, where others went well, must not hold a run up for ever.
        if failures and not succeeded and not (self._succeeded and all(kind == "lasting" for _, kind in failures)):
            raise self._stopped(failures[-1][0])
        finished = [result for result in results if result is not None]
        if settle and jobs and not settled:
            self.journal.append(
                "batch", {"episodes": len(finished), "gaps": sum(r.status == "gap" for r in finished)}, batch
            )
        return finished

    def _stopped(self, reason: str) -> RunStopped:
        lost = "the only episode was lost" if self._lost == 1 else f"{self._lost} episodes were all lost"
        which = lost if self._lost == 1 else f"the {'last' if self._succeeded else 'first'} {lost}"
        return RunStopped(
            f"{which}: {reason}. Cure: mend that, then give the same command again; nothing that had finished is lost"
        )

    def _count(self, progress: Progress, result: Trajectory) -> None:
        progress.done += 1
        progress.gaps += result.status == "gap"
        progress.scores += result.score or 0.0
        if self.watch is not None:
            self.watch(progress)

    async def _play(self, job: Job, tell: Tell) -> tuple[Trajectory, Broken]:
        first = sum(1 for _ in self.journal.events("start", job.key))
        for attempt in range(first, first + self.retries + 1):
            result, broken = await self._attempt(job, attempt, tell)
            if broken != "mendable" or attempt == first + self.retries:
                self.journal.finish(result, attempt)
                return result, broken
            unfinished = [call.model_dump(mode="json", exclude_defaults=True) for call in result.unfinished]
            self.journal.append(
                "lost", {"attempt": attempt, "reason": result.reason, "unfinished": unfinished}, job.key
            )
            await asyncio.sleep(0.2 * 2 ** (attempt - first))
        raise AssertionError("unreachable")

    async def _attempt(self, job: Job, attempt: int, tell: Tell) -> tuple[Trajectory, Broken]:
        """One try, and what broke it."""
        limits, player = job.player.limits, job.player
        earlier = self._record.earlier(job.key) if attempt else Earlier()
        self.journal.append("start", {"attempt": attempt}, job.key)

        def lookup(digest: str) -> Completion | None:
            return earlier.answer(digest) or self._record.answer(digest)

        def paid(call: Call) -> Call:
            self._record.learn(call)
            if call.cached and earlier.pays(call.digest):  # paid by this very episode before it was cut off
                return call.model_copy(update={"cached": False})
            return call

        def record(turn: Turn) -> Turn:
            turn = turn.model_copy(update={"calls": tuple(map(paid, turn.calls))})
            self.journal.append(
                "step", {"attempt": attempt, "turn": turn.model_dump(mode="json", exclude_defaults=True)}, job.key
            )
            return turn

        episode = Episode(
            self.benchmark, job.task, number=job.number, run_seed=self.seed, max_steps=player.steps(self.benchmark),
            max_calls=player.calls(self.benchmark), limits=limits, record=record, lookup=lookup,
            tell=tell,
        )  # fmt: skip
        started = time.time()
        status: Literal["done", "truncated", "gap"] = "done"
        reason, score = "", None
        broken: Broken = ""
        try:
            async with asyncio.timeout(None) as timer:
                episode.clock.start(timer)
                await episode.start()
                await player.play(episode)
        except EpisodeLimit as limit:
            status, reason = "truncated", str(limit)
        except ContextOverflow as overflow:
            status, reason = "truncated", f"the prompt did not fit the model: {overflow}"
        except ModelFault as fault:
            status, reason, broken = "gap", f"model: {fault}", "passing" if fault.transient else "lasting"
        except EnvFault as fault:
            status, reason, broken = "gap", f"environment: {fault}", "mendable"
        except NoChoices as fault:
            if episode.observation.choices is None and not (episode.had_choices or self._had_choices):
                raise  # this world never offers any
            status, reason, broken = "gap", f"environment: {fault}", "lasting"
        except TimeoutError:
            if not timer.expired():
                raise
            ours, reason = episode.clock.verdict()
            status, broken = ("gap", "passing") if ours else ("truncated", "")
        finally:
            self._had_choices |= episode.had_choices
            closing = await episode.close()
        if status != "gap":
            try:
                with border():
                    score = self.benchmark.score(episode.rewards)
            except EnvFault as fault:
                status, reason, broken = "gap", f"environment: {fault}", "lasting"
        unfinished = tuple(map(paid, episode.unfinished))
        asked = (*(call for turn in episode.turns for call in turn.calls), *unfinished)
        return Trajectory(
            id=job.key, task=job.task.id, split=job.task.split, goal=job.task.goal, episode=job.number,
            seed=episode.seed, harness=player.version, model=player.model_name, turns=tuple(episode.turns),
            unfinished=unfinished, lost=earlier.lost(asked), final=episode.observation.text,
            score=score, status=status,
            reason="; ".join(filter(None, (reason, closing))), arm=job.arm, started=started,
            seconds=time.time() - started,
        ), broken  # fmt: skip


def _same(found: Trajectory, player: Player, journal: Journal) -> None:
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
