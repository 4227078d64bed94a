"""`reflect`: an edit is kept only by evidence, and a useless proposer ends the run with what it has."""

import asyncio
import json
import random
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from evolve import evolve
from evolve.ledger import Ledger
from evolve.lineage import Lineage
from evolve.patch import apply
from evolve.propose import Composer, literal
from evolve.session import Evolution
from harness.agent import Agent
from harness.folder import Harness
from harness.journal import Journal
from harness.model import Request
from harness.models.scripted import ScriptedModel
from harness.prompt import fill
from harness.trajectory import Trajectory, Turn

WORLD = '''
"""A fork: right is right."""
from envs import Benchmark, Env, Observation, Step, Task, fixed

class Fork(Env):
    async def reset(self, task, seed):
        return Observation("A fork.", ("left", "right"))
    async def step(self, action):
        return Step(Observation("The end.", ("left", "right")), 1.0 if action == "right" else 0.0, True)

SIZES = {"train": 40, "valid": 160, "test": 12}
benchmark = Benchmark("fork", Fork, fixed(
    Task(id=f"{split}-{n}", split=split, goal=f"walk on, {n}") for split, size in SIZES.items() for n in range(size)
), max_steps=1)
few = Benchmark("few", Fork, fixed(
    Task(id=f"{split}-{n}", split=split, goal=f"walk on, {n}")
    for split, size in {"train": 40, "valid": 20, "test": 12}.items() for n in range(size)
), max_steps=1)
none = Benchmark("none", Fork, fixed(
    Task(id=f"{split}-{n}", split=split, goal=f"walk on, {n}") for split in ("train", "test") for n in range(12)
), max_steps=1)
empty = Benchmark("empty", Fork, {**none.splits, "valid": lambda n: []}, max_steps=1)
'''
MODELS = '''
import re

from harness.model import Completion, Usage

def agent(request):
    """Goes right when it is told to."""
    even = "GO EVEN" in request.prompt and int(re.search("walk on, ([0-9]+)", request.prompt)[1]) % 2 == 0
    return "right" if even or "GO RIGHT" in request.prompt else "left"

def priceless(request):
    return Completion(text=good(request), usage=Usage(prompt_tokens=3))

def reply(path, text):
    return f'<hypothesis>because</hypothesis>\\n<file path="{path}">\\n{text}</file>'

def good(request):
    return reply("prompts/step.md", "GO RIGHT. {situation}\\nAction:")

def useless(request):
    return reply("prompts/step.md", f"GO LEFT {request.seed}. {{situation}}\\nAction:")

def same(request):
    return reply("prompts/step.md", "GO LEFT. {situation}\\nAction:")

def slightly(request):
    """One of two edits that help on a part of the tasks each, told apart by what is there already."""
    better = "GO RIGHT" if '">\\nGO EVEN' in request.messages[0].content else "GO EVEN"
    return reply("prompts/step.md", f"{better}. {{situation}}\\nAction:")

def garbage(request):
    return "You should try harder."

def outside(request):
    return reply("control.py", "async def control(agent, episode): ...")

def memory(request):
    return reply("prompts/memory.md", "{key} GO RIGHT {body}")

def unknown(request):
    return reply("prompts/step.md", "GO RIGHT {gaol} {situation}")

def surrogate(request):
    return reply("prompts/step.md", "GO RIGHT \\ud800 {situation}")

def huge(request):
    return reply("prompts/step.md", "GO RIGHT {situation}" + "!" * 9000)

def unchanged(request):
    return reply("prompts/step.md", "{situation}\\nAction:")
'''
FILES = {
    "harness.toml": 'name = "walker"\n[control]\nloop = "choice"\n',
    "prompts/step.md": "{situation}\nAction:",
    "prompts/memory.md": "{key}\n{body}\n",
}
ROOT = Harness.from_files(FILES)


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("reflect")
    (folder / "fork.py").write_text(WORLD)
    (folder / "models.py").write_text(MODELS)
    return folder


def reflect(home: Path, out: Path, proposer: str, said: list[str] | None = None, **rest: Any) -> Evolution:
    settings = {
        "rounds": 4,
        "batch": 4,
        "max_pairs": 32,
        "proposer": "rewrite",
        **rest.pop("settings", {}),
    }
    return evolve(
        ROOT, rest.pop("env", f"{home}/fork.py"), recipe="reflect", settings=settings,
        model=f"scripted:{home}/models.py:agent", n=12, proposer=f"scripted:{home}/models.py:{proposer}", out=str(out),
        say=(said if said is not None else []).append, **rest,
    )  # fmt: skip


