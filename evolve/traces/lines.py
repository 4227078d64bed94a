"""Our own format, JSONL: all that a run knows, one line a trajectory, for other machines, other tools and other years.

The first line says what the file is, in which format, and what the run was (its plan); after it each line is one
trajectory in full, or one of the other events of the run (rounds, verdicts, results), in order. A reader refuses a
newer format, and reads nothing of a file in which any line is broken. A name that ends in `.gz` is compressed.
"""

import gzip
import json
import zlib
from collections.abc import Iterator
from itertools import chain
from pathlib import Path
from typing import IO, Any

from pydantic import ValidationError

import harness
from evolve.traces.checked import (
    check_depth,
    check_event,
    check_plan,
    check_time,
    check_times,
    check_trajectory,
    first_of,
)
from evolve.traces.imported import Imported
from evolve.traces.trace import INSIDE, Trace, TraceFault, run_id
from harness.journal import Event
from harness.trajectory import Trajectory

FORMAT = 1
KIND = "trajectories"


def header(plan: dict[str, Any], at: float | None = None) -> str:
    """The first line of a file; `at`: Unix seconds at which the run began."""
    told = {"instar": KIND, "format": FORMAT, "version": harness.__version__, "run": run_id(plan), "plan": plan}
    return json.dumps(told if at is None else told | {"at": at})


def line(one: Trace | Event) -> str:
    """The line of a trajectory or of another event; the plan has none, since the header holds it."""
    if isinstance(one, Trace):
        told: dict[str, Any] = {"at": one.at, "turned": one.turned}
        return json.dumps({"trajectory": one.trajectory.model_dump(mode="json"), **told})
    return json.dumps({"event": one.kind, "key": one.key, "at": one.at, "body": one.body})


def opened(path: Path) -> IO[str]:
    """The text of `path`, which may be compressed, and may begin with the mark that Windows puts there."""
    if path.suffix == ".gz":
        return gzip.open(path, "rt", encoding="utf-8-sig")
    return path.open(encoding="utf-8-sig")


def numbered(path: Path) -> Iterator[tuple[int, str]]:
    """The lines of `path` that hold something, counted from 1. Raises TraceFault or OSError."""
    number = 0
    try:
        with opened(path) as file:
            for number, text in enumerate(file, 1):
                if text.strip():
                    yield number, text
    except (EOFError, zlib.error, gzip.BadGzipFile, UnicodeDecodeError) as error:
        raise broken(path, number + 1, f"the file is cut off or damaged ({error})") from error


def parsed(path: Path, number: int, text: str) -> dict[str, Any]:
    """A line as an object. Raises TraceFault."""
    try:
        value = json.loads(text)
        check_depth(value)
    except json.JSONDecodeError as error:
        raise broken(path, number, f"not JSON ({error})") from error
    except (ValueError, RecursionError) as error:
        raise broken(path, number, f"not JSON that can be read ({error})") from error
    if not isinstance(value, dict):
        raise broken(path, number, "not a JSON object")
    return value


def broken(path: Path, number: int, what: str) -> TraceFault:
    """The error about one line."""
    return TraceFault(f"{path}, line {number}: {what}. Nothing was imported. Cure: mend the line, or export again")


def is_ours(path: Path) -> bool:
    """Whether a file begins with a header of ours. Raises TraceFault for an empty one, and OSError."""
    _, text = next(numbered(path), (1, ""))
    if not text:
        raise TraceFault(f"{path}: is empty. Cure: import what `instar export --to jsonl` or `--to otlp` wrote")
    try:
        told = json.loads(text)
    except (ValueError, RecursionError):  # the reader of spans says what is wrong
        return False
    return isinstance(told, dict) and "instar" in told


def check_header(path: Path, told: dict[str, Any]) -> None:
    """Raises TraceFault unless `told` begins a file that this version reads."""
    kind, version = told.get("instar"), told.get("format")
    if kind != KIND or type(version) is not int or version < 1:
        raise TraceFault(
            f"{path}, line 1: neither a header of instar's trajectories nor OTLP/JSON spans. Cure: import what "
            "`instar export --to jsonl` or `--to otlp` wrote"
        )
    if version > FORMAT:
        raise TraceFault(f"{path}: format {version} is newer than this instar reads ({FORMAT}). Cure: update instar")


def load(path: Path, run: Imported) -> None:
    """Bring the trajectories and events of `path` into `run`. Raises TraceFault, JournalError or OSError."""
    lines = numbered(path)
    number, text = next(lines, (1, "{}"))
    told = parsed(path, number, text)
    check_header(path, told)
    try:
        reach = check_plan(told.get("plan"))
        begun = _at(told)
        number, text = next(lines, (number, ""))
        ahead = [(number, text)] if text else []
        if begun is None and ahead:  # an older file's first line tells no time
            begun = _begun(parsed(path, number, text))
        run.event("plan", told["plan"], at=begun)
        for number, text in chain(ahead, lines):
            one = parsed(path, number, text)
            if "trajectory" in one:
                _put(run, one, reach)
            elif _is_event(one):
                key = str(one.get("key", ""))
                check_event(one["event"], key, one["body"])
                run.event(one["event"], one["body"], key, at=_at(one))
            else:
                raise broken(path, number, "neither a trajectory nor an event")
    except TraceFault:
        raise
    except ValueError as error:
        why = f"no trajectory ({first_of(error)})" if isinstance(error, ValidationError) else str(error)
        raise broken(path, number, why) from error


def _put(run: Imported, told: dict[str, Any], reach: tuple[float, float]) -> None:
    trajectory = Trajectory.model_validate(told["trajectory"])
    check_trajectory(trajectory, reach)
    run.put(trajectory, at=_at(told), turned=check_times(told.get("turned", []), len(trajectory.turns)))


def _begun(told: dict[str, Any]) -> float | None:
    """When what a line tells began; None where it does not tell."""
    inner = told.get("trajectory")
    return check_time("started", inner["started"]) if isinstance(inner, dict) and "started" in inner else _at(told)


def _at(told: dict[str, Any]) -> float | None:
    """When it was written down; None where a line does not tell."""
    return None if told.get("at") is None else check_time("at", told["at"])


def _is_event(told: dict[str, Any]) -> bool:
    """Whether a line is an event that may stand beside trajectories; how they came about is no part of a file."""
    kind = told.get("event")
    return isinstance(kind, str) and kind not in (*INSIDE, "plan") and isinstance(told.get("body"), dict)
