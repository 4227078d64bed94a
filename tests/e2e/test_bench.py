"""`python -m bench NAME`: a table for people, and one JSON object as the last line for programs."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


def bench(*words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "bench", *words], cwd=ROOT, capture_output=True, text=True, timeout=300
    )


@pytest.mark.parametrize("name", ["runner", "evolver"])
def test_the_last_line_is_one_json_object_and_every_goal_is_in_the_table(name: str) -> None:
    done = bench(name, "--quick")
    assert done.returncode == 0, done.stderr
    *table, last = done.stdout.splitlines()
    found = json.loads(last)
    assert set(found) == {"bench", "figures", "goals", "met"}
    assert found["bench"] == name
    assert found["figures"]
    for goal, said in found["goals"].items():
        assert any(goal in line for line in table)
        if isinstance(said, dict):
            reached = found["figures"]
            for part in goal.split("."):
                reached = reached[part]
            assert said["met"] == (reached <= said["value"] if said["bound"] == "most" else reached >= said["value"])
    assert found["met"] == all(said["met"] if isinstance(said, dict) else said for said in found["goals"].values())


def test_what_is_not_there_yet_says_so_on_one_line() -> None:
    done = bench("train")
    assert done.returncode == 1
    assert len(done.stderr.splitlines()) == 1
    assert "not there yet" in done.stderr


def test_an_unknown_name_is_wrong_usage() -> None:
    assert bench("speed").returncode == 2
