"""Cost is what the journal says was asked, by purpose; a price nobody told stays unknown and never becomes 0.

A budget counts an answer from the record as if it had been asked, so that it does not depend on what happened to be
cached; what was really paid stands beside it.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from operator import attrgetter

from evolve.episodes import Episodes
from harness.finished import Finished
from harness.journal import Journal
from harness.model import Usage
from harness.trajectory import total_dollars


@dataclass(frozen=True)
class Spend:
    """What one purpose cost. `dollars` None is unknown; `seconds` are the episodes' own; `cached` calls were free."""

    purpose: str
    episodes: int
    calls: int
    cached: int
    prompt_tokens: int
    output_tokens: int
    dollars: float | None
    seconds: float
    paid_tokens: int
    paid_dollars: float | None

    @property
    def tokens(self) -> int:
        """Prompt and output tokens."""
        return self.prompt_tokens + self.output_tokens


@dataclass(frozen=True)
class Spending:
    """All purposes, their total, and calls that interrupted tries lost (at least: a try may die before it writes)."""

    parts: tuple[Spend, ...]
    total: Spend
    lost_calls: int

    @property
    def arms(self) -> tuple[int, int]:
        """Calls of the evolving side (all that led to its last version) and of its control, the exam apart."""
        control = sum(part.calls for part in self.parts if part.purpose == "control")
        exam = sum(part.calls for part in self.parts if part.purpose.startswith("exam"))
        return self.total.calls - exam - control, control


_ORDER = (
    "exploring",
    "evolving",
    "gate",
    "proposer",
    "control",
    "exam, evolved",
    "exam, control",
    "exam, wander",
    "exam, recalled",
    "agent",
)


def read_spending(journal: Journal, episodes: Episodes) -> Spending:
    """What the run has cost until now, by purpose. Raises JournalError."""
    groups: dict[str, list[Finished]] = {}
    for phase, arm, rows in episodes.parts():
        groups.setdefault(_purpose(phase, arm), []).extend(rows)
    parts = [_spend(purpose, rows) for purpose, rows in groups.items()]
    asked = [Usage.model_validate(event.body["usage"]) for event in journal.events("ask")]
    if asked:
        parts.append(_asked(asked))
    parts.sort(key=lambda part: (_ORDER.index(part.purpose) if part.purpose in _ORDER else len(_ORDER), part.purpose))
    return Spending(tuple(parts), _sum("total", parts), episodes.lost_calls)


def _purpose(phase: str, arm: str) -> str:
    if phase == "explore":
        return "exploring"
    if phase == "exam":
        return f"exam, {arm}"
    if phase.startswith("gate-"):
        return "gate"
    if phase.startswith("round-"):
        return "control" if arm == "control" else "evolving"
    return arm or phase


def _spend(purpose: str, rows: Iterable[Finished]) -> Spend:
    rows = list(rows)

    def total(name: str) -> int:
        return sum(map(attrgetter(name), rows))

    return Spend(
        purpose=purpose, episodes=len(rows), calls=total("calls"), cached=total("cached"),
        prompt_tokens=total("prompt_tokens"), output_tokens=total("output_tokens"),
        dollars=total_dollars(r.dollars for r in rows), seconds=sum(r.seconds for r in rows),
        paid_tokens=total("paid_tokens"), paid_dollars=total_dollars(r.paid_dollars for r in rows),
    )  # fmt: skip


def _asked(usages: list[Usage]) -> Spend:
    prompt, output = sum(u.prompt_tokens for u in usages), sum(u.output_tokens for u in usages)
    dollars = total_dollars(u.dollars for u in usages)
    return Spend(
        purpose="proposer", episodes=0, calls=len(usages), cached=0, prompt_tokens=prompt, output_tokens=output,
        dollars=dollars, seconds=sum(u.seconds for u in usages), paid_tokens=prompt + output, paid_dollars=dollars,
    )  # fmt: skip


def _sum(purpose: str, parts: list[Spend]) -> Spend:
    return Spend(
        purpose=purpose, episodes=sum(p.episodes for p in parts), calls=sum(p.calls for p in parts),
        cached=sum(p.cached for p in parts), prompt_tokens=sum(p.prompt_tokens for p in parts),
        output_tokens=sum(p.output_tokens for p in parts), dollars=total_dollars(p.dollars for p in parts),
        seconds=sum(p.seconds for p in parts), paid_tokens=sum(p.paid_tokens for p in parts),
        paid_dollars=total_dollars(p.paid_dollars for p in parts),
    )  # fmt: skip