def recorded(out: Path, kind: str) -> list[dict[str, Any]]:
    with Journal(out, readonly=True) as journal:
        return [event.body for event in journal.events(kind)]


def test_a_good_edit_is_accepted_by_the_gate_and_wins_the_exam(home: Path, tmp_path: Path) -> None:
    outcome = reflect(home, tmp_path, "good").outcome
    best = Harness.load(tmp_path / "best")
    assert best.prompts["step"].startswith("GO RIGHT.")
    assert outcome.chosen == best.version != ROOT.version
    assert (outcome.evolved.mean, outcome.control.mean) == (1.0, 0.0)
    assert outcome.comparison.winner == "candidate"
    assert not outcome.remembers
    (first, *_) = recorded(tmp_path, "proposal")
    assert first["patch"]["hypothesis"] == "because"
    assert all(id.startswith("round-0/evolved/train-") for id in first["patch"]["evidence"])
    (verdict, *_) = recorded(tmp_path, "verdict")
    assert verdict["decision"] == "accept"
    lineage = json.loads((tmp_path / "lineage.json").read_text())
    assert best.version in json.dumps(lineage)
    # From then on nothing fails, so there is nothing to ask the proposer about, and that is no fault of its.
    assert len(recorded(tmp_path, "ask")) == 1
    assert len(recorded(tmp_path, "round")) == 4
    assert outcome.stopped == ""


def test_the_last_accepted_version_is_returned_on_the_gates_word_alone(home: Path, tmp_path: Path) -> None:
    outcome = reflect(home, tmp_path, "slightly").outcome
    assert [verdict["decision"] for verdict in recorded(tmp_path, "verdict")] == ["accept", "accept"]
    assert Harness.load(tmp_path / "best").prompts["step"].startswith("GO RIGHT.")
    assert (outcome.evolved.mean, outcome.control.mean) == (1.0, 0.0)
    with Journal(tmp_path, readonly=True) as journal:
        phases = {t.id.split("-")[0].split("/")[0] for t in journal.trajectories()}
    assert phases == {"round", "gate", "exam"}  # no weaker test comes after the gate
    assert outcome.overlap["judged"] > 0
    assert Lineage.load(tmp_path / "lineage.json").log().splitlines()[-1].startswith(f"    * {outcome.chosen[:10]}")


def test_a_split_of_twenty_is_enough_to_find_a_good_edit(home: Path, tmp_path: Path) -> None:
    outcome = reflect(home, tmp_path, "good", env=f"{home}/fork.py:few").outcome
    assert [verdict["decision"] for verdict in recorded(tmp_path, "verdict")] == ["accept"]
    assert (outcome.evolved.mean, outcome.stopped) == (1.0, "")


def test_without_a_fresh_task_nothing_is_decided_and_the_run_ends(home: Path, tmp_path: Path) -> None:
    outcome = reflect(home, tmp_path, "useless", env=f"{home}/fork.py:few").outcome
    (verdict,) = recorded(tmp_path, "verdict")
    assert (verdict["decision"], verdict["n"], verdict["final"]) == ("undecided", 20, True)
    assert verdict["reason"].startswith("no fresh validation task is left; ")
    assert outcome.stopped == "no fresh validation task is left, so no further edit can be judged"
    assert (outcome.chosen, outcome.evolved.tasks) == (ROOT.version, 12)
    assert len(recorded(tmp_path, "round")) == 1


def test_the_tasks_of_the_gate_depend_on_the_seed_alone(home: Path, tmp_path: Path) -> None:
    orders = []
    for name, seed in (("a", 0), ("b", 0), ("c", 1)):
        reflect(home, tmp_path / name, "useless", seed=seed, settings={"rounds": 1})
        with Journal(tmp_path / name, readonly=True) as journal:
            orders.append([t.task for t in journal.trajectories() if t.arm == "candidate"])
    assert orders[0] == orders[1] != orders[2]


