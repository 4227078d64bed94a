"""Worlds in processes of their own: the same contract, and an end to whatever computes without end.

`isolated(benchmark)` is the benchmark again, with worlds that live in workers (`envs.worker_process`). A step that
passes its time, or whose task is cancelled, kills its worker; that is missing data (EnvFault), and the next episode
gets another. Workers are reused between episodes, since what costs is their start. POSIX only.
"""

import asyncio
import base64
import dataclasses
import os
import pickle
import random
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

from envs import frames
from envs.benchmark import Benchmark, Policy, PolicyMaker
from envs.env import Env, EnvFault
from envs.source import EnvError
from envs.task import Observation, Step, Task, Tool
from envs.worker_process import Plan, Worker, bury

T = TypeVar("T")
#: A worker is replaced after so many episodes, and when it has grown by so many bytes since its first one.
EPISODES, GROWTH = 500, 512 * 2**20
WARM = 16  # idle workers that are kept where there is no bound on all of them
_CLOSING = 10.0  # seconds that a world has to close
_ENDING = 1.0  # seconds in which idle workers may end by themselves


def isolated(
    benchmark: Benchmark, spec: str | None = None, *, options: Mapping[str, Any] | None = None,
    workers: int | None = None, seconds: float = 60.0, starting: float = 120.0, memory: int | None = None,
    pass_env: Sequence[str] = (),
) -> Benchmark:  # fmt: skip
    """`benchmark`, each of whose worlds lives in a worker process.

    There it is made by `load(spec, **options)`; without a spec by its own make_env, which must be importable then.
    `workers`: most processes at once; a world waits for a free one (default: as many as there are worlds at once).
    `seconds` bound each answer of a world, `starting` those of a worker until it is ready; both then raise EnvFault.
    `memory`: bytes of address space that a worker may have. `pass_env`: variables that a worker sees besides PATH, HOME
    and their like. The processes end with `benchmark.make_env.close()`, or when this process does. Raises EnvError.
    """
    load = {
        "do": "load", "name": benchmark.name, "spec": spec, "options": dict(options or {}), "memory": memory,
        **({} if spec is not None else _pickled(benchmark)),
    }  # fmt: skip
    try:
        frames.pack(load)
    except frames.BadFrame as error:
        raise EnvError(f"the options of '{spec}' cannot be sent to a worker: {error}. Cure: plain values") from error
    plan = Plan(benchmark.name, load, seconds, starting, tuple(pass_env))
    made = Workers(plan, workers, benchmark.make_env)
    policies = {name: _remote(name, load) for name in benchmark.policies}
    return dataclasses.replace(benchmark, make_env=made, policies=policies)


