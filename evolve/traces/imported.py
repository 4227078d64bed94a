"""A run that was played elsewhere becomes a run folder like any other, whole or not at all.

It is written into a leased folder beside the target and takes the target's name only when all of it is there, so
neither a broken file nor a kill leaves anything behind. What it does not tell (the files of its world) no report shows.
"""

import os
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from envs.lease import FolderLease
from evolve.traces.trace import TraceFault
from harness.journal import Journal
from harness.trajectory import Trajectory


class Imported:
    """The journal of a run that is being brought in; counts what it was given."""

    def __init__(self, journal: Journal) -> None:
        self._journal = journal
        self._tries: Counter[str] = Counter()
        self.events = 0

    @property
    def trajectories(self) -> int:
        """How many episodes there are; one that was given twice counts once."""
        return len(self._tries)

    def put(self, trajectory: Trajectory, *, at: float | None = None, turned: Sequence[float] = ()) -> None:
        """Write an episode down as if it had been played; one with the same id takes the place of an earlier one.

        `at`: when it ended, `turned`: when its turns did; where that is not told, as its start and length say.
        """
        key, attempt, count = trajectory.id, self._tries[trajectory.id], len(trajectory.turns)
        self._tries[key] += 1
        begun, seconds = trajectory.started, trajectory.seconds
        if len(turned) != count:
            turned = [begun + seconds * (number + 1) / count for number in range(count)]
        self._journal.append("start", {"attempt": attempt}, key, at=begun)
        for turn, ended in zip(trajectory.turns, turned, strict=True):
            self._journal.step(key, attempt, turn, at=ended)
        self._journal.finish(trajectory, attempt, at=begun + seconds if at is None else at)

    def event(self, kind: str, body: dict[str, Any], key: str = "", *, at: float | None = None) -> None:
        """Write down anything else that the run knew."""
        self._journal.append(kind, body, key, at=at)
        self.events += 1


@contextmanager
def new_run(folder: Path) -> Iterator[Imported]:
    """A new run in `folder`, which gets its name when the block ends well. Raises TraceFault or JournalError."""
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise TraceFault(f"{folder}: is there already. Cure: name a new folder with --out")
    folder.parent.mkdir(parents=True, exist_ok=True)
    with FolderLease(f"import of {folder.name}", within=folder.parent) as lease:  # gone after a SIGKILL, too
        part = Path(lease.path) / "run"
        with Journal(part) as journal:
            yield Imported(journal)
        _read_back(part, folder)
        os.replace(part, folder)


def _read_back(part: Path, folder: Path) -> None:
    """Raise TraceFault where a report cannot be made: whatever stands in the way, the run must not come in."""
    from evolve.report import read_report

    try:
        read_report(part)
    except (ValueError, LookupError, TypeError, ArithmeticError, AttributeError, RecursionError) as error:
        raise TraceFault(
            f"{folder}: the file makes a run that cannot be read ({type(error).__name__}: {error}). Nothing was "
            "imported. Cure: export again"
        ) from error
