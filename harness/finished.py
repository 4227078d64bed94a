"""What is worth knowing of a finished episode when nobody looks at its turns: who, what, how it ended, what it cost.

A journal keeps one such row beside each episode, so that a report, a comparison or a resumed run reads a hundred
thousand episodes in seconds. It is derived: `Finished.of` makes the same row from the trajectory itself, and does so
for journals that are older than these rows.
"""

import json
from collections import Counter
from collections.abc import Iterable
from operator import is_
from sys import intern
from typing import NamedTuple, Self

from harness.model import Message
from harness.trajectory import Call, Trajectory, total_dollars


class Finished(NamedTuple):
    """One episode without its turns; fields and properties that a Trajectory has too mean the same.

    Costs cover all calls, also those that tries which broke had asked. `paid_*` leaves out what the record served.
    `dollars` None: a price is unknown. `stray`: calls that earlier tries had paid and nobody counted. `size`:
    characters of the transcript.
    A journal holds the values in this order: new fields come last, with a default.
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
    retried: tuple[tuple[str, int], ...] = ()  # tries of calls that failed, by kind

    @classmethod
    def of(cls, t: Trajectory, stray: int = 0) -> Self:
        """The row of a trajectory."""
        calls, lost = t.all_calls, t.lost.usage
        prompt, output, cached = lost.prompt_tokens, lost.output_tokens, 0
        paid_tokens = prompt + output
        dollars: list[float | None] = []
        paid: list[float | None] = []
        retried: Counter[str] = Counter()
        for call in calls:
            used = call.usage
            prompt += used.prompt_tokens
            output += used.output_tokens
            dollars.append(used.dollars)
            if call.cached:
                cached += 1
            else:
                paid_tokens += used.prompt_tokens + used.output_tokens
                paid.append(used.dollars)
            if call.faults:
                retried.update(call.faults)
        size = sum(len(turn.observation) + len(turn.action) + 80 for turn in t.turns) + len(t.goal) + len(t.final)
        return cls(
            id=t.id, task=t.task, split=t.split, goal=t.goal, episode=t.episode, harness=t.harness, model=t.model,
            status=t.status, score=t.score, fault=t.fault, reason=t.reason, arm=t.arm, started=t.started,
            seconds=t.seconds, turns=len(t.turns), calls=len(calls) + t.lost.calls, cached=cached,
            prompt_tokens=prompt, output_tokens=output, paid_tokens=paid_tokens,
            dollars=total_dollars([*dollars, lost.dollars]), paid_dollars=total_dollars([*paid, lost.dollars]),
            stray=stray, size=size + _length(calls), retried=tuple(sorted(retried.items())),
        )  # fmt: skip

    @classmethod
    def parse(cls, texts: Iterable[str]) -> list[Self]:
        """The rows that these texts made. Equal names are held once: a run has many rows."""
        found = json.loads(f"[{','.join(texts)}]")
        for values in found:
            for at in _NAMES:
                values[at] = intern(values[at])
            values[_RETRIED] = tuple(map(tuple, values[_RETRIED]))
        return [cls(*values[:_KNOWN]) for values in found]  # a later version may have written more

    def text(self) -> str:
        """The row as JSON."""
        return _encode(self)

    @property
    def phase(self) -> str:
        """The part of the run that it belongs to."""
        return self.id.split("/", 1)[0]

    @property
    def tokens(self) -> int:
        """Prompt and output tokens of all calls."""
        return self.prompt_tokens + self.output_tokens


def recalled(t: Trajectory) -> list[str]:
    """Ids of items, once for each turn that had them in its prompt."""
    return [item for turn in t.turns for item in dict.fromkeys(turn.retrieved)]


def _length(calls: Iterable[Call]) -> int:
    """Characters of what was sent and answered, about; a conversation is shown again at each call."""
    talk: tuple[Message, ...] = ()
    total = length = 0
    for call in calls:
        total += len(call.output) + len(call.prompt or "")
        said = call.messages or ()
        if len(said) >= len(talk) and all(map(is_, said, talk)):  # it goes on, as it nearly always does
            length += sum(map(_said, said[len(talk) :]))
        else:
            length = sum(map(_said, said))
        talk = said
        total += length
    return total


def _said(message: Message) -> int:
    size = len(message.content) + 20
    for made in message.tool_calls:
        size += len(made.name) + len(made.arguments)
    return size


_encode = json.JSONEncoder(separators=(",", ":")).encode
_NAMES = [Finished._fields.index(name) for name in ("task", "split", "goal", "harness", "model", "status", "arm")]
_RETRIED = Finished._fields.index("retried")
_KNOWN = len(Finished._fields)
