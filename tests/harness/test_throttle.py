"""A provider gets as many calls as it bears, no more, and none for long while it is gone; and nobody waits for ever."""

import asyncio
import random
from collections import Counter
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from virtual import Provider, Time, besiege, episode, virtual

from harness.model import ModelFault, Request
from harness.throttle import LOADING, OUTAGE, START, ProviderGone, Throttle, Throttles

Refuse = Callable[[float, int], ModelFault | None]


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Time:
    return virtual(monkeypatch)


def limited(after: float | None = None) -> ModelFault:
    return ModelFault("too many", kind="429", retry_after=after)


def broken(kind: str = "503") -> ModelFault:
    return ModelFault("broken", kind=kind)


def at_random(share: float, fault: Callable[[], ModelFault]) -> Refuse:
    rng = random.Random(1)
    return lambda at, busy: fault() if rng.random() < share else None


def above(most: int, fault: Callable[[], ModelFault]) -> Refuse:
    return lambda at, busy: fault() if busy >= most else None


def between(start: float, end: float, fault: Callable[[], ModelFault]) -> Refuse:
    return lambda at, busy: fault() if start <= at < end else None


def storms(every: float, long: float, after: float) -> Refuse:
    return lambda at, busy: limited(after) if at % every < long else None


class Rate:
    """So many a second, in windows of a second as the usual gateways count, or in a bucket."""

    def __init__(self, rate: float, *, bucket: bool, after: float | None) -> None:
        self.rate, self.bucket, self.after = rate, bucket, after
        self.left, self.last = rate, 0.0

    def __call__(self, at: float, busy: int) -> ModelFault | None:
        if self.bucket:
            self.left = min(self.rate, self.left + (at - self.last) * self.rate)
            self.last = at
        elif at - self.last >= 1.0:
            self.left, self.last = self.rate, at
        if self.left < 1.0:
            return limited(self.after)
        self.left -= 1.0
        return None


HARD: dict[str, Callable[[], tuple[Provider, int, float, float, float]]] = {
    # provider, episodes at once, seconds, what it would bear (answers a second), share of that which must come
    "30 % 503": lambda: (Provider(0.5, at_random(0.3, broken)), 64, 60, 64 / 0.521, 0.85),
    "30 % 503, slow provider": lambda: (Provider(2.0, at_random(0.3, broken)), 64, 200, 64 / 2.021, 0.85),
    "10 % drops": lambda: (Provider(0.5, at_random(0.1, lambda: broken("unreachable"))), 64, 60, 128, 0.85),
    "2 % hang": lambda: (Provider(0.5, hang=0.02, timeout=2.0), 64, 60, 64 / 0.54, 0.85),
    "5 at once": lambda: (Provider(0.5, above(5, limited)), 64, 100, 10, 0.85),
    "5 at once, Retry-After 1": lambda: (Provider(0.5, above(5, lambda: limited(1.0))), 64, 100, 10, 0.8),
    "5 at once, told by 503": lambda: (Provider(0.5, above(5, broken)), 64, 150, 10, 0.8),
    "200 at once": lambda: (Provider(2.0, above(200, limited)), 1000, 40, 100, 0.85),
    "10 a second": lambda: (Provider(0.5, Rate(10, bucket=False, after=None)), 64, 100, 10, 0.7),
    "10 a second, Retry-After 1": lambda: (Provider(0.5, Rate(10, bucket=False, after=1.0)), 64, 100, 10, 0.65),
    "bucket of 10 a second": lambda: (Provider(2.0, Rate(10, bucket=True, after=1.0)), 64, 100, 10, 0.85),
    "1 % limited by chance": lambda: (Provider(1.0, at_random(0.01, lambda: limited(1.0))), 64, 60, 64, 0.9),
    "5 s of limits": lambda: (Provider(1.0, between(10, 15, limited)), 128, 100, 128 * 0.94, 0.85),
    "storms": lambda: (Provider(0.2, storms(3.0, 0.3, 1.0)), 64, 60, 320 * 1.7 / 3, 0.8),
    "a minute's outage": lambda: (
        Provider(1.0, between(20, 80, lambda: broken("unreachable"))), 128, 200, 128 * 2 / 3, 0.85
    ),
    "more than it can do in time": lambda: (Provider(1.0, at_once=64, timeout=10.0), 500, 150, 64, 0.6),
    "a thousand at once": lambda: (Provider(1.0), 1000, 12, 1000, 0.5),
}  # fmt: skip


