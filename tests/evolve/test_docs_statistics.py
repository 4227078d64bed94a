"""The how-to on statistics is true: its Python runs and prints what it says, its commands run on finished runs."""

import re
import shlex
from pathlib import Path

import pytest
from doors import agent, doors, player
from typer.testing import CliRunner

from evolve import run
from evolve.cli import app

PAGE = (Path(__file__).parents[2] / "docs" / "statistics.md").read_text(encoding="utf-8")


def blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```$", PAGE, re.S | re.M)


def test_the_python_of_the_how_to_prints_what_it_says(capsys: pytest.CaptureFixture[str]) -> None:
    said = []
    for number, block in enumerate(blocks("python"), 1):
        exec(compile(block, f"statistics.md, block {number}", "exec"), {"__name__": "how_to"})
        said += re.findall(r"^ *print\(.*\)  # (.+)$", block, re.M)
    out = capsys.readouterr().out
    assert len(said) == 2
    for line in said:
        assert line in out


def test_the_commands_of_the_how_to_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for name, right in (("before", 0.0), ("after", 0.8), ("other", 0.2)):
        run(agent(), doors(), n=24, model=player(right), out=f"runs/{name}")
    lines = [line for block in blocks("sh") for line in block.splitlines()]
    assert len(lines) == 5
    for line in lines:
        words = shlex.split(line)
        assert words[0] == "instar"
        done = CliRunner().invoke(app, words[1:])
        assert done.exit_code == 0, (line, done.output, done.exception)


def test_the_table_of_the_how_to_keeps_what_the_issue_asks() -> None:
    rows = {cells[1].strip(): cells[2:-1] for line in PAGE.splitlines() if len(cells := line.split("|")) == 7}
    for name in ("mean", "mean, bootstrap", "difference"):
        assert all(abs(float(cell) - 0.95) <= 0.015 for cell in rows[name])
    assert all(float(cell) <= 0.065 for name in rows if name.startswith("test,") for cell in rows[name])
