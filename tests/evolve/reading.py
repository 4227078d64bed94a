"""Reading runs and pages in tests, as a person or a browser would."""

import io
import shutil
import sqlite3
from collections.abc import Callable
from contextlib import closing
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

from rich.console import Console

from evolve.evolver import Outcome
from evolve.page import page
from evolve.report import read_report
from evolve.terminal import show
from harness.journal import FILE, Journal
from harness.trajectory import Trajectory


class Reader(HTMLParser):
    """What a browser would find in a page."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.words: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_data(self, data: str) -> None:
        self.words.append(data)

    def all(self, name: str) -> list[str]:
        return [str(attrs[name]) for _, attrs in self.tags if name in attrs]

    @property
    def text(self) -> str:
        return " ".join("".join(self.words).split())


def read(folder: Path, **options: Any) -> Reader:
    return Reader(page(read_report(folder), **options))


def replayed(source: Path, target: Path, keep: Callable[[str, str], bool]) -> Path:
    """A run with only those events of `source` that `keep(kind, key)`."""
    with Journal(source, readonly=True) as old, Journal(target) as new:
        for event in old.events():
            if keep(event.kind, event.key):
                new.append(event.kind, event.body, event.key)
    return target


def older(source: Path, target: Path) -> Path:
    """The run as a version wrote it that kept no row beside each episode."""
    shutil.copytree(source, target)
    with closing(sqlite3.connect(target / FILE)) as db:
        db.execute("DROP TRIGGER finished_last")
        db.execute("DELETE FROM finished")
        db.commit()
    return target


def outcome_of(folder: Path) -> Outcome:
    with Journal(folder, readonly=True) as journal:
        event = journal.last("outcome")
    assert event is not None
    return Outcome.model_validate(event.body)


def terminal(folder: Path, width: int = 80) -> str:
    out = io.StringIO()
    show(folder, Console(file=out, width=width, force_terminal=False))
    return out.getvalue()


def trajectory(folder: Path, id: str) -> Trajectory:
    with Journal(folder, readonly=True) as journal:
        found = journal.trajectory(id)
    assert found is not None
    return found
