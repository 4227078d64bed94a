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

from envs import Benchmark, Task
from envs.env import EnvFault
from harness.agent import Player
from harness.episode import Episode, EpisodeLimit
from harness.journal import Journal, JournalError
from harness.model import Completion, ContextOverflow, ModelFault
from harness.record import Earlier, Record
from harness.trajectory import Call, Trajectory, Turn


class RunStopped(Exception):
    """The run cannot go on; what finished is kept, and the same command goes on from there."""


class ProposerStopped(RunStopped):
    """The proposer gives nothing usable; what was found until then still counts."""


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
    """What a display needs: finished, in all, gaps, and the sum of scores."""

    total: int = 0
    done: int = 0
    gaps: int = 0
    scores: float = 0.0
    phase: str = ""


@dataclass
class Runner:
    """Plays jobs on `benchmark` into `journal`. `concurrency` episodes at once; `retries` of a broken world."""

    benchmark: Benchmark
    journal: Journal
    seed: int = 0
    concurrency: int = 4
    retries: int = 3
    patience: int = 3  # episodes lost, with none that went well in the batch, that stop the run
    watch: Callable[[Progress], None] | None = None
    _record: Record = field(init=False, repr=False)

    def __post_init__(self) -> None:
        self._record = Record(self.journal)

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
        progress = Progress(total=len(jobs), phase=phase)
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
        failures: list[str] = []
        succeeded = bool(progress.done - progress.gaps)

        async def worker() -> None:
            nonlocal succeeded
            for index in queue:
                result = await self._play(jobs[index])
                results[index] = result
                self._count(progress, result)
                if result.status != "gap":
                    succeeded = True
                else:
                    failures.append(result.reason)
                    if not succeeded and len(failures) >= self.patience:
                        raise RunStopped(
                            f"the first {len(failures)} episodes were all lost: {failures[-1]}. "
                            "Cure: mend that, then give the same command again; nothing that had finished is lost"
                        )

        await _together([worker() for _ in range(min(self.concurrency, len(waiting)))])
        finished = [result for result in results if result is not None]
        if settle and jobs and not settled:
            self.journal.append(
                "batch", {"episodes": len(finished), "gaps": sum(r.status == "gap" for r in finished)}, batch
            )
        return finished

    def _count(self, progress: Progress, result: Trajectory) -> None:
        progress.done += 1
        progress.gaps += result.status == "gap"
        progress.scores += result.score or 0.0
        if self.watch is not None:
            self.watch(progress)

    async def _play(self, job: Job) -> Trajectory:
        first = sum(1 for _ in self.journal.events("start", job.key))
        for attempt in range(first, first + self.retries + 1):
            result, mendable = await self._attempt(job, attempt)
            if not mendable or attempt == first + self.retries:
                self.journal.finish(result, attempt)
                return result
            unfinished = [call.model_dump(mode="json", exclude_defaults=True) for call in result.unfinished]
            self.journal.append(
                "lost", {"attempt": attempt, "reason": result.reason, "unfinished": unfinished}, job.key
            )
            await asyncio.sleep(0.2 * 2 ** (attempt - first))
        raise AssertionError("unreachable")

    async def _attempt(self, job: Job, attempt: int) -> tuple[Trajectory, bool]:
        """One try, and whether another one may mend what broke it."""
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
        )  # fmt: skip
        started = time.time()
        status: Literal["done", "truncated", "gap"] = "done"
        reason, mendable = "", False
        try:
            async with asyncio.timeout(limits.seconds) as clock:
                await episode.start()
                await player.play(episode)
        except EpisodeLimit as limit:
            status, reason = "truncated", str(limit)
        except ContextOverflow as overflow:
            status, reason = "truncated", f"the prompt did not fit the model: {overflow}"
        except ModelFault as fault:
            status, reason = "gap", f"model: {fault}"
        except EnvFault as fault:
            status, reason, mendable = "gap", f"environment: {fault}", True
        except TimeoutError:
            if not clock.expired():
                raise
            status, reason = _late(episode, limits.seconds)
        finally:
            closing = await episode.close()
        unfinished = tuple(map(paid, episode.unfinished))
        asked = (*(call for turn in episode.turns for call in turn.calls), *unfinished)
        return Trajectory(
            id=job.key, task=job.task.id, split=job.task.split, goal=job.task.goal, episode=job.number,
            seed=episode.seed, harness=player.version, model=player.model_name, turns=tuple(episode.turns),
            unfinished=unfinished, lost=earlier.lost(asked), final=episode.observation.text,
            score=None if status == "gap" else self.benchmark.score(episode.rewards), status=status,
            reason="; ".join(filter(None, (reason, closing))), arm=job.arm, started=started,
            seconds=time.time() - started,
        ), mendable  # fmt: skip


def _late(episode: Episode, seconds: float) -> tuple[Literal["truncated", "gap"], str]:
    """A limit of time that one wait used up by half was the infrastructure's; else the agent itself is slow."""
    waited, whom = episode.longest_wait
    if waited >= seconds / 2:
        return "gap", f"time-out: {whom} alone kept the episode waiting for half of its {seconds:g} s or more"
    return "truncated", f"the episode took more than its {seconds:g} s"


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
