"""A run goes out to other tools, and comes in from them: the journal is read, the run is never touched.

`export` writes JSONL, rows for a trainer or OpenTelemetry spans, or logs to MLflow; `import_run` makes a run folder of
what was exported. A file gets its name when it is whole, except with `follow`, which writes as the run goes on.
"""

import errno
import gzip
import os
import signal
import sys
import threading
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any, Literal

from pydantic import BaseModel, ConfigDict

from evolve.traces import foreign, lines
from evolve.traces.imported import new_run
from evolve.traces.otlp import Sender, as_json
from evolve.traces.rows import rows_of
from evolve.traces.spans import resource, spans_of
from evolve.traces.trace import Reader, Trace, TraceFault, plan_of, run_id
from harness.journal import Event, Journal

To = Literal["jsonl", "rows", "otlp", "mlflow"]
#: Errors of a disk, a quota or a limit that leaves no room, or of one that breaks.
_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO)
FORMATS: tuple[To, ...] = ("jsonl", "rows", "otlp", "mlflow")


class Exported(BaseModel):
    """What went out: trajectories, and with `rows` what became of them."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    to: str
    where: str
    trajectories: int = 0
    events: int = 0  # jsonl: what else the run wrote down
    spans: int = 0
    token_rows: int = 0
    text_rows: int = 0
    gaps: int = 0  # rows: trajectories that were lost, and teach nothing
    held_out: int = 0  # rows: trajectories of an exam, which nobody may be taught from
    no_calls: int = 0  # rows: trajectories in which no model was asked

    def summary(self) -> str:
        """One line of text."""
        told = f"{self.trajectories} trajectories"
        match self.to:
            case "jsonl":
                told += f" and {self.events} other events"
            case "otlp":
                told += f", {self.spans} spans"
            case "rows":
                told += f": {self.token_rows} token rows, {self.text_rows} text rows (not for RL)"
                out = {"gaps": self.gaps, "of the exam": self.held_out, "without a model call": self.no_calls}
                if left := [f"{count} {what}" for what, count in out.items() if count]:
                    told += f"; left out: {', '.join(left)}"
        return f"{self.where}: {told}"


class Imported(BaseModel):
    """What came in, and the run folder that it is now."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    folder: str
    trajectories: int
    silent_calls: int = 0  # spans of model calls that carried no messages, and were left out


def export(
    run: str | os.PathLike[str], to: To, out: str | os.PathLike[str] | None = None, *, endpoint: str | None = None,
    content: bool = False, follow: bool = False, split: str | None = None,
) -> Exported:  # fmt: skip
    """Write what has finished in `run`: to the file `out` (None: standard output; `.gz` compresses), or to `endpoint`.

    `content`: spans with what was said. `follow`: go on until the run ends, or Ctrl-C. `split`: rows of its tasks
    only; without it they leave out an evolution's exam. Raises TraceFault, JournalError or OSError.
    """
    path = None if out is None else Path(out)
    _check(to, path, endpoint, content, follow, split)
    tally: Counter[str] = Counter()
    with Journal(run, readonly=True) as journal, _ctrl_c(follow) as stop:
        plan, began = plan_of(journal)
        reader = Reader(journal)
        found = reader.following(stop) if follow else reader.news()
        if to == "mlflow":
            where = _to_mlflow(Path(run), plan, found, endpoint, tally)
        elif to == "otlp" and path is None:
            where = _to_server(plan, found, endpoint, content, follow, tally)
        else:
            where = "standard output" if path is None else str(path)
            with _written(path, live=follow) as file:
                for text in _texts(to, plan, began, found, tally, content, split):
                    file.write(text + "\n")
                    if follow:
                        file.flush()
    return Exported(to=to, where=where, **tally)


def import_run(path: str | os.PathLike[str], out: str | os.PathLike[str]) -> Imported:
    """Make the run folder `out` of a file that `export` wrote as JSONL, or of OTLP/JSON spans, ours or another's.

    Of JSONL everything comes back, and its digest is that of the run. Raises TraceFault, JournalError or OSError.
    """
    source, silent = Path(path), 0
    ours = lines.is_ours(source)
    with new_run(Path(out)) as run:
        if ours:
            lines.load(source, run)
        else:
            silent = foreign.load(source, run)
    return Imported(folder=str(out), trajectories=run.trajectories, silent_calls=silent)


