"""Six levels of household, from one a very small model can learn in to one of ALFWorld's size.

A level is nothing but a `Settings`; an override replaces one of its values and is checked before any task is made.
"""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import islice

from envs.benchmark import Benchmark, Evaluator, Split
from envs.household.expert import chance, expert
from envs.household.layout import TASK_TYPES, TaskType
from envs.household.making import SHARES, Settings, make_tasks
from envs.household.play import Household
from envs.task import Task

PLACE: tuple[TaskType, ...] = ("pick_and_place_simple",)
THREE: tuple[TaskType, ...] = (*PLACE, "look_at_obj_in_light", "pick_clean_then_place_in_recep")
#: Level -> how large its households are and what is asked in them.
LEVELS: dict[int, Settings] = {
    1: Settings(PLACE, (4, 5), (0, 2), openable=1, max_steps=15, expert_steps=8, information=False),
    2: Settings(PLACE, (6, 7), (3, 5), openable=3, max_steps=20, expert_steps=15, information=False),
    3: Settings(THREE, (6, 8), (4, 6), openable=4, max_steps=25, expert_steps=20),
    4: Settings(TASK_TYPES, (7, 9), (5, 8), openable=5, max_steps=30, expert_steps=25),
    5: Settings(TASK_TYPES, (9, 14), (10, 16), openable=8, max_steps=40, expert_steps=35, wordings=2),
    6: Settings(TASK_TYPES, (10, 25), (20, 30), openable=14, max_steps=50, expert_steps=45, wordings=2),
}
#: How many tasks a split has when no number is asked for; any number may be.
SIZES = {"train": 2000, "valid": 200, "test": 500}
OVERRIDES = ("tasks", "receptacles", "distractors", "openable", "max_steps", "wordings", "information")


def benchmark(level: int = 1, **overrides: object) -> Benchmark:
    """The household at `level` 1 to 6, with splits train, valid and test and the policies 'expert' and 'random'.

    `overrides`: tasks (names of task types, also as one text with "+" between), receptacles and distractors (a number,
    or the lowest and highest), openable (most receptacles that are closed at first), max_steps, wordings (1 or 2 ways
    of saying a goal), information (whether look, inventory, help and examine are offered too; they work in any case).
    Raises ValueError that names the key and what it may be.
    """
    if type(level) is not int or level not in LEVELS:
        raise ValueError(f"household: level is {level!r}, but must be one of {', '.join(map(str, LEVELS))}")
    settings = LEVELS[level]
    for key, value in overrides.items():
        settings = _override(settings, key, value)
    return Benchmark(
        name="household",
        make_env=Household,
        splits={split: _split(level, split, settings) for split in SHARES},
        evaluator=Evaluator.RULE,
        licence="Apache-2.0",
        description=f"Text household after ALFWorld, level {level}: {', '.join(settings.tasks)}",
        max_steps=settings.max_steps,
        policies={"expert": expert, "random": chance},
    )


def _split(level: int, split: str, settings: Settings) -> Split:
    made: list[Task] = []
    more: Iterator[Task] = make_tasks(level, split, settings)

    def tasks(n: int | None) -> Sequence[Task]:
        n = SIZES[split] if n is None else n
        made.extend(islice(more, max(0, n - len(made))))
        if len(made) < n:  # the maker gave up in an earlier call
            raise ValueError(f"household: split '{split}' has only {len(made)} tasks with {settings}, not {n}")
        return made[:n]

    return tasks


def _override(settings: Settings, key: str, value: object) -> Settings:
    match key:
        case "tasks":
            names = value.split("+") if isinstance(value, str) else value
            if not isinstance(names, (tuple, list)) or not names or any(name not in TASK_TYPES for name in names):
                raise ValueError(f"household: tasks is {value!r}, but must be some of {', '.join(TASK_TYPES)}")
            return replace(settings, tasks=tuple(names))
        case "receptacles":
            return replace(settings, receptacles=_range(key, value, 2, 30))
        case "distractors":
            return replace(settings, distractors=_range(key, value, 0, 60))
        case "openable":
            return replace(settings, openable=_number(key, value, 0, 30))
        case "wordings":
            return replace(settings, wordings=_number(key, value, 1, 2))
        case "max_steps":
            steps = _number(key, value, 3, 1000)
            return replace(settings, max_steps=steps, expert_steps=min(steps, settings.expert_steps))
        case "information":
            if not isinstance(value, bool):
                raise ValueError(f"household: information is {value!r}, but must be True or False")
            return replace(settings, information=value)
    raise ValueError(f"household: no override '{key}'; there are: {', '.join(OVERRIDES)}")


def _number(key: str, value: object, low: int, high: int) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
        raise ValueError(f"household: {key} is {value!r}, but must be a whole number from {low} to {high}")
    return value


def _range(key: str, value: object, least: int, most: int) -> tuple[int, int]:
    pair = (value, value) if isinstance(value, int) else value
    if not isinstance(pair, (tuple, list)) or len(pair) != 2:
        raise ValueError(f"household: {key} is {value!r}, but must be one whole number, or the lowest and the highest")
    low, high = (_number(key, part, least, most) for part in pair)
    if low > high:
        raise ValueError(f"household: {key} is {value!r}, but the lowest must not be above the highest")
    return low, high
