"""The household against ALFWorld's own games, where they are at hand: its rules, its answers, its goals."""

import json
import re
import tarfile
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from envs.household import Layout, World, catalog
from envs.household.layout import WORDINGS

GAMES = sorted((Path(__file__).parents[3] / "shared" / "data" / "alfworld").glob("*.tar.xz"))
pytestmark = pytest.mark.skipif(not GAMES, reason="ALFWorld's games are not here")


def _games() -> Iterator[tuple[str, dict[str, Any]]]:
    """(task folder's name, game) of every game."""
    for path in GAMES:
        with tarfile.open(path) as archive:
            for member in archive:
                if member.name.endswith("game.tw-pddl"):
                    file = archive.extractfile(member)
                    assert file is not None
                    yield member.name.split("/")[-3], json.load(file)


@pytest.fixture(scope="module")
def games() -> list[tuple[str, dict[str, Any]]]:
    return list(_games())


def test_goals_are_said_as_alfworld_says_them(games: list[tuple[str, dict[str, Any]]]) -> None:
    said = set()
    for name, game in games:
        kind, thing, _, target = name.lower().split("-")[:4]
        told = re.search(r"Your task is to: (.*?)\"", game["grammar"])
        assert told is not None
        ways = [way.format(o=thing, t=target) for way in WORDINGS[kind]]
        assert told[1] in ways
        said.add((kind, ways.index(told[1])))
    assert len(said) == 12, "each of the six types is said in two ways"


def test_answers_are_those_of_the_games_grammar(games: list[tuple[str, dict[str, Any]]]) -> None:
    room = [["cabinet 1", []], ["countertop 1", ["apple 1"]], ["microwave 1", []]]
    room += [["fridge 1", []], ["sinkbasin 1", []], ["shelf 1", ["desklamp 2"]]]
    layout = {"type": "pick_and_place_simple", "object": "apple", "target": "fridge", "receptacles": room}
    world = World(Layout.model_validate({**layout, "max_steps": 9}))
    script = [
        ("open {r}", "", "cabinet 1", "OpenObject.feedback"),
        ("close {r}", "", "cabinet 1", "CloseObject.feedback"),
        ("take {o} from {r}", "apple 1", "countertop 1", "PickupObject.feedback"),
        ("examine {o}", "apple 1", "countertop 1", "examineObject.feedback"),
        ("move {o} to {r}", "apple 1", "countertop 1", "PutObject.feedback"),
        ("take {o} from {r}", "apple 1", "countertop 1", "PickupObject.feedback"),
        ("heat {o} with {r}", "apple 1", "microwave 1", "heatObject.feedback"),
        ("examine {o}", "apple 1", "microwave 1", "examineObject.feedback"),
        ("cool {o} with {r}", "apple 1", "fridge 1", "coolObject.feedback"),
        ("examine {o}", "apple 1", "fridge 1", "examineObject.feedback"),
        ("clean {o} with {r}", "apple 1", "sinkbasin 1", "cleanObject.feedback"),
        ("examine {o}", "apple 1", "sinkbasin 1", "examineObject.feedback"),
        ("use {o}", "desklamp 2", "shelf 1", "toggleObject.feedback"),
    ]
    grammar = games[0][1]["grammar"]
    for command, thing, place, rule in script:
        template = command.replace("{r}", "{r.name}").replace("{o}", "{o.name}")
        assert re.search(rf"template :: \"{re.escape(command)}\"", grammar), command
        start = grammar.index(f'"{rule}": [')
        ways = re.findall(r'"rhs": "(.*?)"', grammar[start : grammar.index("]\n", start)])
        world.act(f"go to {place}")
        answer = world.act(template.replace("{o.name}", thing).replace("{r.name}", place))
        told = {way.replace("{o.name}", thing).replace("{r.name}", place).partition(" #")[0] for way in ways}
        assert any(answer == way or answer.startswith(way + " The ") for way in told), (command, answer, told)


def test_what_works_here_works_in_alfworld(games: list[tuple[str, dict[str, Any]]]) -> None:
    fits, traits, hollow, places = defaultdict(set), defaultdict(set), set(), set()
    for _, game in games:
        problem = game["pddl_problem"].lower()
        kinds = dict(re.findall(r"\((?:object|receptacle)type ([^ ]+) (\w+)type\)", problem))
        for place, thing in re.findall(r"\(cancontain (\w+)type (\w+)type\)", problem):
            fits[place].add(thing)
        for trait, thing in re.findall(r"\((cleanable|heatable|coolable|openable) ([^ )]+)\)", problem):
            traits[trait].add(kinds.get(thing, thing))
        hollow |= {kinds.get(thing, thing) for thing in re.findall(r"\(isreceptacleobject ([^ )]+)\)", problem)}
        places |= set(re.findall(r"\(receptacletype [^ ]+ (\w+)type\)", problem))
    assert set(catalog.FITS) <= places
    for place, things in catalog.FITS.items():
        if place != "tvstand":  # where things stand in ALFWorld, but few may be put back
            assert set(things) <= fits[place], place
    assert traits["openable"] - {"?r"} == catalog.OPENABLE
    assert traits["cleanable"] >= catalog.CLEANABLE
    assert traits["heatable"] >= catalog.HEATABLE
    assert traits["coolable"] >= catalog.COOLABLE
    assert hollow == catalog.HOLLOW
