"""Finished runs side by side: paired by task and episode, and only where they played the same thing."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from evolve.contest import Contest, Entry, contest
from evolve.power import CORRELATION, Plan, plan
from evolve.stats import Comparison, Scores, compare
from harness.folder import SETTINGS_FILE
from harness.journal import Journal, JournalError
from harness.settings import parse_settings

#: What else shapes a result, by its key in a plan.
_SHAPING = {
    "command": "command", "env": "env", "world": "the world's code", "split": "split", "model": "model",
    "n": "number of tasks",
    "weights": "model file", "options": "model options", "address": "model address", "memory_digest": "memory",
    "recipe": "recipe", "settings": "recipe settings", "proposer": "proposer", "budget": "budget", "seed": "seed",
    "episodes": "episodes a task", "instar": "instar's version",
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class _Played:
    """A run's folder, its plan, and its scores: all of a benchmark run, or the evolved arm's exam."""

    folder: str
    plan: dict[str, Any]
    scores: Scores

    @property
    def reward_range(self) -> tuple[float, float]:
        low, high = self.plan["benchmark"]["reward_range"]
        return float(low), float(high)


def compare_runs(a: str, b: str) -> Comparison:
    """Paired comparison on the tasks and episodes that both played; `b` is the candidate.

    Raises JournalError when a folder holds no finished episodes, or the two did not play the same benchmark or tasks.
    """
    base, other = _read(a), _read(b)
    _check_same(base, other)
    found = compare(base.scores, other.scores, reward_range=base.reward_range)
    return _noting(found, _notes(base, other))


def contest_runs(baseline: str, candidates: Sequence[str]) -> Contest:
    """Each candidate's paired comparison with the baseline, corrected for their number; named by their folders.

    Raises JournalError as `compare_runs` does, and ValueError for a candidate that is named twice.
    """
    twice = [folder for folder in candidates if candidates.count(folder) > 1]
    if twice:
        raise ValueError(f"{twice[0]} is named twice. Cure: name each candidate once")
    base, others = _read(baseline), [_read(folder) for folder in candidates]
    for other in others:
        _check_same(base, other)
    found = contest(
        base.scores, {other.folder: other.scores for other in others}, name=baseline, reward_range=base.reward_range
    )
    entries = [
        Entry(name=e.name, p_adjusted=e.p_adjusted, comparison=_noting(e.comparison, _notes(base, other)))
        for e, other in zip(found.candidates, others, strict=True)
    ]
    return found.model_copy(update={"candidates": tuple(entries)})


def plan_run(
    run: str, other: str | None = None, *, effects: Sequence[float] = (), episodes: Sequence[int] = (),
    correlation: float = CORRELATION, level: float = 0.95, power: float = 0.8,
) -> Plan:  # fmt: skip
    """How many tasks and episodes a comparison with such a run needs (`evolve.power.plan`); `other`: a pilot's second.

    Raises JournalError as `compare_runs` does, and ValueError as `plan` does.
    """
    base, second = _read(run), None if other is None else _read(other)
    if second is not None:
        _check_same(base, second)
    return plan(
        base.scores, None if second is None else second.scores, effects=effects, episodes=episodes,
        correlation=correlation, level=level, power=power, reward_range=base.reward_range,
    )  # fmt: skip


def _check_same(base: _Played, other: _Played) -> None:
    """Raise JournalError unless the two played the same benchmark and tasks."""
    a, b, one, two = base.folder, other.folder, base.plan, other.plan
    for what in ("name", "reward_range"):
        mine, theirs = one["benchmark"][what], two["benchmark"][what]
        if mine != theirs:
            raise JournalError(
                f"{a} and {b} cannot be compared: benchmark {what} is {mine} in one, {theirs} in the other"
            )
    changed = [task for task, print_ in one["tasks"].items() if two["tasks"].get(task, print_) != print_]
    if changed:
        raise JournalError(
            f"{a} and {b} cannot be compared: task {changed[0]} is not the same in both ({len(changed)} differ)"
        )


def _notes(base: _Played, other: _Played) -> list[str]:
    """What else a reader of the comparison must know."""
    notes = []
    if base.plan["world"] != other.plan["world"]:
        notes.append("the world's code differs between the runs")
    if base.plan["seed"] != other.plan["seed"]:
        notes.append("the seeds differ, so pairs share the task but not the luck")
    return notes


def differences(a: str, b: str) -> list[str]:
    """What the plans of two runs differ in: harness files, settings, model, memory and what else shapes a result."""
    one, other = _plan(a), _plan(b)
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


def _noting(found: Comparison, notes: Sequence[str]) -> Comparison:
    return found.model_copy(update={"reason": "; ".join([found.reason, *notes])})


def _plan(folder: str) -> dict[str, Any]:
    with Journal(folder, readonly=True) as journal:
        planned = journal.last("plan")
    return planned.body if planned is not None else {}


def _read(folder: str) -> _Played:
    """Of a gap that was filled later, the last one counts. What began and did not end is missing: it may be the harder
    part, since short episodes end first."""
    with Journal(folder, readonly=True) as journal:
        planned = journal.last("plan")
        rows = {row.id: row for row in journal.finished(("run/", "exam/evolved/"))}
        begun = [key for key in journal.unfinished() if key.startswith(("run/", "exam/evolved/"))]
    if planned is None or not rows:
        raise JournalError(f"{folder}: no finished episodes to compare. Cure: let the run finish first")
    found: dict[tuple[str, int], float | None] = {(row.task, row.episode): row.score for row in rows.values()}
    for key in begun:
        task, _, number = key.split("/", 2)[2].rpartition("/")
        found.setdefault((task, int(number)), None)
    return _Played(folder, planned.body, found)
