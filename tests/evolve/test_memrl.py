"""`memrl`: utilities come out as worked by hand, memory helps where it can, and is not kept where it does not."""

import asyncio
import contextlib
import json
import random
import sqlite3
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from envs import Benchmark, Env, Observation, Step, Task, fixed
from evolve import evolve
from evolve.budget import Budget
from evolve.lab import Lab
from evolve.recipes.memrl import MemRL
from evolve.session import Evolution
from harness.folder import Harness
from harness.journal import Journal
from harness.model import ModelRefused
from harness.models.scripted import ScriptedModel
from harness.runner import RecipeStopped, Runner
from harness.starter import starter
from harness.trajectory import Trajectory, Turn
from memory import Item, Store

COPIES = '''
"""Does what the last example in the prompt did that can be done here, and so is as good as its memory."""
from pathlib import Path

from harness.model import ModelRefused

asked = 0

def copy(request):
    found = [line.removeprefix("Action: ") for line in request.prompt.splitlines() if line.startswith("Action: ")]
    known = [move for move in found if move in request.choices]
    return known[-1] if known else request.choices[0]

def stubborn(request):
    return request.choices[0]

def until(request):
    """Copies, but refuses from the call on that the file beside it names."""
    global asked
    asked += 1
    if asked > int(Path(__file__).with_name("limit").read_text()):
        raise ModelRefused("out of quota")
    return copy(request)
'''
SETTINGS = {"explore": 150, "rounds": 2, "batch": 8}


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    file = tmp_path_factory.mktemp("models") / "models.py"
    file.write_text(COPIES)
    return file


def learn(models: Path, out: Path, name: str = "copy", **rest: Any) -> Evolution:
    model = f"scripted:{models}:{name}"
    return evolve(starter("small"), "household:level=1", settings=SETTINGS, model=model, n=24, out=str(out), **rest)


def without_seconds(outcome: Any) -> Any:
    if isinstance(outcome, dict):
        return {key: without_seconds(value) for key, value in outcome.items() if key != "seconds"}
    return outcome


def test_a_memory_that_helps_beats_its_control_and_is_kept_at_any_concurrency(models: Path, tmp_path: Path) -> None:
    results = [learn(models, tmp_path / str(n), concurrency=n) for n in (1, 4)]
    outcome = results[0].outcome
    assert outcome.remembers
    assert outcome.comparison.difference > 0.1
    assert outcome.comparison.wins > outcome.comparison.losses
    assert outcome.overlap["shared"] == 0
    assert outcome.chosen == starter("small").version
    assert without_seconds(results[0].outcome.model_dump()) == without_seconds(results[1].outcome.model_dump())
    digests, items = [], []
    for found in results:
        with Journal(found.folder, readonly=True) as journal:
            digests.append(journal.digest())
            keys = [event.key for event in journal.events("episode")]
            assert len(keys) == len(set(keys)) == 150 + 2 * 2 * 8 + 4 * 24
        with Store.open(Path(found.folder) / "memory.db", readonly=True) as store:
            items.append([(item.id, item.stats, item.provenance) for item in store.items("household")])
        assert Harness.load(Path(found.folder) / "best").version == outcome.chosen
    assert digests[0] == digests[1]
    assert items[0] == items[1]
    assert items[0]


def test_a_memory_that_does_not_help_is_not_kept(models: Path, tmp_path: Path) -> None:
    outcome = learn(models, tmp_path, "stubborn").outcome
    assert not outcome.remembers
    assert (outcome.comparison.wins, outcome.comparison.losses) == (0, 0)


def test_what_was_forgotten_stays_forgotten_when_the_run_goes_on(models: Path, tmp_path: Path) -> None:
    limit, memory = models.with_name("limit"), tmp_path / "memory.db"
    limit.write_text("40")
    with pytest.raises(ModelRefused, match="out of quota"):
        learn(models, tmp_path, "until")
    with Store.open(memory) as store:
        first = [item.id for item in store.items("household")][:3]
        assert store.forget(*first) == 3
    limit.write_text("90")
    with pytest.raises(ModelRefused):
        learn(models, tmp_path, "until")
    with Store.open(memory) as store:
        assert len(store) > 0
        assert store.forgotten() == sorted(first)
        fourth = store.items("household")[0].id
        assert store.forget(fourth) == 1
    limit.write_text("95")
    with pytest.raises(ModelRefused):  # from here on it is in the journal
        learn(models, tmp_path, "until")
    memory.unlink()
    limit.write_text("100000")
    learn(models, tmp_path, "until")
    with Store.open(memory, readonly=True) as store:
        assert store.forgotten() == sorted([*first, fourth])
        assert store.get_many([*first, fourth]) == {}


