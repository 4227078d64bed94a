"""A change is kept only on evidence, however often one looks and however many changes are tried.

`SequentialPaired` bets against "the candidate is no better" on differences d = candidate - incumbent in [-1, 1].
For a fixed stake l in (0, 1], the product of (1 + l*d) over the pairs is non-negative and, if the mean of each fresh
d is at most 0, a supermartingale that starts at 1; so is the average over a grid of stakes. By Ville's inequality
(any textbook on martingales, e.g. Shafer and Vovk 2019) it ever reaches 1/alpha with probability <= alpha: one may
look after every pair and stop at will. The mirrored bet against "better by at least `margin`" ends hopeless tests.

`AlphaLedger` (evolve/alpha.py) extends the guarantee to the many candidates of a run.

What it asks of the caller: each pair is a fresh task, played by both arms, in an order fixed beforehand and not by who
finishes first; the candidate was not made from these tasks; and no task judges twice in a run. The guarantee is then
about the distribution that the tasks are independent draws from. It is not about one finite set of tasks: of n pairs
drawn from such a set without replacement the wealth at a look fixed beforehand still has mean <= 1 (Maclaurin's
inequality), but stopping at will is not covered.
"""

import math
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal, Protocol, Self

from pydantic import BaseModel, ConfigDict

from evolve.alpha import AlphaLedger as AlphaLedger

#: Stakes of the mixture. A grid, not an adaptive bet: wealth then depends on the pairs seen and not on their order.
STAKES = (0.2, 0.4, 0.6, 0.8, 1.0)


class Verdict(BaseModel):
    """What a gate says now. `final` False: feed more pairs. Undecided and final: too much data was missing."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    gate: str
    decision: Literal["accept", "reject", "undecided"]
    final: bool
    reason: str
    n: int  # pairs with both scores
    missing: int  # pairs asked for that have a gap
    mean_difference: float | None
    e_value: float | None = None  # evidence against "no better": 1 is none, 1/alpha is enough
    alpha: float | None = None
    interval: tuple[float, float] | None = None  # valid at any stopping time
    level: float | None = None


class Gate(Protocol):
    """Judges one candidate. `start` makes a fresh gate with the same settings (and its own alpha if it uses one)."""

    @property
    def name(self) -> str: ...

    def start(self, alpha: float | None = None) -> Self: ...

    def look(self, differences: Sequence[float | None]) -> Verdict:
        """Take the next pairs (candidate - incumbent, None for a gap); ValueError after a final verdict."""
        ...


class _Bet:
    """Log wealth per stake of bets against: mean <= null (side +1) or mean >= null (side -1), for d in [-1, 1]."""

    def __init__(self, null: float, side: int) -> None:
        self.null, self.side, self.room = null, side, 1 + side * null
        self.logs = [0.0] * len(STAKES)

    def add(self, d: float, times: int = 1) -> None:
        edge = self.side * (d - self.null) / self.room
        for i, stake in enumerate(STAKES):
            factor = 1 + stake * edge
            self.logs[i] += times * math.log(factor) if factor > 0 else -math.inf

    @property
    def log_wealth(self) -> float:
        top = max(self.logs)
        if top == -math.inf:
            return top
        return top + math.log(sum(math.exp(value - top) for value in self.logs) / len(STAKES))


@dataclass
class SequentialPaired:
    """Any-time valid paired test of "the candidate is better".

    `bound` is the largest possible |difference| (the width of the reward range). `margin`, as a share of it, is the
    gain worth finding: an edit that has it is dropped early with chance <= `beta`.
    """

    alpha: float = 0.05
    beta: float = 0.2
    margin: float = 0.1
    max_pairs: int = 200
    bound: float = 1.0
    max_missing: float = 0.2
    level: float = 0.9  # of `interval`: each end alone holds with 0.95, as an accept at alpha = 0.05 does
    _tally: "_Tally" = field(init=False, repr=False)
    _values: Counter[float] = field(init=False, repr=False, default_factory=Counter)
    _for: _Bet = field(init=False, repr=False)
    _against: _Bet = field(init=False, repr=False)

    def __post_init__(self) -> None:
        shares = (self.alpha, self.beta, self.margin)
        if not (all(0 < share < 1 for share in shares) and self.bound > 0 and self.max_pairs > 0):
            raise ValueError(f"{self!r}: alpha, beta, margin must lie in (0, 1), bound and max_pairs above 0")
        self._tally = _Tally(self.name, self.max_missing)
        self._for, self._against = _Bet(0.0, 1), _Bet(self.margin, -1)

    @property
    def name(self) -> str:
        return "sequential-paired"

    def start(self, alpha: float | None = None) -> Self:
        """A fresh gate with these settings, at `alpha` if given."""
        return replace(self, alpha=self.alpha if alpha is None else alpha)

    def look(self, differences: Sequence[float | None]) -> Verdict:
        """Take the next pairs and say accept, reject or undecided; the order inside and across looks is irrelevant."""
        if any(d is not None and abs(d) > self.bound * (1 + 1e-9) for d in differences):
            raise ValueError(
                f"gate {self.name}: a difference in {list(differences)} exceeds bound {self.bound}; set bound to the "
                "width of the reward range"
            )
        for d in self._tally.take(differences):
            value = max(-1.0, min(1.0, d / self.bound))
            self._values[value] += 1
            self._for.add(value)
            self._against.add(value)
        tally, e_log = self._tally, self._for.log_wealth
        e_value = math.exp(min(e_log, 690.0))
        decision: Literal["accept", "reject", "undecided"] = "undecided"
        reason, last = f"e = {e_value:.3g} of {1 / self.alpha:.3g} needed", tally.asked >= self.max_pairs
        if e_log >= -math.log(self.alpha):
            decision, reason = "accept", f"better: e = {e_value:.3g} >= {1 / self.alpha:.3g}"
        elif self._against.log_wealth >= -math.log(self.beta):
            decision, reason = "reject", f"futile: a gain of {self.margin:g} is refuted (beta = {self.beta:g})"
        elif last:
            decision, reason = "reject", f"not shown to be better in {self.max_pairs} pairs: {reason}"
        return tally.verdict(
            decision, reason, last, e_value=e_value, alpha=self.alpha, interval=self.interval, level=self.level
        )

    def interval(self) -> tuple[float, float]:
        """Confidence limits at `level`, valid at any stopping time: the nulls that the bets have not refuted."""
        n = sum(self._values.values())
        scale = self.bound
        if not n:
            return -scale, scale
        centre = math.fsum(value * times for value, times in self._values.items()) / n
        need = -math.log((1 - self.level) / 2)
        ends = []
        for side in (1, -1):
            inside, outside = centre, -float(side)
            for _ in range(40):  # wealth is monotone in the null, and at most 1 at the centre
                middle = (inside + outside) / 2
                bet = _Bet(middle, side)
                if bet.room <= 0:
                    break
                for value, times in self._values.items():
                    bet.add(value, times)
                inside, outside = (inside, middle) if bet.log_wealth >= need else (middle, outside)
                if abs(inside - outside) < 1e-6:
                    break
            ends.append(outside * scale)
        return ends[0], ends[1]


@dataclass
class Strict:
    """Accept after `pairs` pairs iff the candidate's mean is higher. Cheap, and noise passes it half of the time."""

    pairs: int
    max_missing: float = 0.2
    _tally: "_Tally" = field(init=False, repr=False)

    def __post_init__(self) -> None:
        if self.pairs < 1:
            raise ValueError(f"gate {self.name}: pairs is {self.pairs}, at least 1 is needed")
        self._tally = _Tally(self.name, self.max_missing)

    @property
    def name(self) -> str:
        return "strict"

    def start(self, alpha: float | None = None) -> Self:
        """A fresh gate with these settings; it makes no claim about error rates, so `alpha` has no effect."""
        return replace(self)

    def look(self, differences: Sequence[float | None]) -> Verdict:
        """Take the next pairs; undecided until `pairs` were asked for."""
        self._tally.take(differences)
        mean, done = self._tally.mean, self._tally.asked >= self.pairs
        if not done or mean is None:
            return self._tally.verdict("undecided", f"{self._tally.asked} of {self.pairs} pairs seen", done)
        passed = mean > 0
        reason = f"mean difference {mean:+.4g} is {'' if passed else 'not '}enough"
        return self._tally.verdict("accept" if passed else "reject", reason, done)


