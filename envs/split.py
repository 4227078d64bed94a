"""A split made of a list: the shortest way from tasks at hand to a benchmark.

A benchmark whose tasks are generated writes its own `Split` function; everyone else has a list.
"""

from collections.abc import Iterable

from envs.benchmark import Split
from envs.task import Task


def fixed(tasks: Iterable[Task]) -> dict[str, Split]:
    """The splits of a fixed list: the tasks grouped by their `split`, each group in the order given."""
    groups: dict[str, list[Task]] = {}
    for task in tasks:
        groups.setdefault(task.split, []).append(task)
    return {name: _first(tuple(group)) for name, group in groups.items()}


def _first(group: tuple[Task, ...]) -> Split:
    return lambda n: group[:n]
