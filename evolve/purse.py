"""A budget asked call by call: the proxy's agents are not ours, so nothing is known of an episode before it is played.

A limit on calls is never passed. Of tokens, money and time the cost of a call is known only afterwards: the first call
is made alone, and then as many at once as the dearest so far allows, so at most the last ones pass a limit, by less
than they cost.
"""

import asyncio

from evolve.budget import Budget, BudgetExhausted
from harness.journal import Journal
from harness.model import Usage
from harness.proxy.refusal import Exhausted

_UNITS = ("calls", "tokens", "dollars", "seconds")


class Purse:
    """What is left of `budget`, for calls that are made at the same time."""

    def __init__(self, budget: Budget) -> None:
        self.budget = budget
        self._flying = 0
        self._dearest: dict[str, float] = {"calls": 1.0}
        self._stopped = ""
        self._settled = asyncio.Event()

    def spent_in(self, journal: Journal) -> None:
        """Count what the journal's calls have cost already: a budget is the run's, and not a process's."""
        for event in journal.events("step"):
            for call in event.body["turn"].get("calls", ()):
                self._count(Usage.model_validate(call.get("usage", {})))

    async def take(self) -> None:
        """Wait until one more call is paid for, and reserve it. Raises Exhausted."""
        while True:
            if self._stopped or self.budget.exhausted() or self.budget.left("calls") < 1:
                raise Exhausted(self._stopped or f"the budget is used up: {self.budget.describe()}")
            if not self._flying or all(self._fits(unit) for unit in _UNITS):
                self._flying += 1
                return
            self._settled.clear()
            await self._settled.wait()

    def settle(self, usage: Usage | None) -> None:
        """A reserved call cost `usage`, or it failed and cost nothing that is known."""
        self._flying -= 1
        if usage is not None:
            self._count(usage)
        self._settled.set()

    def _fits(self, unit: str) -> bool:
        if getattr(self.budget, unit) is None:
            return True
        dearest = self._dearest.get(unit)
        return dearest is not None and self.budget.left(unit) >= (self._flying + 1) * dearest

    def _count(self, usage: Usage) -> None:
        tokens = usage.prompt_tokens + usage.output_tokens
        for unit, amount in (("tokens", tokens), ("dollars", usage.dollars or 0.0), ("seconds", usage.seconds)):
            self._dearest[unit] = max(self._dearest.get(unit, 0.0), amount)
        try:
            self.budget.add(calls=1, tokens=tokens, dollars=usage.dollars, seconds=usage.seconds)
        except BudgetExhausted as error:
            self._stopped = str(error)
