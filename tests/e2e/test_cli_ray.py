"""`instar run --on ray` as a user gives it: the same numbers, quiet, stopped cleanly, and on a cluster that runs."""

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from shell import IMITATE, INSTAR, SLOWLY, SMALL, failed, found, furnish, ok

from harness.journal import Journal

pytest.importorskip("ray", reason="needs the ray extra (make test-ray)")
pytestmark = pytest.mark.slow

RUN = ("run", "agent", "--n", "12", "--episodes", "2", "--model", SLOWLY, "--concurrency", "8")
ON = ("--on", "ray", "--workers", "2")


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A user's project, with a folder that has the name of one of ours."""
    made = furnish(tmp_path_factory.mktemp("ray") / "place")
    (made / "envs").mkdir()
    (made / "envs" / "__init__.py").write_text("raise ImportError('the wrong envs')\n")
    return made


@pytest.fixture(scope="module")
def here(place: Path) -> dict[str, Any]:
    """What the run finds without Ray."""
    return found(place, *RUN, "--out", "runs/here")


def same(one: dict[str, Any], other: dict[str, Any]) -> bool:
    """Whether two runs found the same, whatever was answered twice and where they lie."""
    kept = ("asked", "mean", "rates", "solved", "taught")
    return all(one[key] == other[key] for key in kept) and one["cost"]["calls"] == other["cost"]["calls"]


def processes() -> dict[int, tuple[int, str]]:
    """Parent and title of each process that is not dead."""
    said = subprocess.run(["ps", "-eo", "pid=,ppid=,stat=,args="], capture_output=True, text=True, check=True).stdout
    lines = (line.split(maxsplit=3) for line in said.splitlines())
    return {int(pid): (int(parent), title) for pid, parent, stat, title in lines if stat[0] != "Z"}


def below(pid: int) -> dict[int, str]:
    """All that descends from process `pid`, with titles."""
    known, seen, todo = processes(), {}, [pid]
    while todo:
        mine = {child: title for child, (parent, title) in known.items() if parent == todo[-1]}
        todo.pop()
        seen |= mine
        todo += mine
    return seen


def until(condition: Callable[[], object], seconds: float = 90) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, f"it did not happen within {seconds:g} s"
        time.sleep(0.05)


def start(place: Path, *words: str, **env: str) -> "subprocess.Popen[str]":
    return subprocess.Popen(
        [str(INSTAR), *words], cwd=place, env={**os.environ, **env}, text=True, stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    )  # fmt: skip


def asked(place: Path) -> int:
    log = place / "asked.log"
    return log.stat().st_size if log.exists() else 0


def test_a_worker_killed_mid_run_changes_no_number_and_prints_nothing(place: Path, here: dict[str, Any]) -> None:
    before = asked(place)
    with start(place, *RUN, *ON, "--out", "runs/there", "--json", WAIT="0.1") as run:
        until(lambda: asked(place) > before + 30 or run.poll() is not None)
        workers = [pid for pid, title in below(run.pid).items() if title.startswith("ray::Outpost")]
        assert len(workers) == 2
        os.kill(workers[0], signal.SIGKILL)
        said, complained = run.communicate(timeout=120)
    assert run.returncode == 0, complained
    assert same(json.loads(said), here)
    assert "raylet" not in complained
    assert "Traceback" not in complained


def test_sigterm_stops_workers_too_and_the_run_goes_on_without_them(place: Path, here: dict[str, Any]) -> None:
    before = asked(place)
    with start(place, *RUN, *ON, "--out", "runs/cut", WAIT="0.1") as run:
        until(lambda: asked(place) > before + 30 or run.poll() is not None)
        rays = set(below(run.pid))
        assert len(rays) > 4
        run.send_signal(signal.SIGTERM)
        _, complained = run.communicate(timeout=60)
    assert run.returncode == 130
    assert "the same command goes on from there" in complained
    assert "Traceback" not in complained
    until(lambda: not rays & set(processes()), 10)
    assert same(found(place, *RUN, "--out", "runs/cut"), here)


