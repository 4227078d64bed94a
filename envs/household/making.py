"""Tasks are made, not stored: task i of a split follows from (level, split, i) and nothing else.

A layout's fingerprint alone says which split it belongs to, and a draw that belongs elsewhere is thrown away;
so no two splits can share a layout, at any level or setting. A draw that the expert cannot solve in time is
thrown away too.
"""

import hashlib
import random
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from envs.household import catalog
from envs.household.expert import Explorer
from envs.household.layout import TREATMENT, WORDINGS, Layout, TaskType
from envs.household.world import World
from envs.task import Task

#: Tenths of the space of layouts that belong to each split.
SHARES = {"train": range(0, 6), "valid": range(6, 8), "test": range(8, 10)}
#: Draws in a row that may fail before the settings are held to be impossible.
PATIENCE = 5000


@dataclass(frozen=True)
class Settings:
    """How large a household is and what is asked in it; ranges are inclusive."""

    tasks: tuple[TaskType, ...]
    receptacles: tuple[int, int]
    distractors: tuple[int, int]
    openable: int
    max_steps: int
    expert_steps: int
    wordings: int = 1
    information: bool = True


def split_of(fingerprint: str) -> str:
    """The one split that a layout belongs to."""
    tenth = int(fingerprint, 16) % 10
    return next(split for split, share in SHARES.items() if tenth in share)


def make_tasks(level: int, split: str, settings: Settings) -> Iterator[Task]:
    """The tasks of `split`, one after another without end, no layout twice; ValueError when no more can be found."""
    known: set[str] = set()
    index = 0
    while True:
        task = _stream(level, split, index, "type").choice(settings.tasks)  # before the draws, or hard types grow rare
        for attempt in range(PATIENCE):
            rng = _stream(level, split, index, attempt)
            layout = _draw(rng, task, settings)
            if layout is None:
                continue
            fingerprint = layout.fingerprint()
            if split_of(fingerprint) == split and fingerprint not in known and _solvable(layout, settings.expert_steps):
                break
        else:
            raise ValueError(
                f"household level {level}: found no task {index} ({task}) of split '{split}' in {PATIENCE} "
                f"draws with {settings}. Cure: more receptacles, openable ones, task types or steps, or fewer tasks"
            )
        known.add(fingerprint)
        goal = layout.goal(rng.randrange(min(settings.wordings, len(WORDINGS[layout.type]))))
        name = f"household-{level}-{split}-{index}-{fingerprint[:8]}"
        yield Task(id=name, split=split, goal=goal, data=layout.data())
        index += 1


def _stream(*names: str | int) -> random.Random:
    text = "\x1f".join(map(str, ("household", 1, *names)))
    return random.Random(int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big"))


def _solvable(layout: Layout, steps: int) -> bool:
    world = World(layout)
    player = Explorer(world)
    for _ in range(steps):
        world.act(player.act())
        if world.solved():
            return True
    return False


def _draw(rng: random.Random, task: TaskType, settings: Settings) -> Layout | None:
    """One random household, or None when these dice give none."""
    name = rng.choice(list(catalog.ROOMS))
    room, belongs = catalog.ROOMS[name], catalog.BELONGS[name]
    goal = _goal(rng, task, room, belongs)
    if goal is None:
        return None
    thing, target, needed = goal
    kinds = _receptacles(rng, room, needed, settings)
    if kinds is None:
        return None
    things = [thing] * (2 if task == "pick_two_obj_and_place" else 1)
    if task == "look_at_obj_in_light":
        things.append(target)
    placed: list[list[str]] = [[] for _ in kinds]
    for item in things:
        placed[
            rng.choice([i for i, place in enumerate(kinds) if place != target and catalog.fits(item, place)])
        ].append(item)
    for _ in range(rng.randint(*settings.distractors)):
        i = rng.randrange(len(kinds))
        others = [item for item in catalog.FITS[kinds[i]] if item != thing and item in belongs]
        if others:
            placed[i].append(rng.choice(others))
    receptacles = _numbered(rng, kinds, placed)
    return Layout(
        type=task,
        object=thing,
        target=target,
        receptacles=receptacles,
        max_steps=settings.max_steps,
        information=settings.information,
    )


def _goal(
    rng: random.Random, task: TaskType, room: Mapping[str, int], belongs: frozenset[str]
) -> tuple[str, str, list[str]] | None:
    """(object, target, receptacle kinds that must be there), or None when `room` does not suit `task`."""
    verb = TREATMENT.get(task)
    suitable, tool = catalog.TREATMENTS[verb][:2] if verb else (belongs, None)
    if tool is not None and tool not in room:
        return None
    if task == "look_at_obj_in_light":
        target, places = rng.choice(catalog.LAMPS), [place for place in room if place in catalog.LAMP_HOMES]
        needed = [rng.choice(places)]
    else:
        target = rng.choice([place for place in room if place != tool and catalog.FITS[place]])
        suitable = suitable.intersection(catalog.FITS[target])
        needed = [target] if tool is None else [target, tool]
    homes = {item: [p for p in room if p != target and item in catalog.FITS[p]] for item in sorted(suitable & belongs)}
    things = [item for item, places in homes.items() if places]
    if not things:
        return None
    thing = rng.choice(things)
    return thing, target, [*needed, rng.choice(homes[thing])]


def _receptacles(
    rng: random.Random, room: Mapping[str, int], needed: list[str], settings: Settings
) -> list[str] | None:
    """Receptacle kinds, sorted: those `needed` and others up to the wanted number; None when there is no such room."""
    kinds = list(dict.fromkeys(needed))
    wanted = rng.randint(*settings.receptacles)
    while len(kinds) < wanted:
        closed = sum(place in catalog.OPENABLE for place in kinds)
        more = {
            place: most - kinds.count(place)
            for place, most in room.items()
            if kinds.count(place) < most and (closed < settings.openable or place not in catalog.OPENABLE)
        }
        if not more:
            break
        kinds += rng.choices(list(more), list(more.values()))
    low, high = settings.receptacles
    closed = sum(place in catalog.OPENABLE for place in kinds)
    return sorted(kinds) if low <= len(kinds) <= high and closed <= settings.openable else None


def _numbered(rng: random.Random, kinds: list[str], placed: list[list[str]]) -> tuple[tuple[str, tuple[str, ...]], ...]:
    """Every receptacle and object gets its number; objects are numbered in no telling order."""
    total = Counter(item for content in placed for item in content)
    numbers = {item: rng.sample(range(1, count + 1), count) for item, count in total.items()}
    count: Counter[str] = Counter()
    room = []
    for place, content in zip(kinds, placed, strict=True):
        count[place] += 1
        room.append((f"{place} {count[place]}", tuple(f"{item} {numbers[item].pop()}" for item in content)))
    return tuple(room)
