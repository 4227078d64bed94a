"""A score is a number within its range, and solved is solved whatever binary fractions make of a sum."""

from collections.abc import Sequence
from dataclasses import replace
from decimal import Decimal
from fractions import Fraction
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from envs import Benchmark, EnvFault, Task, fixed
from envs.benchmark import solves

TASKS = fixed([Task(id="a", split="test", goal="g")])
MARK = Benchmark("mark", lambda: None, TASKS)  # type: ignore[arg-type, return-value]


@given(st.integers(1, 300))
def test_equal_parts_of_a_whole_solve_it_and_leave_the_range_never(parts: int) -> None:
    score = MARK.score([1 / parts] * parts)
    assert MARK.solved(score)
    assert score <= 1.0


def test_ten_tenths_are_one_and_nine_ninths_stay_within_the_range() -> None:
    assert MARK.score([0.1] * 10) == 1.0
    assert MARK.score([1 / 9] * 9) == 1.0
    running = replace(MARK, metric=lambda rewards: sum(r or 0.0 for r in rewards))  # a metric that sums by itself
    assert running.score([0.1] * 10) < 1.0
    assert running.solved(running.score([0.1] * 10))
    assert running.score([1 / 9] * 9) <= 1.0


@pytest.mark.parametrize(("score", "solved"), [(1.0, True), (1 - 1e-10, True), (1 - 1e-6, False), (0.5, False)])
def test_what_counts_as_solved_forgives_rounding_only(score: float, solved: bool) -> None:
    assert MARK.solved(score) is solved
    assert solves(score * 1e6, 1e6) is solved


def test_no_reward_is_the_lowest_score() -> None:
    assert replace(MARK, reward_range=(-1.0, 1.0)).score([None, None]) == -1.0


@pytest.mark.parametrize(
    ("value", "said"),
    [
        ("1", "a str that is no finite number"), (float("nan"), "no finite number"), (10**400, "too large"),
        (1.01, r"1\.01, which is outside of reward_range"), (-0.1, "outside of"), (Decimal(1), "a Decimal"),
    ],
)  # fmt: skip
def test_a_metrics_value_that_is_no_number_of_the_range_is_a_fault(value: Any, said: str) -> None:
    with pytest.raises(EnvFault, match=said):
        replace(MARK, metric=lambda rewards: value).score([])


@pytest.mark.parametrize("value", [Fraction(1, 2), True, 0])
def test_every_real_number_becomes_a_float(value: Any) -> None:
    score = replace(MARK, metric=lambda rewards: value).score([])
    assert type(score) is float
    assert score == value


WRONG: Sequence[tuple[str, Any]] = [
    ("name", ""), ("name", 3), ("make_env", None), ("splits", [1]), ("metric", 1), ("evaluator", 3),
    ("reward_range", 5), ("reward_range", (0,)), ("reward_range", ("a", "b")), ("success_at", "1"), ("max_steps", 2.5),
    ("policies", ()), ("description", None),
]  # fmt: skip


@pytest.mark.parametrize(("field", "value"), WRONG)
def test_a_field_of_the_wrong_kind_is_an_error_where_it_is_made(field: str, value: Any) -> None:
    with pytest.raises(TypeError, match=f"{field} cannot be .* Cure: {field} is "):
        replace(MARK, **{field: value})


def test_a_split_that_is_no_function_is_told() -> None:
    with pytest.raises(ValueError, match=r"split 'test' is a list and not callable\. Cure: splits=fixed"):
        replace(MARK, splits={"test": []}).tasks("test")  # type: ignore[dict-item]
