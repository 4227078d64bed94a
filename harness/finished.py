"""What is worth knowing of a finished episode when nobody looks at its turns: who, what, how it ended, what it cost.

A journal keeps one such row beside each episode, so that a report, a comparison or a resumed run reads a hundred
thousand episodes in seconds. It is derived: `Finished.of` makes the same row from the trajectory itself, and does so
for journals that are older than these rows.
"""

import json
import sys
from collections.abc import Iterable
from dataclasses import dataclass, fields
from typing import Self

from harness.trajectory import Call, Trajectory, total_dollars


@dataclass(frozen=True, slots=True)
class Finished:
    """One episode without its turns; fields and properties that a Trajectory has too mean the same.

    Costs cover all calls, also those that tries which broke had asked. `paid_*` leaves out what the record served.
    `dollars` None: a price is unknown. `stray`: calls that earlier tries had paid and nobody counted. `size`:
    characters of the transcript. `recalled`: ids of items, once for each turn that had them in its prompt.
    """

    id: str
    task: str
    split: str
    goal: str
    episode: int
    harness: str
    model: str
    status: str
    score: float | None = None
    fault: str = ""
    reason: str = ""
    arm: str = ""
    started: float = 0.0
    seconds: float = 0.0
    turns: int = 0
    calls: int = 0
    cached: int = 0
    prompt_tokens: int = 0
    output_tokens: int = 0
    paid_tokens: int = 0
    dollars: float | None = 0.0
    paid_dollars: float | None = 0.0
    stray: int = 0
    size: int = 0
    recalled: tuple[str, ...] = ()
    retried: tuple[tuple[str, int], ...] = ()  # tries of calls that failed, by kind

    @classmethod
    def of(cls, t: Trajectory, stray: int = 0) -> Self:
        """The row of a trajectory."""
        calls, lost = t.all_calls, t.lost.usage
        used = [*(call.usage for call in calls), lost]
        paid = [*(call.usage for call in calls if not call.cached), lost]
        size = sum(len(turn.observation) + len(turn.action) + 80 for turn in t.turns) + len(t.goal) + len(t.final)
        return cls(
            id=t.id, task=t.task, split=t.split, goal=t.goal, episode=t.episode, harness=t.harness, model=t.model,
            status=t.status, score=t.score, fault=t.fault, reason=t.reason, arm=t.arm, started=t.started,
            seconds=t.seconds, turns=len(t.turns), calls=t.calls, cached=t.cached,
            prompt_tokens=sum(usage.prompt_tokens for usage in used),
            output_tokens=sum(usage.output_tokens for usage in used),
            paid_tokens=sum(usage.prompt_tokens + usage.output_tokens for usage in paid), dollars=t.dollars,
            paid_dollars=total_dollars(usage.dollars for usage in paid), stray=stray,
            size=size + _length(calls),
            recalled=tuple(item for turn in t.turns for item in dict.fromkeys(turn.retrieved)),
            retried=tuple(sorted(t.retried.items())),
        )  # fmt: skip

    @classmethod
    def parse(cls, text: str) -> Self:
        """The row that `text` made. Equal names are held once, since a run has many rows. A newer row is read too."""
        told = json.loads(text)
        for name in _SHARED:
            if name in told:
                told[name] = sys.intern(told[name])
        told["recalled"] = tuple(map(sys.intern, told.get("recalled", ())))
        told["retried"] = tuple(map(tuple, told.get("retried", ())))
        return cls(**{name: value for name, value in told.items() if name in _DEFAULTS})

    def text(self) -> str:
        """The row as JSON, what is as usual left out."""
        told = {name: getattr(self, name) for name in _DEFAULTS}
        kept = {name: value for name, value in told.items() if value != _DEFAULTS[name]}
        return json.dumps(kept, separators=(",", ":"))

    @property
    def phase(self) -> str:
        """The part of the run that it belongs to."""
        return self.id.split("/", 1)[0]

    @property
    def tokens(self) -> int:
        """Prompt and output tokens of all calls."""
        return self.prompt_tokens + self.output_tokens


def _length(calls: Iterable[Call]) -> int:
    """Characters of what was sent and answered, about; a conversation is shown again at each call."""
    known: dict[int, int] = {}
    total = 0
    for call in calls:
        total += len(call.output) + len(call.prompt or "")
        for message in call.messages or ():
            if id(message) not in known:
                made = sum(len(made.name) + len(made.arguments) for made in message.tool_calls)
                known[id(message)] = len(message.content) + made + 20
            total += known[id(message)]
    return total


_DEFAULTS = {field.name: field.default for field in fields(Finished)}
_SHARED = ("task", "split", "goal", "harness", "model", "status", "fault", "arm", "reason")
