"""What a runner costs: ours, the runners of others and the least that any could cost, in one game and in one run.

Each plays the counter game of `bench/players/game.py` in a process of its own on one core, with 1, 32 and 256 episodes
at once: with a model in that process, and through HTTP to a server in another one. Measured is CPU time, of several
repeats the least, because whatever else the machine does only adds. Ours keeps its durable journal all the while. Also:
imports, the start of the command, a million events in a journal (`bench/journal.py`), two Ray workers (`bench/ray.py`).
`--quick` leaves out Ray and most of the peers, and sets nothing up. What was not measured is named and is no goal that
was met. Run from the root: `python -m bench runner [--quick]`.
"""

import importlib.util
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from bench.peers import PEERS, environment

AT_ONCE = (1, 32, 256)
GOALS = {  # figure: the most it may be
    **{f"ours.cpu_ms_a_step_at_{at_once}": 0.25 for at_once in AT_ONCE},
    **{f"ours.to_least_peer_at_{at_once}": 1.0 for at_once in AT_ONCE},
    **{f"ours_http.cpu_ms_a_step_at_{at_once}": 1.0 for at_once in AT_ONCE},
    "ours.peak_mb_at_256": 80.0,
    "ours_http.peak_mb_at_256": 80.0,
    "import_harness_cpu_s": 0.3,
    "import_harness_mb": 60.0,
    "instar_help_cpu_s": 0.3,
    "journal.journal_last_to_first": 1.2,
    "journal.journal_mb_grown": 8.0,
    "journal.report_wall_s": 3.0,
}
_QUICK_PEERS = ("verifiers", "mini_swe_agent")  # the quickest two
Found = dict[str, Any]


class Failed(Exception):
    """A player could not play; the message says why."""


@contextmanager
def server() -> Iterator[str]:
    """The address of a model's server, on another core than the players where there is one."""
    process = subprocess.Popen([sys.executable, "-m", "bench.players.stub"], stdout=subprocess.PIPE, text=True)
    try:
        if hasattr(os, "sched_setaffinity"):
            os.sched_setaffinity(process.pid, {max(os.sched_getaffinity(0))})
        assert process.stdout is not None
        yield process.stdout.readline().strip()
    finally:
        process.kill()
        process.communicate()


def played(python: str, name: str, variant: str, at_once: int, episodes: int, repeats: int, url: str = "") -> Found:
    """One player's figures. Raises Failed."""
    command = [python, "-m", "bench.players", name, variant, "--at-once", str(at_once), "--episodes", str(episodes),
               "--repeats", str(repeats), "--url", url]  # fmt: skip
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        raise Failed((done.stderr.strip().splitlines() or [f"status {done.returncode}"])[-1])
    return dict(json.loads(done.stdout.splitlines()[-1]))


def _row(turns: dict[int, Found]) -> Found:
    row = {f"cpu_ms_a_step_at_{at_once}": turn["cpu_ms"] for at_once, turn in turns.items()}
    return row | {f"peak_mb_at_{at_once}": turn["mb"] for at_once, turn in turns.items()}


def _ours(variant: str, quick: bool, url: str) -> Found:
    """Our runner's row; rounds apart in time, since a machine is busy for minutes."""
    turns = {}
    for at_once in AT_ONCE:
        n = 256 if at_once == 256 else 64 if quick else 128
        each = [played(sys.executable, "ours", variant, at_once, n, 3, url) for _ in range(1 if quick else 3)]
        turns[at_once] = {"cpu_ms": min(turn["cpu_ms"] for turn in each), "mb": max(turn["mb"] for turn in each)}
    return _row(turns)


def _bare(python: str, variant: str, url: str = "") -> Found:
    """What nobody can be cheaper than."""
    return _row({at_once: played(python, "bare", variant, at_once, 256, 3, url) for at_once in AT_ONCE})


def _peer(python: str, name: str, variant: str, quick: bool, url: str) -> Found | str:
    """A peer's row; or why there is none."""
    turns = {}
    for at_once in (32,) if quick else AT_ONCE:
        n = {1: 32, 32: 64, 256: 256}[at_once]
        n = max(n, 256) if name == "verifiers" and variant == "mock" else n  # what it does once is no cost of a step
        try:
            turns[at_once] = played(python, name, variant, at_once, n, 1 if variant == "http" else 3, url)
        except Failed as why:
            return f"not measured at {at_once}: {why}"
    return _row(turns) | {"ready_cpu_s": turns[32]["import_cpu_s"], "ready_mb": turns[32]["import_mb"]}


