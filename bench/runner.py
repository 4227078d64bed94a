"""What our runner costs, beside other runners and beside the least that any could cost, in the same game and call.

Measured: CPU time of a step of the counter game (`bench.game`), journal on disk, at one, 32 and 256 episodes at once,
with a model in this process and through a local HTTP server; peak memory; the same of other runners (`bench.peers`),
which save nothing; CPU time and memory of `import harness`, and of `instar --help`. In full also a million events of
the journal (`bench.journal`). CPU time, because other work on the machine does not add to it. `python -m bench runner`.
"""

import json
import os
import resource
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from bench import peers

AT_ONCE = (1, 32, 256)
GOALS = {  # figure: the most it may be
    **{f"ours.cpu_ms_a_step_at_{c}": 0.25 for c in AT_ONCE},
    **{f"ours_http.cpu_ms_a_step_at_{c}": 1.0 for c in AT_ONCE},
    "ours.peak_mb_at_256": 80.0,
    "ours_http.peak_mb_at_256": 80.0,
    "import_harness_cpu_s": 0.3,
    "import_harness_mb": 60.0,
    "instar_help_cpu_s": 0.3,
}


def _game(how: str, at_once: int, n: int) -> dict[str, float]:
    command = [sys.executable, "-m", "bench.game", how, str(at_once), str(n)]
    found: dict[str, float] = json.loads(subprocess.check_output(command, text=True))
    return found


@contextmanager
def _stub() -> Iterator[str]:
    """The port of a model server in a process of its own."""
    command = [sys.executable, "-m", "bench.stub"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            yield process.stdout.readline().strip()
        finally:
            process.terminate()


def _process(command: list[str], times: int) -> float:
    """Least CPU seconds of a process: the least, because other work on the machine only adds."""

    def once() -> float:
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime

    return min(once() for _ in range(times))


def _import_mb() -> float:
    """Peak resident megabytes of a Python that has imported harness."""
    code = "import resource, harness; print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)"
    kilo = 1024 if sys.platform != "darwin" else 1024 * 1024
    return int(subprocess.check_output([sys.executable, "-c", code], text=True)) / kilo


def _row(found: dict[int, dict[str, float]]) -> dict[str, float]:
    told = {f"cpu_ms_a_step_at_{at_once}": figures["ms"] for at_once, figures in found.items()}
    return told | {f"peak_mb_at_{at_once}": figures["mb"] for at_once, figures in found.items()}


def _others(quick: bool, n: int) -> tuple[dict[str, dict[str, float]], str]:
    """Figures of the peers, and why some are missing. In quick mode nothing is installed."""
    if quick and not peers.ready():
        return {}, "the peers are not set up: python -m bench runner, without --quick, does it"
    if why := peers.set_up():
        return {}, f"the peers cannot be set up: {why}"
    found: dict[str, dict[str, float]] = {}
    missing = []
    for peer in peers.PEERS:
        try:
            found[peer] = _row({c: peers.measure(peer, c, n) for c in (AT_ONCE[1:2] if quick else AT_ONCE)})
        except RuntimeError as error:
            missing.append(str(error))
    return found, "; ".join(missing)


def run(quick: bool) -> dict[str, Any]:
    """Figures, goals and whether all are met."""
    n, times = (128, 3) if quick else (512, 5)
    figures: dict[str, Any] = {"ours": _row({c: _game("ours", c, n) for c in AT_ONCE})}
    with _stub() as port:
        figures["ours_http"] = _row({c: _game(f"ours@{port}", c, n) for c in AT_ONCE})
    figures["bare"] = _row({c: _game("bare", c, n) for c in AT_ONCE})
    others, missing = _others(quick, 32 if quick else 128)
    figures |= {"peers": others, "peers_missing": missing or "none"}
    figures["import_harness_cpu_s"] = _process([sys.executable, "-c", "import harness"], times)
    figures["python_cpu_s"] = _process([sys.executable, "-c", "pass"], times)
    figures["import_harness_mb"] = _import_mb()
    instar = os.path.join(os.path.dirname(sys.executable), "instar")
    figures["instar_help_cpu_s"] = _process([instar, "--help"], times)
    if not quick:
        from bench import journal

        figures["journal"] = journal.run(quick)
    goals: dict[str, Any] = {}
    for name, value in GOALS.items():
        group, _, rest = name.rpartition(".")
        reached = figures[group][rest] if group else figures[rest]
        goals[name] = {"bound": "most", "value": value, "met": reached <= value}
    for peer, told in others.items():
        mine = figures["ours"]
        goals[f"below {peer}"] = all(mine[key] < value for key, value in told.items() if key.startswith("cpu"))
    met = [goal["met"] if isinstance(goal, dict) else goal for goal in goals.values()]
    return {"figures": _rounded(figures), "goals": goals, "met": all(met)}


def _rounded(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _rounded(part) for key, part in value.items()}
    return float(f"{value:.3g}") if isinstance(value, float) else value
