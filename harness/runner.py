"""The runner plays many episodes at once, writes each down, and never does the same work twice.

An episode has a key made of what it is (phase, arm, task, number). A key that the journal has finished is served from
the journal; one that was cut off is played again, with the answers its first try already paid for. What the
infrastructure breaks is retried, then recorded as a gap; a fault that would break every episode stops the run instead.
"""

import asyncio
import time
from collections.abc import Callable, Coroutine, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from envs import Benchmark, Task
from envs.env import EnvFault
from harness.agent import Player
from harness.episode import Episode, EpisodeLimit
from harness.journal import Journal, JournalError
from harness.model import Completion, ContextOverflow, ModelFault
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
    _answers: dict[str, Completion] | None = field(default=None, repr=False)

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
            result = await self._attempt(job, attempt)
            if result.status != "gap" or attempt == first + self.retries or not result.reason.startswith("environment"):
                self.journal.finish(result, attempt)
                return result
            await asyncio.sleep(0.2 * 2 ** (attempt - first))
        raise AssertionError("unreachable")

    async def _attempt(self, job: Job, attempt: int) -> Trajectory:
        limits = getattr(getattr(job.player, "harness", None), "settings", None)
        self.journal.append("start", {"attempt": attempt}, job.key)
        earlier = self._earlier(job.key)
        answers = self._record()

        def lookup(digest: str) -> Completion | None:
            return answers.get(digest)

        def paid(call: Call) -> Call:
            self._learn(call)
            if call.cached and call.digest in earlier:  # paid by this very episode before it was cut off
                earlier.remove(call.digest)
                return call.model_copy(update={"cached": False})
            return call

        def record(turn: Turn) -> Turn:
            turn = turn.model_copy(update={"calls": tuple(map(paid, turn.calls))})
            self.journal.append(
                "step", {"attempt": attempt, "turn": turn.model_dump(mode="json", exclude_defaults=True)}, job.key
            )
            return turn

        episode = Episode(
            self.benchmark, job.task, number=job.number, run_seed=self.seed,
            max_steps=job.player.steps(self.benchmark), max_tokens=limits.limits.tokens if limits else 0,
            max_invalid=limits.limits.invalid if limits else 5, record=record, lookup=lookup,
        )  # fmt: skip
        started = time.time()
        status, reason = "done", ""
        try:
            async with asyncio.timeout(limits.limits.seconds if limits else 600.0):
                await episode.start()
                await job.player.play(episode)
        except EpisodeLimit as limit:
            status, reason = "truncated", str(limit)
        except ContextOverflow as overflow:
            status, reason = "truncated", f"the prompt did not fit the model: {overflow}"
        except ModelFault as fault:
            status, reason = "gap", f"model: {fault}"
        except EnvFault as fault:
            status, reason = "gap", f"environment: {fault}"
        except TimeoutError:
            status, reason = (
                "gap",
                f"time-out: the episode took more than {limits.limits.seconds if limits else 600:.0f} s",
            )
        finally:
            closing = await episode.close()
        return Trajectory(
            id=job.key, task=job.task.id, split=job.task.split, goal=job.task.goal, episode=job.number,
            seed=episode.seed, harness=job.player.version, model=job.player.model_name,
            turns=tuple(episode.turns), unfinished=tuple(map(paid, episode.unfinished)),
            final=episode.observation.text,
            score=None if status == "gap" else self.benchmark.score(episode.rewards), status=status,
            reason="; ".join(filter(None, (reason, closing))), arm=job.arm, started=started,
            seconds=time.time() - started,
        )  # fmt: skip

    def _earlier(self, key: str) -> set[str]:
        """Digests of the calls that earlier tries of this episode paid for."""
        return {call["digest"] for call in self._calls(key) if not call.get("cached")}

    def _record(self) -> dict[str, Completion]:
        if self._answers is None:
            self._answers = {}
            for call in self._calls():
                self._learn(Call.model_validate(call))
        return self._answers

    def _calls(self, key: str | None = None) -> Iterator[dict[str, Any]]:
        for event in self.journal.events("step", key):
            yield from event.body["turn"].get("calls", ())
        for event in self.journal.events("episode", key):
            yield from event.body.get("unfinished", ())

    def _learn(self, call: Call) -> None:
        if self._answers is None or call.digest in self._answers:
            return
        self._answers[call.digest] = Completion(
            text=call.output, tool_calls=call.tool_calls, finish_reason=call.finish_reason, usage=call.usage,
            prompt_ids=call.prompt_ids, output_ids=call.output_ids, output_logprobs=call.output_logprobs,
        )  # fmt: skip


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
