"""The rules of the household: its wording, what counts as success, and what no sequence of commands can break."""

import asyncio
import random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from envs import Step, Task
from envs.household import LEVELS, TASK_TYPES, Household, Layout, World, benchmark

ROOM = (
    ("cabinet 1", ("mug 1",)),
    ("cabinet 2", ()),
    ("countertop 1", ("apple 1", "apple 2", "knife 1")),
    ("desk 1", ("desklamp 1", "mug 2")),
    ("fridge 1", ()),
    ("microwave 1", ()),
    ("sinkbasin 1", ("soapbar 1",)),
    ("toaster 1", ()),
)


def _layout(kind: str = "pick_and_place_simple", thing: str = "mug", target: str = "cabinet", **more: Any) -> Layout:
    return Layout.model_validate(
        {"type": kind, "object": thing, "target": target, "receptacles": ROOM, "max_steps": 50, **more}
    )


def _answers(world: World, *commands: str) -> list[str]:
    return [world.act(command) for command in commands]


def _solved_after(layout: Layout, *commands: str) -> list[bool]:
    world, solved = World(layout), []
    for command in commands:
        assert command in world.commands(), f"{command} cannot be done"
        world.act(command)
        solved.append(world.solved())
    return solved


def test_every_command_answers_in_alfworlds_words() -> None:
    world = World(_layout())
    assert world.look() == (
        "You are in the middle of a room. Looking quickly around you, you see a cabinet 1, a cabinet 2, "
        "a countertop 1, a desk 1, a fridge 1, a microwave 1, a sinkbasin 1, and a toaster 1."
    )
    script = {
        "go to cabinet 1": "You arrive at cabinet 1. The cabinet 1 is closed.",
        "open cabinet 1": "You open the cabinet 1. The cabinet 1 is open. In it, you see a mug 1.",
        "take mug 1 from cabinet 1": "You pick up the mug 1 from the cabinet 1.",
        "examine cabinet 1": "The cabinet 1 is open. In it, you see nothing.",
        "close cabinet 1": "You close the cabinet 1.",
        "look": "You are facing the cabinet 1. Next to it, you see nothing.",
        "inventory": "You are carrying: a mug 1.",
        "examine mug 1": "This is a normal mug 1. In it, you see nothing.",
        "go to desk 1": "You arrive at desk 1. On the desk 1, you see a desklamp 1, and a mug 2.",
        "move mug 1 to desk 1": "You move the mug 1 to the desk 1.",
        "examine desk 1": "On the desk 1, you see a desklamp 1, a mug 1, and a mug 2.",
        "use desklamp 1": "You turn on the desklamp 1.",
        "go to countertop 1": "You arrive at countertop 1. "
        "On the countertop 1, you see a apple 1, a apple 2, and a knife 1.",
        "take apple 2 from countertop 1": "You pick up the apple 2 from the countertop 1.",
        "go to sinkbasin 1": "You arrive at sinkbasin 1. On the sinkbasin 1, you see a soapbar 1.",
        "clean apple 2 with sinkbasin 1": "You clean the apple 2 using the sinkbasin 1.",
        "go to microwave 1": "You arrive at microwave 1. The microwave 1 is closed.",
        "heat apple 2 with microwave 1": "You heat the apple 2 using the microwave 1.",
        "go to fridge 1": "You arrive at fridge 1. The fridge 1 is closed.",
        "cool apple 2 with fridge 1": "You cool the apple 2 using the fridge 1.",
        "go to toaster 1": "You arrive at toaster 1. On the toaster 1, you see nothing.",
    }
    assert dict(zip(script, _answers(world, *script), strict=True)) == script
    assert world.act("help").startswith("You can: look, inventory, help, go to (place)")


@pytest.mark.parametrize(
    ("done", "description"),
    [
        ([], "There's nothing special about apple 1."),
        (["clean"], "This is a clean apple 1."),
        (["heat"], "This is a hot apple 1."),
        (["cool"], "This is a cold apple 1."),
        (["heat", "clean"], "This is a hot and clean apple 1."),
        (["clean", "cool"], "This is a cool and clean apple 1."),
        (["heat", "cool"], "This is a cold apple 1."),
        (["cool", "heat"], "This is a hot apple 1."),
    ],
)
def test_what_is_held_is_described_by_what_was_done_to_it(done: list[str], description: str) -> None:
    world = World(_layout())
    _answers(world, "go to countertop 1", "take apple 1 from countertop 1")
    for verb in done:
        tool = {"clean": "sinkbasin 1", "heat": "microwave 1", "cool": "fridge 1"}[verb]
        _answers(world, f"go to {tool}", f"{verb} apple 1 with {tool}")
    assert world.act("examine apple 1") == description