@pytest.mark.parametrize("name", HARD)
def test_a_provider_is_used_for_most_of_what_it_bears_and_no_call_is_given_up(clock: Time, name: str) -> None:
    provider, many, seconds, bears, share = HARD[name]()
    lost = clock.run(besiege(provider, many, seconds))
    assert lost == []
    warm = seconds * 0.15
    got = sum(at > warm for at in provider.answered) / (seconds - warm)
    assert got >= share * bears, f"{got:.1f} of {bears:.1f} a second"


def test_the_limit_doubles_each_round_until_a_thousand_run_at_once(clock: Time) -> None:
    provider = Provider(1.0, jitter=0.0)
    clock.run(besiege(provider, 1000, 8.5))
    begun = Counter(int(at + 0.5) for at in provider.times)
    assert [begun[n] for n in range(8)] == [16, 32, 64, 128, 256, 512, 1000, 1000]


def test_no_more_run_at_once_than_the_user_allows(clock: Time) -> None:
    provider = Provider(0.1)
    clock.run(besiege(provider, 50, 20.0, most=3))
    assert provider.most == 3


@pytest.mark.parametrize("seconds", [1.0, 60.0, 500.0])
def test_a_retry_after_holds_everybody_and_then_all_go_on(clock: Time, seconds: float) -> None:
    provider = Provider(1.0, between(20.0, 20.5, lambda: limited(seconds)))
    assert clock.run(besiege(provider, 64, seconds + 40.0)) == []
    held = [at for at in provider.times if 21.0 < at < 20.0 + seconds]
    assert held == []
    assert provider.refused <= 64 + 10
    last = [at for at in provider.answered if at > seconds + 30.0]
    assert len(last) >= 0.85 * 64 * 10


def test_a_single_rate_limit_holds_back_its_own_call_only(clock: Time) -> None:
    provider = Provider(1.0, at_random(0.005, lambda: limited(30.0)))
    clock.run(besiege(provider, 64, 60.0))
    assert provider.refused > 5
    gaps = [b - a for a, b in pairwise(provider.times)]
    assert max(gaps) < 1.5


def test_a_limit_without_a_time_is_met_with_ever_longer_pauses(clock: Time) -> None:
    provider = Provider(1.0, between(0.0, 100.0, limited))
    clock.run(besiege(provider, 64, 200.0))
    late = [at for at in provider.times if 50.0 < at < 100.0]
    assert provider.refused < 200
    assert len(late) <= 3 * START
    assert len([at for at in provider.answered if at > 150.0]) >= 0.85 * 64 * 50


def test_while_a_provider_is_gone_single_calls_probe_and_the_first_answer_lets_all_go_on(clock: Time) -> None:
    provider = Provider(1.0, between(20.0, 620.0, lambda: broken("unreachable")))
    assert clock.run(besiege(provider, 256, 700.0)) == []
    probes = [at for at in provider.times if 30.0 < at < 620.0]
    assert len(probes) <= 30
    assert all(b - a > 0.3 for a, b in pairwise(probes))
    assert max(b - a for a, b in pairwise(probes)) <= 31.0
    first = min(at for at in provider.answered if at > 620.0)
    soon = [at for at in provider.answered if first < at < first + 20.0]
    assert len(soon) >= 0.75 * 256 * 15


def test_a_short_outage_is_soon_seen_to_be_over(clock: Time) -> None:
    provider = Provider(1.0, between(20.0, 24.0, lambda: broken("unreachable")))
    clock.run(besiege(provider, 64, 60.0))
    again = [at for at in provider.times if at > 24.0]
    assert again[0] < 29.0
    assert len([at for at in again if at < 40.0]) > 0.75 * 64 * 10


