"""`instar log`, `blame` and `diff`: what became of the files of a harness, told from the run's journal."""

import re
import shutil
from pathlib import Path

import pytest
from shell import failed, found, furnish, ok

from evolve.lineage import Lineage
from harness.folder import Harness

WORLD = """
import re
from envs import Benchmark, Env, Observation, Step, Task

class Fork(Env):
    async def reset(self, task, seed):
        return Observation("The road forks.", ("left", "right"))
    async def step(self, action):
        return Step(Observation("You walk on."), 1.0 if action == "right" else 0.0, True)

def tasks(split):
    return lambda n=None: [Task(id=f"{split}-{i}", split=split, goal="Get home.", data={"at": f"{split}-{i}"})
                           for i in range(n or 60)]

benchmark = Benchmark(name="fork", make_env=Fork, splits={s: tasks(s) for s in ("train", "valid", "test")})

def walker(request):
    return "right" if "keep right" in request.prompt else "left"

def adviser(request):
    text = request.messages[-1].content
    step = re.search(r'<file path="prompts/step.md">\\n(.*?)</file>', text, re.S)[1]
    number = step.count("keep right") + 1
    return (f"<hypothesis>advice number {number} leads home</hypothesis>"
            f'<file path="prompts/step.md">\\nOn roads, keep right.\\n{step}</file>')
"""
PLAYERS = ("--env", "world.py", "--model", "scripted:world.py:walker")


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A place with one evolution of files that kept a change and rejected one, one of a memory, and a benchmark run."""
    place = furnish(tmp_path_factory.mktemp("lineage"))
    (place / "world.py").write_text(WORLD)
    judged = ("--set", "rounds=2", "--set", "batch=4", "--set", "max_pairs=24", "--n", "8")
    maker = ("--recipe", "reflect", "--set", "view=both", "--proposer", "scripted:world.py:adviser")
    found(place, "evolve", "agent", *PLAYERS, *maker, *judged, "--out", "runs/files")
    memory = ("--set", "explore=20", "--set", "rounds=1", "--set", "batch=4", "--n", "4")
    found(place, "evolve", "agent", *PLAYERS, *memory, "--out", "runs/memory")
    found(place, "run", "agent", "--n", "2", *PLAYERS, "--out", "runs/played")
    return place


def versions(place: Path) -> tuple[str, str]:
    """The root and the chosen version of runs/files."""
    root, chosen = Harness.load(place / "agent").version, Harness.load(place / "runs/files/best").version
    assert root != chosen
    return root, chosen


def test_the_log_is_the_tree_of_lineage_json_with_its_verdicts(home: Path) -> None:
    said = ok(home, "log", "runs/files")
    assert said.startswith(Lineage.load(home / "runs/files/lineage.json").log())
    assert f"chosen {versions(home)[1][:10]}" in said
    assert re.search(r"\[(accept|reject|undecided): ", said)


def test_the_journal_alone_is_enough(home: Path, tmp_path: Path) -> None:
    shutil.copytree(home / "runs/files", tmp_path / "bare", ignore=shutil.ignore_patterns("lineage.json", "best"))
    assert ok(tmp_path, "log", "bare") == ok(home, "log", "runs/files")


def test_a_copy_of_a_run_has_its_digest_and_another_run_has_another(home: Path, tmp_path: Path) -> None:
    shutil.copytree(home / "runs/files", tmp_path / "copy")
    one, copy, other = (ok(*at) for at in ((home, "digest", "runs/files"), (tmp_path, "digest", "copy"),
                                           (home, "digest", "runs/memory")))  # fmt: skip
    assert one == copy != other


def test_each_line_is_traced_to_the_version_and_the_hypothesis_that_brought_it(home: Path) -> None:
    root, chosen = versions(home)
    said = ok(home, "blame", "runs/files", "prompts/step.md").splitlines()
    text = (home / "runs/files/best/prompts/step.md").read_text().splitlines()
    assert [line[24:] for line in said[: len(text)]] == text
    assert said[0] == f"{chosen[:10]}  change 0    On roads, keep right."
    assert {line[:22] for line in said[1 : len(text)]} == {f"{root[:10]}  root      "}
    about = said[len(text) + 1 :]
    assert [line[:10] for line in about] == [root[:10], chosen[:10]]
    assert "advice number 1 leads home [accept: " in about[1]


def test_the_difference_is_from_the_root_to_the_chosen_one_unless_others_are_named(home: Path) -> None:
    root, chosen = versions(home)
    said = ok(home, "diff", "runs/files")
    assert "+On roads, keep right.\n" in said
    assert ok(home, "diff", "runs/files", root[:8], chosen[:8]) == said
    assert "-On roads, keep right.\n" in ok(home, "diff", "runs/files", chosen[:8], root[:8])
    assert ok(home, "diff", "runs/files", chosen[:8]) == ""
    assert root[:10] in failed(home, "diff", "runs/files", "zzz")


@pytest.mark.parametrize("words", [("log",), ("blame", "prompts/step.md"), ("diff",)])
def test_a_run_without_a_lineage_says_why_and_what_to_do(home: Path, words: tuple[str, ...]) -> None:
    command, *rest = words
    assert "instar memory list --in runs/memory" in failed(home, command, "runs/memory", *rest)
    assert "instar evolve" in failed(home, command, "runs/played", *rest)
    assert "no run here" in failed(home, command, "agent", *rest)


def test_a_file_that_is_not_there_is_answered_with_those_that_are(home: Path) -> None:
    line = failed(home, "blame", "runs/files", "prompts/none.md")
    assert "prompts/step.md" in line