def _check(
    to: str, out: Path | None, endpoint: str | None, content: bool, follow: bool, split: str | None
) -> None:  # fmt: skip
    """Raise TraceFault for what makes no sense together."""
    wrong = {
        f"no such format: {to}. Cure: one of {', '.join(FORMATS)}": to not in FORMATS,
        f"{to} goes into a file. Cure: --out FILE instead of --endpoint": endpoint and to in ("jsonl", "rows"),
        "mlflow takes no file. Cure: --endpoint URI, such as sqlite:///mlflow.db": out and to == "mlflow",
        "spans go into a file or to a server. Cure: give one of --out and --endpoint": out and endpoint,
        f"--content is for spans; {to} has the texts in any case. Cure: leave it out": content and to != "otlp",
        "--split is for rows. Cure: leave it out": split and to != "rows",
        "a compressed file cannot be followed. Cure: a name without .gz": follow and out and out.suffix == ".gz",
    }
    for message, is_so in wrong.items():
        if is_so:
            raise TraceFault(message)


def _texts(
    to: str, plan: dict[str, Any], began: float | None, found: Iterable[Trace | Event], tally: Counter[str],
    content: bool, split: str | None,
) -> Iterator[str]:  # fmt: skip
    """The lines of a file, counted in `tally`."""
    told, run = resource(plan), run_id(plan)
    if to == "jsonl":
        yield lines.header(plan, began)
    for one in found:
        if isinstance(one, Event):
            if to == "jsonl" and one.kind != "plan":
                tally["events"] += 1
                yield lines.line(one)
            continue
        if to == "rows":
            yield from _rows(one, run, tally, split)
            continue
        tally["trajectories"] += 1
        if to == "jsonl":
            yield lines.line(one)
        else:
            spans = spans_of(one, plan, content=content)
            tally["spans"] += len(spans)
            yield as_json(spans, told)


def _rows(one: Trace, run: str, tally: Counter[str], split: str | None) -> Iterator[str]:
    """The rows of a trajectory that may teach."""
    t = one.trajectory
    if split not in (None, t.split):
        return
    if split is None and t.id.startswith("exam/"):
        tally["held_out"] += 1
    elif t.status == "gap":
        tally["gaps"] += 1
    elif not t.all_calls:
        tally["no_calls"] += 1
    else:
        tally["trajectories"] += 1
        for row in rows_of(t, run):
            tally["token_rows" if row.kind == "tokens" else "text_rows"] += 1
            yield row.to_json()


def _to_server(
    plan: dict[str, Any], found: Iterable[Trace | Event], endpoint: str | None, content: bool, live: bool,
    tally: Counter[str],
) -> str:  # fmt: skip
    with Sender(endpoint, resource(plan)) as sender:
        for one in found:
            if isinstance(one, Trace):
                sender.send(spans_of(one, plan, content=content))
                tally["trajectories"] += 1
                if live:  # somebody is watching
                    sender.flush()
    tally["spans"] = sender.sent
    return sender.address


def _to_mlflow(
    run: Path, plan: dict[str, Any], found: Iterable[Trace | Event], endpoint: str | None, tally: Counter[str]
) -> str:
    from evolve.tracking import MLflowTracker

    with MLflowTracker(endpoint, name=run.resolve().name, plan=plan) as tracker:
        for one in found:
            if isinstance(one, Trace):
                tracker(one.trajectory)
                tally["trajectories"] += 1
        tracker.log_run(run)
    return tracker.address


@contextmanager
def _ctrl_c(follow: bool) -> Iterator[threading.Event]:
    """Ctrl-C is how following a run ends, and no fault: what is being written is finished. A second one is as ever."""
    stop = threading.Event()
    if not follow or threading.current_thread() is not threading.main_thread():
        yield stop
        return

    def once(*_: object) -> None:
        stop.set()
        signal.signal(signal.SIGINT, before)

    before = signal.signal(signal.SIGINT, once)
    try:
        yield stop
    finally:
        signal.signal(signal.SIGINT, before)


@contextmanager
def _written(path: Path | None, *, live: bool) -> Iterator[IO[str]]:
    """The file to write: it gets its name when it is whole, unless somebody reads along. Raises TraceFault, OSError."""
    try:
        with _opened(path, live) as file:
            yield file
            file.flush()
    except OSError as error:
        if error.errno not in _FULL:
            raise
        rest = "What was there is as it was" if path is not None and not live else "What is written there is cut off"
        raise TraceFault(
            f"{'standard output' if path is None else path}: cannot be written to its end ({error.strerror}). {rest}. "
            "Cure: make room, or write to another disk, or compress (--out NAME.gz)"
        ) from error


@contextmanager
def _opened(path: Path | None, live: bool) -> Iterator[IO[str]]:
    if path is None:
        yield sys.stdout
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    if live:
        with path.open("w", encoding="utf-8") as file:
            yield file
        return
    part = path.with_name(f".{path.name}.part")
    try:
        with (
            gzip.open(part, "wt", encoding="utf-8")
            if path.suffix == ".gz"
            else part.open("w", encoding="utf-8") as file
        ):
            yield file
        os.replace(part, path)
    except BaseException:
        part.unlink(missing_ok=True)
        raise
