"""What has finished in a run, one trajectory at a time: an export reads the journal, and never touches the run.

An episode that was played again counts as it ended last, as it does for the run itself. No more is held than the
episodes that were played at once, so a run of a million events needs little memory. A live run can be read as well:
what has finished is whole.
"""

import hashlib
import json
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from harness.journal import Event, Journal
from harness.trajectory import Trajectory

#: Events of which trajectories are made.
INSIDE = ("start", "step", "lost", "episode")
#: Events that end a run: a benchmark run's and an evolution's.
ENDS = ("evaluation", "outcome")
POLL = 0.5  # seconds between two looks at a live run


class TraceFault(ValueError):
    """A file or server of traces that cannot be read, written or reached; the message names it and the cure."""


@dataclass(frozen=True, slots=True)
class Trace:
    """One trajectory as it ended. `turned`: Unix seconds at which each of its turns was written down, `at` its end."""

    seq: int
    at: float
    trajectory: Trajectory
    turned: tuple[float, ...]


def plan_of(journal: Journal) -> tuple[dict[str, Any], float | None]:
    """What the run is, as it wrote it down, and when; empty where it never did (a journal written from Python)."""
    event = journal.last("plan")
    return ({}, None) if event is None else (event.body, event.at)


def run_id(plan: dict[str, Any]) -> str:
    """A short hash of the plan: equal for the same run wherever its journal lies."""
    return hashlib.sha256(json.dumps(plan, sort_keys=True).encode()).hexdigest()[:16]


class Reader:
    """Reads a journal forward, once: what came since the last look. Holds the steps of episodes that are played."""

    def __init__(self, journal: Journal) -> None:
        self._journal = journal
        self._seen = 0
        self._playing: dict[str, list[Event]] = {}

    def news(self) -> Iterator[Trace | Event]:
        """Each episode as it ended last, among what else the run wrote down, in order. Raises JournalError."""
        for event in self._journal.events(after=self._seen):
            self._seen = event.seq
            match event.kind:
                case "start":
                    self._playing[event.key] = []
                case "step":
                    self._playing.setdefault(event.key, []).append(event)
                case "episode":
                    steps = self._playing.pop(event.key, [])
                    last = self._journal.last("episode", event.key)
                    if last is not None and last.seq == event.seq:  # else it was played again
                        yield _trace(event, steps)
                case "lost":
                    pass
                case _:
                    yield event

    def following(self, stop: threading.Event) -> Iterator[Trace | Event]:
        """`news`, again and again, until the run says that it is over, or `stop` is set."""
        while True:
            over = self._journal.newest(ENDS) is not None  # before the look, so that all before the end is in it
            for one in self.news():
                yield one
                if stop.is_set():
                    return
            if over or stop.wait(POLL):
                return


def _trace(event: Event, steps: list[Event]) -> Trace:
    body = dict(event.body)
    attempt = body.pop("attempt")
    steps = [step for step in steps if step.body["attempt"] == attempt]
    trajectory = Trajectory.model_validate({**body, "turns": [step.body["turn"] for step in steps]})
    return Trace(event.seq, event.at, trajectory, tuple(step.at for step in steps))