def test_a_memory_that_was_killed_at_its_birth_or_burial_is_rebuilt(tmp_path: Path) -> None:
    from evolve.rebuild import fresh_store

    memory = tmp_path / "run" / "memory.db"
    with Journal(memory.parent) as journal:
        with fresh_store(journal) as old:
            old.put([Item.make("note", "s", "k", "b")])
            log = Path(f"{memory}-wal").read_bytes()
            assert log
        memory.unlink()
        Path(f"{memory}-wal").write_bytes(log)  # killed between the removal of the file and of its log
        with fresh_store(journal) as store:
            assert len(store) == 0
        memory.unlink()
        with contextlib.closing(sqlite3.connect(memory)) as db:
            db.execute("PRAGMA journal_mode = WAL")  # killed before its tables were made
        with fresh_store(journal) as store:
            assert len(store) == 0
        assert [event.kind for event in journal.events()] == []


# Worked by hand

TURNS = [("s1", "a"), ("s2", "b"), ("s3", "c")]
ONE = fixed(Task(id=f"{split}-0", split=split, goal="g") for split in ("train", "valid", "test"))


@pytest.fixture
def lab(tmp_path: Path) -> Iterator[Lab]:
    benchmark = Benchmark("hand", _NoWorld, ONE)
    with Journal(tmp_path) as journal:
        made = Lab(
            starter("small"),
            benchmark,
            ScriptedModel(lambda request: ""),
            journal,
            Runner(benchmark, journal),
            Budget(),
        )
        yield made
        made.close()


class _NoWorld(Env):
    async def reset(self, task: Task, seed: int) -> Observation:
        return Observation("")

    async def step(self, action: str) -> Step:
        return Step(Observation(""))


def episode(
    id: str,
    rewards: list[float | None],
    score: float | None,
    recalled: list[list[str]] | None = None,
    goal: str = "g",
    seen: str = "o",
) -> Trajectory:
    turns = [
        Turn(observation=seen, action=move, situation=situation, move=move, reward=reward, retrieved=tuple(items))
        for (situation, move), reward, items in zip(TURNS, rewards, recalled or [[]] * 3, strict=True)
    ]
    return Trajectory(
        id=id, task=id, split="train", goal=goal, episode=0, seed=0, harness="h", model="m", turns=tuple(turns),
        score=score, status="gap" if score is None else "done",
    )  # fmt: skip


def item(situation: str, move: str) -> str:
    return Item.make("step", "hand", situation, move).id


A, B, C = (item(*turn) for turn in TURNS)


def teach(lab: Lab, recipe: MemRL, number: int, *trajectories: Trajectory) -> None:
    asyncio.run(recipe.learn(lab, number, trajectories, trajectories))


def utilities(lab: Lab) -> dict[str, tuple[float, int]]:
    found = lab.store.get_many([A, B, C])
    return {id: (round(found[id].stats.utility, 6), found[id].stats.visits) for id in (A, B, C) if id in found}


def test_the_first_utility_of_a_step_is_the_discounted_reward_after_it(lab: Lab) -> None:
    teach(lab, MemRL(explore=0), 0, episode("t1", [0, 0, 1], 1.0))
    assert utilities(lab) == {A: (0.81, 0), B: (0.9, 0), C: (1.0, 0)}


def test_a_step_that_taught_again_moves_by_three_tenths_and_names_all_its_teachers(lab: Lab) -> None:
    recipe = MemRL(explore=0)
    teach(lab, recipe, 0, episode("t1", [0, 0, 1], 1.0), episode("t2", [0, 1, 1], 2.0))
    # t2 is worth a: .9 * 1.9 = 1.71, b: 1 + .9 = 1.9, c: 1; and .7 * .81 + .3 * 1.71 = 1.08, .7 * .9 + .3 * 1.9 = 1.2
    assert utilities(lab) == {A: (1.08, 1), B: (1.2, 1), C: (1.0, 1)}
    teach(lab, recipe, 1, episode("t3", [0, 0, 1], 1.0))
    # .7 * 1.08 + .3 * .81 = .999; .7 * 1.2 + .3 * .9 = 1.11
    assert utilities(lab) == {A: (0.999, 2), B: (1.11, 2), C: (1.0, 2)}
    known = lab.store.get(A)
    assert known is not None
    assert known.provenance == ("t1", "t2", "t3")


def test_only_items_whose_move_was_taken_are_credited_and_by_their_first_use(lab: Lab) -> None:
    recipe = MemRL(explore=0)
    teach(lab, recipe, 0, episode("t1", [0, 0, 1], 1.0))
    # A is followed at its own turn, B is only shown, C is shown where another move was taken and then followed.
    teach(lab, recipe, 1, episode("t2", [0, 0, 0], 0.0, [[A, B], [C], [C]]))
    # nothing was earned: .7 * .81 = .567, B untouched, .7 * 1 = .7; a failure teaches no new step
    assert utilities(lab) == {A: (0.567, 1), B: (0.9, 0), C: (0.7, 1)}


