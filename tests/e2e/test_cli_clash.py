"""A user's folder may hold files and folders with the names of our packages: the command works there as elsewhere."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from shell import IMITATE, INSTAR, ROOT, found, furnish, ok

TRAP = "raise RuntimeError('the wrong one was imported')\n"


@pytest.fixture
def crowded(tmp_path: Path) -> Path:
    """A place with all five names taken, some by folders and some by files."""
    place = furnish(tmp_path)
    for name in ("envs", "evolve"):
        (place / name).mkdir()
        (place / name / "__init__.py").write_text(TRAP)
    (place / "harness").mkdir()  # without __init__.py it is a namespace package
    for name in ("memory", "skills"):
        (place / f"{name}.py").write_text(TRAP)
    return place


@pytest.mark.parametrize("name", ["envs", "memory", "skills", "harness", "evolve"])
@pytest.mark.parametrize("kind", ["folder", "package", "module"])
def test_each_name_alone_is_no_trouble(tmp_path: Path, name: str, kind: str) -> None:
    if kind == "module":
        (tmp_path / f"{name}.py").write_text(TRAP)
    else:
        (tmp_path / name).mkdir()
    if kind == "package":
        (tmp_path / name / "__init__.py").write_text(TRAP)
    assert "household" in ok(tmp_path, "envs", "list")


def test_all_five_at_once_are_no_trouble_for_any_command(crowded: Path) -> None:
    assert "Usage" in ok(crowded, "--help")
    assert "household" in ok(crowded, "envs", "list")
    assert found(crowded, "run", "agent", "--n", "2", "--model", IMITATE, "--out", "runs/a")["mean"]["episodes"] == 2
    small = ("--set", "explore=20", "--set", "rounds=1", "--set", "batch=2", "--n", "2", "--out", "runs/b")
    assert found(crowded, "evolve", "agent", "--model", IMITATE, *small)["comparison"]["pairs"] == 2
    ok(crowded, "report", "runs/b")
    ok(crowded, "memory", "list", "--in", "runs/b")


def test_an_environment_beside_them_is_found_and_checked_also_in_another_process(crowded: Path) -> None:
    shutil.copy(ROOT / "examples/my_env.py", crowded / "my_env.py")
    for spec in ("my_env.py", "my_env:benchmark"):
        results = found(crowded, "envs", "check", spec)["results"]
        assert {one["status"] for one in results} <= {"passed", "skipped"}
        assert "another process" in {one["name"] for one in results if one["status"] == "passed"}


def test_a_module_of_the_users_own_is_still_found(crowded: Path) -> None:
    (crowded / "mine.py").write_text((crowded / "models.py").read_text())
    result = found(crowded, "run", "agent", "--n", "1", "--model", "scripted:mine:imitate")
    assert result["mean"]["episodes"] == 1


def test_python_m_says_on_one_line_which_folder_is_in_the_way(tmp_path: Path) -> None:
    (tmp_path / "envs").mkdir()
    (tmp_path / "envs/__init__.py").write_text("")
    command = [sys.executable, "-m", "evolve.cli", "--help"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 1
    assert len(done.stderr.strip().splitlines()) == 1, done.stderr
    assert str(tmp_path / "envs") in done.stderr
    assert "Cure: rename that folder" in done.stderr


def test_a_folder_that_is_gone_is_one_line(tmp_path: Path) -> None:
    gone = tmp_path / "gone"
    gone.mkdir()
    script = f"import os; os.rmdir(os.getcwd()); os.execv({str(INSTAR)!r}, ['instar', 'envs', 'list'])"
    done = subprocess.run([sys.executable, "-c", script], cwd=gone, capture_output=True, text=True)
    assert done.returncode == 1
    *before, last = done.stderr.splitlines()  # where the path has a blank, a shell starts the command and complains too
    assert last.startswith("error: ")
    assert all(line.startswith("sh: ") for line in before)
    assert "Traceback" not in done.stderr