def _process(command: list[str], times: int) -> tuple[float, float]:
    """Least CPU seconds and peak megabytes of a process."""
    code = (
        "import os, resource, subprocess, sys\n"
        "subprocess.run(sys.argv[1:], check=True, stdout=subprocess.DEVNULL)\n"
        "used = resource.getrusage(resource.RUSAGE_CHILDREN)\n"
        "print(used.ru_utime + used.ru_stime, used.ru_maxrss / (2**20 if sys.platform == 'darwin' else 1024))\n"
    )  # started from a small process, because Linux counts what the parent had at the start
    told = [
        tuple(map(float, subprocess.check_output([sys.executable, "-c", code, *command], text=True).split()))
        for _ in range(times)
    ]
    return min(cpu for cpu, _ in told), min(mb for _, mb in told)


def _starts(times: int) -> Found:
    instar = os.path.join(os.path.dirname(sys.executable), "instar")
    cpu, mb = _process([sys.executable, "-c", "import harness"], times)
    return {
        "import_harness_cpu_s": cpu, "import_harness_mb": mb,
        "python_cpu_s": _process([sys.executable, "-c", "pass"], times)[0],
        "instar_help_cpu_s": _process([instar, "--help"], times)[0],
    }  # fmt: skip


def _ray(quick: bool) -> tuple[Found, Found]:
    """Figures and goals of two Ray workers; or why there are none."""
    if quick:
        return {"ray": "left to the full bench"}, {}
    if importlib.util.find_spec("ray") is None:
        return {"ray": "not measured: it is not installed. Cure: make ray"}, {}
    from bench import ray

    found = ray.run(False)
    return found["figures"], found["goals"]


def run(quick: bool) -> Found:
    """Figures, goals and whether all that were measured are met."""
    from bench import journal

    python, why = environment(make=not quick)
    names = () if not python else _QUICK_PEERS if quick else tuple(PEERS)
    figures: Found = {}
    with server() as url:
        figures["ours"] = ours = _ours("mock", quick, url)
        figures["ours_http"] = _ours("http", quick, url)
        if not quick:  # a deterministic model, function calls, and all of `instar run`
            figures |= {f"ours_{variant}": _ours(variant, quick, url) for variant in ("known", "tools", "run")}
        figures["bare"] = _bare(sys.executable, "json")
        figures["bare_http"] = _bare(sys.executable, "http", url)
        if python and not quick:
            figures["bare_orjson"] = _bare(python, "orjson")
        peers = {name: _peer(python, name, "mock", quick, url) for name in names}
        if names and not quick:
            ours |= {key: min(ours[key], value) for key, value in _ours("mock", quick, url).items() if "cpu" in key}
            peers |= {f"{name}_http": _peer(python, name, "http", quick, url) for name in names}
    figures["peers"] = peers
    if left := [name for name in PEERS if name not in names]:
        figures["peers_not_measured"] = f"{', '.join(left)}: {why or 'left to the full bench'}"
    for at_once in AT_ONCE:
        key = f"cpu_ms_a_step_at_{at_once}"
        ours[f"to_bare_at_{at_once}"] = ours[key] / figures["bare"][key]
        if least := min((row[key] for row in peers.values() if isinstance(row, dict) and key in row), default=None):
            ours[f"to_least_peer_at_{at_once}"] = ours[key] / least
    figures |= _starts(3 if quick else 5)
    figures["journal"] = journal.run(quick)
    told, goals = _ray(quick)
    figures |= told
    for name, value in GOALS.items():
        group, _, rest = name.rpartition(".")
        row = figures[group] if group else figures
        if rest in row:
            goals[name] = {"bound": "most", "value": value, "met": row[rest] <= value}
    return {"figures": _rounded(figures), "goals": goals, "met": all(goal["met"] for goal in goals.values())}


def _rounded(figures: Found) -> Found:
    """Three digits; goals are judged before."""
    return {
        name: _rounded(value)
        if isinstance(value, dict)
        else float(f"{value:.3g}")
        if isinstance(value, float)
        else value
        for name, value in figures.items()
    }