def test_a_gap_neither_teaches_nor_credits(lab: Lab) -> None:
    recipe = MemRL(explore=0)
    teach(lab, recipe, 0, episode("t1", [0, 0, 1], 1.0))
    before = utilities(lab)
    teach(lab, recipe, 1, episode("t2", [0, 0, 1], None, [[A], [B], [C]]))
    assert utilities(lab) == before


def test_whole_episodes_are_credited_by_outcome_and_failures_reflected_upon(lab: Lab) -> None:
    asked: list[str] = []

    def advise(request: Any) -> str:
        asked.append(request.messages[0].content)
        return "Look first."

    lab.harness, lab.proposer = starter("react"), ScriptedModel(advise, name="adviser")
    recipe = MemRL(explore=0)
    teach(lab, recipe, 0, episode("t1", [0, 0, 1], 1.0), episode("t2", [0, 0, 0], 0.0))
    experience, reflection = lab.store.items("hand")
    assert (experience.kind, experience.stats.utility, experience.provenance) == ("experience", 0.0, ("t1",))
    assert (reflection.kind, reflection.body, reflection.provenance) == ("reflection", "Look first.", ("t2",))
    assert len(asked) == 1
    shown = [[experience.id, reflection.id], [experience.id], []]
    teach(
        lab, recipe, 1, episode("t3", [0, 0, 1], 1.0, shown), episode("t4", [0, 0, 0], 0.0, [[experience.id], [], []])
    )
    # experience: 0 -> .3 -> .7 * .3 - .3 = -.09; reflection: 0 -> .3
    found = lab.store.get_many([experience.id, reflection.id])
    assert round(found[experience.id].stats.utility, 6) == -0.09
    assert round(found[reflection.id].stats.utility, 6) == 0.3
    assert lab.budget.spent["calls"] == 2


WON: list[float | None] = [0, 0, 1]
LOST: list[float | None] = [0, 0, 0]


def with_memory(harness: Harness, **memory: Any) -> Harness:
    """`harness` with other `[memory]` settings."""
    head, _, _ = harness.files["harness.toml"].partition("[memory]")
    lines = "".join(f"{key} = {json.dumps(value)}\n" for key, value in memory.items())
    return Harness.from_files({**harness.files, "harness.toml": f"{head}[memory]\n{lines}"})


def test_reflecting_stops_where_the_budget_ends_and_keeps_what_was_paid(lab: Lab) -> None:
    asked: list[str] = []
    lab.harness, lab.budget = starter("react"), Budget(calls=2)
    lab.proposer = ScriptedModel(lambda request: asked.append("?") or "Look first.", name="adviser")  # type: ignore[func-returns-value]
    with pytest.raises(RecipeStopped, match="no calls are left to ask the proposer"):
        teach(lab, MemRL(explore=0), 0, *(episode(f"t{n}", LOST, 0.0, goal=f"goal {n}") for n in range(6)))
    assert len(asked) == 2 == lab.budget.spent["calls"]
    assert [item.provenance for item in lab.store.items("hand")] == [("t0",), ("t1",)]


@pytest.mark.parametrize("harness", ["small", "react"])
def test_whatever_a_world_says_can_be_remembered(lab: Lab, harness: str) -> None:
    lab.harness = starter(harness)
    odd = episode("t1", WON, 1.0, goal="", seen="caf\udce9 \ud800")
    turn = odd.turns[0].model_copy(update={"situation": "\ud800", "move": "take \udce9"})
    odd = odd.model_copy(update={"turns": (turn, *odd.turns[1:])})
    teach(lab, MemRL(explore=0), 0, odd)
    items = lab.store.items("hand")
    assert [item.key for item in items] == (["\ufffd", "s2", "s3"] if harness == "small" else ["(nothing)"])
    assert "\ufffd" in items[0].body
    recalled = odd.turns[0].model_copy(update={"retrieved": (items[0].id,)})
    teach(lab, MemRL(explore=0), 1, odd.model_copy(update={"id": "t2", "turns": (recalled, *odd.turns[1:])}))
    assert len(lab.store) == len(items)
    known = lab.store.get(items[0].id)
    assert known is not None
    assert known.provenance == ("t1", "t2")
    assert known.stats.visits == (2 if harness == "small" else 1)  # followed, and taught again


