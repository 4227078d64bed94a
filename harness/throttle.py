"""How many calls a provider gets at once: as many as it bears, found out by asking, and none while it is gone.

The limit doubles each round until rate limits say no. A few of these prove nothing: only the call itself waits. More
of them hold everybody back as the provider asks, and what is in flight beside a refused call is what it bears. From
then on calls start at a steady pace, and the limit grows as a cubic of time does (as TCP CUBIC): quickly to near where
it was met, carefully about there, and ever faster beyond, where that limit is evidently no more. The more often it was
met at one place, and the longer the provider holds us back for it, the more slowly is it tried again.

Where nobody is answered for as long as an answer takes, and several calls in a row fail, the provider is down: single
calls probe, ever less often, and the first answer lets all go on. What fails now and then among answers changes
nothing, unless those who come again fail nearly always: then others are quicker to take the few places that there are,
and the limit shrinks until everybody gets one. When a provider has been gone for too long all are told so at once,
instead of each episode finding it out for itself.
"""

import asyncio
import math
import time
from collections import deque

from harness.model import ModelFault

START = 16.0  # calls at once, before anything is known of a provider
LEAST = 0.1  # of one that answers faster than it allows calls: the share of the time in which there is a call
CUT = 0.7  # of the limit that is left, at least, and to which it may return quickly
ALIKE = 0.15  # the share by which two limits may differ and still be the same one
MEMORY = 64.0  # calls over which a share is measured
TOLERATED = 0.1  # the share of rate limits that proves nothing
STARVED = 0.75  # the share of second and later tries that fail where a call gets no place
SHRINK = 0.9  # of the limit that is left then
SLACK = 0.15  # of an answer's time by which starts may run late and catch up
CAREFUL = (5.0, 30.0)  # seconds, of a sure limit, until there are as many calls again as where it was met
LATE = 60.0  # the same where it was not met by a refusal, but no call was answered in time
ROW = 8  # failures in a row that are an outage, at least,
EACH = 3  # of which a call counts so many: one that always fails is no outage
PAUSE = 0.5  # seconds before a call is tried again, the first time, or less; half as long again or twice each time
PROBE = 30.0  # seconds between two probes, or two tries, at most
OUTAGE = 3600.0  # seconds that a provider which has answered, or would but for a limit, may answer nobody
LOADING = 600.0  # seconds for one that is there and has not answered yet
UNSEEN = 6.0  # seconds for one that nobody has reached
#: Kinds of failures that tell of the whole provider, and not of the one call.
ABSENT = frozenset(("unreachable", "429", "502", "503", "504", "529"))


class ProviderGone(ModelFault):
    """The provider has been gone for too long: no other episode will fare better."""


