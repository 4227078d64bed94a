"""What a report needs to know of every episode, in one pass that reads no turns.

A run may have a hundred thousand episodes with long prompts; their rows are small. Of an episode that was played again,
the last one counts, as it does for the run itself, with what tries that broke had asked; what else was paid and lost is
counted apart.
"""

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

from evolve.stats import Scores
from harness.finished import Finished
from harness.journal import Journal


@dataclass
class Episodes:
    """The rows of a run by id, how often each item was recalled, and calls that interrupted tries had paid for."""

    rows: dict[str, Finished] = field(default_factory=dict)
    recalls: Counter[str] = field(default_factory=Counter)
    lost_calls: int = 0
    unfinished: int = 0  # episodes that began and did not end
    _sorted: dict[tuple[str, str | None], list[Finished]] = field(default_factory=dict, repr=False, compare=False)

    def of(self, phase: str, arm: str | None = None) -> list[Finished]:
        """The rows of one phase (and arm), in order of tasks."""
        if (phase, arm) not in self._sorted:
            found = [row for row in self.rows.values() if row.phase == phase and arm in (None, row.arm)]
            self._sorted[phase, arm] = sorted(found, key=order)
        return self._sorted[phase, arm]


def read_episodes(journal: Journal) -> Episodes:
    """All episodes of `journal`. Raises JournalError."""
    found = Episodes({row.id: row for row in journal.finished()})
    for row in found.rows.values():
        found.recalls.update(row.recalled)
        found.lost_calls += row.stray
    for key in journal.unfinished():
        if key in found.rows:  # a gap that is played again just now
            found.lost_calls += journal.stray(key) - found.rows[key].stray
        else:
            found.unfinished += 1
            found.lost_calls += journal.stray(key)
    return found


def row_scores(rows: Sequence[Finished]) -> Scores:
    """Scores by (task, episode), gaps as None."""
    return {(row.task, row.episode): row.score for row in rows}


def order(row: Finished) -> tuple[object, ...]:
    """Sorts task 10 after task 9, whoever finished first."""
    return natural(row.phase), row.arm, natural(row.task), row.episode


def natural(text: str) -> tuple[tuple[int, int, str], ...]:
    """A sorting key that reads digits as numbers."""
    return tuple((0, int(part), "") if part.isdecimal() else (1, 0, part) for part in re.split(r"([0-9]+)", text))
