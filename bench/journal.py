"""What a million events cost a journal: constant each, flat memory, and a report that opens in seconds.

The events are those of real episodes: a start, nine steps with one chat call each whose conversation grows from one to
four kilobytes, an end; 32 episodes at once. Beside it, with the same events, a file with one JSON line an event, which
is the least that a record which can be watched may cost; and such a file made durable against a loss of power.
Part of `python -m bench runner`.
"""

import json
import os
import random
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from harness.journal import FILE, Journal
from harness.model import Message, ToolCall, Usage
from harness.trajectory import Call, Trajectory, Turn

EVENTS, QUICK = 1_000_000, 60_000
STEPS, AT_ONCE, TASKS = 9, 32, 3000
_WORDS = tuple(f"{a}{b}" for a in ("dra", "she", "cou", "lam", "ba", "pla", "mu", "key") for b in
               ("wer", "lf", "nter", "p", "sket", "te", "g", "s on the", " is", " of"))  # fmt: skip
_SYSTEM = "You act in a house. Call one function at a time, and think before you do.\n" + " ".join(_WORDS)
_TOOL = {"type": "function", "function": {"name": "act", "description": " ".join(_WORDS[:30]), "parameters": {
    "type": "object", "properties": {"action": {"type": "string"}}, "required": ["action"]}}}  # fmt: skip
#: One event: kind, key, what `Journal` is given, and the attempt.
Made = tuple[str, str, Any]


def _text(rng: random.Random, words: int) -> str:
    return " ".join(rng.choices(_WORDS, k=words))


def _episode(number: int) -> Iterator[Made]:
    """The events of one episode in order."""
    rng = random.Random(number)
    task, repeat = number % TASKS, number // TASKS
    key = f"run/agent/house-{task}/{repeat}"
    goal = f"In house {task}: " + _text(random.Random(-task), 12)
    yield "start", key, {"attempt": 0}
    seen = _text(rng, 45)
    talk = [Message(role="system", content=_SYSTEM), Message(role="user", content=f"{goal}\n\n{seen}")]
    turns = []
    for step in range(STEPS):
        action = _text(rng, 4)
        made = ToolCall(id=f"call_{step}", name="act", arguments=json.dumps({"action": action}))
        usage = Usage(prompt_tokens=300 + 90 * step, output_tokens=25, dollars=0.0004, seconds=0.8)
        call = Call(
            messages=tuple(talk), tools=(_TOOL,), output=_text(rng, 10), tool_calls=(made,), usage=usage,
            digest=f"m:{rng.randbytes(32).hex()}#1", finish_reason="tool_calls",
        )  # fmt: skip
        end = step == STEPS - 1
        turn = Turn(
            observation=seen, action=action, situation=seen, calls=(call,), reward=float(end),
            retrieved=(f"item-{rng.randrange(500)}",),
        )  # fmt: skip
        turns.append(turn)
        yield "step", key, turn
        seen = _text(rng, 45)
        talk += [Message(role="assistant", content=call.output, tool_calls=(made,)),
                 Message(role="tool", content=seen, tool_call_id=made.id)]  # fmt: skip
    yield "episode", key, Trajectory(
        id=key, task=f"house-{task}", split="valid", goal=goal, episode=repeat, seed=rng.getrandbits(32),
        harness="0123456789ab", model="openai/some-model", turns=tuple(turns), final=seen,
        score=float(rng.random() < 0.6), status="done", arm="agent", started=1.0, seconds=9.0,
    )  # fmt: skip


def _events(least: int) -> Iterator[list[Made]]:
    """Batches of interleaved events, as many episodes at once as are played at once, until there are `least`."""
    for first in range(0, least // (STEPS + 2) + 1, AT_ONCE):
        together = [list(_episode(first + i)) for i in range(AT_ONCE)]
        yield [event for side in zip(*together, strict=True) for event in side]


def _write(journal: Journal, event: Made) -> None:
    kind, key, what = event
    if kind == "step":
        journal.step(key, 0, what)
    elif kind == "episode":
        journal.finish(what, 0)
    else:
        journal.append(kind, what, key)


def _rss() -> float:
    """Resident megabytes now."""
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * resource.getpagesize() / 2**20
