"""Rollouts on Ray: workers play, and the journal stays here, with the one process that may write it.

A worker is an actor of one CPU in which many episodes wait for their models at once. What it says comes back turn by
turn, so a worker that dies takes with it no more than the turns it was at: the runner tries its episodes again, with
what was paid answered from the journal, and another worker takes its place. Nothing secret is sent to a worker: keys
are read where it runs.
"""

import asyncio
import contextlib
import os
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

from envs import Benchmark
from envs.source import EnvError
from harness import engine
from harness.agent import Agent
from harness.engine import ClusterError, reason
from harness.known import Known
from harness.outpost import STOPS, Errand, Facts, Orders, Outpost, Part
from harness.rollout import Ended, Job
from harness.seeds import seed_for
from harness.trajectory import Trajectory, Turn

EPISODES = 10_000  # at once in one worker, at most; how many there are is the runner's business
START = 120.0  # seconds in which a worker must have come up
STARTS = 4  # tries to put a worker into the place of one that was lost
CLOSING = 15.0  # seconds for workers to close the worlds of what was cut off
#: What must be equal here and on a worker, and how it becomes so.
_CURES = {
    "instar": "the same version of instar on each machine",
    "model": "the same model, with the same options, on each machine",
    "address": "name the model's server with --api-base, or by the same OPENAI_BASE_URL on each machine",
    "benchmark": "the same environment on each machine",
    "proof": "the same files of the environment, and of the memory, on each machine",
}


@dataclass(eq=False)
class _Place:
    """A worker: its actor, what it is made from, where it is ("" until it is ready), and how many episodes it plays."""

    actor: Any
    orders: Orders
    host: str = ""
    busy: int = 0
    coming: "asyncio.Task[None] | None" = None


@dataclass
class RayStage:
    """Where rollouts run in Ray's workers. Made by `stage_for`; `close` ends what was begun, and no more."""

    benchmark: Benchmark
    here: Facts
    remembers: bool
    owns: bool  # the connection to Ray is ours
    say: Callable[[str], None]
    _places: list[_Place] = field(default_factory=list)
    _parts: dict[Part, Any] = field(default_factory=dict)

    async def play(
        self, job: Job, seed: int, record: Callable[[Turn], Turn], known: Known, tell: Callable[[str], None],
        choosy: bool,
    ) -> Ended:  # fmt: skip
        """Play `job` on a worker; when that is lost it is a gap that another try mends."""
        import ray
        from ray.exceptions import RayError, RayTaskError

        part, started = self._part(job), time.time()
        place = await self._free()
        errand = Errand(job.task, job.number, job.arm, job.phase, seed, known, choosy)
        place.busy += 1
        stream = place.actor.play.options(num_returns="streaming").remote(part, errand)
        listening = True
        try:
            async for reference in stream:
                word = await reference
                if isinstance(word, Turn):
                    record(word)
                elif isinstance(word, str):
                    tell(word)
                elif isinstance(word, Ended):
                    listening = False
                    return word
                else:
                    listening = False
                    raise word
            raise RuntimeError(f"the worker on {place.host} left {job.key} without an end")
        except RayTaskError:
            listening = False
            raise  # a bug of ours
        except RayError as error:
            listening = False
            self._replace(place)
            return _lost(job, seed, started, f"sandbox: the Ray worker on {place.host} was lost: {reason(error)}")
        finally:
            place.busy -= 1
            if listening:
                ray.cancel(stream)

    def begin(self, orders: list[Orders]) -> None:
        """Start a worker for each of `orders`. Raises ClusterError, or what a worker cannot begin with."""
        import ray
        from ray.exceptions import GetTimeoutError, RayError

        self._places = [_Place(_actor(each), each) for each in orders]
        try:
            found = ray.get([place.actor.ready.remote() for place in self._places], timeout=START)
        except GetTimeoutError as error:
            raise ClusterError(
                f"not all of {len(orders)} Ray workers had started after {START:.0f} s; each takes one CPU, and Ray "
                f"has {ray.cluster_resources().get('CPU', 0):.0f}, some of them perhaps in use. Cure: fewer --workers"
            ) from error
        except RayError as error:
            raise ClusterError(
                f"a Ray worker did not start: {reason(error)}. Cure: {_CURES['instar']}, in Ray's own environment"
            ) from error
        for place, said in zip(self._places, found, strict=True):
            place.host = self._checked(said)

    async def close(self) -> None:
        """End the workers, their worlds closed, and the connection to Ray if it is ours. Idempotent."""
        for place in self._places:
            if place.coming is not None:
                place.coming.cancel()
        ending = [asyncio.ensure_future(_closed(place)) for place in self._places if place.host]
        if ending:
            await asyncio.wait(ending, timeout=CLOSING)
        for late in ending:
            late.cancel()
        self.stop()

    def stop(self) -> None:
        """End at once what was begun. Idempotent."""
        import ray

        places, self._places = self._places, []
        for place in places:
            ray.kill(place.actor)
        if self.owns:
            self.owns = False
            ray.shutdown()

    def _part(self, job: Job) -> Any:
        """The job's player, put where every worker finds it."""
        import ray

        player = job.player
        if isinstance(player, Agent) and player.model_name != self.here.model:
            raise ValueError(f"the workers play with {self.here.model}, and this agent with {player.model_name}")
        part = Part.of(player, self.benchmark, memory=self.remembers)
        if part not in self._parts:
            self._parts[part] = ray.put(part)
        return self._parts[part]

    async def _free(self) -> _Place:
        """The worker with the fewest episodes. Raises ClusterError when there is none, and none comes."""
        while not (ready := [place for place in self._places if place.host]):
            coming = [place.coming for place in self._places if place.coming is not None]
            if not coming or not (await asyncio.wait(coming, timeout=START, return_when=asyncio.FIRST_COMPLETED))[0]:
                raise ClusterError("all Ray workers were lost, and none came back. Cure: give the same command again")
        return min(ready, key=lambda place: place.busy)

    def _replace(self, lost: _Place) -> None:
        """Put another worker in the place of one that is lost; all its episodes tell of it, and the first is heard."""
        import ray

        if lost not in self._places:
            return
        ray.kill(lost.actor)  # it may be only out of reach, and its episodes are played elsewhere now
        fresh = _Place(_actor(lost.orders), lost.orders)
        self._places[self._places.index(lost)] = fresh
        fresh.coming = asyncio.ensure_future(self._come(fresh))

    async def _come(self, place: _Place) -> None:
        """Wait until a worker that takes a place is ready, or give the place up."""
        import ray
        from ray.exceptions import RayError

        for tries in range(STARTS):
            try:
                place.host = self._checked(await place.actor.ready.remote())
            except RayError as error:  # it was lost, too, before it had begun
                why: Exception = error
                await asyncio.sleep(0.5 * 2**tries)
                place.actor = _actor(place.orders)
            except (ClusterError, *STOPS) as error:
                why = error
                break
            else:
                place.coming = None
                return
        ray.kill(place.actor)
        self._places.remove(place)
        self.say(f"a Ray worker was lost and could not be replaced: {reason(why)}")

    def _checked(self, said: Facts | Exception) -> str:
        """The host of a worker that is ready, and like us. Raises what it could not begin with, or ClusterError."""
        if isinstance(said, Exception):
            raise said
        for name, cure in _CURES.items():
            theirs, ours = getattr(said, name), getattr(self.here, name)
            if theirs != ours:
                raise ClusterError(
                    f"the Ray worker on {said.host} has another {name}: {theirs}, and here it is {ours}. Cure: {cure}"
                )
        return said.host