def test_an_answer_to_what_was_asked_before_an_outage_does_not_end_it(clock: Time) -> None:
    throttle = Throttle()
    throttle.succeed(clock.now - 1.0)
    before = clock.now
    for _ in range(8):
        clock.now += 1.0
        throttle.fail(broken(), 1)
    assert throttle.down
    clock.now += 1.0
    throttle.succeed(before)
    assert throttle.down
    throttle.succeed(clock.now)
    assert not throttle.down


@pytest.mark.parametrize(
    ("kind", "first", "patience"),
    [("unreachable", 0.0, 6.0), ("503", 0.0, LOADING), ("429", 0.0, OUTAGE), ("unreachable", 10.0, OUTAGE),
     ("503", 10.0, OUTAGE), ("time-out", 10.0, OUTAGE)],
)  # fmt: skip
def test_a_provider_that_has_gone_for_too_long_is_given_up_for_everybody(
    clock: Time, kind: str, first: float, patience: float
) -> None:
    provider = Provider(1.0, between(first, 1e9, lambda: broken(kind)))
    lost = clock.run(besiege(provider, 32, patience + 1000.0))
    gone = [fault for fault in lost if isinstance(fault, ProviderGone)]
    assert gone
    assert first + patience <= provider.times[-1] <= first + patience + 100.0 or kind == "429"
    assert provider.refused < 300 + patience / 10


def test_one_call_that_always_fails_is_no_outage_and_is_given_up(clock: Time) -> None:
    provider, poison = Provider(0.1), Provider(0.1, lambda at, busy: broken("500"))
    poison.address = provider.address

    async def both() -> list[ModelFault]:
        throttles = Throttles()
        good = asyncio.ensure_future(ask(provider, throttles, 10_000))
        try:
            with pytest.raises(ModelFault, match="broken"):
                await ask(poison, throttles, 1)
        finally:
            good.cancel()
        assert not throttles.of(provider).down
        return []

    clock.run(both())
    assert poison.refused == 21
    gaps = [b - a for a, b in pairwise(provider.times)]
    assert max(gaps) < 0.2


async def ask(provider: Provider, throttles: Throttles, times: int) -> None:
    one = episode(throttles)
    for _ in range(times):
        await one.ask(provider, Request(prompt="x"))


def test_a_slow_call_that_fails_alone_waits_for_no_provider(clock: Time) -> None:
    """The last episode of a run: nobody else is there to show that the provider lives."""
    poison, throttles = Provider(0.1, lambda at, busy: broken("500")), Throttles()
    with pytest.raises(ModelFault, match="broken"):
        clock.run(ask(poison, throttles, 1))
    assert poison.refused == 21
    assert not throttles.of(poison).down
    assert clock.now - 1000.0 < 400.0


def test_a_throttle_serves_one_event_loop_after_another(clock: Time) -> None:
    throttle = Throttle(1)

    async def cut_off() -> None:
        assert throttle.enter()
        for _ in range(20):
            throttle.slow_down(limited(100.0), clock.now)
        throttle.leave()
        waiting = asyncio.ensure_future(throttle.queue())
        await asyncio.sleep(1.0)
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting

    async def again() -> float:
        await throttle.queue()
        throttle.leave()
        return clock.now

    clock.run(cut_off())
    assert throttle.running == 0
    assert 1100.0 <= clock.run(again()) <= 1101.0


def test_who_comes_first_is_served_first(clock: Time) -> None:
    async def line() -> list[int]:
        throttle, order = Throttle(2), list[int]()

        async def one(number: int) -> None:
            if not throttle.enter():
                await throttle.queue()
            order.append(number)
            await asyncio.sleep(0.1)
            throttle.leave()

        await asyncio.gather(*(one(number) for number in range(20)))
        return order

    assert clock.run(line()) == list(range(20))


def test_nobody_passes_those_who_wait(clock: Time) -> None:
    async def pass_by() -> bool:
        throttle = Throttle()
        for _ in range(20):
            throttle.slow_down(limited(10.0), clock.now)
        waiting = asyncio.ensure_future(throttle.queue())
        await asyncio.sleep(0)
        clock.now += 11.0  # the hold is over, and whoever waits is about to be told
        passed = throttle.enter()
        await waiting
        return passed

    assert clock.run(pass_by()) is False


