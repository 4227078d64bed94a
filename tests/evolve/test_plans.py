"""A changed world, memory or model is another run, and is never mixed or compared with the first."""

import json
from pathlib import Path

import pytest

from envs import Benchmark, Env, Observation, Step, Task, fixed
from evolve import compare_runs, evolve, run
from evolve.session import Evaluation
from evolve.setup import Setup
from harness.folder import Harness
from harness.journal import Journal, JournalError
from harness.model import Completion, ModelFault, Request
from harness.models.scripted import ScriptedModel
from harness.starter import starter

WORLD = """
from envs import Benchmark, Env, Observation, Step, Task, fixed

class Coin(Env):
    async def reset(self, task, seed):
        return Observation("call it", ("heads", "tails"))
    async def step(self, action):
        return Step(Observation("done"), reward=REWARD if action == "heads" else 0.0, done=True)

splits = [(s, i) for s in ("train", "valid", "test") for i in range(30)]
tasks = [Task(id=f"{s}-{i}", split=s, goal="win", data={"i": i, "s": s}) for s, i in splits]
benchmark = Benchmark("coin", Coin, fixed(tasks))
"""
HEADS = ScriptedModel(lambda request: "heads", name="heads")
NEEDS = ScriptedModel(lambda request: "heads" if "Action: heads" in request.prompt else "tails", name="needs")
TAILS = ScriptedModel(lambda request: "tails", name="tails")


class Coin(Env):
    """Heads win."""

    async def reset(self, task: Task, seed: int) -> Observation:
        return Observation("call it", ("heads", "tails"))

    async def step(self, action: str) -> Step:
        return Step(Observation("done"), reward=float(action == "heads"), done=True)


def coin(name: str = "coin", *, extra: str = "", low: float = 0.0) -> Benchmark:
    splits = ("train", "valid", "test")
    data = {"extra": extra}
    tasks = [Task(id=f"{s}-{i}", split=s, goal="win", data=data | {"at": f"{s}{i}"}) for s in splits for i in range(30)]
    return Benchmark(name, Coin, fixed(tasks), reward_range=(low, 1.0))


def played(found: Evaluation) -> int:
    with Journal(found.folder, readonly=True) as journal:
        return sum(1 for _ in journal.events("episode"))


def test_a_world_whose_file_changed_is_another_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    file = tmp_path / "coin_env.py"
    file.write_text(WORLD.replace("REWARD", "1.0"))
    first = run(starter("small"), str(file), n=4, model=HEADS)
    file.write_text(WORLD.replace("REWARD", "0.5"))
    second = run(starter("small"), str(file), n=4, model=HEADS)
    assert (first.mean.mean, second.mean.mean) == (1.0, 0.5)
    assert first.folder != second.folder
    with pytest.raises(JournalError, match=r"holds another run \(it differs in world\)"):
        run(starter("small"), str(file), n=4, model=HEADS, out=first.folder)


def test_objects_go_in_as_well_as_names(tmp_path: Path) -> None:
    found = run(starter("small"), coin(), n=5, model=HEADS, out=str(tmp_path / "run"))
    assert found.mean.mean == 1.0
    assert found.solved == 5


def test_a_sample_is_a_fair_and_fixed_part_of_a_sorted_split() -> None:
    benchmark = coin()
    chosen = [task.id for task in benchmark.sample("valid", 10)]
    assert chosen == [task.id for task in benchmark.sample("valid", 20)][:10]
    assert sorted(chosen) != chosen[:10]
    assert set(chosen) != {f"valid-{i}" for i in range(10)}
    with pytest.raises(ValueError, match="only 30 exist"):
        benchmark.sample("valid", 31)


def test_several_episodes_a_task_give_rates(tmp_path: Path) -> None:
    calls = iter(range(1000))
    fickle = ScriptedModel(lambda request: ("heads", "tails")[next(calls) % 2], name="fickle")
    fickle.deterministic = False
    found = run(starter("small"), coin(), n=6, episodes=2, model=fickle, concurrency=1, out=str(tmp_path / "run"))
    assert found.mean.episodes == 12
    assert found.mean.tasks == 6
    assert found.rates is not None
    assert found.rates.k == 2


