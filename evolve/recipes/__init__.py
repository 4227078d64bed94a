"""Recipes: published ways of evolving, a few lines over the primitives each, defaults published, deviations stated.

A recipe has hooks that `evolve` calls: `begin`, then for each batch of training tasks `player` acts and `learn` learns.
"""

from collections.abc import Sequence
from typing import Any, Protocol

from pydantic import TypeAdapter, ValidationError

from evolve.lab import Lab
from evolve.source import Stream
from harness.agent import Agent, Player
from harness.trajectory import Trajectory


class Recipe(Protocol):
    """One way of evolving. `source` says which tasks teach; `name` goes into the journal."""

    name: str
    source: Stream

    async def begin(self, lab: Lab) -> None:
        """What comes before the first batch."""
        ...

    def player(self, lab: Lab) -> Player:
        """The evolving agent as it is now."""
        ...

    async def learn(
        self, lab: Lab, number: int, trajectories: Sequence[Trajectory], control: Sequence[Trajectory]
    ) -> None:
        """Learn from the evolving agent's trajectories of batch `number`; its control played the same tasks."""
        ...

    async def choose(self, lab: Lab) -> Agent:
        """What is examined and returned in the end: the best by evidence, not the last."""
        ...


def recipe(name: str, **settings: Any) -> Recipe:
    """The recipe `name` with `settings` over its defaults; raises ValueError naming what there is."""
    from evolve.recipes.memrl import MemRL
    from evolve.recipes.reflect import Reflect

    known: dict[str, Any] = {"memrl": MemRL, "reflect": Reflect}
    if name not in known:
        raise ValueError(f"there is no recipe '{name}'. Known: {', '.join(sorted(known))}")
    fields = known[name].__dataclass_fields__
    checked: dict[str, Any] = {}
    for key, value in settings.items():
        if key not in fields or not fields[key].init:
            options = ", ".join(sorted(field for field in fields if fields[field].init))
            raise ValueError(f"recipe '{name}' has no setting '{key}'. Known: {options}")
        try:
            valid = TypeAdapter(fields[key].type).validate_python(value)
        except ValidationError as error:
            why = error.errors()[0]["msg"].lower()
            raise ValueError(f"recipe '{name}': {key} is {value!r}: {why}") from error
        if isinstance(valid, int | float) and valid < 0:
            raise ValueError(f"recipe '{name}': {key} is {value!r}, but must not be below 0")
        checked[key] = valid
    made: Recipe = known[name](**checked)
    return made
