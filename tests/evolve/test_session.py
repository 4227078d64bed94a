"""The same call finds its own run again and goes on, however it was stopped; another call never gets into it."""

import asyncio
import json
import random
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from envs.source import EnvError
from evolve import compare_runs, evolve, run
from evolve.budget import BudgetExhausted
from evolve.session import Evaluation
from harness.journal import Journal, JournalError
from harness.model import ModelRefused
from harness.runner import RunStopped
from harness.starter import starter
from memory import Store
from memory.fault import MemoryFault

MODELS = """
import random
from harness.model import Completion, ModelFault, Usage

def copy(request):
    found = [line.removeprefix("Action: ") for line in request.prompt.splitlines() if line.startswith("Action: ")]
    known = [move for move in found if move in request.choices]
    return known[-1] if known else request.choices[0]

def first(request):
    return request.choices[0]

def wander(request):
    return random.Random(request.prompt).choice(request.choices)

def priced(request):
    return Completion(text=request.choices[0], usage=Usage(prompt_tokens=10, output_tokens=1, dollars=0.25))

def priceless(request):
    return Completion(text=request.choices[0], usage=Usage(prompt_tokens=10, output_tokens=1))

class Closing:
    name, closed = "closing", 0
    async def complete(self, request):
        return Completion(text=request.choices[0])
    async def close(self):
        Closing.closed += 1

closing = Closing()
"""
#: Kills itself by signal 9 after some seconds of work, wherever it then is; without them it runs to the end.
CHILD = """
import json, os, signal, sys, threading
from evolve import evolve, run
from harness.starter import starter
out, how, model, after = sys.argv[1:]
import memory.embed, harness.runner  # noqa
if float(after):
    timer = threading.Timer(float(after), os.kill, (os.getpid(), signal.SIGKILL))
    timer.daemon = True
    timer.start()
if how == "run":
    found = run(starter("small"), "household", model=model, n=60, out=out, concurrency=3)
    result = found.model_dump(mode="json", exclude={"folder"})
else:
    settings = {"explore": 40, "rounds": 2, "batch": 5}
    if how == "reflect":
        settings |= {"proposer": "compose", "max_pairs": 16}
    found = evolve(starter("small"), "household", recipe=how, settings=settings, model=model, n=12, out=out,
                   concurrency=3)
    result = found.outcome.model_dump(mode="json")
print(json.dumps(result))
"""


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> str:
    file = tmp_path_factory.mktemp("models") / "models.py"
    file.write_text(MODELS)
    return f"scripted:{file}"


def without_seconds(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: without_seconds(part) for key, part in value.items() if key not in ("seconds", "cached")}
    return value


def child(out: Path, how: str, model: str, after: float = 0.0) -> tuple[int, str, float]:
    started = time.monotonic()
    done = subprocess.run(
        [sys.executable, "-c", CHILD, out, how, model, str(after)], capture_output=True, text=True, check=False
    )
    assert done.returncode in (0, -signal.SIGKILL), done.stderr
    return done.returncode, done.stdout, time.monotonic() - started


@pytest.mark.slow
@pytest.mark.parametrize(("how", "name"), [("run", "wander"), ("memrl", "copy"), ("reflect", "wander")])
def test_a_run_that_is_killed_again_and_again_ends_as_one_that_was_not(
    tmp_path: Path, models: str, how: str, name: str
) -> None:
    model = f"{models}:{name}"
    status, whole, seconds = child(tmp_path / "whole", how, model)
    assert status == 0
    rng, kills, out = random.Random(how), 0, ""
    for _ in range(6):
        share = 3 if kills >= 2 else 8  # two early ones, for the machine may be faster now than it was at first
        status, out, _ = child(tmp_path / "cut", how, model, rng.uniform(0.02, max(0.1, (seconds - 0.5) / share)))
        kills += status != 0
        if status == 0:
            break
    if status != 0:
        status, out, _ = child(tmp_path / "cut", how, model)
    assert kills >= 2, "the child was too quick to be killed: this test tests nothing"
    assert without_seconds(json.loads(out)) == without_seconds(json.loads(whole))
    with Journal(tmp_path / "whole") as one, Journal(tmp_path / "cut") as other:
        assert other.digest() == one.digest()
        keys = [event.key for event in other.events("episode")]
        assert len(keys) == len(set(keys))
        once = ["plan", "outcome", "round", "verdict", "proposal", "credited", "remembered", "batch"]
        for kind in once:
            named = [(event.kind, event.key) for event in other.events(kind)]
            assert len(named) == len(set(named))
        assert sum(t.calls for t in other.trajectories()) == sum(t.calls for t in one.trajectories())
    if how == "memrl":
        stores = []
        for name in ("whole", "cut"):
            with Store.open(tmp_path / name / "memory.db", readonly=True) as store:
                stores.append([(i.id, i.stats, i.provenance) for i in store.items("household")])
        assert stores[0] == stores[1]