def test_a_memory_that_nobody_recalls_from_is_an_error_before_anything_is_played(models: Path, tmp_path: Path) -> None:
    mute = with_memory(starter("small"), policy="none")
    with pytest.raises(
        ValueError, match=r'it says \[memory\] policy = "none"\. Cure: policy = "memrl" in harness\.toml'
    ):
        evolve(mute, "household:level=1", model=f"scripted:{models}:copy", n=2, out=str(tmp_path))
    with Journal(tmp_path, readonly=True) as journal:
        assert list(journal.events("start")) == []


def test_a_harness_that_cannot_wander_says_that_it_does_not_explore(lab: Lab) -> None:
    said: list[str] = []
    lab.harness, lab.say = starter("react"), said.append
    asyncio.run(MemRL(explore=5).begin(lab))
    assert said == ['not exploring: random moves need [control] loop = "choice", and this harness has "react"']
    assert list(lab.journal.events("start")) == []


def test_a_task_like_one_that_is_known_joins_its_key(lab: Lab) -> None:
    lab.harness, recipe = starter("react"), MemRL(explore=0)
    first, like, other = "put a cool egg on the table", "put a cool egg on a table", "buy a train ticket to the coast"
    teach(lab, recipe, 0, episode("t1", WON, 1.0, goal=first))
    teach(lab, recipe, 1, episode("t2", WON, 1.0, goal=like, seen="p"), episode("t3", WON, 1.0, goal=other))
    assert [item.key for item in lab.store.items("hand")] == [first, first, other]
    assert like in lab.store.items("hand")[1].body


def test_the_same_episode_played_twice_is_one_item_with_both_teachers(lab: Lab) -> None:
    lab.harness = starter("react")
    teach(lab, MemRL(explore=0), 0, episode("t1", WON, 1.0), episode("t2", WON, 1.0))
    (item,) = lab.store.items("hand")
    assert item.provenance == ("t1", "t2")


@pytest.mark.parametrize("tokens", [40, 100, 300])
def test_what_is_remembered_of_an_episode_fits_the_room_that_a_prompt_has(lab: Lab, tokens: int) -> None:
    lab.harness = with_memory(starter("react"), policy="memrl", unit="episode", tokens=tokens, k2=1)
    teach(lab, MemRL(explore=0), 0, episode("t1", WON, 1.0, goal="the goal", seen="long " * 400))
    (item,) = lab.store.items("hand")
    text = lab.harness.render("memory", {"key": item.key, "body": item.body})
    assert tokens * 4 - 2 <= len(text) <= tokens * 4
    assert "\n[...]\n" in item.body
    assert item.body.endswith("Score: 1.0 (done)")
    shown, memories = lab.agent(remembers=True).remember(Wanting(), "the goal")  # type: ignore[arg-type]
    assert [one.id for one in shown] == [item.id]
    assert memories == text


class Wanting:
    """As much of an episode as recalling needs."""

    def stream(self, role: str) -> random.Random:
        return random.Random(0)


def test_a_recipe_may_run_twice(lab: Lab) -> None:
    recipe = MemRL(explore=0)
    asyncio.run(recipe.begin(lab))
    lab.fresh = {"t1", "t2"}
    asyncio.run(recipe.learn(lab, 0, [episode("t1", WON, 1.0)], [episode("t1", LOST, 0.0)]))
    assert asyncio.run(recipe.choose(lab)).recall is not None
    asyncio.run(recipe.begin(lab))
    asyncio.run(recipe.learn(lab, 1, [episode("t2", LOST, 0.0)], [episode("t2", LOST, 0.0)]))
    assert len(recipe._differences) == 1


def test_a_win_on_a_task_that_had_taught_does_not_speak_for_the_memory(lab: Lab) -> None:
    recipe = MemRL(explore=0)
    asyncio.run(recipe.begin(lab))
    lab.fresh = set()
    asyncio.run(recipe.learn(lab, 0, [episode("t1", WON, 1.0)], [episode("t1", LOST, 0.0)]))
    assert asyncio.run(recipe.choose(lab)).recall is None
    verdict = lab.journal.last("verdict", "memory")
    assert verdict is not None
    assert "nothing speaks for it" in verdict.body["reason"]


def test_an_answer_of_the_proposer_is_paid_once_and_never_served_to_another_question(lab: Lab) -> None:
    from harness.journal import JournalError

    asked: list[str] = []

    def advise(request: Any) -> str:
        asked.append(request.messages[0].content)
        return json.dumps(request.seed)

    lab.proposer = ScriptedModel(advise, name="adviser")
    first, again = (asyncio.run(lab.ask("why?", key="k")) for _ in range(2))
    other = asyncio.run(lab.ask("why?", key="l"))
    assert first == again != other
    assert asked == ["why?", "why?"]
    assert lab.budget.spent["calls"] == 3  # the same whether the journal had the answer or not
    with pytest.raises(JournalError, match=r"the answer to 'k' in the journal is to another question"):
        asyncio.run(lab.ask("how?", key="k"))