def test_workers_recall_from_a_memory_that_is_lent(place: Path) -> None:
    ok(place, "evolve", "agent", "--model", IMITATE, *SMALL, "--out", "runs/taught")
    lent = (*RUN[:6], "--model", IMITATE, "--memory", "runs/taught")
    plain = found(place, *lent, "--out", "runs/lent-here")
    assert same(found(place, *lent, *ON, "--out", "runs/lent-there"), plain)
    bare = found(place, *RUN[:6], "--model", IMITATE, "--out", "runs/bare")
    assert plain["mean"] != bare["mean"]  # so that recalling makes a difference


def test_an_evolution_without_a_memory_is_the_same_in_workers(place: Path) -> None:
    words = ("evolve", "agent", "--recipe", "reflect", "--model", IMITATE, "--n", "4", "--concurrency", "4")
    words += ("--set", "explore=60", "--set", "rounds=2", "--set", "batch=4", "--set", "max_pairs=6")
    digests = []
    for out, more in (("reflect-here", ()), ("reflect-there", ON)):
        ok(place, *words, *more, "--out", f"runs/{out}")
        with Journal(place / "runs" / out, readonly=True) as journal:
            digests.append(journal.digest())
    assert digests[0] == digests[1]


def test_what_cannot_be_is_told_in_one_line(place: Path) -> None:
    assert "a memory that grows" in failed(place, "evolve", "agent", "--model", IMITATE, *ON)
    assert "Cure: --on ray" in failed(place, "run", "agent", "--model", IMITATE, "--workers", "2")
    assert "is no place to run on" in failed(place, "run", "agent", "--model", IMITATE, "--on", "moon")
    assert "--calls 1 cannot be divided" in failed(place, *RUN, *ON, "--calls", "1")


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, dict[str, str]]]:
    """A cluster of this machine alone that somebody else started: its address and what one must export to join it."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    env = {"RAY_USAGE_STATS_ENABLED": "0", "RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": "5" * 32}
    words = ["start", "--head", "--block", f"--port={port}", "--node-ip-address=127.0.0.1", "--num-cpus=2"]
    words += ["--include-dashboard=false", f"--object-store-memory={100 * 2**20}"]
    log = tmp_path_factory.mktemp("cluster") / "log"
    with log.open("w") as file:
        head = subprocess.Popen(
            [str(Path(sys.executable).parent / "ray"), *words], env={**os.environ, **env}, stdout=file,
            stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL,
        )  # fmt: skip
    try:
        until(lambda: "Ray runtime started" in log.read_text() or head.poll() is not None)
        assert head.poll() is None, log.read_text()
        yield f"ray://127.0.0.1:{port}", env
    finally:
        head.terminate()
        head.wait(30)


def test_a_cluster_that_runs_is_joined_and_left_as_it_was(
    place: Path, here: dict[str, Any], cluster: tuple[str, dict[str, str]]
) -> None:
    address, env = cluster
    for out, more in (("one", ()), ("two", ("--isolate",))):
        assert same(found(place, *RUN, "--on", address, *more, "--out", f"runs/{out}", **env), here)
    until(lambda: not any(title.startswith("ray::Outpost") for _, title in processes().values()))


def test_a_key_stays_where_it_is_exported(place: Path, cluster: tuple[str, dict[str, str]]) -> None:
    address, env = cluster
    words = ("run", "agent", "--model", "openai/tiny", "--api-base", "http://192.0.2.7/v1", "--api-key-env", "OUR_KEY")
    said = failed(place, *words, "--on", address, "--out", "runs/key", OUR_KEY="sk-never-sent-anywhere", **env)
    assert "export OUR_KEY" in said
    assert "(said on " in said
    assert "never-sent" not in said