def stage_for(
    on: str, orders: Orders, benchmark: Benchmark, here: Facts, *, workers: int | None = None,
    say: Callable[[str], None] = lambda text: None,
) -> RayStage:  # fmt: skip
    """A stage of `workers` (default: one for each CPU) on `ray` (this machine), `ray://HOST:PORT` or `ray://auto`.

    `orders` hold the limits of all workers together, and `here` what each must agree with. Raises ClusterError,
    ValueError, or what a worker cannot begin with.
    """
    address = engine.address(on)
    n = workers or (os.cpu_count() or 1 if address == engine.LOCAL else None)
    each = divided(orders, n) if n else []
    owns = engine.join(address, n, say)
    stage = RayStage(benchmark, here, orders.memory is not None, owns, say)
    try:
        stage.begin(each or divided(orders, engine.cpus()))
    except BaseException:
        stage.stop()
        raise
    return stage


def divided(orders: Orders, workers: int) -> list[Orders]:
    """The orders of each of `workers`. Raises ValueError when a limit is too small for so many."""
    calls, worlds = shares(orders.calls, workers, "calls"), shares(orders.worlds, workers, "worlds")
    return [replace(orders, calls=c, worlds=w) for c, w in zip(calls, worlds, strict=True)]


def shares(most: int | None, workers: int, what: str) -> list[int | None]:
    """A limit divided among workers. Raises ValueError when it is too small for that."""
    if most is None:
        return [None] * workers
    if most < workers:
        raise ValueError(
            f"--{what} {most} cannot be divided among {workers} workers. Cure: at most --workers {most}, or more {what}"
        )
    return [most // workers + (n < most % workers) for n in range(workers)]


def packed(benchmark: Benchmark) -> bytes:
    """A benchmark that has no name, to be sent. Raises EnvError."""
    from pickle import PicklingError

    engine.library()
    from ray import cloudpickle

    try:
        return bytes(cloudpickle.dumps(benchmark))
    except (PicklingError, TypeError, AttributeError) as error:
        raise EnvError(
            f"the benchmark '{benchmark.name}' cannot be sent to a worker: {error}. Cure: name it (NAME, MODULE:ATTR "
            "or FILE.py), so that each worker makes its own"
        ) from error


def _actor(orders: Orders) -> Any:
    import ray

    made = ray.remote(Outpost).options(
        num_cpus=1, max_concurrency=EPISODES, max_restarts=0, max_task_retries=0, scheduling_strategy="SPREAD"
    )
    return made.remote(orders)


async def _closed(place: _Place) -> None:
    from ray.exceptions import RayError

    with contextlib.suppress(RayError):  # it is lost, so there is nothing to close
        await place.actor.close.remote()


def _lost(job: Job, seed: int, started: float, why: str) -> Ended:
    task, player = job.task, job.player
    return Ended(
        Trajectory(
            id=job.key, task=task.id, split=task.split, goal=task.goal, episode=job.number,
            seed=seed_for(seed, task.id, job.number, "env"), harness=player.version, model=player.model_name,
            status="gap", fault="sandbox", reason=why, arm=job.arm, started=started, seconds=time.time() - started,
        ),
        "mendable",
    )  # fmt: skip