@pytest.mark.parametrize(
    "command",
    [
        "",
        "dance",
        "go to countertop 1",  # one is there already
        "go to moon 1",
        "open countertop 1",
        "close cabinet 1",
        "take mug 1 from cabinet 1",
        "take apple 3 from countertop 1",
        "move apple 1 to countertop 1",  # not in the hand
        "clean apple 1 with sinkbasin 1",
        "use desklamp 1",  # it stands elsewhere
        "examine apple 1",  # ALFWorld examines only what is held
        "examine cabinet 1",
        '{"name": "look", "arguments": {}}',
    ],
)
def test_what_cannot_be_done_is_answered_and_changes_nothing(command: str) -> None:
    world = World(_layout())
    world.act("go to countertop 1")
    before = (world.at, world.holding, {**world.contents}, world.choices())
    assert world.act(command) == "Nothing happens."
    assert (world.at, world.holding, {**world.contents}, world.choices()) == before


def test_case_and_spacing_do_not_matter() -> None:
    assert World(_layout()).act("  Go to   CABINET 1\n") == "You arrive at cabinet 1. The cabinet 1 is closed."


def test_lamps_stay_where_they_are_and_some_things_do_not_fit() -> None:
    world = World(_layout())
    _answers(world, "go to desk 1", "take desklamp 1 from desk 1", "take mug 2 from desk 1")
    assert world.holding == "mug 2"
    assert "desklamp 1" in world.contents["desk 1"]
    assert _answers(world, "go to toaster 1", "move mug 2 to toaster 1")[1] == "Nothing happens."


def test_information_is_offered_or_not_but_always_given() -> None:
    told, untold = World(_layout()), World(_layout(information=False))
    assert [text for text in told.choices() if not text.startswith("go to")] == ["help", "inventory", "look"]
    assert all(text.startswith("go to") for text in untold.choices())
    assert untold.act("inventory") == told.act("inventory") == "You are not carrying anything."


def test_placing_counts_only_in_the_right_kind_of_place() -> None:
    route = ["go to desk 1", "take mug 2 from desk 1", "go to countertop 1", "move mug 2 to countertop 1"]
    assert _solved_after(_layout(target="countertop"), *route) == [False, False, False, True]
    assert not any(_solved_after(_layout(target="fridge"), *route))


def test_two_things_must_lie_in_the_same_place() -> None:
    first = ["go to countertop 1", "take apple 1 from countertop 1", "go to fridge 1", "open fridge 1"]
    second = ["go to countertop 1", "take apple 2 from countertop 1", "go to fridge 1", "move apple 2 to fridge 1"]
    two = _layout("pick_two_obj_and_place", "apple", "fridge")
    assert _solved_after(two, *first, "move apple 1 to fridge 1", *second) == [False] * 8 + [True]
    mugs = _layout("pick_two_obj_and_place", "mug", "cabinet")
    route = ["go to desk 1", "take mug 2 from desk 1", "go to cabinet 2", "open cabinet 2", "move mug 2 to cabinet 2"]
    assert not any(_solved_after(mugs, *route))


@pytest.mark.parametrize(("verb", "tool"), [("clean", "sinkbasin 1"), ("heat", "microwave 1"), ("cool", "fridge 1")])
def test_a_treated_thing_counts_only_if_it_was_treated(verb: str, tool: str) -> None:
    layout = _layout(f"pick_{verb}_then_place_in_recep", "apple", "countertop")
    take = ["go to countertop 1", "take apple 1 from countertop 1"]
    assert not any(_solved_after(layout, *take, "move apple 1 to countertop 1"))
    there_and_back = [
        f"go to {tool}",
        f"{verb} apple 1 with {tool}",
        "go to countertop 1",
        "move apple 1 to countertop 1",
    ]
    assert _solved_after(layout, *take, *there_and_back) == [False] * 5 + [True]


def test_what_was_heated_and_then_cooled_is_not_hot() -> None:
    layout = _layout("pick_heat_then_place_in_recep", "apple", "countertop")
    route = [
        "go to countertop 1",
        "take apple 1 from countertop 1",
        "go to microwave 1",
        "heat apple 1 with microwave 1",
    ]
    back = ["go to fridge 1", "cool apple 1 with fridge 1", "go to countertop 1", "move apple 1 to countertop 1"]
    assert not any(_solved_after(layout, *route, *back))


def test_looking_needs_the_thing_in_hand_beside_the_lit_lamp() -> None:
    layout = _layout("look_at_obj_in_light", "apple", "desklamp")
    take = ["go to countertop 1", "take apple 1 from countertop 1"]
    assert _solved_after(layout, *take, "go to desk 1", "use desklamp 1") == [False, False, False, True]
    # The lamp may be lit first: it stays lit.
    assert _solved_after(layout, "go to desk 1", "use desklamp 1", *take, "go to desk 1")[1:] == [False] * 3 + [True]


def _run(task: Task, actions: list[str], seed: int = 0) -> list[Step]:
    async def episode() -> list[Step]:
        env = Household()
        await env.reset(task, seed)
        steps: list[Step] = []
        for action in actions:
            steps.append(await env.step(action))
            if steps[-1].done:
                break
        await env.close()
        return steps

    return asyncio.run(episode())


def test_an_episode_is_cut_off_at_its_last_step() -> None:
    task = benchmark(1).tasks("train", 1)[0]
    steps = _run(task, ["look"] * 99)
    assert len(steps) == 15
    assert [step.done for step in steps] == [False] * 14 + [True]
    assert {step.reward for step in steps} == {0.0}
    assert [dict(step.info) for step in steps[-2:]] == [{}, {"truncated": True}]


