"""A replay plays the same episodes, pays only for what changed, and says where an episode went another way."""

from pathlib import Path

import pytest

from evolve import run
from evolve.replay import replay
from harness.folder import Harness
from harness.journal import Journal, JournalError
from harness.starter import starter

MODEL = """
import pathlib
from harness.model import Completion, Message, Usage

def asked():
    with open(pathlib.Path(__file__).with_name("asked"), "a") as file:
        file.write("x")

def left(request):
    asked()
    return "left"

def right(request):
    asked()
    return "right"

def obedient(request):
    asked()
    text = "right" if "Hurry" in request.prompt else "left"
    return Completion(text=text, usage=Usage(prompt_tokens=5, output_tokens=1))
"""
WORLD = """
from envs import Benchmark, Env, Observation, Step, Task, fixed

class Corridor(Env):
    '''Four steps to the right win; ten steps are all.'''
    async def reset(self, task, seed):
        self.at = 0
        return self.look()
    def look(self):
        return Observation(f"You are at {self.at}.", ("left", "right"))
    async def step(self, action):
        self.at += 1 if action == "right" else -1
        return Step(self.look(), float(self.at == 4), self.at == 4)

tasks = [Task(id=f"c{n}", split="valid", goal=f"go to the end of {n}", data={"n": n}) for n in range(3)]
benchmark = Benchmark("corridor", Corridor, fixed(tasks), max_steps=10)
"""


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "models.py").write_text(MODEL)
    (tmp_path / "corridor.py").write_text(WORLD)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def agent(prompt: str = "{observation}") -> Harness:
    files = dict(starter("small", "a").files)
    return Harness.from_files({**files, "prompts/step.md": prompt})


def asked(place: Path) -> int:
    file = place / "asked"
    return len(file.read_text()) if file.exists() else 0


def played(name: str = "obedient", **rest: object) -> str:
    found = run(agent(), "corridor.py", model=f"scripted:models.py:{name}", out="first", **rest)  # type: ignore[arg-type]
    return found.folder


def test_a_replay_with_nothing_changed_is_served_whole_and_goes_as_it_had(place: Path) -> None:
    source = played()
    paid = asked(place)
    found = replay(source, out="again")
    assert (found.same, found.first, found.asked, asked(place) - paid) == (3, {}, 0, 0)
    assert found.served == found.evaluation.cost["calls"] > 0
    assert found.comparison.ties == 3


def test_another_prompt_is_asked_and_its_effect_is_compared_pair_by_pair(place: Path) -> None:
    source = played()
    found = replay(source, harness=agent("Hurry. {observation}"), out="again")
    assert found.same == 0
    assert found.first == {0: 3}
    assert (found.comparison.wins, found.comparison.pairs) == (3, 3)
    assert found.asked > 0


def test_from_a_step_on_the_change_acts_and_the_record_leads_there(place: Path) -> None:
    source = played()  # ten steps to the left
    found = replay(source, harness=agent("Hurry. {observation}"), from_step=3, out="again")
    assert (found.first, found.astray) == ({3: 3}, 0)
    with Journal(found.folder, readonly=True) as journal:
        for trajectory in journal.trajectories():
            assert [turn.action for turn in trajectory.turns] == ["left"] * 3 + ["right"] * 7
            assert all(call.cached for call in trajectory.all_calls[:3])
            assert all(call.text.startswith("Hurry") for call in trajectory.all_calls)


def test_another_model_acts_from_the_step_on(place: Path) -> None:
    found = replay(played("left"), model="scripted:models.py:right", from_step=2, out="again")
    assert found.first == {2: 3}
    assert found.comparison.wins == 3  # the forced answers at 0 are no answers of the new model when it comes by again


def test_a_world_that_answers_the_same_actions_in_another_way_is_told(place: Path) -> None:
    source = played()
    (place / "corridor.py").write_text(WORLD.replace("You are at", "Now at"))
    found = replay(source, from_step=5, out="again")
    assert found.astray == 3
    assert "the world's code differs" in found.comparison.reason


def test_a_replay_that_was_cut_off_goes_on_and_pays_nothing_twice(place: Path) -> None:
    source = played()
    before = asked(place)
    replay(source, harness=agent("Hurry. {observation}"), out="again")
    paid = asked(place) - before
    found = replay(source, harness=agent("Hurry. {observation}"), out="again")
    assert asked(place) - before == paid
    assert found.first == {0: 3}


def test_a_budget_of_a_replay_pays_only_what_is_asked(place: Path) -> None:
    source = played()
    assert (
        replay(source, budget="11calls", out="again").evaluation.mean.episodes == 3
    )  # thirty calls, none of them asked


def test_a_memory_that_has_changed_since_is_no_part_of_a_replay(place: Path) -> None:
    from memory import Item, Store
    from memory.embed import HashEmbedder

    def item(name: str) -> Item:
        return Item(id=name, kind="experience", scope="corridor", key=f"You are at {name}", body="right")

    with Store(place / "memory.db", HashEmbedder()) as store:
        store.put([item("1")])
    source = played(memory="memory.db")
    assert replay(source, out="again").same == 3
    with Store.open(place / "memory.db") as store:
        store.put([item("2")])
    with pytest.raises(JournalError, match="has changed since the run recalled from it"):
        replay(source, out="other")


def test_only_some_tasks_are_replayed(place: Path) -> None:
    found = replay(played(), tasks=["c1"], out="again")
    assert found.evaluation.asked == 1


@pytest.mark.parametrize(
    ("rest", "message"),
    [
        ({"tasks": ["c9"]}, "no task c9"),
        ({"from_step": -1}, "count turns from 0"),
        ({"env": "other.py"}, "task c[0-2] is not"),
    ],
)
def test_what_cannot_be_replayed_is_told_before_anything_is_asked(place: Path, rest: dict, message: str) -> None:
    source = played()
    (place / "other.py").write_text(WORLD.replace("go to the end", "come to the end"))
    before = asked(place)
    with pytest.raises((JournalError, ValueError), match=message):
        replay(source, **rest)
    assert asked(place) == before


def test_calls_that_failed_and_were_repeated_are_no_part_of_the_digest(place: Path) -> None:
    (place / "faulty.py").write_text(
        "import pathlib\nfrom harness.model import ModelFault\n"
        "def left(request):\n    mark = pathlib.Path('fail')\n    if mark.exists():\n        mark.unlink()\n"
        "        raise ModelFault('busy', kind='503')\n    return 'left'\n"
    )
    digests = set()
    for out in ("faulty", "smooth"):
        if out == "faulty":
            (place / "fail").touch()
        found = run(agent(), "corridor.py", model="scripted:faulty.py:left", out=out)
        assert found.retried == ({"503": 1} if out == "faulty" else {})
        with Journal(out, readonly=True) as journal:
            digests.add(journal.digest())
    assert len(digests) == 1
