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

from evolve.stats import mean_interval
from harness.journal import FILE, Journal
from harness.model import Message, ToolCall, Usage
from harness.trajectory import Call, Trajectory, Turn

EVENTS, QUICK = 1_000_000, 30_000
STEPS, AT_ONCE, TASKS = 9, 32, 3000
_LINES = 60_000  # events that are written as JSON lines too, spread over all
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
    """Resident megabytes now; 0 where the system does not say."""
    try:
        with open("/proc/self/statm") as file:
            return int(file.read().split()[1]) * resource.getpagesize() / 2**20
    except OSError:
        return 0.0


def _plan() -> dict[str, Any]:
    told = {"name": "houses", "evaluator": "EXECUTION", "licence": "MIT", "description": "", "reward_range": [0.0, 1.0],
            "success_at": 1.0}  # fmt: skip
    return {
        "command": "run", "env": "houses", "name": "bench", "harness": "0123456789ab", "model": "openai/some-model",
        "options": {}, "split": "valid", "n": TASKS, "episodes": 1, "budget": None, "memory": None, "seed": 0,
        "instar": "bench", "world": "", "benchmark": told, "files": {"prompts/step.md": _SYSTEM},
        "tasks": {f"house-{i}": f"{i:016x}" for i in range(TASKS)},
    }  # fmt: skip


def _evaluation(journal: Journal, episodes: int) -> dict[str, Any]:
    """What a run writes down at its end."""
    scores = {(row.task, row.episode): row.score for row in journal.finished()}
    return {
        "asked": episodes,
        "mean": mean_interval(scores).model_dump(mode="json"),
        "solved": 0,
        "cost": {},
        "cached": 0,
    }


def _journal(folder: Path, events: int) -> dict[str, float]:
    """Write a run of so many events: CPU microseconds an event in each tenth, memory, size.

    Some batches go to a file of JSON lines too: what this costs does not grow, so where it seems to, it was the machine
    that got slower in between, and the journal's growth is told without that as well.
    """
    ours, lines = ([[0.0, 0] for _ in range(10)] for _ in range(2))
    done, memory = 0, []
    with Journal(folder) as journal, (folder / "events.jsonl").open("w") as file:
        journal.append("plan", _plan())
        for number, batch in enumerate(_events(events)):
            tenth = min(9, done * 10 // events)
            sides = [(ours, lambda event: _write(journal, event)), (lines, lambda event: _line(file, event))]
            for cost, write in sides[: 2 if number % max(1, events // _LINES) == 0 else 1]:
                start = time.process_time()
                for event in batch:
                    write(event)
                cost[tenth][0] += time.process_time() - start
                cost[tenth][1] += len(batch)
            done += len(batch)
            memory.append(_rss())
        journal.append("evaluation", _evaluation(journal, done // (STEPS + 2)))
        bytes_of_lines = file.tell() / sum(count for _, count in lines)
    (folder / "events.jsonl").unlink()
    each, peer = ([seconds * 1e6 / count for seconds, count in cost] for cost in (ours, lines))
    tenth_of_memory = max(1, len(memory) // 10)
    growth, peer_growth = each[-1] / each[0], peer[-1] / peer[0]
    return {
        "journal_events": done, "journal_us_an_event": sum(each) / 10, "journal_us_first_tenth": each[0],
        "journal_us_last_tenth": each[-1], "journal_last_to_first": growth,
        "journal_last_to_first_less_machine": growth / peer_growth,
        "journal_mb_after_a_tenth": memory[tenth_of_memory], "journal_mb_at_the_end": memory[-1],
        "journal_mb_grown": memory[-1] - memory[tenth_of_memory],
        "journal_bytes_an_event": (folder / FILE).stat().st_size / done,
        "jsonl_us_an_event": sum(peer) / 10, "jsonl_last_to_first": peer_growth, "jsonl_bytes_an_event": bytes_of_lines,
    }  # fmt: skip


def _line(file: Any, event: Made) -> None:
    """The same event as a JSON line that can be watched."""
    kind, key, what = event
    body = what if isinstance(what, dict) else what.model_dump(mode="json", exclude_defaults=True)
    if kind == "episode":
        body.pop("turns")
    file.write(json.dumps({"at": time.time(), "kind": kind, "key": key, "body": body}) + "\n")
    file.flush()


def _synced(path: Path, events: int) -> dict[str, float]:
    """JSON lines, each brought to the disk before the next."""
    done, start = 0, time.perf_counter()
    with path.open("w") as file:
        for batch in _events(events):
            for event in batch:
                _line(file, event)
                os.fsync(file.fileno())
            done += len(batch)
    return {"fsync_wall_us_an_event": (time.perf_counter() - start) * 1e6 / done}


def _report(folder: Path) -> dict[str, float]:
    """Seconds and peak megabytes of `instar report`, as a user runs it."""
    command = [os.path.join(os.path.dirname(sys.executable), "instar"), "report", str(folder)]
    start = time.perf_counter()
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL)
    _, status, used = os.wait4(process.pid, 0)
    wall = time.perf_counter() - start
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        raise RuntimeError(f"{command} failed with status {process.returncode}")
    kilo = 1024 if sys.platform != "darwin" else 1024 * 1024
    return {
        "report_wall_s": wall, "report_cpu_s": used.ru_utime + used.ru_stime, "report_mb": used.ru_maxrss / kilo,
        "report_page_kb": (folder / "report.html").stat().st_size / 1e3,
    }  # fmt: skip


def run(quick: bool) -> dict[str, float]:
    """All figures by name."""
    with tempfile.TemporaryDirectory() as home:
        folder = Path(home) / "run"
        figures = _journal(folder, QUICK if quick else EVENTS)
        figures |= _report(folder) | _synced(Path(home) / "synced.jsonl", 1000)
    return figures