class Workers:
    """A pool: call it for a world. `func` is how the benchmark made its worlds before."""

    def __init__(self, plan: Plan, most: int | None, func: Callable[[], Env]) -> None:
        if not hasattr(os, "killpg"):
            raise EnvError("worlds in worker processes need a POSIX system. Cure: run without isolation here")
        if most is not None and most < 1:
            raise EnvError(f"workers is {most}. Cure: 1 or more")
        self.plan, self.most, self.func = plan, most, func
        self._all: set[Worker] = set()
        self._idle: list[Worker] = []
        self._claimed = 0  # workers that live or are being started
        self._waiting: deque[asyncio.Future[None]] = deque()
        self._finalizer = weakref.finalize(self, _end, self._all, os.getpid())  # runs at the interpreter's end, too

    def __call__(self) -> "ProcessEnv":
        """A world that has no worker yet: it gets one with `reset`."""
        return ProcessEnv(self)

    def close(self) -> None:
        """End all workers, in use or not. Idempotent; a later world starts new ones. Raises LeaseError."""
        self._idle.clear()
        self._claimed -= len(self._all)
        _end(self._all, os.getpid())
        for _ in range(len(self._waiting)):
            self._wake()

    async def take(self) -> Worker:
        """A worker that is ready for a world, attached to this event loop. Raises EnvFault."""
        while True:
            while self._idle:
                worker = self._idle.pop()
                if worker.alive and not worker.lost:
                    worker.attach()
                    return worker
                await self.lose(worker)
            if self.most is None or self._claimed < self.most:
                return await self._start()
            place = asyncio.get_running_loop().create_future()
            self._waiting.append(place)
            try:
                await place
            except BaseException:
                if place.done() and not place.cancelled():
                    self._wake()
                elif place in self._waiting:
                    self._waiting.remove(place)
                raise

    async def give(self, worker: Worker) -> None:
        """Back after an episode: kept for the next, if it is good for one and there is room."""
        worker.detach()
        worker.episodes += 1
        worker.first_memory = worker.first_memory or worker.memory
        grown = worker.memory - worker.first_memory > GROWTH
        full = len(self._idle) >= (WARM if self.most is None else self.most)
        if grown or worker.episodes >= EPISODES or full:
            await self.lose(worker)
        elif worker in self._all:
            self._idle.append(worker)
            self._wake()

    async def lose(self, worker: Worker) -> None:
        """End a worker that is not to be used again."""
        self.forget(worker)
        await worker.end()

    def forget(self, worker: Worker) -> None:
        """A worker has ended, or will have in a moment."""
        if worker in self._all:
            self._all.discard(worker)
            self._release()

    async def _start(self) -> Worker:
        self._claimed += 1
        making = asyncio.get_running_loop().run_in_executor(None, self._made)  # tens of ms that no other world waits
        try:
            worker = await asyncio.shield(making)
        except asyncio.CancelledError:
            making.add_done_callback(self._unwanted)
            raise
        except OSError as error:
            self._release()
            raise EnvFault(f"no worker can be started: {error}") from error
        try:
            worker.attach()
            answer = await worker.ask(self.plan.load, self.plan.starting)
            if "fault" in answer:
                raise EnvFault(f"a worker cannot make the world of '{self.plan.name}': {answer['fault']}")
        except BaseException:
            await self.lose(worker)
            raise
        return worker

    def _made(self) -> Worker:
        worker = Worker(self.plan)
        self._all.add(worker)
        return worker

    def _unwanted(self, making: "asyncio.Future[Worker]") -> None:
        """Whoever asked for a worker has stopped waiting for it."""
        if making.cancelled() or making.exception() is not None:
            self._release()
        else:
            self.forget(making.result())
            threading.Thread(target=bury, args=([making.result()],)).start()

    def _release(self) -> None:
        self._claimed -= 1
        self._wake()

    def _wake(self) -> None:
        """There may be a place: the next one that waits looks."""
        while self._waiting:
            place = self._waiting.popleft()
            if not place.done() and not place.get_loop().is_closed():
                place.set_result(None)
                return


class ProcessEnv(Env):
    """A world that lives in a worker, from `reset` to `close`."""

    def __init__(self, pool: Workers) -> None:
        self._pool = pool
        self._worker: Worker | None = None
        self._broken = False
        self._tools: tuple[Tool, ...] = ()
        self._no_tools = ""

    @property
    def pid(self) -> int | None:
        """Of its worker, for whoever wants to watch it; None when it has none."""
        return self._worker.pid if self._worker is not None else None

    async def reset(self, task: Task, seed: int) -> Observation:
        """Start `task` afresh, in a worker that may be new. Raises EnvFault."""
        if self._worker is None:
            self._worker, self._broken = await self._pool.take(), False
        order = {"do": "reset", "task": task.model_dump(mode="json"), "seed": seed}
        return await self._ask(order, frames.to_observation)

    async def step(self, action: str) -> Step:
        """Do `action`. Raises EnvFault."""
        return await self._ask({"do": "step", "action": action}, frames.to_step)

    async def snapshot(self) -> int:
        """The number under which the worker keeps the world's snapshot, until `close`. Raises EnvFault."""
        return await self._ask({"do": "snapshot"}, _number)

    async def restore(self, snapshot: int) -> Observation | None:
        """Go back to a snapshot of this world; what its own restore returns. Raises EnvFault."""
        return await self._ask(
            {"do": "restore", "snapshot": snapshot}, lambda seen: None if seen is None else frames.to_observation(seen)
        )

    def tools(self) -> Sequence[Tool]:
        """What the world offered after its last answer. Raises EnvFault when it could not say."""
        if self._no_tools:
            raise EnvFault(self._no_tools)
        return self._tools

    async def close(self) -> None:
        """Close the world; its worker goes back. Raises EnvFault."""
        worker, self._worker, self._tools = self._worker, None, ()
        if worker is None:
            return
        try:
            answer = await worker.ask({"do": "close"}, min(self._pool.plan.seconds, _CLOSING))
            worker.memory = int(_ok(answer, dict)["memory"])
        except BaseException:
            await self._pool.lose(worker)
            raise
        await (self._pool.lose(worker) if self._broken else self._pool.give(worker))

    def policy(self, name: str, luck: random.Random) -> Policy:
        """The benchmark's policy `name`, made in the worker. It blocks while it thinks, as every policy does."""
        version, state, gauss = luck.getstate()
        number = self._ask_now({"do": "policy", "name": name, "luck": [version, list(state), gauss]}, int)

        def choose(seen: Observation) -> str:
            plain = frames.from_observation(seen, "the caller")
            return str(self._ask_now({"do": "choose", "policy": number, "seen": plain}, str))

        return choose

    async def _ask(self, order: dict[str, Any], read: Callable[[Any], T]) -> T:
        worker = self._living(order)
        try:
            answer = await worker.ask(order, self._pool.plan.seconds)
        except BaseException:
            self._lost(worker)
            raise
        if "fault" in answer:
            self._broken = True  # nobody knows what else is: the next episode gets another worker
            raise EnvFault(str(answer["fault"]))
        try:
            if "tools" in answer:
                self._tools, self._no_tools = frames.to_tools(answer["tools"]), ""
            elif "no_tools" in answer:
                self._no_tools = str(answer["no_tools"])
            return read(answer.get("ok"))
        except frames.BadFrame as error:
            await self._pool.lose(worker)
            self._lost(worker)
            raise EnvFault(f"the world's worker answered {order['do']} with nonsense: {error}") from error

    def _ask_now(self, order: dict[str, Any], kind: type) -> Any:
        worker = self._living(order)
        try:
            return _ok(worker.ask_now(order, self._pool.plan.seconds), kind)
        except BaseException:
            self._lost(worker)
            raise

    def _lost(self, worker: Worker) -> None:
        if worker.lost:
            self._worker = None
            self._pool.forget(worker)

    def _living(self, order: Mapping[str, Any]) -> Worker:
        if self._worker is None:
            raise EnvFault(f"{order['do']} came before reset, or after the world's worker had ended")
        return self._worker