def test_a_probe_too_keeps_to_what_the_user_allows(clock: Time) -> None:
    throttle = Throttle(1)
    assert throttle.enter()  # and it hangs
    for _ in range(8):
        clock.now += 1.0
        throttle.fail(broken(), 1)
    clock.now += 100.0
    assert throttle.down
    assert not throttle.enter()
    throttle.leave()
    assert throttle.enter()


def test_who_is_cancelled_just_as_a_place_is_given_gives_it_back(clock: Time) -> None:
    async def cancelled() -> int:
        throttle = Throttle(1)
        assert throttle.enter()
        waiting = asyncio.ensure_future(throttle.queue())
        await asyncio.sleep(0)
        throttle.leave()
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        return throttle.running

    assert clock.run(cancelled()) == 0


def test_no_episode_is_served_much_less_than_another(clock: Time) -> None:
    """Also where a provider refuses most calls."""
    provider = Provider(0.5, above(5, lambda: limited(1.0)))
    served = Counter[int]()

    async def all_of_them() -> None:
        throttles = Throttles()

        async def one(number: int) -> None:
            while True:
                await ask(provider, throttles, 1)
                served[number] += 1

        ones = [asyncio.ensure_future(one(number)) for number in range(40)]
        await asyncio.sleep(600.0)
        for each in ones:
            each.cancel()
        await asyncio.gather(*ones, return_exceptions=True)

    clock.run(all_of_them())
    assert len(served) == 40
    assert min(served.values()) >= 0.6 * max(served.values())


DO = st.one_of(
    st.tuples(st.sampled_from(["enter", "queue", "succeed", "leave", "limit", "fail"]), st.integers(0, 20)),
    st.tuples(st.just("cancel"), st.integers(0, 20)),
    st.tuples(st.just("after"), st.sampled_from([0.0, 0.5, 40.0])),
    st.tuples(st.just("wait"), st.sampled_from([0.0, 0.01, 0.6, 31.0])),
)


class Watched(Throttle):
    """Checks each place that is given."""

    def _take(self) -> bool:
        took = super()._take()
        if took:
            assert self.running <= self.most
            assert self.down or self.running <= max(1.0, self.limit)
        return took


@given(st.lists(DO, max_size=60), st.sampled_from([None, 1, 2, 3]), st.booleans())
@settings(max_examples=300, deadline=None)
def test_no_place_is_lost_and_nobody_waits_for_ever_whatever_is_done_in_whatever_order(
    steps: list[tuple[str, Any]], most: int | None, local: bool
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        clock = virtual(patch)
        clock.run(do(steps, Watched(most, local=local), clock))


async def do(steps: list[tuple[str, Any]], throttle: Throttle, clock: Time) -> None:
    held: list[float] = []  # when each place that is held was taken
    waiting: list[asyncio.Future[None]] = []

    async def wait() -> None:
        await throttle.queue()
        held.append(clock.now)

    for what, value in steps:
        if what == "enter" and throttle.enter():
            held.append(clock.now)
        elif what == "queue":
            waiting.append(asyncio.ensure_future(wait()))
        elif what == "cancel" and waiting:
            waiting[value % len(waiting)].cancel()
        elif what == "wait":
            await asyncio.sleep(value)
        elif what in ("succeed", "leave", "limit", "after", "fail") and held:
            began = held.pop(int(value) % len(held))
            if what == "succeed":
                throttle.succeed(began, value % 2)
            elif what in ("limit", "after"):
                throttle.slow_down(limited(None if what == "limit" else value), began)
            elif what == "fail":
                throttle.fail(broken(), 1 + value % 5)
            throttle.leave()
    await asyncio.sleep(0.001)
    assert throttle.running == len(held)
    for _ in range(200):
        while held:
            throttle.succeed(held.pop())
            throttle.leave()
        await asyncio.sleep(1.0)
    assert all(one.done() for one in waiting)
    assert throttle.running == 0
    assert throttle.enter()
    await asyncio.gather(*waiting, return_exceptions=True)
