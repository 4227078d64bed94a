"""Rows for a trainer hold the sampled ids and their mask, or say that they are only text; nothing is made up."""

import json
import math
from pathlib import Path
from typing import Any

import pytest
import runs
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from evolve.export import Exported, export
from evolve.traces.rows import FORCED, NO_IDS, NO_PROMPT, UNEQUAL, TextRow, TokenRow, rows_of
from harness.known import TAPED
from harness.trajectory import Call, Trajectory


def rows(*calls: Call, **more: Any) -> list[Any]:
    """The rows of a trajectory with one turn a call."""
    return list(rows_of(runs.trajectory(turns=tuple(runs.turn(call) for call in calls), **more)))


def exported(tmp_path: Path, *trajectories: Trajectory, **options: Any) -> tuple[Exported, list[dict[str, Any]]]:
    run = runs.written(tmp_path / "run", trajectories)
    found = export(run, "rows", tmp_path / "rows.jsonl", **options)
    return found, [json.loads(line) for line in (tmp_path / "rows.jsonl").read_text().splitlines()]


def test_a_call_whose_prompt_begins_with_all_that_was_joins_the_row() -> None:
    (row,) = rows(runs.call([1, 2], [3, 4]), runs.call([1, 2, 3, 4, 5], [6]))
    assert row.token_ids == (1, 2, 3, 4, 5, 6)
    assert row.loss_mask == (0, 0, 1, 1, 0, 1)
    assert row.old_logprobs == (None, None, -0.5, -0.5, None, -0.5)
    assert row.step_ids == (0, 0, 0, 0, 1, 1)
    assert [(one.turn, one.start, one.end) for one in row.calls] == [(0, 2, 4), (1, 5, 6)]
    assert (row.kind, row.rl, row.part, row.parts) == ("tokens", True, 0, 1)


@pytest.mark.parametrize("second", [[1, 2, 3, 9, 5], [7, 2], [1, 2, 3]], ids=["drifted", "another", "shorter"])
def test_any_other_prompt_begins_a_row_of_its_own_and_the_trajectory_still_counts_once(second: list[int]) -> None:
    one, two = rows(runs.call([1, 2], [3, 4]), runs.call(second, [6]))
    assert (one.token_ids, one.loss_mask) == ((1, 2, 3, 4), (0, 0, 1, 1))
    assert (two.token_ids, two.loss_mask) == ((*second, 6), (*(0 for _ in second), 1))
    assert {(row.trajectory, row.group, row.parts) for row in (one, two)} == {("run/agent/t0/0", "run/agent/t0", 2)}
    assert [row.part for row in (one, two)] == [0, 1]


def test_a_question_in_between_does_not_break_the_conversation() -> None:
    talk, aside = rows(runs.call([1, 2], [3]), runs.call([8, 8], [9]), runs.call([1, 2, 3, 4], [5]))
    assert (talk.token_ids, talk.step_ids) == ((1, 2, 3, 4, 5), (0, 0, 0, 2, 2))
    assert aside.token_ids == (8, 8, 9)


def test_an_answer_that_a_replay_forced_is_no_sample_of_the_model_that_is_named(tmp_path: Path) -> None:
    forced = runs.call([1, 2], [3]).model_copy(update={"digest": f"m:1{TAPED}"})
    own, text = rows(forced, runs.call([1, 2, 3, 4], [5]))
    assert (own.token_ids, own.loss_mask) == ((1, 2, 3, 4, 5), (0, 0, 0, 0, 1))
    assert (text.kind, text.rl, text.why) == ("text", False, FORCED)


tokens = st.lists(st.integers(0, 3), min_size=1, max_size=5)


@settings(deadline=None)
@given(st.lists(st.tuples(st.booleans(), tokens, tokens), min_size=1, max_size=6))
def test_every_call_is_in_exactly_one_row_with_its_very_prompt_and_answer(chain: list[Any]) -> None:
    calls: list[Call] = []
    for goes_on, new, output in chain:
        before = [*(calls[-1].prompt_ids or ()), *(calls[-1].output_ids or ())] if goes_on and calls else []
        calls.append(runs.call([*before, *new], output))
    made = rows(*calls)
    assert sorted(one.turn for row in made for one in row.calls) == list(range(len(calls)))
    for row in made:
        assert len(row.token_ids) == len(row.loss_mask) == len(row.old_logprobs) == len(row.step_ids)
        for one in row.calls:
            assert row.token_ids[: one.start] == calls[one.turn].prompt_ids
            assert row.token_ids[one.start : one.end] == calls[one.turn].output_ids
    assert sum(sum(row.loss_mask) for row in made) == sum(len(call.output_ids or ()) for call in calls)