def test_an_equal_call_finds_its_run_and_any_other_gets_a_folder_of_its_own(
    models: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)

    def go(**rest: Any) -> Evaluation:
        return run(starter("small"), "household", **{"n": 2, "model": f"{models}:first", **rest})

    base = go()
    assert Path(base.folder).parent == Path("runs")
    assert go(concurrency=5) == base
    assert go(budget="50calls") == base
    with Journal(base.folder, readonly=True) as journal:
        assert sum(1 for _ in journal.events("start")) == 2
        assert sum(1 for _ in journal.events("evaluation")) == 1
    others = [
        go(seed=1), go(n=3), go(split="test"), go(model=f"{models}:wander"),
        run(starter("small"), "household:level=2", n=2, model=f"{models}:first"),
    ]  # fmt: skip
    assert len({base.folder, *(other.folder for other in others)}) == 6


def test_a_folder_that_holds_another_run_is_refused_and_what_differs_is_named(models: str, tmp_path: Path) -> None:
    run(starter("small"), "household", n=2, model=f"{models}:first", out=str(tmp_path))
    with pytest.raises(
        JournalError, match=r"holds another run \(it differs in tasks, seed, n\)\. Cure: choose another"
    ):
        run(starter("small"), "household", n=3, seed=4, model=f"{models}:first", out=str(tmp_path))
    with pytest.raises(JournalError, match="differs in command"):
        evolve(starter("small"), "household", n=2, model=f"{models}:first", out=str(tmp_path))


@pytest.mark.parametrize("recipe", ["memrl", "reflect"])
def test_a_finished_evolution_is_read_back_without_playing(models: str, tmp_path: Path, recipe: str) -> None:
    settings = {"explore": 10, "rounds": 1, "batch": 2}
    found = [
        evolve(starter("small"), "household", recipe=recipe, settings=settings, n=3, model=f"{models}:first",
               out=str(tmp_path))
        for _ in range(2)
    ]  # fmt: skip
    assert found[0] == found[1]
    with Journal(tmp_path, readonly=True) as journal:
        assert {event.body["attempt"] for event in journal.events("start")} == {0}


FAULTS: dict[str, tuple[dict[str, Any], type[Exception], str]] = {
    "no such model": ({"model": "nonsense"}, ModelRefused, "names no model"),
    "no such function": ({"model": "scripted:json:nothing"}, ModelRefused, "cannot be loaded"),
    "an unknown option": ({"options": {"colour": 1}}, ModelRefused, "has no option colour"),
    "no such environment": ({"env": "nonsense"}, EnvError, "no environment is called 'nonsense'"),
    "no such split": ({"split": "nonsense"}, ValueError, "has no split 'nonsense'"),
    "a wrong budget": ({"budget": "many"}, ValueError, "budget 'many'"),
    "no such memory": ({"memory": "nonsense"}, MemoryFault, "nonsense"),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_wrong_argument_is_an_error_before_anything_is_written(models: str, tmp_path: Path, fault: str) -> None:
    change, kind, message = FAULTS[fault]
    arguments = {"env": "household", "model": f"{models}:first", "n": 2, "out": str(tmp_path / "run"), **change}
    with pytest.raises(kind, match=message):
        run(starter("small"), arguments.pop("env"), **arguments)
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"recipe": "nonsense"}, "there is no recipe 'nonsense'. Known: memrl, reflect"),
        ({"settings": {"nonsense": 1}}, "has no setting 'nonsense'"),
        ({"settings": {"rounds": "many"}}, "rounds is 'many'"),
        ({"settings": {"batch": -1}}, "batch is -1: input should be greater than or equal to 1"),
        ({"proposer": "nonsense"}, "names no model"),
    ],
)
def test_a_wrong_recipe_is_an_error_before_anything_is_written(
    models: str, tmp_path: Path, change: Any, message: str
) -> None:
    with pytest.raises((ValueError, ModelRefused), match=message):
        evolve(starter("small"), "household", **{"model": f"{models}:first", "out": str(tmp_path / "r"), **change})
    assert not (tmp_path / "r").exists()


