"""Nothing that was tried is forgotten: a proposer sees what failed and why, and the same edit is not paid for twice.

It is derived: a run that is resumed comes by the same tries again, so it is never written to disk.
"""

from dataclasses import dataclass
from typing import Literal

from evolve.patch import Patch, one_line


@dataclass(frozen=True)
class Entry:
    """One try. `failed` means that the patch did not apply or broke the harness, so that no gate saw it."""

    step: int
    digest: str
    parent: str  # the harness version it was made for
    hypothesis: str
    paths: tuple[str, ...]
    decision: Literal["accept", "reject", "undecided", "failed"]
    reason: str
    gain: float | None = None  # mean difference the gate saw


class Ledger:
    """Entries in the order they were tried."""

    def __init__(self) -> None:
        self.entries: list[Entry] = []
        self._latest: dict[tuple[str, str], Entry] = {}

    def add(
        self,
        patch: Patch,
        *,
        parent: str,
        step: int,
        decision: Literal["accept", "reject", "undecided", "failed"],
        reason: str,
        gain: float | None = None,
    ) -> Entry:
        """Book the outcome of `patch` on harness version `parent`."""
        entry = Entry(
            step=step, digest=patch.digest(), parent=parent, hypothesis=patch.hypothesis, paths=patch.paths,
            decision=decision, reason=reason, gain=gain,
        )  # fmt: skip
        self.entries.append(entry)
        self._latest[parent, entry.digest] = entry
        return entry

    def seen(self, patch: Patch, parent: str) -> Entry | None:
        """The last outcome of the same edits on the same parent; an undecided one may deserve another try."""
        return self._latest.get((parent, patch.digest()))

    def summary_for_proposer(self, n: int = 10) -> str:
        """The last n tries, newest first, as a text list for a prompt; '' when nothing was tried."""
        rows = []
        for entry in self.entries[: -n - 1 : -1] if n > 0 else []:
            gain = "" if entry.gain is None else f" ({entry.gain:+.3f})"
            why, paths = entry.hypothesis or "no hypothesis given", one_line(", ".join(entry.paths))
            rows.append(f"- {entry.decision}{gain}, {paths}: {why}. Outcome: {one_line(entry.reason)}")
        return "\n".join(rows)
