"""Which transcripts a page holds in full: the exam first, then what changes were made from, then the last round.

A page that nobody's browser opens shows nothing, so there is a limit on transcripts and on characters; what was left
out is counted, and `everything` lifts the limit.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

from evolve.episodes import order
from evolve.report import ReportData
from harness.finished import Finished
from harness.journal import Journal
from harness.trajectory import Trajectory

MOST = 160  # transcripts
ROOM = 1_500_000  # characters in all
PROMPT = 6_000  # characters of one prompt


@dataclass(frozen=True)
class Transcripts:
    """The rows of the chosen ones in the order to be shown, and how many the run has beside them."""

    folder: Path
    chosen: tuple[Finished, ...]
    left_out: int

    def read(self) -> Iterator[Trajectory]:
        """The chosen ones in full, one at a time. Raises JournalError."""
        with Journal(self.folder, readonly=True) as journal:
            for row in self.chosen:
                trajectory = journal.trajectory(row.id)
                if trajectory is not None:
                    yield trajectory

    def recalled(self) -> set[str]:
        """Ids of the items that the chosen ones recalled. Raises JournalError."""
        with Journal(self.folder, readonly=True) as journal:
            return set(journal.recalls(row.id for row in self.chosen))


def choose(data: ReportData, *, everything: bool = False) -> Transcripts:
    """The transcripts for a page."""
    rows = data.episodes.rows
    chosen: dict[str, Finished] = {}
    room = ROOM
    for id in _wanted(data) if everything else islice(_wanted(data), 20 * MOST):
        if len(chosen) >= MOST and not everything:
            break
        row = rows.get(id)
        if row is not None and id not in chosen and (everything or row.size + 400 <= room):
            chosen[id] = row
            room -= row.size + 400
    if everything:
        chosen |= {row.id: row for row in sorted(rows.values(), key=order)}
    return Transcripts(data.folder, tuple(chosen.values()), len(rows) - len(chosen))


def _wanted(data: ReportData) -> Iterator[str]:
    for result in ("lost", "gap", "won", "alone", "tied"):
        for pair in data.pairs:
            if pair.result == result:
                yield from (row.id for row in (pair.evolved, pair.control) if row is not None)
    if not data.evolving:
        yield from (row.id for row in data.episodes.of("run"))
    for change in data.changes.changes if data.changes else ():
        yield from change.patch.evidence if change.patch else ()
    if data.memory:
        for item in (*data.memory.best, *data.memory.worst):
            yield from item.taught_by[:1]
    if data.rounds:
        for arm in ("evolved", "control"):
            yield from (row.id for row in data.episodes.of(f"round-{data.rounds[-1].number}", arm))
