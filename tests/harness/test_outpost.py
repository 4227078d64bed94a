"""An outpost plays as the runner does, from nothing but plain data, and says what it stands on."""

import pickle
from dataclasses import replace
from pathlib import Path

import pytest
from ray_world import FILE, asked, benchmark, player
from worlds import agent, corridor

from envs.registry import load
from harness.agent import Agent, PolicyPlayer
from harness.folder import Harness
from harness.known import Known
from harness.model import Completion, ModelRefused
from harness.models.connect import connect
from harness.models.scripted import ScriptedModel
from harness.outpost import Errand, Facts, Orders, Outpost, Part, Word, instar
from harness.rollout import Ended
from harness.settings import HarnessError
from harness.trajectory import Turn

PRICED = f"scripted:{FILE}:priced"
ORDERS = Orders(FILE, PRICED)


def errand(**rest: object) -> Errand:
    return Errand(benchmark.tasks("valid")[2], 0, "agent", "run", 7, **rest)  # type: ignore[arg-type]


def part(log: Path, toml: str = "temperature = 1.0") -> Part:
    return Part.of(Agent.equip(player(log, toml=toml), connect(PRICED)), benchmark, memory=False)


async def played(orders: Orders, part: Part, errand: Errand) -> list[Word]:
    outpost = Outpost(orders)
    try:
        said = await outpost.ready()
        assert isinstance(said, Facts), said
        return [word async for word in outpost.play(part, errand)]
    finally:
        await outpost.close()


async def test_it_tells_each_turn_and_at_last_the_end_without_them(tmp_path: Path) -> None:
    *turns, end = await played(ORDERS, part(tmp_path / "log"), errand())
    assert all(isinstance(turn, Turn) for turn in turns)
    assert isinstance(end, Ended)
    assert end.trajectory.turns == ()
    assert end.trajectory.id == "run/agent/c2/0"
    assert len(turns) == len(asked(tmp_path / "log")) >= 4


async def test_all_that_goes_to_it_and_comes_from_it_can_be_pickled(tmp_path: Path) -> None:
    sent = pickle.loads(pickle.dumps((ORDERS, part(tmp_path / "log"), errand())))
    words = await played(*sent)
    assert pickle.loads(pickle.dumps(words)) == words


async def test_what_is_known_is_not_asked_again(tmp_path: Path) -> None:
    *turns, _ = await played(ORDERS, part(tmp_path / "first"), errand())
    calls = [call for turn in turns for call in turn.calls]  # type: ignore[union-attr]
    known = Known({call.digest: Completion(text=call.output) for call in calls[:3]})
    *again, _ = await played(ORDERS, part(tmp_path / "first"), errand(known=known))
    assert [turn.action for turn in again] == [turn.action for turn in turns]  # type: ignore[union-attr]
    assert [call.cached for turn in again for call in turn.calls] == [n < 3 for n in range(len(calls))]  # type: ignore[union-attr]


async def test_a_forced_answer_is_given_whatever_is_asked_and_answers_nothing_else(tmp_path: Path) -> None:
    scripted, cold = f"scripted:{FILE}:scripted", "temperature = 0.0"
    outpost = Outpost(replace(ORDERS, model=scripted))
    await outpost.ready()
    role = part(tmp_path / "log", cold)
    forced = Known(forced={(0, 0): Completion(text="left")})
    first = [word async for word in outpost.play(role, errand(known=forced))]
    second = [word async for word in outpost.play(role, errand())]
    await outpost.close()
    assert first[0].action == "left"  # type: ignore[union-attr]
    assert second[0].action == "right"  # type: ignore[union-attr]


async def test_a_deterministic_answer_serves_the_next_episode_there(tmp_path: Path) -> None:
    outpost = Outpost(replace(ORDERS, model=f"scripted:{FILE}:scripted"))
    await outpost.ready()
    role = part(tmp_path / "log", "temperature = 0.0")
    for number in range(2):
        words = [word async for word in outpost.play(role, replace(errand(), number=number))]
        assert len(words) > 4
        assert words[0].calls[0].cached == bool(number)  # type: ignore[union-attr]
    await outpost.close()
    seen = [what for _, what in asked(tmp_path / "log")]
    assert len(seen) == len(set(seen))


async def test_what_stops_a_run_is_the_last_word(tmp_path: Path) -> None:
    (word,) = await played(replace(ORDERS, model=f"scripted:{FILE}:refusing"), part(tmp_path / "log"), errand())
    assert isinstance(word, ModelRefused)
    assert (word.status, word.said, str(word)) == (404, "unknown", "no such model")
    assert pickle.loads(pickle.dumps(word)).status == 404


async def test_what_it_cannot_begin_with_is_said_with_its_host(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("NO_SUCH_KEY", raising=False)
    options = {"api_base": "http://192.0.2.1:9/v1", "api_key_env": "NO_SUCH_KEY"}
    said = await Outpost(Orders(FILE, "openai/tiny", options)).ready()
    assert isinstance(said, ModelRefused)
    assert "NO_SUCH_KEY" in str(said)
    assert "(said on " in str(said)


async def test_a_missing_folder_is_only_told_where_something_else_is_missing(tmp_path: Path) -> None:
    gone = str(tmp_path / "gone")
    outpost = Outpost(replace(ORDERS, home=gone))
    assert isinstance(await outpost.ready(), Facts)
    await outpost.close()
    said = await Outpost(replace(ORDERS, env="./elsewhere.py", home=gone)).ready()
    assert f"it has no folder {gone}" in str(said)


def test_a_player_travels_by_what_it_is_made_of() -> None:
    world, home = load("household"), Harness.from_files(player(Path("log")).files)
    expert = PolicyPlayer("expert", home, world.policies["expert"])
    assert Part.of(expert, world, memory=False).makes
    wanderer = Part.of(PolicyPlayer("random", home), world, memory=False)
    assert (wanderer.policy, wanderer.makes, wanderer.remembers) == ("random", False, False)
    with pytest.raises(HarnessError, match="policies of the benchmark travel by name"):
        Part.of(PolicyPlayer("expert", home, lambda env, rng: lambda seen: "look"), world, memory=False)
    with pytest.raises(HarnessError, match="plays only here"):
        Part.of(object(), world, memory=False)  # type: ignore[arg-type]


def test_a_memory_that_grows_cannot_be_followed() -> None:
    remembering = agent(ScriptedModel(lambda request: "right"), recall=lambda query, rng: ())
    with pytest.raises(HarnessError, match="a memory that grows"):
        Part.of(remembering, corridor(), memory=False)
    assert Part.of(remembering, corridor(), memory=True).remembers


def test_instar_tells_its_source_from_another() -> None:
    assert instar() == instar()
    assert instar().startswith("0.")