def test_a_setting_given_as_text_means_its_number(models: str, tmp_path: Path) -> None:
    settings = {"explore": "4", "rounds": "1", "batch": "2"}
    found = evolve(starter("small"), "household", settings=settings, n=2, model=f"{models}:first", out=str(tmp_path))
    assert found.outcome.overlap["taught"] == 6


@pytest.mark.parametrize("calls", [15, 44, 130])
def test_a_budget_of_calls_leaves_tasks_unplayed_and_is_never_passed(models: str, tmp_path: Path, calls: int) -> None:
    said: list[str] = []
    found = run(
        starter("small"), "household", n=10, budget=f"{calls}calls", model=f"{models}:first", out=str(tmp_path),
        say=said.append,
    )  # fmt: skip
    assert found.mean.episodes == calls // 15  # an episode takes 15 calls: the model goes nowhere
    assert found.cost["calls"] <= calls
    assert said[-1].startswith(f"the budget ended after {calls // 15} of 10 episodes")


@pytest.mark.parametrize(("recipe", "calls"), [("memrl", 100), ("memrl", 400), ("reflect", 333), ("reflect", 1000)])
def test_an_evolution_never_passes_its_budget_of_calls(models: str, tmp_path: Path, recipe: str, calls: int) -> None:
    settings = {"explore": 40, "rounds": 2, "batch": 4}
    found = evolve(
        starter("small"), "household", recipe=recipe, settings=settings, n=2, budget=f"{calls}calls",
        model=f"{models}:wander", out=str(tmp_path),
    )  # fmt: skip
    assert 0 < found.outcome.cost["evolving"]["calls"] <= calls


def test_money_is_counted_and_a_price_that_nobody_knows_is_an_error_where_it_is_limited(
    models: str, tmp_path: Path
) -> None:
    known = run(starter("small"), "household", n=20, budget="40usd", model=f"{models}:priced", out=str(tmp_path / "a"))
    assert known.mean.episodes == 10  # of 3.75 dollars each; the eleventh would pass the limit
    assert (known.cost["dollars"], known.asked) == (37.5, 20)
    free = run(starter("small"), "household", n=2, model=f"{models}:priceless", out=str(tmp_path / "b"))
    assert free.cost["tokens"] == 330
    with pytest.raises(BudgetExhausted, match=r"price is unknown"):
        run(starter("small"), "household", n=2, budget="40usd", model=f"{models}:priceless", out=str(tmp_path / "c"))


def test_the_model_is_closed_also_when_the_folder_is_refused(models: str, tmp_path: Path) -> None:
    from harness.models.connect import connect

    spec = f"{models}:closing"
    model: Any = connect(spec)
    run(starter("small"), "household", n=2, model=spec, out=str(tmp_path))
    assert type(model).closed == 1
    with pytest.raises(JournalError):
        run(starter("small"), "household", n=3, model=spec, out=str(tmp_path))
    assert type(model).closed == 2


def test_a_memory_is_recalled_from_and_one_that_cannot_be_used_says_so(models: str, tmp_path: Path) -> None:
    settings = {"explore": 150, "rounds": 1, "batch": 4}
    learnt = evolve(
        starter("small"), "household", settings=settings, n=2, model=f"{models}:copy", out=str(tmp_path / "e")
    )
    without = run(starter("small"), "household", n=24, model=f"{models}:copy", out=str(tmp_path / "a"))
    said: list[str] = []
    memory = learnt.folder
    run(
        starter("small"),
        "household",
        n=24,
        model=f"{models}:copy",
        memory=memory,
        out=str(tmp_path / "b"),
        say=said.append,
    )
    assert not any(line.startswith("the memory") for line in said)
    found = compare_runs(without.folder, str(tmp_path / "b"))
    assert (found.pairs, found.losses) == (24, 0)
    assert found.wins > 0
    with Store.open(tmp_path / "e" / "memory.db") as store:
        store.forget(*(item.id for item in store.items("household")[:5]))
    with pytest.raises(JournalError, match="it differs in memory"):
        run(starter("small"), "household", n=24, model=f"{models}:copy", memory=memory, out=str(tmp_path / "b"))
    (tmp_path / "other.py").write_text(
        "from envs.household import benchmark as made\nimport dataclasses\n"
        "benchmark = dataclasses.replace(made(1), name='other')\n"
    )
    for harness, env in ((starter("small"), f"{tmp_path}/other.py"), (_forgetful(), "household")):
        run(harness, env, n=2, model=f"{models}:first", memory=memory, out=str(tmp_path / env[-5:]), say=said.append)
    assert "the memory holds nothing for other, only for: household" in said
    assert 'the memory is not used: the harness says [memory] policy = "none"' in said


