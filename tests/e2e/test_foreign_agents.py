"""Agents that others wrote, from PyPI and in an environment of their own, play a benchmark and leave training rows.

Run by `make test-foreign`, which installs them and names their bin folder in INSTAR_FOREIGN.
"""

import json
import os
import re
import shutil
from pathlib import Path

import pytest
from shell import ROOT, found, ok

from harness.journal import Journal

EXAMPLE = ROOT / "examples" / "foreign_agent"
FOREIGN = os.environ.get("INSTAR_FOREIGN", "")


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """The example, copied."""
    shutil.copytree(EXAMPLE, tmp_path / "place")
    return tmp_path / "place"


@pytest.mark.slow
@pytest.mark.skipif(not FOREIGN, reason="needs the foreign agents: make test-foreign")
@pytest.mark.parametrize("which", ["mini", "smol"])
def test_a_foreign_agent_plays_a_benchmark_and_its_trajectories_export_as_rows(place: Path, which: str) -> None:
    path = os.pathsep.join((os.path.abspath(FOREIGN), os.environ["PATH"]))
    words = ("run", which, "--env", str(ROOT / "examples" / "my_env.py"), "--n", "4", "--out", "played")
    told = found(place, *words, PATH=path)
    assert told["mean"]["missing"] == 0
    with Journal(place / "played", readonly=True) as journal:
        played = {trajectory.task: trajectory for trajectory in journal.trajectories()}
    assert [t.status for t in played.values()] == ["done"] * 4
    assert {task: [turn.action for turn in t.turns] for task, t in played.items()} == {
        "iron-brass-brass": ["red", "blue", "blue"], "iron-silver-silver": ["red", "blue", "blue"],
        "iron-tin-silver": ["red", "red"], "tin-iron-iron": ["red"],
    }  # fmt: skip
    for trajectory in played.values():
        assert all(turn.calls and turn.calls[-1].tool_calls for turn in trajectory.turns)
        assert any(message.role == "system" for message in trajectory.turns[0].calls[0].messages or ())
    ok(place, "export", "played", "--to", "rows", "--out", "rows.jsonl")
    rows = [json.loads(line) for line in (place / "rows.jsonl").read_text().splitlines()]
    assert len(rows) == sum(len(t.all_calls) for t in played.values())
    assert {row["task"] for row in rows} == set(played)
    assert found(place, *words, PATH=path)["cached"] == told["cached"]  # again: from the journal


def test_the_recorded_output_of_the_example_says_what_the_test_above_finds() -> None:
    for which in ("mini", "smol"):
        text = (EXAMPLE / f"{which}.txt").read_text(encoding="utf-8")
        assert re.search(r"scored 0\.583 \[.*\] on 4 episodes of 4 valid tasks, 2 of", text), which
        assert "4 trajectories" in text, which
