"""The household as a benchmark: made the same for everyone, split cleanly, solvable, and quick to refuse nonsense."""

import asyncio
import json
import random

import pytest

from envs import Benchmark, Env, Evaluator, Task
from envs.benchmark import Policy
from envs.household import LEVELS, TASK_TYPES, Household, benchmark


async def _play(bench: Benchmark, task: Task, name: str, seed: int = 0) -> tuple[float, int]:
    env = bench.make_env()
    observation = await env.reset(task, seed)
    policy: Policy = bench.policies[name](env, random.Random(seed))
    rewards: list[float | None] = []
    while True:
        step = await env.step(policy(observation))
        observation = step.observation
        rewards.append(step.reward)
        if step.done:
            await env.close()
            return bench.score(rewards), len(rewards)


def _play_all(bench: Benchmark, tasks: list[Task], name: str) -> list[tuple[float, int]]:
    async def all_of_them() -> list[tuple[float, int]]:
        return [await _play(bench, task, name, seed) for seed, task in enumerate(tasks)]

    return asyncio.run(all_of_them())


def _modulo_numbers(task: Task) -> str:
    room = sorted(
        [place.rsplit(" ", 1)[0], sorted(thing.rsplit(" ", 1)[0] for thing in things)]
        for place, things in task.data["receptacles"]
    )
    return json.dumps([task.data["type"], task.data["object"], task.data["target"], room])


@pytest.mark.parametrize("level", LEVELS)
def test_the_expert_solves_every_task_within_the_steps_allowed(level: int) -> None:
    bench = benchmark(level)
    played = _play_all(bench, bench.tasks("test", 150) + bench.tasks("train", 150), "expert")
    assert {score for score, _ in played} == {1.0}
    assert max(steps for _, steps in played) <= (8 if level == 1 else bench.max_steps)


def test_blind_chance_succeeds_now_and_then_at_level_one() -> None:
    bench = benchmark(1)
    played = _play_all(bench, bench.tasks("train", 2000), "random")
    assert 0.03 <= sum(score for score, _ in played) / len(played) <= 0.08
    assert max(steps for _, steps in played) == 15


@pytest.mark.parametrize("level", [1, 4])
def test_no_two_splits_share_a_layout_whatever_the_numbers(level: int) -> None:
    bench = benchmark(level)
    layouts = {split: [_modulo_numbers(task) for task in bench.tasks(split, 1000)] for split in bench.splits}
    assert set(layouts) == {"train", "valid", "test"}
    for split, mine in layouts.items():
        assert len(set(mine)) == 1000, f"{split} repeats a layout"
        assert all(set(mine).isdisjoint(other) for name, other in layouts.items() if name != split)


def test_splits_stay_apart_across_levels_and_overrides() -> None:
    sides: dict[str, set[str]] = {"train": set(), "test": set()}
    for bench in (benchmark(1), benchmark(1, receptacles=4), benchmark(2), benchmark(2, receptacles=4, distractors=1)):
        for split, side in sides.items():
            side.update(_modulo_numbers(task) for task in bench.tasks(split, 500))
    assert not sides["train"] & sides["test"]


def test_a_split_without_a_number_has_its_standard_size() -> None:
    bench = benchmark(1)
    assert [len(bench.tasks(split)) for split in ("train", "valid", "test")] == [2000, 200, 500]


def test_task_i_is_the_same_for_everyone() -> None:
    random.seed(1)
    first = benchmark(3).tasks("train", 50)
    random.seed(2)
    asked_piecemeal = benchmark(3)
    asked_piecemeal.tasks("train", 7)
    assert asked_piecemeal.tasks("train", 10, offset=40) == first[40:]
    # Pinned, so that a change of the maker is noticed: published figures hang on it.
    assert benchmark(1).tasks("test", 1)[0].id == "household-1-test-0-5761dd2a"


def test_making_tasks_leaves_the_global_random_stream_alone() -> None:
    random.seed(3)
    before = random.getstate()
    benchmark(6).tasks("valid", 5)
    assert random.getstate() == before