class _Tally:
    """Pairs seen by a gate, and the verdict that follows from a decision and from what is missing."""

    def __init__(self, gate: str, max_missing: float) -> None:
        self.gate, self.max_missing = gate, max_missing
        self.differences: list[float] = []
        self.missing = 0
        self.closed = False

    @property
    def asked(self) -> int:
        return len(self.differences) + self.missing

    @property
    def mean(self) -> float | None:
        return math.fsum(self.differences) / len(self.differences) if self.differences else None

    def take(self, differences: Sequence[float | None]) -> list[float]:
        if self.closed:
            raise ValueError(f"gate {self.gate} has given its final verdict; start() a fresh one for another candidate")
        known = [d for d in differences if d is not None]
        if not all(map(math.isfinite, known)):
            raise ValueError(f"gate {self.gate}: {list(differences)} holds a value that is not finite; a gap is None")
        self.differences += known
        self.missing += len(differences) - len(known)
        return known

    def verdict(
        self,
        decision: Literal["accept", "reject", "undecided"],
        reason: str,
        last: bool,
        *,
        e_value: float | None = None,
        alpha: float | None = None,
        interval: Callable[[], tuple[float, float]] | None = None,
        level: float | None = None,
    ) -> Verdict:
        """A decision stands only if few enough pairs are missing; `last` says that no more pairs will be asked for."""
        if self.missing > self.max_missing * self.asked and (decision != "undecided" or last):
            share = f"{self.missing} of {self.asked} pairs are missing (at most {self.max_missing:.0%} may be)"
            decision, reason = "undecided", f"{share}; otherwise: {decision}, {reason}"
        self.closed = last or decision != "undecided"
        return Verdict(
            gate=self.gate, decision=decision, final=self.closed, reason=reason, n=len(self.differences),
            missing=self.missing, mean_difference=self.mean, e_value=e_value, alpha=alpha,
            interval=interval() if interval and self.closed else None, level=level,
        )  # fmt: skip
