"""The rules about a benchmark's fields and tasks: task number i of a split is the same task for everyone.

A split that leaks into another one, or that changes when it is asked again, makes every later comparison worthless.
"""

import math
import random
import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from pydantic import ValidationError

from envs.check.probe import Finding, NotApplicable, Probe, brief
from envs.task import Task

_SPLIT_CURE = (
    "A split is a function of n alone: the first n tasks, all for None. A list becomes one with envs.fixed(tasks)."
)


async def fields(probe: Probe) -> str:
    """The benchmark's own numbers make sense."""
    mark = probe.benchmark
    if not re.fullmatch(r"\S+", mark.name):
        raise Finding(f"the name is {mark.name!r}.", "Give a short name without spaces; journals and reports use it.")
    low, high = mark.reward_range
    if not (math.isfinite(low) and math.isfinite(high) and low < high):
        raise Finding(f"reward_range is {mark.reward_range}.", "Give (lowest, highest) score, both finite.")
    if not low <= mark.success_at <= high:
        raise Finding(
            f"success_at is {mark.success_at}, reward_range {mark.reward_range}.", "Put success_at inside reward_range."
        )
    if isinstance(mark.max_steps, bool) or not isinstance(mark.max_steps, int) or mark.max_steps < 1:
        raise Finding(f"max_steps is {mark.max_steps!r}.", "Give a whole number of at least 1.")
    return f"scores in [{low:g}, {high:g}], solved at {mark.success_at:g}, at most {mark.max_steps} steps"


async def splits(probe: Probe) -> str:
    """There are splits, none is empty, and they hold tasks that know their split."""
    mark = probe.benchmark
    if not mark.splits:
        raise Finding("the benchmark has no split.", "Give splits=envs.fixed(tasks), say 'train', 'valid' and 'test'.")
    for name in mark.splits:
        probe.all_tasks[name] = tasks = _tasks(probe, name)
        if not tasks:
            raise Finding(f"split '{name}' is empty.", "Give it tasks, or leave it out.")
        for number, task in enumerate(tasks):
            if not isinstance(task, Task):
                raise Finding(f"split '{name}', task {number} is a {type(task).__name__}.", "Make it an envs.Task.")
            if task.split != name:
                raise Finding(
                    f"split '{name}' holds task '{task.id}' with split='{task.split}'.", "Make the two agree."
                )
    probe.tasks = _sample(probe)
    if len(mark.splits) == 1:
        raise Finding(
            f"there is only the split '{next(iter(mark.splits))}'.",
            "Give another one: what is learned from a task cannot be judged on it.",
            warning=True,
        )
    return ", ".join(f"{name} {len(tasks)}" for name, tasks in probe.all_tasks.items())


async def unique_ids(probe: Probe) -> str:
    """Within a split no two tasks have one id."""
    for name, tasks in probe.all_tasks.items():
        seen: set[str] = set()
        for task in tasks:
            if task.id in seen:
                raise Finding(f"split '{name}' has the id '{task.id}' twice.", "Number the tasks.")
            seen.add(task.id)
    return f"{sum(map(len, probe.all_tasks.values()))} tasks"


async def disjoint(probe: Probe) -> str:
    """No task of one split is in another, by its id or by its content."""
    if len(probe.all_tasks) < 2:
        raise NotApplicable("there is only one split")
    owner: dict[tuple[str, str], Task] = {}
    for tasks in probe.all_tasks.values():
        for task in tasks:
            for kind, key in (("id", task.id), ("goal and data", f"{task.goal!r} {_ordered(task.data)}")):
                other = owner.setdefault((kind, key), task)
                if other.split != task.split:
                    raise Finding(
                        f"task '{task.id}' of '{task.split}' has the {kind} of task '{other.id}' of '{other.split}'.",
                        "Make the splits from different tasks (and put into data whatever tells two tasks apart).",
                    )
    return f"{len(probe.all_tasks)} splits"


async def json_round_trip(probe: Probe) -> str:
    """A task is the same after it was written to JSON and read again."""
    cure = (
        "Keep data to text, finite numbers, true/false/null, lists and string-keyed objects; text without surrogates."
    )
    for tasks in probe.all_tasks.values():
        for task in tasks:
            try:
                again = Task.model_validate_json(task.model_dump_json())
            except (ValueError, ValidationError, TypeError) as error:
                raise Finding(f"task '{task.id}': {type(error).__name__}: {brief(str(error), 200)}", cure) from error
            if again != task:
                raise Finding(f"task '{task.id}' comes back from JSON changed: {brief(again.data)}.", cure)
    return f"{sum(map(len, probe.all_tasks.values()))} tasks"


async def stable(probe: Probe) -> str:
    """A split answers the same each time, whatever the global random state, and n tasks are the first n of all."""
    for name, first in probe.all_tasks.items():
        for number in (1, 2):
            with _global_seed(number):
                again = _tasks(probe, name)
            if again != first:
                at = next(
                    (i for i, (a, b) in enumerate(zip(first, again, strict=False)) if a != b),
                    min(len(first), len(again)),
                )
                raise Finding(
                    f"split '{name}', asked again, has another task number {at}.",
                    f"{_SPLIT_CURE} Use random.Random(0) inside.",
                )
        for size in sorted({1, (len(first) + 1) // 2}):
            if _tasks(probe, name, size) != first[:size]:
                raise Finding(
                    f"split '{name}': its first {size} tasks differ from those of the whole split.", _SPLIT_CURE
                )
    return "asked three times and for prefixes"


def _tasks(probe: Probe, name: str, n: int | None = None) -> list[Task]:
    return probe.guarded(f"split '{name}'", lambda: probe.benchmark.tasks(name, n), _SPLIT_CURE)


def _sample(probe: Probe) -> list[Task]:
    """`probe.episodes` tasks, taken from the splits in turn and spread over each."""
    pools = list(probe.all_tasks.values())
    share = -(-probe.episodes // len(pools))
    spread = [[pool[i * len(pool) // min(share, len(pool))] for i in range(min(share, len(pool)))] for pool in pools]
    turns = [pool[turn] for turn in range(share) for pool in spread if turn < len(pool)]
    return turns[: max(1, probe.episodes)]


def _ordered(value: Any) -> str:
    if isinstance(value, dict):
        return "{" + ",".join(f"{key!r}:{_ordered(value[key])}" for key in sorted(value)) + "}"
    return "[" + ",".join(map(_ordered, value)) + "]" if isinstance(value, list) else repr(value)


@contextmanager
def _global_seed(number: int) -> Iterator[None]:
    """While inside, Python's global random state is a known one; it is put back afterwards."""
    before = random.getstate()
    random.seed(number)
    try:
        yield
    finally:
        random.setstate(before)