def test_every_level_asks_for_its_task_types_evenly() -> None:
    for level in (4, 6):
        types = [task.data["type"] for task in benchmark(level).tasks("train", 1200)]
        assert {kind: types.count(kind) for kind in TASK_TYPES} == pytest.approx(dict.fromkeys(TASK_TYPES, 200), abs=60)


def test_a_task_survives_json_and_needs_nothing_else() -> None:
    bench = benchmark(4)
    for task in bench.tasks("valid", 30):
        again = Task.model_validate_json(json.dumps(json.loads(task.model_dump_json()), sort_keys=True))
        assert asyncio.run(_play(bench, again, "expert")) == asyncio.run(_play(bench, task, "expert"))


def test_the_benchmark_says_what_it_is() -> None:
    bench = benchmark(level=2)
    assert (bench.name, bench.licence, bench.evaluator) == ("household", "Apache-2.0", Evaluator.RULE)
    assert set(bench.policies) == {"expert", "random"}
    assert isinstance(bench.make_env(), Env)


def test_overrides_change_what_they_name() -> None:
    tasks = benchmark(1, tasks="look_at_obj_in_light", receptacles=(6, 6), distractors=3, max_steps=40, openable=0)
    for task in tasks.tasks("train", 40):
        assert task.data["type"] == "look_at_obj_in_light"
        assert task.data["max_steps"] == tasks.max_steps == 40
        places = [place for place, _ in task.data["receptacles"]]
        assert len(places) == 6
        assert not any(place.split()[0] in {"cabinet", "drawer", "fridge", "microwave", "safe"} for place in places)


def test_task_types_can_be_given_as_one_text() -> None:
    bench = benchmark(4, tasks="pick_two_obj_and_place+look_at_obj_in_light")
    types = {task.data["type"] for task in bench.tasks("train", 30)}
    assert types == {"pick_two_obj_and_place", "look_at_obj_in_light"}


@pytest.mark.parametrize(
    ("level", "overrides", "words"),
    [
        (7, {}, "1, 2, 3, 4, 5, 6"),
        (True, {}, "level"),
        (1.0, {}, "level"),
        ("1", {}, "level"),
        (1, {"tasks": "juggle"}, "pick_and_place_simple"),
        (1, {"tasks": ()}, "tasks"),
        (1, {"receptacles": 1}, "receptacles.*2 to 30"),
        (1, {"receptacles": (5, 4)}, "lowest"),
        (1, {"distractors": "many"}, "distractors"),
        (1, {"max_steps": 0}, "max_steps.*3 to 1000"),
        (1, {"openable": True}, "openable"),
        (1, {"wordings": 3}, "wordings.*1 to 2"),
        (1, {"information": 1}, "information"),
        (1, {"colour": "red"}, "colour.*receptacles"),
    ],
)
def test_a_wrong_level_or_override_is_named_with_what_is_allowed(
    level: int, overrides: dict[str, object], words: str
) -> None:
    with pytest.raises(ValueError, match=words):
        benchmark(level, **overrides)


def test_settings_that_allow_no_layout_say_so_instead_of_searching_for_ever() -> None:
    impossible = benchmark(1, tasks="pick_heat_then_place_in_recep", openable=0)
    with pytest.raises(ValueError, match="Cure"):
        impossible.tasks("train", 1)
    with pytest.raises(ValueError, match="only 0 tasks"):
        impossible.tasks("train")


def test_a_task_without_a_layout_is_refused_by_name() -> None:
    with pytest.raises(ValueError, match=r"'stranger'.*Cure"):
        asyncio.run(Household().reset(Task(id="stranger", split="train", goal="?"), 0))
    good = benchmark(1).tasks("train", 1)[0]
    newer = good.model_copy(update={"data": {**good.data, "version": 2}})
    with pytest.raises(ValueError, match="version 2"):
        asyncio.run(Household().reset(newer, 0))
