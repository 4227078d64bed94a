"""The page on environments is true: its example is the file, the file is healthy and learnable, its specs load."""

import asyncio
import re
from pathlib import Path

import pytest

from envs.check import check
from envs.registry import EnvError, load
from envs.task import Step

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "environments.md").read_text()
FILE = ROOT / "examples" / "my_env.py"


def blocks(language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", PAGE, re.DOTALL)


def test_the_page_shows_the_example_file_as_it_is_in_at_most_thirty_lines() -> None:
    assert blocks("python")[0] == FILE.read_text()
    assert len(FILE.read_text().splitlines()) <= 30


def test_the_example_passes_every_rule_also_in_another_process() -> None:
    report = check(load(str(FILE)), spec=str(FILE), episodes=6)
    assert {result.status for result in report.results} == {"passed"}, str(report)


def test_the_example_of_a_world_in_a_process_of_its_own_runs(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(FILE.parent)
    monkeypatch.setenv("INSTAR_STATE", str(tmp_path))
    (code,) = blocks("python")[1:]
    exec(compile(code, "docs/environments.md", "exec"), {})
    assert capsys.readouterr().out.startswith(("It opens.", "The key breaks."))
    assert list((tmp_path / "leases").iterdir()) == []


LINES = [line for block in blocks("sh") for line in block.splitlines() if not line.startswith("instar init ")]


@pytest.mark.parametrize("command", LINES)
def test_each_shell_line_names_the_example_and_its_spec_loads(command: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(FILE.parent)
    words = command.split()
    assert words[0] == "instar"
    spec = words[words.index("--env") + 1] if "--env" in words else words[words.index("check") + 1]
    assert load(spec).name == "doors"


def test_every_spec_in_the_table_is_of_a_form_that_loads(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for place in ("my_env.py", "my_folder/env.py", "my_package/my_module.py"):
        (tmp_path / place).parent.mkdir(exist_ok=True)
        (tmp_path / place).write_text(FILE.read_text())
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    specs = re.findall(r"^\| `([^`]+)` \|", PAGE, re.MULTILINE)
    assert len(specs) == 6
    for spec in specs:
        assert load(spec).tasks("train", 1)
    assert load("household:level=2,max_steps=20").max_steps == 20
    assert load("my_env.py:max_steps=5").max_steps == 5
    with pytest.raises(EnvError):
        load("my_folder:no_such_attribute")


def test_the_example_can_be_learned_from_earlier_houses() -> None:
    """A player that remembers which key opened which metal in `train` is perfect in `test`; chance is 1 in 27."""
    benchmark = load(str(FILE))
    known: dict[str, str] = {}
    tried: dict[str, set[str]] = {}

    async def house(task_number: int, split: str) -> float:
        env = benchmark.make_env()
        seen = await env.reset(benchmark.tasks(split, 1, task_number)[0], task_number)
        rewards: list[float | None] = []
        while True:
            metal = seen.text.rsplit("door of ", 1)[1].rstrip(".")
            left = [key for key in seen.choices or () if key not in tried.setdefault(metal, set())]
            key = known.get(metal) or left[0]
            said: Step = await env.step(key)
            rewards.append(said.reward)
            tried[metal].add(key)
            if said.reward:
                known[metal] = key
            if said.done:
                return benchmark.score(rewards)
            seen = said.observation

    first = [asyncio.run(house(number, "train")) for number in range(10)]
    last = [asyncio.run(house(number, "test")) for number in range(20)]
    assert sum(first) / len(first) < 0.9
    assert last == [1.0] * 20


def test_the_order_of_the_choices_varies_with_the_seed_and_not_their_set() -> None:
    benchmark = load(str(FILE))
    task = benchmark.tasks("train", 1)[0]
    seen = [asyncio.run(benchmark.make_env().reset(task, seed)).choices or () for seed in range(20)]
    assert len(set(seen)) > 1
    assert len({frozenset(keys) for keys in seen}) == 1
