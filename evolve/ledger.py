"""Nothing that was tried is forgotten: a proposer sees what failed and why, and the same edit is not paid for twice.

The second half holds the edit budget: how many edits the next patch may make, as fixed number, cosine schedule
(SkillOpt, 4 to 2) or from the volatility of past gains (SkillAdam).
"""

import json
import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, Self

from pydantic import BaseModel, ConfigDict

from evolve.patch import Patch, opened

#: Version of the JSON form; a newer one is refused.
FORMAT = 1


class Entry(BaseModel):
    """One try. `failed` means that the patch did not apply or broke the harness, so that no gate saw it."""

    model_config = ConfigDict(frozen=True, extra="forbid")

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

    def __init__(self, entries: Sequence[Entry] = ()) -> None:
        self.entries: list[Entry] = []
        self._latest: dict[tuple[str, str], Entry] = {}
        for entry in entries:
            self._append(entry)

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
        self._append(entry)
        return entry

    def seen(self, patch: Patch, parent: str) -> Entry | None:
        """The last outcome of the same edits on the same parent; an undecided one may deserve another try."""
        return self._latest.get((parent, patch.digest()))

    def summary_for_proposer(self, n: int = 10) -> str:
        """The last n tries, newest first, as a text list for a prompt; '' when nothing was tried."""
        rows = []
        for entry in self.entries[: -n - 1 : -1] if n > 0 else []:
            gain = "" if entry.gain is None else f" ({entry.gain:+.3f})"
            why = " ".join(entry.hypothesis.split()) or "no hypothesis given"
            rows.append(f"- {entry.decision}{gain}, {', '.join(entry.paths)}: {why}. Outcome: {entry.reason}")
        return "\n".join(rows)

    def to_json(self) -> str:
        """Text for disk, with the format's version."""
        entries = [entry.model_dump(mode="json") for entry in self.entries]
        return json.dumps({"format": "instar-ledger", "version": FORMAT, "entries": entries})

    @classmethod
    def from_json(cls, text: str) -> Self:
        """Read what `to_json` wrote; ValueError for anything else."""
        entries = opened(text, "instar-ledger", FORMAT).get("entries")
        if not isinstance(entries, list):
            raise ValueError("the ledger has no list of entries; it was not written by Instar")
        return cls([Entry.model_validate(entry) for entry in entries])

    def _append(self, entry: Entry) -> None:
        self.entries.append(entry)
        self._latest[entry.parent, entry.digest] = entry


def cosine(step: int, total: int, start: int = 4, end: int = 2) -> int:
    """Edits allowed at `step` of `total` (from 0): from `start` down to `end` on half a cosine."""
    share = min(1.0, max(0.0, step / (total - 1))) if total > 1 else 1.0 if step > 0 else 0.0
    return round(end + (start - end) * (1 + math.cos(math.pi * share)) / 2)


def fixed(step: int, total: int, edits: int = 4) -> int:
    """The same number of edits at every step."""
    return edits


@dataclass
class Volatility:
    """Fewer edits while gains scatter: v is a moving average of their variance, full at `v_max` (SkillAdam)."""

    base: int = 4
    least: int = 1
    v_max: float = 0.1
    keep: float = 0.9
    v: float = 0.0

    def observe(self, differences: Sequence[float]) -> None:
        """Take the differences of one gated patch, accepted or not; a patch that did not apply is not observed."""
        if len(differences) > 1:
            self.v = self.keep * self.v + (1 - self.keep) * statistics.variance(differences)

    def edits(self) -> int:
        """Edits that the next patch may make."""
        return max(self.least, round(self.base * (1 - min(1.0, max(0.0, self.v / self.v_max)))))