def test_runs_of_different_benchmarks_or_tasks_are_not_compared(tmp_path: Path) -> None:
    folders = {}
    for name, world in (("a", coin()), ("b", coin("other")), ("c", coin(extra="x")), ("d", coin(low=-1.0))):
        folders[name] = run(starter("small"), world, n=4, model=HEADS, out=str(tmp_path / name)).folder
    with pytest.raises(JournalError, match="benchmark name is coin in one, other in the other"):
        compare_runs(folders["a"], folders["b"])
    with pytest.raises(JournalError, match=r"is not the same in both \(4 differ\)"):
        compare_runs(folders["a"], folders["c"])
    with pytest.raises(JournalError, match="reward_range"):
        compare_runs(folders["a"], folders["d"])


def test_a_comparison_uses_the_recorded_range_and_tells_of_other_luck(tmp_path: Path) -> None:
    one = run(starter("small"), coin(low=-1.0), n=8, model=HEADS, out=str(tmp_path / "a"))
    other = run(starter("small"), coin(low=-1.0), n=8, model=TAILS, seed=1, out=str(tmp_path / "b"))
    found = compare_runs(other.folder, one.folder)
    assert found.difference == 1.0
    assert found.winner == "candidate"
    assert "seeds differ" in found.reason


def test_gaps_of_an_exam_are_filled_by_the_same_call(tmp_path: Path) -> None:
    down = {"now": True}

    def answer(request: Request) -> str | Completion:
        if down["now"] and "fragile" in (request.prompt or ""):
            raise ModelFault("the server is down")
        return "heads"

    tasks = coin().sample("test", 6)
    fragile = tasks[2].model_copy(update={"goal": "fragile"})
    splits = {"train": coin().tasks("train"), "valid": coin().tasks("valid"), "test": [*tasks[:2], fragile, *tasks[3:]]}
    world = Benchmark("coin", Coin, fixed([task for split in splits.values() for task in split]))
    files = dict(starter("small").files)
    files["prompts/step.md"] = "{goal} {memories}{situation}"
    how = {
        "settings": {"explore": 0, "rounds": 0},
        "model": ScriptedModel(answer, name="m"),
        "n": 6,
        "out": str(tmp_path),
    }
    first = evolve(Harness.from_files(files), world, **how).outcome
    assert first.comparison.missing == 1
    down["now"] = False
    second = evolve(Harness.from_files(files), world, **how).outcome
    assert second.comparison.missing == 0
    assert second.evolved.mean == 1.0
    with Journal(tmp_path, readonly=True) as journal:
        assert journal.last("outcome").body == second.model_dump(mode="json")


def test_random_moves_sit_the_exam_without_model_calls(tmp_path: Path) -> None:
    asked = []
    model = ScriptedModel(lambda request: asked.append(1) or "heads", name="counted")
    found = evolve(starter("small"), coin(), settings={"explore": 0, "rounds": 0}, model=model, n=20, out=str(tmp_path))
    assert found.outcome.wander is not None
    assert 0 < found.outcome.wander.mean < 1
    assert found.outcome.cost["exam"]["calls"] == 40  # two arms


def test_a_kept_memory_also_sits_the_exam_without_its_model(tmp_path: Path) -> None:
    settings = {"explore": 20, "rounds": 1, "batch": 4}
    found = evolve(starter("small"), coin(), settings=settings, model=NEEDS, n=10, out=str(tmp_path)).outcome
    assert found.remembers
    assert found.recalled is not None
    assert found.recalled.mean == found.evolved.mean == 1.0


@pytest.mark.parametrize(("recipe", "split"), [("memrl", "train"), ("reflect", "train"), ("reflect", "valid")])
def test_an_exam_on_what_taught_or_decided_is_refused(recipe: str, split: str, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=f"the exam cannot be on '{split}'"):
        evolve(starter("small"), coin(), recipe=recipe, split=split, model=HEADS, out=str(tmp_path / "run"))
    assert not (tmp_path / "run").exists()