class Throttle:
    """The calls to one provider. `most` is the user's own limit, None for no other than the provider's.

    One that is `local` (in this process, or scripted) has no rate to find out: only `most` holds.
    """

    def __init__(self, most: int | None = None, *, local: bool = False) -> None:
        self.most = math.inf if most is None else float(most)
        self.limit = self.most if local else min(START, self.most)
        self.running = 0
        self.down = False  # whether the provider is taken to be gone, for now
        self.answered: float | None = None  # when it last answered anybody
        self._latest = 0.0  # when the latest call began that was answered
        self._usual = PAUSE  # seconds that an answer takes
        self._silent: float | None = None  # since when nobody was answered
        self._reached = False
        self._failed = self._probes = 0
        self._fell = self._probe = 0.0  # when it went down; when it may be asked again
        self._limited = self._starved = 0.0  # shares of late: of rate limits, of tries again that failed
        self._ceiling, self._met = math.inf, 0.0  # the limit that was met last, and when
        self._sure = 0  # how often in a row it was met there
        self._round, self._rounds = 0.0, 0  # since when calls tell something new; rounds in vain since it was met
        self._until = self._next = 0.0  # nobody begins before the one; at this pace nobody does before the other
        self._regrows, self._careful = 0.0, CAREFUL[0]
        self._waiting: deque[asyncio.Future[None]] = deque()
        self._timer: asyncio.TimerHandle | None = None

    def enter(self) -> bool:
        """Take a place at once if there is one."""
        return not self._waiting and self._take()

    async def queue(self) -> None:
        """Wait for a place and take it; first come, first served."""
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

    def succeed(self, began: float, tries: int = 0) -> None:
        """A call that began at `began` was answered, after `tries` that failed."""
        now = time.monotonic()
        self._usual += (now - began - self._usual) * (0.1 if self.answered is not None else 1.0)
        self.answered, self._reached, self._silent = now, True, None
        self._latest = max(self._latest, began)
        self._limited *= 1.0 - 1.0 / MEMORY
        if tries:
            self._starved *= 1.0 - 1.0 / MEMORY
        self._failed = 0
        if self.down and began >= self._fell:  # what was asked before says nothing of now
            self.down, self._regrows = False, now
        if self.running + 1.0 > self.limit * 0.9:  # a limit that nobody comes near proves nothing
            self.limit = min(self.most, max(self.limit, min(self.limit + 1.0, self._grown(now))))

    def slow_down(self, fault: ModelFault, began: float) -> float:
        """A call that began at `began` met a rate limit; returns the seconds for which it is held back.

        Raises ProviderGone when the provider has answered nobody for too long.
        """
        now, asked = time.monotonic(), fault.retry_after
        self._check(fault, now, asked or 0.0)
        self._limited += (1.0 - self._limited) / MEMORY
        if self._limited <= TOLERATED:
            return PAUSE if asked is None else asked
        if self._latest >= self._met:  # somebody was answered since: it is met anew
            self._meet(now)
        self.limit = max(LEAST, self._ceiling * CUT, min(self.limit, self.running - 1.0))
        new = began >= self._round
        self._rounds += new
        pause = min(PROBE, PAUSE * 2.0 ** min(self._rounds - 1, 20)) if asked is None else asked
        if asked is not None or self._rounds > 1:
            self._until = max(self._until, now + pause)
        if new:
            self._round = max(now, self._until)
        self._regrow(now, min(max(1.0, 2.0 * self._usual) * 2.0**self._sure, max(10.0 * (asked or 0.0), CAREFUL[0])))
        return pause

    def fail(self, fault: ModelFault, tries: int) -> float:
        """A call failed in another way, for the `tries`th time; returns the seconds for which it is held back.

        Raises ProviderGone when nobody should go on.
        """
        now, asked = time.monotonic(), fault.retry_after
        silent = self._check(fault, now)
        self._failed += tries <= EACH
        if not self.down and self._failed >= ROW and silent >= min(self._usual, PROBE):
            self._fall(fault, now)
        if self.down:
            self._probe = max(self._probe, now + (asked or 0.0))
            return 0.0
        if tries > 1:
            self._starved += (1.0 - self._starved) / MEMORY
        if self._starved > STARVED and now >= self._regrows + self._usual:
            self._ceiling, self.limit = self.limit, max(1.0, self.limit * SHRINK)
            self._regrow(now, CAREFUL[0])
        if asked is not None:
            return asked
        quick = min(PAUSE, max(0.01, self._usual / 5))  # where answers are quick, tries are
        return float(min(PROBE, quick * 1.5 ** min(tries - 1, 30)))

    def _check(self, fault: ModelFault, now: float, pause: float = 0.0) -> float:
        """The seconds since when nobody was answered; raises ProviderGone when they would be too many."""
        self._reached = self._reached or fault.kind != "unreachable"
        self._silent = now if self._silent is None else self._silent
        silent = now - self._silent
        known = self.answered is not None or fault.kind == "429"
        patience = OUTAGE if known else LOADING if self._reached else UNSEEN
        if silent + pause <= patience:
            return silent
        self.down, self._failed, self._silent = False, 0, None  # whoever tries again later starts afresh
        why = f"nobody was answered for {silent:.0f} s" if self._reached else "nobody has ever reached it"
        raise ProviderGone(f"{fault} ({why})", kind=fault.kind) from fault

    def _fall(self, fault: ModelFault, now: float) -> None:
        self.down, self._fell, self._probes, self._probe = True, now, 0, now + PAUSE
        late = fault.kind == "time-out"  # it may be that so many at once are more than it can do in time
        if START < self.limit < math.inf:
            self._ceiling = max(START, self.limit / 2) if late else self.limit
            self.limit = START
        self._regrow(now, CAREFUL[0])
        self._careful = LATE if late else self._careful

    def _meet(self, now: float) -> None:
        level = self.limit if self.limit < math.inf else float(self.running)
        alike = abs(level / self._ceiling - 1.0) < ALIKE
        self._sure = min(self._sure + 1, 20) if alike else 0
        self._ceiling, self._met, self._round, self._rounds = level, now, 0.0, 0

    def _regrow(self, now: float, seconds: float) -> None:
        """Grow again when all holds are over, to where the limit was met within `seconds`."""
        self._regrows = max(now, self._until)
        self._careful = min(seconds, CAREFUL[1])

    def _grown(self, now: float) -> float:
        if self._ceiling == math.inf:
            return math.inf
        way = (now - self._regrows) / self._careful - 1.0  # from -1 by 0, where it was met, onwards
        return self._ceiling * (1.0 + (1.0 - CUT) * way**3)

    def _take(self) -> bool:
        now = time.monotonic()
        if now < self._until or self.running + 1 > self.most:
            return False
        if self.down:
            if now < self._probe:
                return False
            self._probe = now + min(PROBE, PAUSE * 2.0 ** min(self._probes, 20))
            self._probes += 1
        elif now < self._next or self.running + 1 > max(1.0, self.limit):
            return False
        elif self._ceiling < math.inf:  # it has limits: not all at once when a hold is over
            self._next = max(self._next, now - SLACK * self._usual) + self._usual / self.limit
        self.running += 1
        return True

    def _admit(self) -> None:
        """Let in whoever there is room for; while all are held back, come again when that is over."""
        while self._waiting:
            if self._waiting[0].done():  # cancelled
                self._waiting.popleft()
            elif self._take():
                self._waiting.popleft().set_result(None)
            else:
                break
        if not self._waiting and self._timer is None:
            return
        seconds = max(self._until, self._probe if self.down else self._next) - time.monotonic()
        wanted = self._waiting and seconds > 0
        if self._timer is not None and not (wanted and self._timer.when() <= self._timer_at(seconds)):
            self._timer.cancel()
            self._timer = None
        if wanted and self._timer is None:
            self._timer = asyncio.get_running_loop().call_at(self._timer_at(seconds), self._again)

    @staticmethod
    def _timer_at(seconds: float) -> float:
        return asyncio.get_running_loop().time() + seconds + 0.001

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
