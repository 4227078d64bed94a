"""A report of a long run asks its journal no more than one of a short run, and its page is no larger."""

import sqlite3
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from evolve.page import LISTED, write
from evolve.report import read_report
from harness import database
from harness.journal import Journal
from harness.trajectory import Call, Trajectory, Turn

asked: list[str] = []


class Listening(sqlite3.Connection):
    """Notes each statement."""

    def execute(self, query: str, *given: Any) -> sqlite3.Cursor:
        asked.append(query)
        return super().execute(query, *given)


def long_run(source: Path, target: Path, episodes: int) -> Path:
    """A run with the plan of `source` and so many episodes of two turns; each tenth is a gap of its own reason."""
    with Journal(source, readonly=True) as journal:
        plan = journal.last("plan")
    assert plan is not None
    call = Call(prompt="a long question " * 100, output="answer", digest="m:1#1")
    turns = (Turn(observation="seen", action="go", calls=(call,), retrieved=("item",)),) * 2
    with Journal(target) as journal:
        journal.append("plan", plan.body)
        for n in range(episodes):
            gap = n % 10 == 0
            one = Trajectory(
                id=f"run/agent/t{n}/0", task=f"t{n}", split="valid", goal=f"goal {n}", episode=0, seed=n, harness="h",
                model="m", turns=turns, score=None if gap else 1.0, status="gap" if gap else "done", arm="agent",
                reason=f"environment: container {n} died" if gap else "",
            )  # fmt: skip
            journal.append("start", {"attempt": 0}, one.id)
            for turn in turns:
                journal.step(one.id, 0, turn)
            journal.finish(one, 0)
    return target


def test_reading_asks_no_more_for_more_episodes(played: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folders = [long_run(played, tmp_path / str(n), n) for n in (20, 200)]
    monkeypatch.setattr(database.sqlite3, "connect", partial(sqlite3.connect, factory=Listening))
    numbers = []
    for folder in folders:
        asked.clear()
        assert len(read_report(folder).episodes.rows) == int(folder.name)
        numbers.append(len(asked))
    assert numbers[0] == numbers[1] > 5


def test_the_page_of_a_run_with_more_episodes_than_it_lists_says_so_and_stays_small(
    played: Path, tmp_path: Path
) -> None:
    few, many = (write(long_run(played, tmp_path / str(n), n)) for n in (LISTED, LISTED + 700))
    text = many.read_text(encoding="utf-8")
    assert f"The first {LISTED} of {LISTED + 700:,} episodes are listed." in text
    assert f"with <code>instar export {many.parent} --to jsonl</code>" in text
    assert many.stat().st_size < few.stat().st_size * 1.2
    assert "container 1190 died" in text  # reasons are few enough: 120
