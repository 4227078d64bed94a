"""Two finished runs side by side: paired by task and episode, and only where they played the same thing."""

from typing import Any

from evolve.lab import scores
from evolve.stats import Comparison, Scores, compare
from harness.journal import Journal, JournalError
from harness.trajectory import Trajectory


def compare_runs(a: str, b: str) -> Comparison:
    """Paired comparison on the tasks and episodes that both played; `b` is the candidate.

    Raises JournalError when a folder holds no finished episodes, or the two did not play the same benchmark or tasks.
    """
    (one, first), (other, second) = (_read(folder) for folder in (a, b))
    for what in ("name", "reward_range"):
        mine, theirs = one["benchmark"][what], other["benchmark"][what]
        if mine != theirs:
            raise JournalError(
                f"{a} and {b} cannot be compared: benchmark {what} is {mine} in one, {theirs} in the other"
            )
    changed = [task for task, print_ in one["tasks"].items() if other["tasks"].get(task, print_) != print_]
    if changed:
        raise JournalError(
            f"{a} and {b} cannot be compared: task {changed[0]} is not the same in both ({len(changed)} differ)"
        )
    low, high = one["benchmark"]["reward_range"]
    found = compare(first, second, reward_range=(low, high))
    if one["world"] != other["world"]:
        found = _noting(found, "the world's code differs between the runs")
    if one["seed"] != other["seed"]:
        found = _noting(found, "the seeds differ, so pairs share the task but not the luck")
    return found


def _noting(found: Comparison, note: str) -> Comparison:
    return found.model_copy(update={"reason": f"{found.reason}; {note}"})


def _read(folder: str) -> tuple[dict[str, Any], Scores]:
    """A run's plan, and its scores: all of a benchmark run, or the evolved arm's exam."""
    with Journal(folder, readonly=True) as journal:
        plan = journal.last("plan")
        chosen: dict[str, Trajectory] = {}
        for trajectory in journal.trajectories():
            if trajectory.id.startswith(("run/", "exam/evolved/")):
                chosen[trajectory.id] = trajectory  # of a gap that was filled later, the last one counts
    if plan is None or not chosen:
        raise JournalError(f"{folder}: no finished episodes to compare. Cure: let the run finish first")
    return plan.body, scores(list(chosen.values()))
