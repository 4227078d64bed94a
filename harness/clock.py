"""The time of an episode: an agent may be slow, but it does not pay for a server's rate limit or a broken call.

Pauses and calls that failed are not counted. A call or step in flight is never cut before it alone has taken half of
the limit, so what is cut in flight hangs, and is a gap; an episode that is late in any other way was slow, and is
scored. In all an episode may last its `wall` time, or else ten times its limit and at least an hour; then nobody knows
what it would have earned, unless most of that time was its own. A queue at a busy provider is no part of these.
"""

import asyncio
import math
import time
from collections.abc import Iterator
from contextlib import contextmanager
from types import TracebackType

MOST = 10.0  # times the limit that an episode may last, with everything that is not counted
LEAST = 3600.0  # seconds that it may last in any case


class Clock:
    """Holds a limit of `seconds` through an `asyncio.timeout` that it is started with."""

    def __init__(self, seconds: float, wall: float = 0.0) -> None:
        self.seconds, self.wall = seconds, wall
        self._began = self._end = 0.0
        self._free = 0.0  # seconds that are not counted
        self._longest = (0.0, "nothing")
        self._timer: asyncio.Timeout | None = None
        self._when = math.nan  # what the timer is set to

    def start(self, timer: asyncio.Timeout) -> None:
        """Begin to count; `timer` has no time of its own yet."""
        self._began, self._timer = time.monotonic(), timer
        self._end = self._began + (self.wall or max(MOST * self.seconds, LEAST))
        self._set(self._limit)

    @property
    def free(self) -> float:
        """Seconds so far that are not counted."""
        return self._free

    def waits_for(self, whom: str) -> "Waiting":
        """A call of the model or a step of the world; when it raises a fault, its time is not counted."""
        return Waiting(self, whom)

    @contextmanager
    def queues(self) -> Iterator[None]:
        """A wait for a place at a provider that is asked much: it is no pause that could go on for ever."""
        since = time.monotonic()
        self._set(self._end if self.wall else math.inf)
        try:
            yield
        finally:
            waited = time.monotonic() - since
            self._free += waited
            self._end += 0.0 if self.wall else waited
            self._set(self._limit)

    @contextmanager
    def pauses(self) -> Iterator[None]:
        """A pause between two tries of a call."""
        since = time.monotonic()
        self._set(self._end)
        try:
            yield
        finally:
            self._free += time.monotonic() - since
            self._set(self._limit)

    def verdict(self) -> tuple[bool, str]:
        """After the time ran out: whether the infrastructure used it up, and what to say."""
        waited, whom = self._longest
        if waited >= self.seconds / 2:
            half = f"half of its {self.seconds:g} s or more"
            return True, f"time-out: {whom} alone kept the episode waiting for {half}"
        if time.monotonic() >= self._end - 0.05:  # timers may be a trifle early
            if self.wall and self._free < self.wall / 2:
                return False, f"the episode took more than its {self.wall:g} s of the clock"
            return True, f"time-out: pauses and broken calls took {self._free:.0f} s"
        return False, f"the episode took more than its {self.seconds:g} s"

    @property
    def _limit(self) -> float:
        return self._began + self.seconds + self._free

    def _set(self, when: float) -> None:
        when = when if when == math.inf else min(when, self._end)
        if when == self._when:  # as it is nearly always, and to set it again would cost much
            return
        if self._timer is not None and not self._timer.expired():
            self._when = when
            now = asyncio.get_running_loop().time()
            self._timer.reschedule(None if when == math.inf else now + when - time.monotonic())


class Waiting:
    """The context of one wait. Not made from a generator: there are two at each step."""

    __slots__ = ("_clock", "_longer", "_since", "_whom")

    def __init__(self, clock: Clock, whom: str) -> None:
        self._clock, self._whom = clock, whom

    def __enter__(self) -> None:
        clock, self._since = self._clock, time.monotonic()
        least = self._since + clock.seconds / 2
        self._longer = least > clock._limit
        if self._longer:
            clock._set(least)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        clock, waited = self._clock, time.monotonic() - self._since
        if isinstance(error, Exception):
            clock._free += waited
            clock._set(clock._limit)
            return
        if waited > clock._longest[0]:  # it went well, or was cut in flight
            clock._longest = (waited, self._whom)
        if self._longer:
            clock._set(clock._limit)
