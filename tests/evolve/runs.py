"""Runs written by hand, with what a test needs in them: a journal is a journal, whoever wrote it."""

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from harness.journal import Journal
from harness.model import Message, ToolCall, Usage
from harness.trajectory import Call, Trajectory, Turn

PLAN: dict[str, Any] = {
    "command": "run", "name": "agent", "harness": "h1", "env": "tiny", "world": "w", "model": "openai/tiny", "seed": 7,
    "benchmark": {"name": "tiny", "evaluator": "RULE", "reward_range": [0.0, 1.0], "success_at": 1.0},
    "tasks": {"t0": "0"}, "split": "train", "options": {}, "budget": None, "instar": "0.1.0", "files": {},
    "address": "http://127.0.0.1:8000/v1",
}  # fmt: skip


def call(asked: Sequence[int] | None = None, sampled: Sequence[int] | None = None, **more: Any) -> Call:
    """A model call that sampled these ids after those; a log-probability of -.5 each, unless told otherwise."""
    made: dict[str, Any] = {
        "messages": (Message(role="user", content="where to?"),), "output": "north",
        "usage": Usage(prompt_tokens=3, output_tokens=1, dollars=0.001, seconds=0.25),
    }  # fmt: skip
    if asked is not None:
        made["prompt_ids"] = tuple(asked)
    if sampled is not None:
        made |= {"output_ids": tuple(sampled), "output_logprobs": tuple(-0.5 for _ in sampled)}
    return Call(**made | more)


def turn(*calls: Call, reward: float | None = 0.0, **more: Any) -> Turn:
    return Turn(**{"observation": "a room", "action": "north", "calls": calls, "reward": reward} | more)


def trajectory(task: str = "t0", number: int = 0, *, phase: str = "run", **more: Any) -> Trajectory:
    made: dict[str, Any] = {
        "id": f"{phase}/agent/{task}/{number}", "task": task, "split": "train", "goal": "leave", "episode": number,
        "seed": 2**62 + number, "harness": "h1", "model": "openai/tiny", "turns": (turn(call()),), "final": "outside",
        "score": 1.0, "status": "done", "arm": "agent", "started": 1_700_000_000.25, "seconds": 2.5,
    }  # fmt: skip
    return Trajectory(**made | more)


def gap(task: str = "t0", number: int = 0, **more: Any) -> Trajectory:
    told = {"score": None, "status": "gap", "reason": "model: the server is gone", "turns": ()}
    return trajectory(task, number, **told | more)


def put(journal: Journal, one: Trajectory, attempt: int = 0) -> None:
    """Write an episode as the runner does."""
    journal.append("start", {"attempt": attempt}, one.id)
    for step in one.turns:
        journal.append(
            "step", {"attempt": attempt, "turn": step.model_dump(mode="json", exclude_defaults=True)}, one.id
        )
    journal.finish(one, attempt)


def written(folder: Path, trajectories: Iterable[Trajectory], plan: dict[str, Any] | None = None) -> Path:
    """A run with these episodes."""
    with Journal(folder) as journal:
        journal.append("plan", PLAN if plan is None else plan)
        for one in trajectories:
            put(journal, one)
    return folder


def talk() -> Trajectory:
    """Two turns of function calls, one answer that was no action, and one call that a limit cut off."""
    system, user = Message(role="system", content="You act."), Message(role="user", content="leave the house ✓")
    north = ToolCall(id="c1", name="act", arguments='{"action": "north"}')
    go = ToolCall(id="c2", name="go", arguments='{ "to":"east" }')
    said = Message(role="assistant", content="I go.", tool_calls=(north,))
    seen = Message(role="tool", content="a hall", tool_call_id="c1")
    tools = ({"type": "function", "function": {"name": "act", "parameters": {"type": "object"}}},)
    first = call(messages=(system, user), output="I go.", tool_calls=(north,), tools=tools, finish_reason="tool_calls")
    second = call(messages=(system, user, said, seen), output="", tool_calls=(go,), tools=tools, cached=True)
    third = call(messages=(system, user), output="hm", finish_reason="length")
    acted = '{"name": "go", "arguments": {"to": "east"}}'
    return trajectory(
        turns=(
            turn(first, situation="in a room", move="north", retrieved=("i1", "i2"), feedback="good"),
            turn(second, observation="a hall", action=acted, reward=0.5),
            turn(third, observation="the east", action="", reward=None, invalid=True),
        ),
        unfinished=(call(messages=(user,), output="well"),), final="the east", status="truncated", score=0.5,
        reason="3 steps were not enough",
    )  # fmt: skip


def told(folder: Path) -> dict[str, Trajectory]:
    """The trajectories of a run by id, as they ended last."""
    with Journal(folder, readonly=True) as journal:
        return {one.id: one for one in journal.trajectories()}


def digest(folder: Path) -> str:
    with Journal(folder, readonly=True) as journal:
        return journal.digest()
