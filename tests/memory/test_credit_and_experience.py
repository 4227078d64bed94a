"""Credit is plain arithmetic; an episode becomes the same items every time."""

import pytest

from memory import (
    Episode,
    QRule,
    Situation,
    Stats,
    credited,
    laplace,
    q_update,
    situation_key,
    step_items,
    trajectory_item,
)


def test_the_q_update_is_the_published_one() -> None:
    assert q_update(0.0, 1.0) == pytest.approx(0.3)
    assert q_update(0.5, -1.0, alpha=0.5, gamma=0.9, next_best=1.0) == pytest.approx(0.25 + 0.5 * (-1 + 0.9))


def test_repeated_success_leads_the_utility_to_the_reward() -> None:
    stats = Stats()
    for _ in range(40):
        stats = QRule()(stats, 1.0)
    assert stats.utility == pytest.approx(1.0, abs=1e-5)
    assert (stats.visits, stats.successes) == (40, 40)


def test_a_floor_holds_and_a_failure_is_no_success() -> None:
    assert QRule(floor=0.0)(Stats(utility=0.1), -1.0) == Stats(utility=0.0, visits=1, successes=0)
    with pytest.raises(ValueError, match="alpha"):
        QRule(alpha=0.0)


def test_laplace_is_a_half_before_any_use() -> None:
    assert laplace(0, 0) == 0.5
    assert laplace(3, 4) == pytest.approx(4 / 6)
    with pytest.raises(ValueError, match="between 0 and uses"):
        laplace(3, 2)


def test_credit_of_unknown_ids_is_left_out_and_of_known_ones_in_order() -> None:
    new = credited({"a": Stats()}, [("a", 1.0), ("gone", 1.0), ("a", -1.0)], QRule(alpha=0.5))
    assert new == {"a": Stats(utility=-0.25, visits=2, successes=1)}


EPISODE = Episode(
    id="t1", goal="cool the egg", success=True, score=1.0,
    situations=[Situation("You see a fridge.", "open fridge"), Situation("It is open.", "cool egg"),
                Situation("You see a fridge.", "open fridge")],
)  # fmt: skip


def test_steps_are_keyed_by_goal_and_situation_and_are_not_doubled() -> None:
    first, second = step_items(EPISODE, "kitchen")
    assert first.key == situation_key("cool the egg", "You see a fridge.") == "Goal: cool the egg\nYou see a fridge."
    assert (first.body, first.kind, first.scope, first.provenance) == ("open fridge", "step", "kitchen", ("t1",))
    assert second.body == "cool egg"


def test_the_same_step_of_another_episode_is_the_same_item() -> None:
    again = Episode(id="t2", goal=EPISODE.goal, success=False, situations=EPISODE.situations[:1])
    assert step_items(again, "kitchen")[0].id == step_items(EPISODE, "kitchen")[0].id


def test_a_whole_trajectory_tells_what_was_seen_done_and_reached() -> None:
    whole = trajectory_item(EPISODE, "kitchen")
    assert whole.key == "cool the egg"
    assert whole.body.splitlines() == [
        "Goal: cool the egg", "You see a fridge.", "> open fridge", "It is open.", "> cool egg",
        "You see a fridge.", "> open fridge", "Outcome: solved"]  # fmt: skip
    assert whole.data == {"success": True, "score": 1.0, "steps": 3}


def test_badly_decoded_observations_still_become_items() -> None:
    broken = Episode(id="t3", goal="", success=False, situations=[Situation("caf\udce9", "say \udce9")])
    (step,) = step_items(broken, "kitchen")
    assert step.key.encode() == "Goal: \ncaf\ufffd".encode()
    assert trajectory_item(broken, "kitchen").key == "(no goal)"