def test_each_round_may_spend_its_share_of_alpha(home: Path, tmp_path: Path) -> None:
    reflect(home, tmp_path, "useless", settings={"alpha": 0.04})
    assert [verdict["alpha"] for verdict in recorded(tmp_path, "verdict")] == [0.01] * 4


def test_a_useless_edit_is_rejected_on_tasks_it_was_not_made_from(home: Path, tmp_path: Path) -> None:
    outcome = reflect(home, tmp_path, "useless").outcome
    assert outcome.chosen == ROOT.version
    assert [verdict["decision"] for verdict in recorded(tmp_path, "verdict")] == ["reject"] * 4
    with Journal(tmp_path, readonly=True) as journal:
        played = list(journal.trajectories())
    judged = [t for t in played if t.id.startswith("gate-")]
    assert {t.split for t in judged} == {"valid"}
    taught = {t.task for t in played if t.id.startswith("round-")}
    assert taught.isdisjoint({t.task for t in judged})
    arms: dict[str, list[Trajectory]] = {arm: [t for t in judged if t.arm == arm] for arm in ("candidate", "incumbent")}
    assert [(t.task, t.episode, t.seed) for t in arms["candidate"]] == [
        (t.task, t.episode, t.seed) for t in arms["incumbent"]
    ]
    tasks = [t.task for t in arms["candidate"]]
    assert len(tasks) == len(set(tasks))  # no task judges twice
    assert tasks != sorted(tasks, key=lambda task: int(task.removeprefix("valid-")))  # and not in the split's order
    assert {t.episode for t in judged} == {0}


UNUSABLE = {
    "garbage": "no changed file of the form",
    "outside": "control.py may not be edited: a proposer may change prompts/*.md only",
    "memory": "prompts/memory.md may not be edited",
    "unknown": "unknown placeholder {gaol}",
    "surrogate": "no valid Unicode",
    "huge": "it adds 9001 characters, at most 6000",
    "unchanged": "no changed file",
}


@pytest.mark.parametrize("proposer", UNUSABLE)
def test_a_proposer_that_says_nothing_usable_ends_the_run_which_is_still_examined(
    home: Path, tmp_path: Path, proposer: str
) -> None:
    said: list[str] = []
    outcome = reflect(home, tmp_path, proposer, said).outcome
    assert outcome.stopped.startswith("the proposer gave 3 unusable proposals in a row; the last: ")
    assert any(f"stopped early: {outcome.stopped}" in line for line in said)
    faults = [body["unusable"] for body in recorded(tmp_path, "proposal")]
    assert len(faults) == 3
    assert UNUSABLE[proposer] in faults[0]
    assert (outcome.chosen, outcome.evolved.mean, outcome.evolved.tasks) == (ROOT.version, 0.0, 12)
    assert Harness.load(tmp_path / "best").version == ROOT.version


def test_the_same_edit_is_not_paid_for_twice(home: Path, tmp_path: Path) -> None:
    outcome = reflect(home, tmp_path, "same").outcome
    first, *rest = recorded(tmp_path, "proposal")
    assert "patch" in first
    assert len(rest) == 3
    assert all("this very edit was tried before (reject: " in body["unusable"] for body in rest)
    assert len(recorded(tmp_path, "verdict")) == 1
    assert "tried before" in outcome.stopped


def test_a_proposer_is_told_what_was_tried_and_why_it_failed(home: Path, tmp_path: Path) -> None:
    reflect(home, tmp_path, "unknown")
    first, second, _ = (body["prompt"] for body in recorded(tmp_path, "ask"))
    assert "Earlier tries" not in first
    assert "- failed, prompts/step.md: because. Outcome: " in second
    assert "unknown placeholder {gaol}" in second


@pytest.mark.parametrize("proposer", ["good", "useless"])
@pytest.mark.parametrize("calls", [3, 11, 40, 70, 101])
def test_a_budget_of_calls_is_never_passed(home: Path, tmp_path: Path, proposer: str, calls: int) -> None:
    said: list[str] = []
    outcome = reflect(home, tmp_path, proposer, said, budget=f"{calls}calls").outcome
    assert outcome.cost["evolving"]["calls"] <= calls
    assert outcome.evolved.tasks == 12  # the exam is not paid from it
    with Journal(tmp_path, readonly=True) as journal:
        spent = sum(t.calls for t in journal.trajectories() if t.arm != "control" and not t.id.startswith("exam"))
    assert spent + len(recorded(tmp_path, "ask")) == outcome.cost["evolving"]["calls"]


