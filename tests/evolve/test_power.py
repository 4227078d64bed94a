"""Sizes that were planned show what they were planned for."""

import random
from statistics import fmean, variance

import pytest

from evolve.power import Plan, detectable, plan, t_power, tasks_needed, variance_parts
from evolve.stats import Scores, compare

Arms = tuple[Scores, Scores]


def arms(tasks: int, episodes: int, share: float, rng: random.Random, graded: bool = False) -> Arms:
    """A baseline on tasks of all difficulties, and a candidate that mends a share of its failures."""

    def score(p: float) -> float:
        return rng.betavariate(4 * p + 1e-9, 4 * (1 - p) + 1e-9) if graded else float(rng.random() < p)

    a: dict[tuple[str, int], float | None] = {}
    b: dict[tuple[str, int], float | None] = {}
    for task in range(tasks):
        p = rng.random()
        for episode in range(episodes):
            a[str(task), episode], b[str(task), episode] = score(p), score(p + share * (1 - p))
    return a, b


def test_the_size_of_millers_example() -> None:
    # Miller 2024: a difference of .03 when tasks' differences vary by 1/9 takes 969 tasks (by normal quantiles).
    assert tasks_needed(0.03, 1 / 9) == pytest.approx(969, abs=3)
    assert detectable(1 / 9, 969) == pytest.approx(0.03, abs=1e-4)


def test_variance_parts_are_those_of_the_analysis_of_variance_and_unbiased() -> None:
    # Two tasks of two: means 1 and 4, within (.5 + 2) / 2 = 1.25; among 2 * 4.5 = 9; between (9 - 1.25) / 2.
    assert variance_parts([[0.5, 1.5], [3.0, 5.0]]) == pytest.approx((3.875, 1.25, 5.125))
    assert variance_parts([[1.0], [2.0], [4.0]]) == (None, None, pytest.approx(variance([1, 2, 4])))
    rng = random.Random(1)
    found = []
    for _ in range(400):
        groups = []
        for task in range(12):
            centre = rng.gauss(0, 1)
            groups.append([centre + rng.gauss(0, 2) for _ in range(1 + task % 4)])
        found.append(variance_parts(groups))
    assert fmean(within for _, within, _ in found if within is not None) == pytest.approx(4.0, rel=0.05)
    assert fmean(between for between, _, _ in found if between is not None) == pytest.approx(1.0, rel=0.15)


@pytest.mark.parametrize("graded", [False, True])
@pytest.mark.parametrize("episodes", [1, 3])
def test_a_planned_comparison_shows_its_difference_as_often_as_planned(episodes: int, graded: bool) -> None:
    rng = random.Random(7)
    pilot = plan(*arms(2000, episodes, 0.3, rng, graded), effects=(0.15,), episodes=(episodes,))
    tasks = pilot.sizes[0].tasks
    assert tasks is not None
    shown = [compare(*arms(tasks, episodes, 0.3, rng, graded)).winner == "candidate" for _ in range(300)]
    assert sum(shown) / 300 == pytest.approx(0.8, abs=0.07)


def test_what_a_run_can_detect_is_what_its_size_was_planned_for() -> None:
    for step in (0.0, 1.0):
        tasks = tasks_needed(0.12, 0.2, step=step)
        assert tasks is not None
        assert t_power(0.12, 0.2, tasks, step=step) >= 0.8 > t_power(0.12, 0.2, tasks - 1, step=step)
        assert detectable(0.2, tasks, step=step) <= 0.12 < detectable(0.2, tasks - 1, step=step)


def test_more_episodes_average_out_luck_and_not_what_differs_between_tasks() -> None:
    found = plan(arms(80, 4, 0.0, random.Random(2))[0], effects=(0.1,), episodes=(1, 2, 4, 1000))
    sizes = [size.tasks or 0 for size in found.sizes]
    assert sizes == sorted(sizes, reverse=True)
    assert found.between is not None
    floor = tasks_needed(0.1, 2 * found.between * (1 - 0.5))
    assert sizes[-1] == pytest.approx(floor, abs=1)
    alike = plan(arms(80, 4, 0.0, random.Random(2))[0], effects=(0.1,), episodes=(4,), correlation=0.9)
    assert alike.sizes[0].tasks < sizes[2]  # type: ignore[operator]


def test_the_episodes_that_a_fixed_set_of_tasks_takes_are_the_fewest() -> None:
    scores = arms(80, 4, 0.0, random.Random(3))[0]
    reach = plan(scores, effects=(0.12,)).reaches[0]
    assert reach.episodes is not None
    assert reach.episodes > 1
    enough = plan(scores, effects=(0.12,), episodes=(reach.episodes - 1, reach.episodes)).sizes
    assert enough[0].tasks > 80 >= enough[1].tasks  # type: ignore[operator]
    never = plan(scores, effects=(0.01,)).reaches[0]
    assert (never.episodes, never.known) == (None, True)


def test_with_one_episode_a_task_sizes_are_the_largest_possible_and_that_is_said() -> None:
    rng = random.Random(4)
    several = arms(2000, 4, 0.0, rng)[0]
    once = {key: score for key, score in several.items() if key[1] == 0}
    known, unknown = plan(several, effects=(0.1,)), plan(once, effects=(0.1,))
    assert unknown.between is None
    assert unknown.within is None
    for a, b in zip(known.sizes, unknown.sizes, strict=True):
        assert a.tasks < 1.02 * b.tasks  # type: ignore[operator]
    assert plan({k: v for k, v in once.items() if int(k[0]) < 40}, effects=(0.1,)).reaches[0].known is False


def test_gaps_ask_for_more_tasks() -> None:
    rng = random.Random(5)
    scores = {key: score if rng.random() > 0.1 else None for key, score in arms(300, 2, 0.0, rng)[0].items()}
    found = plan(scores, effects=(0.1,), episodes=(2,))
    assert found.missing == pytest.approx(0.1, abs=0.03)
    size = found.sizes[0]
    assert size.asked == pytest.approx(size.tasks / (1 - found.missing) ** 2, abs=1)  # type: ignore[operator]
    assert Plan.model_validate_json(found.model_dump_json()) == found


@pytest.mark.parametrize(
    ("scores", "how", "says"),
    [
        ({("a", 0): 1.0}, {}, "two at least"),
        ({("a", 0): 1.0, ("b", 0): 1.0}, {}, "all scores are equal"),
        ({("a", 0): 1.0, ("b", 0): 0.0}, {"effects": (2.0,)}, "effect 2.0 cannot be"),
        ({("a", 0): 1.0, ("b", 0): 0.0}, {"episodes": (0,)}, "episodes 0 cannot be"),
        ({("a", 0): 1.0, ("b", 0): 0.0}, {"correlation": 1.5}, "correlation 1.5 cannot be"),
        ({("a", 0): 1.0, ("b", 0): 0.0}, {"power": 1.0}, "power 1.0 cannot be"),
        ({("a", 0): 1.0, ("b", 0): 0.0}, {"other": {("c", 0): 1.0}}, "no task and episode"),
    ],
)
def test_what_cannot_be_planned_says_why(scores: Scores, how: dict[str, object], says: str) -> None:
    with pytest.raises(ValueError, match=says):
        plan(scores, **how)  # type: ignore[arg-type]


def test_a_hopeless_difference_has_no_size() -> None:
    assert tasks_needed(1e-5, 0.25) is None
    assert "over 1,000,000 tasks" in plan({("a", 0): 1.0, ("b", 0): 0.0}, effects=(1e-4,), episodes=(1,)).summary()