def test_without_token_ids_there_is_text_as_it_was_and_it_is_not_for_rl() -> None:
    made = list(rows_of(runs.talk()))
    assert all(isinstance(row, TextRow) and not row.rl and row.why == NO_IDS for row in made)
    assert [row.calls[0].turn for row in made] == [0, 1, 2, 3]  # the last one is that which a limit cut off
    second = made[1]
    assert [message["role"] for message in second.prompt] == ["system", "user", "assistant", "tool"]
    assert second.prompt[1] == {"role": "user", "content": "leave the house ✓"}
    assert second.prompt[3] == {"role": "tool", "content": "a hall", "tool_call_id": "c1"}
    asked = {"id": "c2", "type": "function", "function": {"name": "go", "arguments": '{ "to":"east" }'}}
    assert second.completion == [{"role": "assistant", "content": "", "tool_calls": [asked]}]
    assert second.tools == runs.talk().turns[0].calls[0].tools
    assert second.rewards == (0.0, 0.5, None, None)


def test_a_plain_prompt_stays_a_plain_prompt() -> None:
    (row,) = rows(Call(prompt="Goal: leave\nAction:", output=" go north"))
    assert (row.prompt, row.completion) == ("Goal: leave\nAction:", " go north")


@pytest.mark.parametrize(
    ("call", "why"),
    [
        (runs.call(None, [3]), NO_PROMPT),
        (runs.call([1, 2], None), NO_IDS),
        (runs.call([1, 2], [3, 4], output_logprobs=(-0.1,)), UNEQUAL),
    ],
)
def test_half_of_what_a_token_row_needs_makes_a_text_row_that_says_why(call: Call, why: str) -> None:
    whole, text = rows(runs.call([1], [2]), call)
    assert isinstance(whole, TokenRow)
    assert (text.kind, text.why, text.part, text.parts) == ("text", why, 1, 2)


def test_log_probabilities_that_the_server_did_not_give_or_that_are_no_numbers_stay_empty() -> None:
    (row,) = rows(runs.call([1], [2], output_logprobs=None), runs.call([1, 2], [3], output_logprobs=(-math.inf,)))
    assert row.old_logprobs == (None, None, None)
    assert row.loss_mask == (0, 1, 1)


@pytest.mark.parametrize(
    "change",
    [
        {"loss_mask": (0, 1)}, {"loss_mask": (1, 0, 1)}, {"loss_mask": (0, 0, 0)}, {"old_logprobs": (-0.5, -0.5, -0.5)},
        {"step_ids": ()},
    ],
)  # fmt: skip
def test_a_row_whose_mask_is_not_on_what_was_sampled_cannot_be_made(change: dict[str, Any]) -> None:
    (row,) = rows(runs.call([1], [2, 3]))
    with pytest.raises(ValidationError, match="run/agent/t0/0"):
        TokenRow.model_validate(row.model_dump() | change)


def test_gaps_and_random_players_are_left_out_and_counted(tmp_path: Path) -> None:
    policy = runs.trajectory("t2", turns=(runs.turn(),))
    found, made = exported(tmp_path, runs.trajectory("t0"), runs.gap("t1"), policy, runs.trajectory("t3", score=None))
    assert (found.trajectories, found.gaps, found.no_calls, found.text_rows, found.token_rows) == (2, 1, 1, 2, 0)
    assert [(row["task"], row["outcome_reward"]) for row in made] == [("t0", 1.0), ("t3", None)]
    assert "left out: 1 gaps, 1 without a model call" in found.summary()


def test_an_exam_teaches_nobody_unless_its_split_is_asked_for(tmp_path: Path) -> None:
    exam = runs.trajectory("t9", phase="exam", split="test")
    found, made = exported(tmp_path / "a", runs.trajectory(), exam)
    assert ([row["split"] for row in made], found.held_out) == (["train"], 1)
    found, made = exported(tmp_path / "b", runs.trajectory(), exam, split="test")
    assert ([row["split"] for row in made], found.held_out) == (["test"], 0)


def test_every_line_is_a_row_that_stands_alone(tmp_path: Path) -> None:
    tokens = runs.trajectory(turns=(runs.turn(runs.call([1, 2], [3]), reward=0.25),))
    found, made = exported(tmp_path, tokens, runs.talk().model_copy(update={"id": "run/agent/t1/0"}))
    assert (found.token_rows, found.text_rows) == (1, 4)
    assert TokenRow.model_validate(made[0]).rewards == (0.25,)
    for line in made[1:]:
        TextRow.model_validate(line)
    assert {row["run"] for row in made} != {""}
    assert {row["format"] for row in made} == {1}