def test_a_proposer_without_a_price_ends_a_run_that_counts_money(home: Path, tmp_path: Path) -> None:
    outcome = reflect(home, tmp_path, "priceless", budget="1usd").outcome
    assert "price is unknown" in outcome.stopped
    assert (outcome.chosen, outcome.evolved.tasks) == (ROOT.version, 12)


@pytest.mark.parametrize(
    ("world", "said"), [("none", "has no split 'valid'"), ("empty", "the valid split has no tasks")]
)
def test_no_validation_tasks_are_an_error_before_anything_is_played(
    home: Path, tmp_path: Path, world: str, said: str
) -> None:
    with pytest.raises(ValueError, match=said):
        reflect(home, tmp_path, "good", env=f"{home}/fork.py:{world}")
    with Journal(tmp_path, readonly=True) as journal:
        assert journal.last("plan") is not None
        assert list(journal.events("start")) == []


def test_a_rewriter_without_a_model_to_ask_is_an_error_with_the_cure(home: Path, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"asks a model, and none was given\. Cure: --proposer MODEL"):
        evolve(
            ROOT, f"{home}/fork.py", recipe="reflect", settings={"proposer": "rewrite"}, n=2, out=str(tmp_path),
            model=f"scripted:{home}/models.py:agent",
        )  # fmt: skip


def test_composed_examples_come_from_successes_and_cannot_bring_in_placeholders(home: Path, tmp_path: Path) -> None:
    step = "{examples}{situation}\nAction:"
    harness = Harness.from_files({**FILES, "prompts/step.md": step, "prompts/examples.md": ""})
    (tmp_path / "m.py").write_text("def agent(request):\n    return 'right' if 'right' in request.prompt else 'left'\n")
    outcome = evolve(
        harness, f"{home}/fork.py", recipe="reflect", model=f"scripted:{tmp_path}/m.py:agent", n=12,
        settings={"rounds": 2, "batch": 4, "explore": 20, "max_pairs": 32}, out=str(tmp_path / "run"),
    ).outcome  # fmt: skip
    best = Harness.load(tmp_path / "run" / "best")
    assert "\nright\n" in best.prompts["examples"]
    assert "left" not in best.prompts["examples"]
    assert (outcome.evolved.mean, outcome.control.mean) == (1.0, 0.0)
    (first, *_) = recorded(tmp_path / "run", "proposal")
    with Journal(tmp_path / "run", readonly=True) as journal:
        evidence = [journal.trajectory(id) for id in first["patch"]["evidence"]]
    assert all(t is not None and t.score == 1.0 for t in evidence)


@given(
    st.lists(st.sampled_from(["{", "}", "goal", "a1", "A", " ", "\n", "{goal}", "{{goal}}"]), max_size=12).map("".join)
)
def test_what_a_file_must_hold_to_print_a_text_prints_that_text(text: str) -> None:
    assert fill(literal(text), {}) == text


@pytest.mark.parametrize("word", ["{goal}", "{{goal}}", "{nonsense}", '{"a": {b}}', "caf\ud83d"])
def test_an_example_prints_what_the_world_said_and_nothing_in_its_place(word: str) -> None:
    step = "{examples}{situation}\nAction:"
    parent = Harness.from_files({**FILES, "prompts/step.md": step, "prompts/examples.md": ""})
    turn = Turn(observation="o", action="right", situation=f"You see {word}.", move=f"take {word}")
    won = Trajectory(
        id="t", task="t", split="train", goal="g", episode=0, seed=0, harness="h", model="m", turns=(turn,), score=1.0,
        status="done",
    )  # fmt: skip
    lab: Any = SimpleNamespace(benchmark=SimpleNamespace(success_at=1.0), stream=lambda *_: random.Random(0))
    patch = asyncio.run(Composer().propose(lab, 0, parent, [won], Ledger()))
    child = Harness.from_files(apply(parent.files, patch))
    request: Request = Agent(child, ScriptedModel(lambda _: "")).request({"situation": "here"})
    shown = word.replace("\ud83d", "\ufffd")
    assert request.prompt == f"You see {shown}.\ntake {shown}\nhere\nAction:"
