"""What a report needs to know of every episode, in one pass that holds one trajectory at a time.

A run may have ten thousand episodes with long prompts; their rows are small. Of an episode that was played again, the
last one counts, as it does for the run itself, with what tries that broke had asked; what else was paid and lost is
counted apart.
"""

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

from evolve.stats import Scores
from harness.journal import Journal
from harness.trajectory import Trajectory
from harness.trajectory import total_dollars as total_dollars


@dataclass(frozen=True, slots=True)
class Row:
    """One episode without its turns. `dollars` None: a price is unknown. `paid_*` leaves out what the record served."""

    id: str
    phase: str
    arm: str
    task: str
    number: int
    goal: str
    harness: str
    model: str
    score: float | None
    status: str
    reason: str
    turns: int
    calls: int
    cached: int
    prompt_tokens: int
    output_tokens: int
    paid_tokens: int
    dollars: float | None
    paid_dollars: float | None
    seconds: float
    size: int  # characters of its transcript

    @property
    def order(self) -> tuple[object, ...]:
        """Sorts task 10 after task 9, whoever finished first."""
        return natural(self.phase), self.arm, natural(self.task), self.number


@dataclass
class Episodes:
    """The rows of a run by id, how often each item was recalled, and calls that interrupted tries had paid for."""

    rows: dict[str, Row] = field(default_factory=dict)
    recalls: Counter[str] = field(default_factory=Counter)
    lost_calls: int = 0
    unfinished: int = 0  # episodes that began and did not end

    def of(self, phase: str, arm: str | None = None) -> list[Row]:
        """The rows of one phase (and arm), in order of tasks."""
        found = [row for row in self.rows.values() if row.phase == phase and arm in (None, row.arm)]
        return sorted(found, key=lambda row: row.order)


def read_episodes(journal: Journal) -> Episodes:
    """All episodes of `journal`. Raises JournalError."""
    last = {event.key: int(event.body["attempt"]) for event in journal.events("episode")}
    tries = Counter(event.key for event in journal.events("start"))
    found = Episodes(unfinished=len(tries.keys() - last.keys()))
    lost: Counter[str] = Counter()
    for key in last:
        trajectory = journal.trajectory(key)
        if trajectory is None:
            continue
        found.rows[key], lost[key] = _row(trajectory), trajectory.lost.calls
        for turn in trajectory.turns:
            found.recalls.update(set(turn.retrieved))
    for key, times in tries.items():
        if times > 1 or key not in last:
            found.lost_calls += max(0, _lost(journal, key, last.get(key)) - lost[key])
    return found


def row_scores(rows: Sequence[Row]) -> Scores:
    """Scores by (task, episode), gaps as None."""
    return {(row.task, row.number): row.score for row in rows}


def natural(text: str) -> tuple[tuple[int, int, str], ...]:
    """A sorting key that reads digits as numbers."""
    return tuple((0, int(part), "") if part.isdecimal() else (1, 0, part) for part in re.split(r"([0-9]+)", text))


def _row(t: Trajectory) -> Row:
    calls, lost = t.all_calls, t.lost.usage
    used = [*(call.usage for call in calls), lost]
    paid = [*(call.usage for call in calls if not call.cached), lost]
    size = sum(len(turn.observation) + len(turn.action) + 80 for turn in t.turns) + len(t.goal) + len(t.final)
    return Row(
        id=t.id, phase=t.id.split("/", 1)[0], arm=t.arm, task=t.task, number=t.episode, goal=t.goal,
        harness=t.harness, model=t.model, score=t.score, status=t.status, reason=t.reason, turns=len(t.turns),
        calls=t.calls,
        cached=t.cached,
        prompt_tokens=sum(usage.prompt_tokens for usage in used),
        output_tokens=sum(usage.output_tokens for usage in used),
        paid_tokens=sum(usage.prompt_tokens + usage.output_tokens for usage in paid), dollars=t.dollars,
        paid_dollars=total_dollars(usage.dollars for usage in paid), seconds=t.seconds,
        size=size + sum(len(call.text) + len(call.output) for call in calls),
    )  # fmt: skip


def _lost(journal: Journal, key: str, final: int | None) -> int:
    """Calls that earlier tries of an episode paid for and its last try did not use."""
    used: set[str] = set()
    paid: list[str] = []
    for event in (*journal.events("step", key), *journal.events("lost", key), *journal.events("episode", key)):
        calls = event.body["turn"].get("calls", ()) if event.kind == "step" else event.body["unfinished"]
        if event.body["attempt"] == final:
            used |= {call["digest"] for call in calls}
        else:
            paid += [call["digest"] for call in calls if not call.get("cached")]
    return sum(digest not in used for digest in dict.fromkeys(paid))
