"""What the proposer sees of what happened: failures by default, because most edits that helped came from them."""

from collections.abc import Sequence
from typing import Literal

from envs.benchmark import solves
from harness.trajectory import Trajectory
from memory.item import clean

View = Literal["failures", "successes", "both"]
_CUT = "\n[...]\n"


def select(view: View, trajectories: Sequence[Trajectory], success_at: float) -> list[Trajectory]:
    """The scored trajectories that `view` shows; gaps teach nothing and are never shown."""
    scored = [t for t in trajectories if t.score is not None]
    if view == "both":
        return scored
    return (
        [t for t in scored if not solves(t.score or 0.0, success_at)]
        if view == "failures"
        else [t for t in scored if solves(t.score or 0.0, success_at)]
    )


def transcript(trajectory: Trajectory, limit: int = 3000) -> str:
    """A trajectory as text to read, the middle cut out when it is longer than `limit` characters."""
    lines = [f"Task: {trajectory.goal}"]
    for turn in trajectory.turns:
        lines += [turn.observation, "(no usable action)" if turn.invalid else f"> {turn.action}"]
        if turn.feedback:
            lines.append(f"Feedback: {turn.feedback}")
    lines += [
        trajectory.final,
        f"Score: {trajectory.score} ({trajectory.status}{': ' + trajectory.reason if trajectory.reason else ''})",
    ]
    text = clean("\n".join(lines))
    if len(text) <= limit:
        return text
    half = (limit - len(_CUT)) // 2
    return f"{text[:half]}{_CUT}{text[len(text) - half :]}" if half > 0 else text[:limit]
