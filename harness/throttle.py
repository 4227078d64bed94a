"""How many calls a provider gets at once: as many as it bears, found out by asking, and none while it is gone.

The limit grows while calls are answered (twofold a round at first, then by one a round) and is cut by a rate limit; a
`Retry-After` holds back all calls, and when it is over the limit grows again. Many failures in a row are an outage:
then one call at a time probes, and when the provider has been gone for too long everybody is told so at once, instead
of each episode finding it out for itself.
"""

import asyncio
import time
from collections import deque
from typing import NoReturn

from harness.model import ModelFault

START = 16.0  # calls at once, before anything is known of a provider
CUT = 0.7  # of the limit that is left after a rate limit
ROW = 8  # failures in a row that are an outage
PROBE = 30.0  # seconds between two probes at most
OUTAGE = 600.0  # seconds that a provider which has answered may be gone
UNSEEN = 6.0  # seconds for one that has never answered


class ProviderGone(ModelFault):
    """The provider has been gone for too long: no other episode will fare better."""


class Throttle:
    """The calls to one provider. `most` is the user's own limit, None for no other than the provider's.

    One that is `local` (in this process, or scripted) has no rate to find out: only `most` holds.
    """

    def __init__(self, most: int | None = None, *, local: bool = False) -> None:
        self.most = float("inf") if most is None else float(most)
        self.limit = self.most if local else min(START, self.most)
        self.running = 0
        self.answered = False
        self._doubling = True
        self._failed = 0  # calls in a row
        self._cuts = 0  # rate limits in a row
        self._down: float | None = None  # since when
        self._cut = self._until = 0.0  # when the limit was cut; before when no call begins
        self._waiting: deque[asyncio.Future[None]] = deque()
        self._timer: asyncio.TimerHandle | None = None

    @property
    def down(self) -> bool:
        """Whether the provider is taken to be gone, for now."""
        return self._failed >= ROW

    @property
    def wait(self) -> float:
        """Seconds until the next call may begin, as far as it is known."""
        return max(0.0, self._until - time.monotonic())

    def enter(self) -> bool:
        """Take a place at once if there is one."""
        if self._waiting or self.running + 1 > self._room():
            return False
        self.running += 1
        return True

    async def queue(self) -> None:
        """Wait for a place and take it."""
        place = asyncio.get_running_loop().create_future()
        self._waiting.append(place)
        self._admit()
        try:
            await place
        except BaseException:
            if place in self._waiting:
                self._waiting.remove(place)
                self._admit()
            elif not place.cancelled():  # it had been given a place already
                self.leave()
            raise

    def leave(self) -> None:
        """Give the place back."""
        self.running -= 1
        self._admit()

    def succeed(self) -> None:
        """A call was answered."""
        self.answered = True
        self._failed = self._cuts = 0
        self._down = None
        if self.running * 2 >= self.limit:  # a limit that nobody comes near proves nothing
            self.limit = min(self.most, self.limit + (1.0 if self._doubling else 1.0 / self.limit))

    def slow_down(self, fault: ModelFault, began: float) -> float:
        """A call that began at `began` met a rate limit; returns the seconds for which all are held back.

        Raises ProviderGone when the provider has answered nobody for too long.
        """
        now, seconds = time.monotonic(), fault.retry_after
        self._down = now if self._down is None else self._down
        if began >= self._cut:  # of the calls of one round only the first one says something new
            self.limit = max(1.0, min(self.limit, float(self.running)) * CUT)
            self._cut, self._doubling = now, False
            self._cuts += 1
        pause = min(PROBE, 0.5 * 2.0 ** (self._cuts - 1)) if seconds is None else seconds
        if now + pause - self._down > OUTAGE:
            self._end_of(fault, f"nobody was answered for {now - self._down:.0f} s")
        self._hold(now + pause)
        return pause

    def fail(self, fault: ModelFault) -> None:
        """A call failed in another way. Raises ProviderGone when nobody should go on."""
        now = time.monotonic()
        self._failed += 1
        self._down = now if self._down is None else self._down
        gone = now - self._down
        if self._failed >= (ROW if self.answered else 4) and gone >= (OUTAGE if self.answered else UNSEEN):
            self._end_of(fault, f"no answer for {gone:.0f} s" if self.answered else "it has not answered once")
        if self.down:
            self._hold(now + min(PROBE, 0.5 * 2.0 ** min(self._failed - ROW, 10)))

    def _end_of(self, fault: ModelFault, why: str) -> NoReturn:
        self._failed, self._down = 0, None  # whoever tries again later starts afresh
        raise ProviderGone(f"{fault} ({why})", kind=fault.kind) from fault

    def _room(self) -> float:
        if self._until > time.monotonic():
            return 0.0
        return 1.0 if self.down else max(1.0, self.limit)

    def _hold(self, until: float) -> None:
        self._until = max(self._until, until)

    def _admit(self) -> None:
        """Let in whoever there is room for; while all are held back, come again when that is over."""
        while self._waiting and self.running + 1 <= self._room():
            place = self._waiting.popleft()
            if not place.done():
                self.running += 1
                place.set_result(None)
        if self._waiting and self._timer is None and (seconds := self.wait) > 0:
            self._timer = asyncio.get_running_loop().call_later(seconds + 0.001, self._again)
        if not self._waiting and self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _again(self) -> None:
        self._timer = None
        self._admit()


class Throttles:
    """One throttle a provider: by a model's `address`, or the model itself where it has none."""

    def __init__(self, most: int | None = None) -> None:
        self.most = most
        self._known: dict[object, Throttle] = {}

    def of(self, model: object) -> Throttle:
        """The throttle of `model`'s provider."""
        address = getattr(model, "address", None)
        key = address if address is not None else id(model)
        if key not in self._known:
            self._known[key] = Throttle(self.most, local=address is None)
        return self._known[key]
