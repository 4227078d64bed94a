"""One budget over everything that costs: agent, proposer, judge.

A limit on calls is passed only by tries that a broken world or model made worthless: before a batch is played, the
most calls it can make must fit. Tokens, money and time of a batch are not known before: the first episode is played
alone, and later batches are as large as the dearest episode so far allows; one that turns out dearer may pass it.
"""

import re
from dataclasses import dataclass, field

from harness.finished import Finished
from harness.trajectory import Trajectory

_UNITS = {
    "call": "calls", "calls": "calls",
    "token": "tokens", "tokens": "tokens",
    "usd": "dollars", "dollar": "dollars", "dollars": "dollars",
    "s": "seconds", "sec": "seconds", "second": "seconds", "seconds": "seconds",
    "min": "minutes", "minute": "minutes", "minutes": "minutes",
    "h": "hours", "hour": "hours", "hours": "hours",
}  # fmt: skip
_PART = re.compile(r"\s*([0-9]+(?:\.[0-9]+)?)\s*([a-zA-Z]+)\s*")


class BudgetExhausted(Exception):
    """Nothing more may be spent."""


@dataclass
class Budget:
    """Limits (None: no limit) and what was spent of each. `seconds` counts the episodes' own time, summed."""

    calls: float | None = None
    tokens: float | None = None
    dollars: float | None = None
    seconds: float | None = None
    spent: dict[str, float] = field(
        default_factory=lambda: dict.fromkeys(("calls", "tokens", "dollars", "seconds"), 0.0)
    )
    priced: bool = True  # whether the price of every call so far is known
    _dearest: dict[str, float] = field(default_factory=dict, repr=False)

    @classmethod
    def parse(cls, text: str) -> "Budget":
        """A budget from text such as '600calls' or '2usd,30min'; empty text is no limit. Raises ValueError."""
        budget = cls()
        for part in filter(None, text.split(",")):
            match = _PART.fullmatch(part)
            unit = _UNITS.get(match.group(2).lower()) if match else None
            if match is None or unit is None:
                raise ValueError(
                    f"budget '{part.strip()}' is not understood. Cure: a number with a unit, "
                    "as in 600calls, 200000tokens, 2usd, 10min; several are joined by commas"
                )
            number = float(match.group(1)) * {"minutes": 60, "hours": 3600}.get(unit, 1)
            unit = "seconds" if unit in ("minutes", "hours") else unit
            if getattr(budget, unit) is not None:
                raise ValueError(f"budget '{text}' limits {unit} twice. Cure: leave one of them out")
            setattr(budget, unit, number)
        return budget

    @property
    def unlimited(self) -> bool:
        """Whether nothing is limited."""
        return all(getattr(self, unit) is None for unit in self.spent)

    def left(self, unit: str) -> float:
        """What remains of `unit`; infinite without a limit."""
        limit = getattr(self, unit)
        return float("inf") if limit is None else max(0.0, limit - self.spent[unit])

    def exhausted(self) -> str | None:
        """The unit of which nothing is left, or None."""
        return next((unit for unit in self.spent if self.left(unit) <= 0), None)

    def add(self, *, calls: float = 0, tokens: float = 0, dollars: float | None = 0, seconds: float = 0) -> None:
        """Count spending. Unknown dollars are an error only when money is limited."""
        if dollars is None and self.dollars is not None:
            raise BudgetExhausted(
                "the budget limits money, but the model's price is unknown. "
                "Cure: give price_in and price_out (dollars per million tokens) in [model] options"
            )
        self.priced = self.priced and dollars is not None
        for unit, amount in (("calls", calls), ("tokens", tokens), ("dollars", dollars or 0), ("seconds", seconds)):
            self.spent[unit] += amount

    def cost(self) -> dict[str, float | None]:
        """What was spent, for the record; dollars None when the price of any call is unknown."""
        return {**self.spent, "dollars": self.spent["dollars"] if self.priced else None}

    def charge(self, trajectory: Trajectory | Finished) -> None:
        """Count a finished episode."""
        cost = {"tokens": trajectory.tokens, "dollars": trajectory.dollars, "seconds": trajectory.seconds}
        for unit, amount in cost.items():
            self._dearest[unit] = max(self._dearest.get(unit, 0.0), amount or 0.0)
        self.add(
            calls=trajectory.calls, tokens=trajectory.tokens, dollars=trajectory.dollars, seconds=trajectory.seconds
        )

    def affords(self, most: int, calls_each: int) -> int:
        """How many more episodes, up to `most`, this pays, each of at most `calls_each` calls.

        Of calls this is certain. Of tokens, money and time it is judged by the dearest episode so far; before any is
        known it is one.
        """
        if self.exhausted():
            return 0
        fits = most if self.calls is None else min(most, int(self.left("calls") // max(1, calls_each)))
        for unit in ("tokens", "dollars", "seconds"):
            if getattr(self, unit) is not None:
                dearest = self._dearest.get(unit)
                fits = min(fits, 1 if dearest is None else int(self.left(unit) // dearest) if dearest else most)
        return fits

    def describe(self) -> str:
        """What was spent of what, as text."""
        parts = [
            f"{self.spent[u]:,.0f} of {getattr(self, u):,.0f} {u}" for u in self.spent if getattr(self, u) is not None
        ]
        return ", ".join(parts) or f"{self.spent['calls']:,.0f} calls, {self.spent['tokens']:,.0f} tokens"