def test_the_observation_leaves_the_goal_to_the_task_and_tells_place_and_hand() -> None:
    async def episode() -> None:
        task = benchmark(1).tasks("train", 1)[0]
        env = Household()
        first = await env.reset(task, 0)
        assert task.goal not in first.text
        assert first.text.startswith("You are in the middle of a room.")
        assert first.data == {"at": None, "holding": None}
        step = await env.step("go to " + task.data["receptacles"][0][0])  # type: ignore[index]
        assert step.observation.data == {"at": task.data["receptacles"][0][0], "holding": None}  # type: ignore[index]
        assert not env.tools()

    asyncio.run(episode())


def test_stepping_outside_an_episode_is_an_error_and_closing_twice_is_none() -> None:
    async def episode() -> None:
        env = Household()
        with pytest.raises(RuntimeError, match="reset"):
            await env.step("look")
        task = benchmark(1, max_steps=8).tasks("train", 1)[0]
        await env.reset(task, 0)
        for _ in range(8):
            await env.step("look")
        with pytest.raises(RuntimeError, match="reset"):
            await env.step("look")
        assert not (await env.reset(task, 0)).text.startswith("Nothing")
        await env.close()
        await env.close()
        with pytest.raises(RuntimeError, match="reset"):
            await env.step("look")

    asyncio.run(episode())


def test_two_instances_share_nothing() -> None:
    async def episodes() -> None:
        task = benchmark(2).tasks("train", 1)[0]
        one, two = Household(), Household()
        start = await one.reset(task, 0)
        assert await two.reset(task, 1) == start
        rng = random.Random(0)
        step = await one.step("look")
        for _ in range(10):
            step = await one.step(rng.choice(step.observation.choices or ()))
        assert (await two.step("look")).observation.text == start.text

    asyncio.run(episodes())


SPOKEN = st.one_of(
    st.text(max_size=30), st.integers(0, 10**6), st.sampled_from(["look", "go to cabinet 1", "open  DRAWER 1"])
)


@settings(max_examples=150, deadline=None)
@given(
    level=st.sampled_from(sorted(LEVELS)),
    number=st.integers(0, 11),
    said=st.lists(SPOKEN, max_size=60),
)
def test_whatever_is_said_the_household_stays_whole(level: int, number: int, said: list[str | int]) -> None:
    """Integers pick an admissible command, so that the walk gets somewhere."""
    layout = Layout.of(BENCHES[level].tasks("train", 12)[number])
    world, twin = World(layout), World(layout)
    things = sorted(thing for _, content in layout.receptacles for thing in content)
    for word in said:
        choices = world.choices()
        assert list(choices) == sorted(set(choices))
        offered = isinstance(word, int)
        action = choices[word % len(choices)] if isinstance(word, int) else word
        answer = world.act(action)
        assert (answer != "Nothing happens.") or not offered
        assert twin.act(action) == answer
        held = [] if world.holding is None else [world.holding]
        assert sorted([*held, *(thing for content in world.contents.values() for thing in content)]) == things
        assert world.solved() == _goal_holds(world)


def _goal_holds(world: World) -> bool:
    """The goal, told a second time and otherwise than in the world itself."""
    goal = world.layout
    if goal.type == "look_at_obj_in_light":
        beside = world.contents[world.at] if world.at else []
        lit = [lamp for lamp in beside if lamp.startswith(goal.target + " ") and lamp in world.lit]
        return bool(lit) and (world.holding or "").startswith(goal.object + " ")
    state = {"clean": "clean", "heat": "hot", "cool": "cool"}.get(goal.type.split("_")[1])
    good = [
        sum(
            thing.startswith(goal.object + " ") and (state is None or state in world.states.get(thing, set()))
            for thing in content
        )
        for place, content in world.contents.items()
        if place.startswith(goal.target + " ")
    ]
    return max(good) >= (2 if goal.type == "pick_two_obj_and_place" else 1)


BENCHES = {level: benchmark(level) for level in LEVELS}


@pytest.mark.parametrize("kind", TASK_TYPES)
def test_reward_comes_once_and_only_with_the_goal(kind: str) -> None:
    async def episode(task: Task) -> None:
        env = Household()
        observation = await env.reset(task, 0)
        expert = bench.policies["expert"](env, random.Random(0))
        rng = random.Random(task.id)
        rewarded = 0
        for _ in range(bench.max_steps):
            action = rng.choice(observation.choices or ()) if rng.random() < 0.3 else expert(observation)
            step = await env.step(action)
            observation = step.observation
            assert env.world is not None
            assert step.reward == float(_goal_holds(env.world))
            rewarded += step.reward == 1.0
            if step.done:
                break
        assert rewarded == 1, "the expert should get there in spite of some stumbling"
        assert step.done

    bench = benchmark(4, tasks=kind, max_steps=300)
    for task in bench.tasks("valid", 25):
        asyncio.run(episode(task))