def _forgetful() -> Any:
    from harness.folder import Harness

    files = dict(starter("small").files)
    files["harness.toml"] = files["harness.toml"].replace('policy = "memrl"', 'policy = "none"')
    return Harness.from_files(files)


def test_runs_are_compared_in_pairs_and_an_unfinished_one_is_refused(models: str, tmp_path: Path) -> None:
    run(starter("small"), "household", n=6, model=f"{models}:first", out=str(tmp_path / "a"))
    run(starter("small"), "household", n=4, model=f"{models}:wander", out=str(tmp_path / "b"))
    found = compare_runs(str(tmp_path / "a"), str(tmp_path / "b"))
    assert (found.pairs, found.unpaired) == (4, 2)
    Journal(tmp_path / "c").close()
    with pytest.raises(JournalError, match="no finished episodes to compare"):
        compare_runs(str(tmp_path / "a"), str(tmp_path / "c"))


def test_a_world_that_is_down_stops_the_run_and_the_same_call_goes_on_when_it_is_up(
    models: str, tmp_path: Path
) -> None:
    (tmp_path / "down").touch()
    (tmp_path / "world.py").write_text(
        "from pathlib import Path\nfrom envs.env import EnvFault\nfrom envs.household import benchmark as made\n"
        "from envs.household.play import Household\nimport dataclasses\n"
        "class Shaky(Household):\n"
        "    async def reset(self, task, seed):\n"
        "        if Path(__file__).with_name('down').exists(): raise EnvFault('no server')\n"
        "        return await super().reset(task, seed)\n"
        "benchmark = dataclasses.replace(made(1), make_env=Shaky)\n"
    )

    def go() -> Evaluation:
        model = f"{models}:first"
        return run(starter("small"), f"{tmp_path}/world.py", n=4, model=model, out=str(tmp_path / "run"), concurrency=4)

    with pytest.raises(RunStopped, match="were all lost: environment: no server"):
        go()
    (tmp_path / "down").unlink()
    assert (go().mean.episodes, go().mean.missing) == (4, 0)


def test_a_session_runs_inside_a_running_event_loop(models: str, tmp_path: Path) -> None:
    async def notebook() -> int:
        found = run(starter("small"), "household", model=f"{models}:first", n=2, out=str(tmp_path / "run"))
        return found.mean.episodes

    assert asyncio.run(notebook()) == 2


def test_a_run_that_its_budget_ended_goes_on_with_a_larger_one(models: str, tmp_path: Path) -> None:
    said: list[str] = []
    how = {"n": 6, "model": f"{models}:first", "out": str(tmp_path / "run"), "say": said.append}
    few = run(starter("small"), "household", budget="60calls", **how)  # type: ignore[arg-type]
    assert 0 < few.mean.episodes < 6
    all_ = run(starter("small"), "household", budget="10000calls", **how)  # type: ignore[arg-type]
    assert all_.mean.episodes == 6
    assert f"going on: {few.mean.episodes} had ended, 0 were cut off" in said[-1]


def test_a_budget_that_pays_no_episode_says_what_one_may_take(models: str, tmp_path: Path) -> None:
    with pytest.raises(
        BudgetExhausted, match=r"no episode was begun: one may take 15 calls, and the budget is 0 of 5 calls"
    ):
        run(starter("small"), "household", n=2, model=f"{models}:first", budget="5calls", out=str(tmp_path / "run"))
