"""What a report needs to know of every episode, in one pass that reads no turns.

A run may have a hundred thousand episodes with long prompts; their rows are small. Of an episode that was played again,
the last one counts, as it does for the run itself, with what tries that broke had asked; what else was paid and lost is
counted apart.
"""

import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from evolve.stats import Scores
from harness.finished import Finished
from harness.journal import Journal

_NUMBER = re.compile("[0-9]+")


@dataclass
class Episodes:
    """The rows of a run by id, newest first, how often each item was recalled, and calls that broken tries had paid."""

    rows: dict[str, Finished] = field(default_factory=dict)
    recalls: Counter[str] = field(default_factory=Counter)
    lost_calls: int = 0
    unfinished: int = 0  # episodes that began and did not end
    _parts: dict[str, dict[str, list[Finished]]] = field(default_factory=dict, repr=False, compare=False)

    def of(self, phase: str, arm: str | None = None) -> list[Finished]:
        """The rows of one phase (and arm), in order of tasks."""
        arms = self._ordered().get(phase, {})
        return [row for name in sorted(arms) if arm in (None, name) for row in arms[name]]

    def parts(self) -> Iterator[tuple[str, str, list[Finished]]]:
        """Phase, arm and their rows in order of tasks, of all parts of the run."""
        for phase, arms in self._ordered().items():
            for arm, rows in arms.items():
                yield phase, arm, rows

    def _ordered(self) -> dict[str, dict[str, list[Finished]]]:
        if not self._parts:
            for row in self.rows.values():
                self._parts.setdefault(row.phase, {}).setdefault(row.arm, []).append(row)
            tasks = sorted({row.task for row in self.rows.values()}, key=lambda task: (natural(task), task))
            place = {task: at for at, task in enumerate(tasks)}
            for arms in self._parts.values():
                for rows in arms.values():
                    rows.sort(key=lambda row: (place[row.task], row.episode))
        return self._parts


def read_episodes(journal: Journal) -> Episodes:
    """All episodes of `journal`. Raises JournalError."""
    found = Episodes(recalls=journal.recalls())
    for row in journal.finished(newest_first=True):
        found.rows.setdefault(row.id, row)
    found.lost_calls = sum(row.stray for row in found.rows.values())
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


def natural(text: str) -> str:
    """A sorting key that reads digits as numbers."""
    return _NUMBER.sub(lambda found: found[0].zfill(24), text)
