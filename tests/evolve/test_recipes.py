"""A recipe is found by name, module, file or as it is, and its settings are checked before anything is spent."""

import math
import sys
from pathlib import Path
from typing import Any

import pytest

from evolve import evolve
from evolve.recipes import recipe, settings_of
from evolve.recipes.memrl import MemRL
from evolve.recipes.reflect import Reflect
from harness.journal import Journal
from harness.starter import starter

MINE = '''
"""A recipe of one's own: never changes anything, and says so."""
from dataclasses import dataclass

from evolve.source import Stream

@dataclass
class Idle:
    rounds: int = 2
    name, splits = "idle", ("train",)

    @property
    def source(self):
        return Stream(rounds=self.rounds, batch=2)

    async def begin(self, lab):
        lab.say("idling")

    def player(self, lab):
        return lab.agent()

    async def learn(self, lab, number, trajectories, control):
        lab.record("idled", {"episodes": len(trajectories)}, key=str(number))

    async def choose(self, lab):
        return lab.agent()

class Plain(Idle):
    """Not a dataclass of its own: settings are what it holds."""
    def __init__(self, how="softly"):
        self.rounds, self.how, self._hidden = 1, how, object()

def recipe(rounds=3):
    return Idle(rounds)

ready = Idle(1)
nothing = object()
class Half:
    name, source = "half", None
'''


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "mine.py"
    path.write_text(MINE)
    return path


@pytest.mark.parametrize(("attr", "rounds"), [(":Idle", 2), ("", 3), (":ready", 1), (":Plain", 1)])
def test_a_recipe_of_ones_own_runs_from_its_file(file: Path, tmp_path: Path, attr: str, rounds: int) -> None:
    said: list[str] = []
    (tmp_path / "m.py").write_text("def first(request):\n    return request.choices[0]\n")
    outcome = evolve(
        starter("small"), "household", recipe=f"{file}{attr}", model=f"scripted:{tmp_path}/m.py:first", n=2,
        out=str(tmp_path / "run"), say=said.append,
    ).outcome  # fmt: skip
    assert (outcome.recipe, outcome.evolved.mean) == ("idle", outcome.control.mean)
    assert "idling" in said
    with Journal(tmp_path / "run", readonly=True) as journal:
        assert [event.body for event in journal.events("idled")] == [{"episodes": 2}] * rounds
        plan = journal.last("plan")
    assert plan is not None
    assert plan.body["settings"] == {"rounds": rounds} | ({"how": "softly"} if attr == ":Plain" else {})


def test_a_recipe_is_found_by_module_and_attribute(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(file.parent))
    made = recipe("mine:Idle", rounds=7)
    assert settings_of(made) == {"rounds": 7}
    assert settings_of(recipe("evolve.recipes.memrl:MemRL")) == settings_of(recipe("memrl"))
    sys.modules.pop("mine")


def test_a_recipe_that_a_package_registered_is_found_by_its_name(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    info = file.parent / "mine-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: mine\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[instar.recipes]\nidle = mine:Idle\nmemrl = mine:Idle\n")
    monkeypatch.syspath_prepend(str(file.parent))
    assert settings_of(recipe("idle", rounds=4)) == {"rounds": 4}
    assert isinstance(recipe("memrl"), MemRL)  # nobody takes our names
    with pytest.raises(ValueError, match="Known: idle, memrl, reflect"):
        recipe("idel")
    sys.modules.pop("mine")


def test_a_recipe_may_be_given_as_it_is() -> None:
    made = Reflect(rounds=2)
    assert recipe(made) is made
    with pytest.raises(ValueError, match=r"recipe Reflect is made already\. Cure: set rounds where it is made"):
        recipe(made, rounds=3)


@pytest.mark.parametrize(
    ("spec", "said"),
    [
        ("nonsense", r"there is no recipe 'nonsense'\. Known: memrl, reflect\. Cure: one of these, MODULE:ATTR"),
        ("no_such_module:x", "there is no module 'no_such_module'"),
        ("evolve.recipes.memrl:Nope", "has no 'Nope'. Cure: name its recipe 'Nope'"),
        ("{file}:Nope", "has no 'Nope'"),
        ("{file}:nothing", "is no recipe, it has no name, source, begin, player, learn, choose"),
        ("{file}:Half", "is no recipe, it has no begin, player, learn, choose"),
        ("{folder}/gone.py:X", r"there is no file .*gone\.py"),
    ],
)
def test_what_is_no_recipe_is_said_in_one_line(file: Path, spec: str, said: str) -> None:
    with pytest.raises(ValueError, match=said) as caught:
        recipe(spec.format(file=file, folder=file.parent))
    assert "\n" not in str(caught.value)


WRONG: list[tuple[str, str, Any]] = [
    ("memrl", "explore", -1), ("memrl", "rounds", -1), ("memrl", "batch", 0), ("memrl", "batch", 1.5),
    ("memrl", "alpha", 0), ("memrl", "alpha", 1.01), ("memrl", "alpha", math.nan), ("memrl", "discount", -0.1),
    ("memrl", "discount", math.inf), ("memrl", "batch", "many"), ("memrl", "alpha", None),
    ("reflect", "rounds", 0), ("reflect", "batch", 0), ("reflect", "explore", -1), ("reflect", "proposer", "nobody"),
    ("reflect", "view", "all"), ("reflect", "max_pairs", 0), ("reflect", "look", 0), ("reflect", "alpha", 0),
    ("reflect", "alpha", 1), ("reflect", "alpha", math.nan), ("reflect", "growth", -1), ("reflect", "patience", 0),
]  # fmt: skip


@pytest.mark.parametrize(("name", "key", "value"), WRONG)
def test_a_setting_that_cannot_work_is_named_in_one_line(name: str, key: str, value: Any) -> None:
    with pytest.raises(ValueError, match=rf"^recipe '{name}': {key} is ") as caught:
        recipe(name, **{key: value})
    assert "\n" not in str(caught.value)
    kind = {"memrl": MemRL, "reflect": Reflect}[name]
    with pytest.raises(ValueError, match=key):
        kind(**{key: value})


@pytest.mark.parametrize("key", ["nonsense", "name", "_best", "self"])
def test_a_setting_that_there_is_not_is_named_beside_those_there_are(key: str) -> None:
    with pytest.raises(ValueError, match=rf"recipe 'memrl' has no setting '{key}'\. Known: alpha, batch, discount"):
        recipe("memrl", **{key: 1})


def test_text_from_a_command_line_becomes_numbers() -> None:
    made = recipe("memrl", rounds="5", alpha="0.5")
    assert settings_of(made) == {"explore": 400, "rounds": 5, "batch": 12, "alpha": 0.5, "discount": 0.9}