def test_a_memory_says_how_many_tasks_taught_it(tmp_path: Path) -> None:
    learnt = evolve(starter("small"), coin(), settings={"explore": 10, "rounds": 1, "batch": 4}, model=HEADS, n=5,
                    out=str(tmp_path / "evolve"))  # fmt: skip
    said: list[str] = []
    how = {"model": HEADS, "memory": learnt.folder, "n": 10, "say": said.append}
    again = run(starter("small"), coin(), split="train", out=str(tmp_path / "a"), **how)
    fresh = run(
        starter("small"), coin(), split="valid", n=10, model=HEADS, memory=learnt.folder, out=str(tmp_path / "b")
    )
    assert again.taught == 10
    assert any("prove nothing" in line for line in said)
    assert fresh.taught == 0


def test_a_limit_on_money_needs_a_price_before_anything_is_asked(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="price of openai/x is unknown"):
        run(starter("small"), coin(), n=2, model="openai/x", budget="1usd", out=str(tmp_path / "run"))
    assert not (tmp_path / "run").exists()


def test_a_replay_that_goes_differently_is_refused(tmp_path: Path) -> None:
    how = {"model": HEADS, "n": 4, "out": str(tmp_path), "settings": {"explore": 4, "rounds": 1, "batch": 2}}
    evolve(starter("small"), coin(), **how)
    with Journal(tmp_path) as journal:
        journal.append("outcome", {"comparison": {"missing": 1}})  # so that the recipe runs again
        journal.append("round", {"round": 0, "evolved": {}, "control": {}}, "0")
    with pytest.raises(JournalError, match="'round 0' went differently than the journal says"):
        evolve(starter("small"), coin(), **how)


def test_exploring_leaves_the_rounds_tasks_that_taught_nothing(tmp_path: Path) -> None:
    settings = {"explore": 40, "rounds": 2, "batch": 5}  # 30 training tasks: the other 20 are explored twice
    found = evolve(starter("small"), coin(), settings=settings, model=HEADS, n=5, out=str(tmp_path))
    with Journal(found.folder, readonly=True) as journal:
        explored, played = (
            {t.task for t in journal.trajectories() if t.id.startswith(phase)} for phase in ("explore", "round")
        )
        assert (len(explored), len(played)) == (20, 10)
        assert not explored & played


def test_a_small_training_split_makes_no_memory_look_good(tmp_path: Path) -> None:
    few = list(coin().tasks("train"))[:4]
    world = Benchmark("coin", Coin, fixed([*few, *coin().tasks("valid"), *coin().tasks("test")]))
    settings = {"explore": 20, "rounds": 2, "batch": 4}
    found = evolve(starter("small"), world, settings=settings, model=NEEDS, n=5, out=str(tmp_path)).outcome
    assert not found.remembers  # every round was on tasks that had taught


def test_a_memory_file_that_was_deleted_is_made_again_from_the_journal(tmp_path: Path) -> None:
    how = {"settings": {"explore": 20, "rounds": 1, "batch": 4}, "model": NEEDS, "n": 5, "out": str(tmp_path)}
    first = evolve(starter("small"), coin(), **how).outcome
    (tmp_path / "memory.db").unlink()
    assert evolve(starter("small"), coin(), **how).outcome == first
    assert (tmp_path / "memory.db").exists()


def test_another_server_is_another_run(monkeypatch: pytest.MonkeyPatch) -> None:
    plans = []
    for address in ("http://a:1/v1?key=secret", "http://me:secret@b:2/v1"):
        monkeypatch.setenv("OPENAI_BASE_URL", address)
        plans.append(Setup(starter("small"), coin(), model="openai/x").plan("run", coin(), []))
    assert [plan["address"] for plan in plans] == ["http://a:1/v1", "http://b:2/v1"]
    assert "secret" not in json.dumps(plans)
