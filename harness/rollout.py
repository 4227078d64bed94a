"""One try at one episode, and whose fault it was if it broke: every border has its own kind of failure.

| fault | raised as | tried again | what it becomes |
|---|---|---|---|
| provider | ModelFault | the call, until it is answered or the provider is gone | a gap; filled when the run goes on |
| output | no usable action | no | scored: the model's own |
| overflow | ContextOverflow | no | scored: the harness wrote too much |
| environment, sandbox | EnvFault, SandboxFault | the episode, unless it was late | a gap |
| limit | EpisodeLimit, time | no | scored, or a gap where the infrastructure used the time up |
| bug | BrokenControl: an exception in control.py | no | scored: the harness's own |
| bug | anything else that is raised here | no | a gap, with its traceback in the journal |

A rollout knows nothing of other episodes and writes nothing: it may run anywhere, and tells its turns to `record`.
"""

import asyncio
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from envs import Benchmark, EnvFault, Task
from envs.env import SandboxFault
from harness.agent import Player
from harness.border import border
from harness.episode import BrokenControl, Episode, EpisodeLimit, Lookup, NoChoices, Tell
from harness.journal import JournalError
from harness.model import ContextOverflow, ModelFault, ModelRefused
from harness.settings import HarnessError
from harness.throttle import ProviderGone, Throttles
from harness.trajectory import Fault, Trajectory, Turn
from memory.fault import MemoryFault

#: What broke: "mendable" by another try now, "passing" by itself, "lasting", the same whenever it is tried again,
#: "gone" for everybody, or "buggy", our own mistake.
Broken = Literal["", "mendable", "passing", "lasting", "gone", "buggy"]


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


@dataclass(frozen=True)
class Ended:
    """A try's trajectory, what broke it, and the traceback of a bug of ours."""

    trajectory: Trajectory
    broken: Broken = ""
    trace: str = ""
    had_choices: bool = False


async def rollout(
    benchmark: Benchmark, job: Job, *, seed: int, record: Callable[[Turn], Turn], lookup: Lookup,
    tell: Tell = lambda text: None, throttles: Throttles | None = None, worlds: asyncio.Semaphore | None = None,
    choosy: bool = False,
) -> Ended:  # fmt: skip
    """Play `job`. `choosy`: this benchmark is known to offer choices, so a task without any is its fault.

    Raises ModelRefused, HarnessError, JournalError and MemoryFault, with which no episode can go on, and nothing else.
    """
    player = job.player
    episode = Episode(
        benchmark, job.task, number=job.number, run_seed=seed, max_steps=player.steps(benchmark),
        max_calls=player.calls(benchmark), limits=player.limits, record=record, lookup=lookup, tell=tell,
        throttles=throttles, worlds=worlds,
    )  # fmt: skip
    started = time.time()
    status: Literal["done", "truncated", "gap"] = "done"
    fault: Fault = ""
    reason, trace, score = "", "", None
    broken: Broken = ""
    try:
        async with asyncio.timeout(None) as timer:
            episode.clock.start(timer)
            await episode.start()
            await player.play(episode)
    except EpisodeLimit as limit:
        status, fault, reason = "truncated", limit.fault, str(limit)
    except ContextOverflow as overflow:
        status, fault, reason = "truncated", "overflow", f"the prompt did not fit the model: {overflow}"
    except ModelFault as error:
        status, fault, reason = "gap", "provider", f"model: {error}"
        broken = "gone" if isinstance(error, ProviderGone) else "passing" if error.transient else "lasting"
    except EnvFault as error:
        fault = "sandbox" if isinstance(error, SandboxFault) else "environment"
        status, reason, broken = "gap", f"{fault}: {error}", "passing" if error.late else "mendable"
    except NoChoices as error:
        if episode.observation.choices is None and not (episode.had_choices or choosy):
            raise  # this world never offers any
        status, fault, reason, broken = "gap", "environment", f"environment: {error}", "lasting"
    except BrokenControl as error:
        status, fault, reason = "truncated", "bug", str(error)
    except TimeoutError as error:
        if timer.expired():
            ours, reason = episode.clock.verdict()
            status, fault, broken = ("gap", "provider", "passing") if ours else ("truncated", "limit", "")
            if ours and "world" in reason:
                fault = "environment"
        else:
            status, fault, broken, reason, trace = "gap", "bug", "buggy", _named(error), traceback.format_exc()
    except (ModelRefused, HarnessError, JournalError, MemoryFault):
        raise
    except Exception as error:  # noqa: BLE001 - kept with its traceback; the rest of a long run need not be lost for it
        status, fault, broken, reason, trace = "gap", "bug", "buggy", _named(error), traceback.format_exc()
    finally:
        closing = await episode.close()
    if status != "gap":
        try:
            with border():
                score = benchmark.score(episode.rewards)
        except EnvFault as error:
            status, fault, reason, broken = "gap", "environment", f"environment: {error}", "lasting"
    return Ended(
        Trajectory(
            id=job.key, task=job.task.id, split=job.task.split, goal=job.task.goal, episode=job.number,
            seed=episode.seed, harness=player.version, model=player.model_name, turns=tuple(episode.turns),
            unfinished=episode.unfinished, final=episode.observation.text, score=score, status=status, fault=fault,
            reason="; ".join(filter(None, (reason, closing))), arm=job.arm, started=started,
            seconds=time.time() - started,
        ),
        broken,
        trace,
        episode.had_choices,
    )  # fmt: skip


def _named(error: Exception) -> str:
    frame = traceback.extract_tb(error.__traceback__)[-1]
    return f"bug: {type(error).__name__}: {error} ({frame.filename}:{frame.lineno})"
