"""A budget is read exactly or refused, and says what is left of what."""

import pytest

from evolve.budget import Budget, BudgetExhausted
from harness.model import Usage
from harness.trajectory import Call, Trajectory, Turn


def trajectory(*prices: float | None) -> Trajectory:
    calls = [
        Call(prompt="p", output="o", usage=Usage(prompt_tokens=10, output_tokens=2, dollars=price)) for price in prices
    ]
    return Trajectory(
        id="x", task="t", split="s", goal="g", episode=0, seed=0, harness="h", model="m", status="truncated",
        turns=tuple(Turn(observation="", action="", calls=(call,)) for call in calls[1:]), unfinished=tuple(calls[:1]),
        score=0.0, seconds=1.5,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("text", "calls", "tokens", "dollars", "seconds"),
    [
        ("", None, None, None, None),
        ("600calls", 600, None, None, None),
        (" 600 calls , 2usd", 600, None, 2, None),
        ("1.5h", None, None, None, 5400),
        ("10min,200000tokens", None, 200000, None, 600),
        ("0calls", 0, None, None, None),
    ],
)
def test_limits_are_read_with_their_units(text, calls, tokens, dollars, seconds) -> None:
    budget = Budget.parse(text)
    assert (budget.calls, budget.tokens, budget.dollars, budget.seconds) == (calls, tokens, dollars, seconds)


@pytest.mark.parametrize(
    "text", ["600", "calls", "-5calls", "6 apples", "1e3calls", "5calls 6tokens", "5calls;6tokens"]
)
def test_text_that_is_no_budget_is_an_error_with_an_example(text: str) -> None:
    with pytest.raises(ValueError, match=r"not understood\. Cure: a number with a unit, as in 600calls"):
        Budget.parse(text)


def test_a_unit_that_is_limited_twice_is_an_error() -> None:
    with pytest.raises(ValueError, match="limits seconds twice"):
        Budget.parse("2min,30s")


def test_an_episode_is_charged_with_all_its_calls_those_of_an_unfinished_turn_too() -> None:
    budget = Budget.parse("10calls,100tokens,1usd,60s")
    budget.charge(trajectory(0.25, 0.25, 0.25))
    assert budget.spent == {"calls": 3, "tokens": 36, "dollars": 0.75, "seconds": 1.5}
    assert [budget.left(unit) for unit in budget.spent] == [7, 64, 0.25, 58.5]
    assert budget.exhausted() is None
    assert budget.affords(9, 3) == 0  # one as dear as the dearest so far would pass the money
    budget.charge(trajectory(0.25))
    assert budget.exhausted() == "dollars"


def test_a_batch_is_as_large_as_calls_certainly_and_the_rest_probably_pay() -> None:
    assert Budget.parse("10calls").affords(9, 3) == 3
    assert Budget.parse("10calls").affords(2, 3) == 2
    dear = Budget.parse("4usd")
    assert dear.affords(8, 3) == 1  # nothing is known yet
    dear.charge(trajectory(0.25, 0.25))
    assert dear.affords(8, 3) == 7
    dear.charge(trajectory(1.5))
    assert dear.affords(8, 3) == 1


def test_without_a_limit_nothing_is_ever_exhausted() -> None:
    budget = Budget()
    budget.add(calls=1e9, tokens=1e12, dollars=1e6, seconds=1e9)
    assert budget.exhausted() is None
    assert budget.affords(50, 50) == 50


def test_an_unknown_price_is_an_error_only_where_money_is_limited() -> None:
    Budget.parse("5calls").charge(trajectory(0.5, None))
    with pytest.raises(BudgetExhausted, match=r"price is unknown\. Cure: give price_in and price_out"):
        Budget.parse("5calls,2usd").charge(trajectory(0.5, None))