def _ok(answer: dict[str, Any], kind: type) -> Any:
    if "fault" in answer:
        raise EnvFault(str(answer["fault"]))
    if not isinstance(answer.get("ok"), kind):
        raise EnvFault("the world's worker sent nonsense")
    return answer["ok"]


def _number(plain: object) -> int:
    if not isinstance(plain, int):
        raise frames.BadFrame("it is no number")
    return plain


def _pickled(benchmark: Benchmark) -> dict[str, Any]:
    """How a worker can import what makes the worlds, and the policies that it can import. Raises EnvError."""
    cure = "Cure: give its spec, isolated(benchmark, spec), or a make_env that stands at the top of a module"
    try:
        made = _importable(benchmark.make_env)
    except (pickle.PicklingError, AttributeError, TypeError, EnvError) as error:
        raise EnvError(f"another process cannot make the worlds of '{benchmark.name}': {error}. {cure}") from error
    policies: dict[str, str] = {}
    for name, maker in benchmark.policies.items():
        try:
            policies[name] = _importable(maker)
        except (pickle.PicklingError, AttributeError, TypeError, EnvError):
            policies[name] = ""  # an error for whoever asks for it
    return {"make_env": made, "policies": policies}


def _importable(function: Callable[..., Any]) -> str:
    data = pickle.dumps(function)
    for name in (b"__main__", b"_instar_env_"):
        if name in data:
            raise EnvError(f"{function!r} stands in a file that is no module")
    return base64.b64encode(data).decode()


def _remote(name: str, load: Mapping[str, Any]) -> PolicyMaker:
    """Makes the policy `name` where the world is."""

    def make(env: Env, luck: random.Random) -> Policy:
        if not isinstance(env, ProcessEnv):
            raise TypeError(f"policy '{name}' of an isolated benchmark plays only its own worlds, not {env!r}")
        if load["spec"] is None and not load["policies"][name]:
            raise EnvError(f"a worker cannot import policy '{name}'. Cure: give the spec: isolated(benchmark, spec)")
        return env.policy(name, luck)

    return make


def _end(workers: set[Worker], owner: int) -> None:
    """End all of them: those that do nothing may do it themselves, and run what they have to at exit."""
    if os.getpid() != owner:  # a forked child ends, and they are its parent's
        return
    ending = list(workers)
    workers.clear()
    for worker in ending:
        worker.detach()
        worker.dismiss()
    end = time.monotonic() + _ENDING
    while time.monotonic() < end and any(worker.alive for worker in ending):
        time.sleep(0.005)
    bury(ending)
