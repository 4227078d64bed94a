"""A household at the start of an episode: where everything is, and what is to be done with it.

A layout is plain data that travels in `Task.data`, so the world needs nothing else. Its fingerprint leaves out
numbers and order, because two rooms that differ only in which cabinet is called 1 are the same exercise.
"""

import hashlib
import json
from typing import Literal, Self, get_args

from pydantic import BaseModel, ConfigDict, Field, JsonValue, ValidationError, model_validator

from envs.household import catalog
from envs.task import Task

TaskType = Literal[
    "pick_and_place_simple",
    "pick_two_obj_and_place",
    "pick_clean_then_place_in_recep",
    "pick_heat_then_place_in_recep",
    "pick_cool_then_place_in_recep",
    "look_at_obj_in_light",
]
#: The six task types, named as ALFWorld names them.
TASK_TYPES: tuple[TaskType, ...] = get_args(TaskType)
#: Task type -> the verb of `catalog.TREATMENTS` that the object needs first.
TREATMENT: dict[str, str] = {
    "pick_clean_then_place_in_recep": "clean",
    "pick_heat_then_place_in_recep": "heat",
    "pick_cool_then_place_in_recep": "cool",
}
#: Task type -> the ways of saying its goal.
WORDINGS: dict[str, tuple[str, ...]] = {
    "pick_and_place_simple": ("put a {o} in {t}.", "put some {o} on {t}."),
    "pick_two_obj_and_place": ("put two {o} in {t}.", "find two {o} and put them in {t}."),
    "pick_clean_then_place_in_recep": ("put a clean {o} in {t}.", "clean some {o} and put it in {t}."),
    "pick_heat_then_place_in_recep": ("put a hot {o} in {t}.", "heat some {o} and put it in {t}."),
    "pick_cool_then_place_in_recep": ("put a cool {o} in {t}.", "cool some {o} and put it in {t}."),
    "look_at_obj_in_light": ("examine the {o} with the {t}.", "look at {o} under the {t}."),
}


class Layout(BaseModel):
    """Receptacles as listed, each with its contents, and the goal: `object` and `target` are kinds."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    version: Literal[1] = 1
    type: TaskType
    object: str
    target: str
    receptacles: tuple[tuple[str, tuple[str, ...]], ...] = Field(min_length=1)
    max_steps: int = Field(ge=1)
    #: Whether the commands that only tell (look, inventory, help, examine) are offered; they work in any case.
    information: bool = True

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        names = [name for name, _ in self.receptacles]
        things = [thing for _, content in self.receptacles for thing in content]
        if len({*names, *things}) < len(names) + len(things):
            raise ValueError("two things in the layout have the same name")
        for name in (*names, *things):
            if not name.rpartition(" ")[2].isdecimal():
                raise ValueError(f"'{name}' has no number, such as 'mug 1'")
        for name, content in self.receptacles:
            place = catalog.kind(name)
            if place not in catalog.FITS:
                raise ValueError(f"unknown receptacle '{name}'; kinds: {', '.join(catalog.FITS)}")
            for thing in content:
                if not catalog.fits(catalog.kind(thing), place):
                    raise ValueError(f"'{thing}' does not belong in '{name}'")
        return self

    def data(self) -> dict[str, JsonValue]:
        """The layout as `Task.data`, with its fingerprint."""
        return {**self.model_dump(mode="json"), "fingerprint": self.fingerprint()}

    @classmethod
    def of(cls, task: Task) -> Self:
        """The layout that `task` carries; raises ValueError, naming the task, when it carries none."""
        fields = {key: value for key, value in task.data.items() if key != "fingerprint"}
        version = fields.get("version")
        if isinstance(version, int) and version > 1:
            raise ValueError(f"task '{task.id}': household layout version {version} is newer than 1: upgrade instar")
        try:
            return cls.model_validate(fields)
        except ValidationError as error:
            faults = "; ".join(f"{'.'.join(map(str, e['loc'])) or 'layout'}: {e['msg']}" for e in error.errors())
            raise ValueError(
                f"task '{task.id}' carries no household layout ({faults}). Cure: use envs.household.benchmark()"
            ) from error

    def fingerprint(self) -> str:
        """64 bits, as hex, of the layout without numbers and order: equal for rooms that are the same exercise."""
        room = sorted((catalog.kind(name), sorted(map(catalog.kind, content))) for name, content in self.receptacles)
        text = json.dumps([self.type, self.object, self.target, room], separators=(",", ":"))
        return hashlib.sha256(text.encode()).hexdigest()[:16]

    def goal(self, wording: int = 0) -> str:
        """The goal in words; `wording` picks one of the ways of saying it."""
        return WORDINGS[self.type][wording].format(o=self.object, t=self.target)
