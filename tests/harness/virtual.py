"""An event loop whose time is virtual: nothing waits, and an hour of holds and outages takes a moment.

Where everything waits for something that no timer brings, a real loop would hang for ever; this one raises `Hangs`.
"""

import asyncio
import random
import selectors
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any, TypeVar

import pytest
from worlds import corridor

from harness.episode import Episode
from harness.model import Completion, ModelFault, Request
from harness.settings import LimitSettings
from harness.throttle import ProviderGone, Throttles

T = TypeVar("T")


class Hangs(Exception):
    """Nothing will ever happen again."""


class Time:
    """The time of a virtual loop, and of the modules that are made to read it."""

    def __init__(self) -> None:
        self.now = 1000.0

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Run `work` in a loop of its own; the time goes on from one to the next."""
        with asyncio.Runner(loop_factory=lambda: _Loop(self)) as runner:
            return runner.run(work)


def virtual(patch: pytest.MonkeyPatch) -> Time:
    """A time that throttles and episodes read."""
    clock = Time()
    for module in ("throttle", "episode", "clock"):
        there = SimpleNamespace(monotonic=lambda: clock.now, time=lambda: clock.now)
        patch.setattr(f"harness.{module}.time", there)
    return clock


class _Loop(asyncio.SelectorEventLoop):
    def __init__(self, clock: Time) -> None:
        self._clock = clock
        super().__init__(_Selector(clock))

    def time(self) -> float:
        return self._clock.now


class _Selector(selectors.DefaultSelector):
    def __init__(self, clock: Time) -> None:
        super().__init__()
        self._clock = clock

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        if timeout is None:
            raise Hangs
        self._clock.now += max(0.0, timeout) + 1e-9
        return []


@dataclass
class Provider:
    """Answers after `latency` seconds, `jitter` of it more or less; refuses in .05 s as `refuse` says.

    `refuse` is told the seconds since the beginning and how many calls are at work. At most `at_once` are worked on,
    the others wait; who is not answered within `timeout` has waited in vain.
    """

    latency: float = 1.0
    refuse: Callable[[float, int], ModelFault | None] = lambda at, busy: None
    jitter: float = 0.2
    hang: float = 0.0
    timeout: float = 120.0
    at_once: int = 10**9
    name: str = "p"
    address: str = "http://p"
    busy: int = 0
    most: int = 0
    answered: list[float] = field(default_factory=list)
    refused: int = 0
    times: list[float] = field(default_factory=list)  # when calls began

    def __post_init__(self) -> None:
        self.rng = random.Random(0)
        self.place: asyncio.Semaphore | None = None
        self.began: float | None = None

    async def complete(self, request: Request) -> Completion:
        loop = asyncio.get_running_loop()
        self.began = loop.time() if self.began is None else self.began
        self.place = self.place or asyncio.Semaphore(self.at_once)
        self.times.append(loop.time() - self.began)
        if fault := self.refuse(loop.time() - self.began, self.busy):
            self.refused += 1
            await asyncio.sleep(0.05)
            raise fault
        self.busy += 1
        self.most = max(self.most, self.busy)
        try:
            async with asyncio.timeout(self.timeout):
                async with self.place:
                    late = 1.0 + self.jitter * self.rng.uniform(-1.0, 1.0)
                    await asyncio.sleep(1e6 if self.rng.random() < self.hang else self.latency * late)
        except TimeoutError:
            raise ModelFault("late", kind="time-out") from None
        finally:
            self.busy -= 1
        self.answered.append(loop.time() - self.began)
        return Completion(text="right")

    async def close(self) -> None:
        """Nothing to free."""


async def besiege(provider: Provider, many: int, seconds: float, *, most: int | None = None) -> list[ModelFault]:
    """Ask for `seconds`, `many` at a time, or until the provider is given up; the faults that calls ended with."""
    throttles, lost = Throttles(most), list[ModelFault]()

    async def ask(number: int) -> None:
        one = episode(throttles, number)
        while True:
            try:
                await one.ask(provider, Request(prompt="x"))
            except ModelFault as fault:
                lost.append(fault)
                if isinstance(fault, ProviderGone):  # with which a run stops
                    return

    asking = [asyncio.ensure_future(ask(number)) for number in range(many)]
    await asyncio.wait(asking, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
    for one in asking:
        one.cancel()
    ended = await asyncio.gather(*asking, return_exceptions=True)
    assert all(end is None or isinstance(end, asyncio.CancelledError) for end in ended)
    assert throttles.of(provider).running == 0
    return lost


def episode(throttles: Throttles, number: int = 0) -> Episode:
    """An episode that may ask as often as it likes."""
    world = corridor(tasks=1)
    return Episode(
        world, world.tasks("valid")[0], number=number, run_seed=0, max_steps=1, max_calls=10**9,
        limits=LimitSettings(), record=lambda turn: turn, lookup=lambda *_: None, throttles=throttles,
    )  # fmt: skip
