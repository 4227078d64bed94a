"""A budget asked call by call: never passed in calls, and by at most the last call in what is only known afterwards."""

import asyncio
from pathlib import Path

import pytest

from evolve.budget import Budget
from evolve.purse import Purse
from harness.journal import Journal
from harness.model import Usage
from harness.proxy.refusal import Exhausted

TEN = Usage(prompt_tokens=7, output_tokens=3, dollars=0.5, seconds=2.0)


async def spend(purse: Purse, callers: int, usage: Usage | None = TEN) -> tuple[int, int, int]:
    """(calls made, calls refused, most at once) of `callers` that all want one call."""
    flying = most = made = refused = 0

    async def call() -> None:
        nonlocal flying, most, made, refused
        try:
            await purse.take()
        except Exhausted:
            refused += 1
            return
        flying += 1
        most = max(most, flying)
        await asyncio.sleep(0)
        flying, made = flying - 1, made + 1
        purse.settle(usage)

    await asyncio.gather(*(call() for _ in range(callers)))
    return made, refused, most


@pytest.mark.parametrize(
    ("text", "made", "most"),
    [("5calls", 5, 5), ("", 20, 20), ("50tokens", 5, 4), ("2usd", 4, 3), ("10s", 5, 4), ("25tokens", 3, 1)],
)
async def test_no_limit_is_passed_however_many_ask_at_once(text: str, made: int, most: int) -> None:
    budget = Budget.parse(text)
    assert await spend(Purse(budget), 20) == (made, 20 - made, most)
    assert budget.spent["calls"] == made


async def test_a_call_that_failed_costs_nothing_and_makes_room(tmp_path: Path) -> None:
    purse = Purse(Budget.parse("3calls"))
    assert await spend(purse, 3, None) == (3, 0, 3)
    assert await spend(purse, 4) == (3, 1, 3)


async def test_a_call_of_unknown_price_ends_a_budget_of_money() -> None:
    purse = Purse(Budget.parse("9usd"))
    assert await spend(purse, 1, Usage(prompt_tokens=1)) == (1, 0, 1)
    with pytest.raises(Exhausted, match="price is unknown"):
        await purse.take()


async def test_what_a_journal_holds_is_spent(tmp_path: Path) -> None:
    with Journal(tmp_path) as journal:
        call = {"prompt": "p", "output": "o", "usage": TEN.model_dump()}
        turn = {"observation": "", "action": "", "calls": [call, call]}
        journal.append("step", {"attempt": 0, "turn": turn}, "run/agent/a/0")
        purse = Purse(Budget.parse("3calls,99usd"))
        purse.spent_in(journal)
    assert purse.budget.spent == {"calls": 2, "tokens": 20, "dollars": 1.0, "seconds": 4.0}
    assert await spend(purse, 2) == (1, 1, 1)
