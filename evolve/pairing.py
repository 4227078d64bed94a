"""Two finished runs side by side: paired by task and episode, and only where they played the same thing."""

from typing import Any

from evolve.lab import scores
from evolve.stats import Comparison, Scores, compare
from harness.folder import SETTINGS_FILE
from harness.journal import Journal, JournalError
from harness.settings import parse_settings
from harness.trajectory import Trajectory

#: What else shapes a result, by its key in a plan.
_SHAPING = {
    "command": "command", "env": "env", "world": "the world's code", "split": "split", "model": "model",
    "weights": "model file", "options": "model options", "address": "model address", "memory_digest": "memory",
    "recipe": "recipe", "settings": "recipe settings", "proposer": "proposer", "budget": "budget", "seed": "seed",
    "episodes": "episodes a task", "instar": "instar's version",
}  # fmt: skip


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


def differences(a: str, b: str) -> list[str]:
    """What the plans of two runs differ in: harness files, settings, model, memory and what else shapes a result."""
    (one, _), (other, _) = _read(a), _read(b)
    mine, theirs = one.get("files", {}), other.get("files", {})
    paths = sorted(p for p in mine.keys() | theirs.keys() if p != SETTINGS_FILE and mine.get(p) != theirs.get(p))
    found = [f"harness {path}" for path in paths]
    if SETTINGS_FILE in mine and SETTINGS_FILE in theirs:
        found += _unequal(
            *(parse_settings(files[SETTINGS_FILE], SETTINGS_FILE).model_dump() for files in (mine, theirs))
        )
    found += [words for key, words in _SHAPING.items() if key in one and key in other and one[key] != other[key]]
    facts, others = one.get("benchmark", {}), other.get("benchmark", {})
    return found + [f"benchmark {key}" for key in sorted(facts) if facts[key] != others.get(key, facts[key])]


def _unequal(mine: dict[str, Any], theirs: dict[str, Any]) -> list[str]:
    """Settings with other values, as `[table] key`; the harness's name shapes nothing."""
    return [
        f"[{table}] {key}"
        for table, values in mine.items()
        if isinstance(values, dict)
        for key in sorted(values.keys() | theirs[table].keys())
        if values.get(key) != theirs[table].get(key)
    ]


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
