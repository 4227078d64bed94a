"""What broke on the way: which calls and episodes were tried again, and what is missing in the end, by whose fault.

Retries that succeed change no score, but a run that needed many of them is slower, dearer, and worth a look; so they
are counted and never silent.
"""

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass

from evolve.episodes import Episodes
from harness.journal import Journal


@dataclass(frozen=True)
class Faults:
    """`retried`: tries of model calls that failed and were then answered, by kind (an HTTP status, "time-out" ...), in
    `concerned` episodes. `again`: tries at episodes whose world or sandbox broke. `missing`: gaps, by whose fault."""

    retried: Counter[str]
    concerned: int
    again: Counter[str]
    missing: Counter[str]
    episodes: int

    def sentences(self) -> list[str]:
        """In words; none when nothing broke."""
        found = []
        if self.retried:
            tries, where = self.retried.total(), "episode" if self.concerned == 1 else "episodes"
            found.append(
                f"retried: {tries:,} {'try' if tries == 1 else 'tries'} of model calls in {self.concerned:,} {where} "
                f"({_counts(self.retried)})"
            )
        if self.again:
            found.append(f"played again, since what they play in broke: {_counts(self.again)} tries at episodes")
        if self.missing:
            found.append(f"missing: {self.missing.total():,} of {self.episodes:,} episodes ({_counts(self.missing)})")
        return found


def read_faults(journal: Journal, episodes: Episodes) -> Faults:
    """What broke in a run until now. Raises JournalError."""
    retried: Counter[str] = Counter()
    concerned = 0
    for row in episodes.rows.values():
        concerned += bool(row.retried)
        retried.update(dict(row.retried))
    again = Counter(str(event.body.get("fault") or "environment") for event in journal.events("lost"))
    missing = Counter(row.fault or "not told" for row in episodes.rows.values() if row.status == "gap")
    return Faults(retried, concerned, again, missing, len(episodes.rows))


def _counts(by: Counter[str]) -> str:
    parts: Iterable[tuple[str, int]] = sorted(by.items(), key=lambda one: (-one[1], one[0]))
    return ", ".join(f"{name}: {times:,}" for name, times in parts)
