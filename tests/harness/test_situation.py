"""The wording of situations: the same part in the problem gets the same word, and every move leads back to actions."""

import random

import pytest

from envs import Observation
from envs.registry import load
from harness.situation import describe
from harness.trajectory import Turn

GOAL = "put some apple on table."
CHOICES = ("go to fridge 1", "go to fridge 2", "go to table 1", "open fridge 1")


def turn(action: str, move: str = "", invalid: bool = False) -> Turn:
    return Turn(observation="", action=action, move=move, invalid=invalid)


def test_the_slots_of_the_goals_things_are_the_same_before_and_after_they_are_seen() -> None:
    before = describe("slots", GOAL, [], Observation("You see a fridge 1 and a table 1.", CHOICES), 4)
    after = describe(
        "slots", GOAL, [turn("go to fridge 1", "go to <new>")],
        Observation("On the fridge 1, you see a apple 2.", ("take apple 2 from fridge 1", *CHOICES)), 4,
    )  # fmt: skip
    assert before.text == "Goal: put some <A> on <B>.\nNow: You see a <thing> and a <B>."
    assert list(before.moves) == ["go to <new>", "go to <B>", "open <new>"]
    assert after.text == "Goal: put some <A> on <B>.\nDone: go to <new>\nNow: On the <here>, you see a <A>."
    assert list(after.moves) == ["take <A> from <here>", "go to <here>", "go to <new>", "go to <B>", "open <here>"]


def test_equal_layouts_with_other_names_read_the_same() -> None:
    swap = str.maketrans("12", "97")
    one = describe("slots", GOAL, [turn("go to fridge 2")], Observation("You see a fridge 1.", CHOICES), 4)
    two = describe(
        "slots", "put some mug on shelf.", [turn("go to drawer 7")],
        Observation("You see a drawer 9.", tuple(
            c.translate(swap).replace("fridge", "drawer").replace("table", "shelf") for c in CHOICES
        )), 4,
    )  # fmt: skip
    assert one.text == two.text
    assert list(one.moves) == list(two.moves)


def test_a_move_stands_for_all_its_actions_in_order() -> None:
    moves = describe("slots", GOAL, [], Observation("You see a fridge 1.", CHOICES), 4).moves
    assert moves["go to <new>"] == ("go to fridge 1", "go to fridge 2")


def test_what_was_acted_on_is_here_then_old_and_what_failed_is_not_counted() -> None:
    turns = [turn("go to fridge 1", "go to <new>"), turn("go to shelf 1", "go to <new>")]
    sight = Observation("You see a shelf 1.", ("go to fridge 1", "go to shelf 1", "go to drawer 1"))
    assert list(describe("slots", GOAL, turns, sight, 4).moves) == ["go to <old>", "go to <here>", "go to <new>"]
    missed = [*turns[:1], turn("go to shelf 1", invalid=True)]
    assert list(describe("slots", GOAL, missed, sight, 4).moves) == ["go to <here>", "go to <new>"]


def test_history_shows_the_last_moves_and_none_at_all_for_zero() -> None:
    turns = [turn(f"go to shelf {n}", f"move {n}") for n in range(5)]
    sight = Observation("You see a shelf 1.")
    assert "Done: move 3, move 4\n" in describe("slots", GOAL, turns, sight, 2).text
    assert "Done" not in describe("slots", GOAL, turns, sight, 0).text
    assert "Done: go to shelf 3, go to shelf 4\n" in describe("plain", GOAL, turns, sight, 2).text
    assert "Done" not in describe("plain", GOAL, turns, sight, 0).text


def test_plain_wording_keeps_the_worlds_own_words_and_actions() -> None:
    found = describe("plain", GOAL, [], Observation("You see\n  a fridge 1.", CHOICES), 4)
    assert found.text == f"Goal: {GOAL}\nNow: You see a fridge 1."
    assert found.moves == {choice: (choice,) for choice in CHOICES}


def test_a_world_without_choices_has_no_moves() -> None:
    assert describe("slots", GOAL, [], Observation("You see a shelf 1."), 4).moves == {}
    assert describe("plain", GOAL, [], Observation("Hello"), 4).moves == {}


@pytest.mark.parametrize("level", [1, 3, 6])
def test_in_a_household_no_numbered_name_leaks_and_every_choice_is_reached(level: int) -> None:
    import asyncio

    benchmark = load(f"household:level={level}")
    rng = random.Random(level)

    async def play() -> None:
        for task in benchmark.tasks("train", 4):
            env = benchmark.make_env()
            observation, turns, done = await env.reset(task, 0), [], False
            while not done:
                found = describe("slots", task.goal, turns, observation, 6)
                for text in (found.text, *found.moves):
                    assert not any(part.isdigit() for part in text.replace(".", " ").replace(",", " ").split()), text
                assert sorted(a for actions in found.moves.values() for a in actions) == sorted(observation.choices)
                assert len({a for actions in found.moves.values() for a in actions}) == len(observation.choices)
                move = rng.choice(list(found.moves))
                action = rng.choice(found.moves[move])
                turns.append(Turn(observation=observation.text, action=action, move=move))
                step = await env.step(action)
                observation, done = step.observation, step.done
            await env.close()

    asyncio.run(play())
