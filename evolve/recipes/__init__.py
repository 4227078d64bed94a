"""Recipes: published ways of evolving, a few lines over the primitives each, defaults published, deviations stated.

A recipe has hooks that `evolve` calls: `begin`, then for each batch of training tasks `player` acts and `learn` learns.
Yours is found like an environment: by a name that a package registered, by `module:attr`, or by the path of a file.
"""

import dataclasses
import inspect
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

from pydantic import ValidationError

from envs.source import EnvError, from_file, from_module
from evolve.lab import Lab
from evolve.source import Stream
from harness.agent import Agent, Player
from harness.trajectory import Trajectory

#: Packages register recipes in this group of entry points.
GROUP = "instar.recipes"
BUILT_IN = {"memrl": "evolve.recipes.memrl:MemRL", "reflect": "evolve.recipes.reflect:Reflect"}
#: What a file or module is asked for when nothing is named.
DEFAULT_ATTR = "recipe"


class Recipe(Protocol):
    """One way of evolving. `source` says which tasks teach; `name` goes into the journal.

    Decisions may depend on journal and seed only (`lab.stream`), so that a resumed run takes the same ones.
    """

    @property
    def name(self) -> str: ...

    @property
    def source(self) -> Stream: ...

    @property
    def splits(self) -> tuple[str, ...]:
        """The splits it learns from or decides on: none of them can be the exam."""
        ...

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
        """What is examined and returned in the end, for a reason that can be shown."""
        ...


def recipe(spec: str | Recipe, **settings: Any) -> Recipe:
    """The recipe that `spec` is or means, with `settings` over its defaults.

    Specs: a name (`memrl`, `reflect`, or one that a package registered), `MODULE:ATTR`, `FILE.py[:ATTR]`; each leads to
    a class, a function that returns a recipe, or a recipe. Raises ValueError, in one line with the cure.
    """
    if not isinstance(spec, str):
        return _checked(_made(spec, f"recipe {type(spec).__name__}", settings), f"recipe {type(spec).__name__}")
    where = f"recipe '{spec}'"
    try:
        found = _find(spec)
    except EnvError as error:
        raise ValueError(f"{where}: {error}") from error
    return _checked(_made(found, where, settings), where)


def settings_of(chosen: Recipe) -> dict[str, Any]:
    """All settings of a recipe, defaults included: a default that changes is another run."""
    fields: Sequence[dataclasses.Field[Any]] = dataclasses.fields(chosen) if dataclasses.is_dataclass(chosen) else ()
    fixed = {field.name for field in fields if not field.init}
    return {name: value for name, value in vars(chosen).items() if not name.startswith("_") and name not in fixed}


def _find(spec: str) -> Any:
    from importlib.metadata import entry_points

    named = {point.name: point.value for point in entry_points(group=GROUP)} | BUILT_IN
    target = named.get(spec, spec)
    head, colon, attr = target.rpartition(":")
    path, attr = (head, attr) if head.endswith(".py") else (target, DEFAULT_ATTR)
    if path.endswith(".py"):
        if not Path(path).is_file():
            raise EnvError(f"there is no file {path}. Cure: give the path of the file that holds it.")
        return from_file(Path(path), attr, kind="recipe")
    if not colon:
        known = ", ".join(sorted(named))
        raise ValueError(
            f"there is no recipe '{spec}'. Known: {known}. Cure: one of these, MODULE:ATTR or FILE.py:ATTR"
        )
    return from_module(head, target.rpartition(":")[2], kind="recipe")


def _made(found: Any, where: str, settings: Mapping[str, Any]) -> Any:
    if not callable(found):
        if settings:
            raise ValueError(f"{where} is made already. Cure: set {', '.join(settings)} where it is made")
        return found
    parameters = inspect.signature(found).parameters
    anything = any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters.values())
    for key in settings:
        if key not in parameters and not anything:
            raise ValueError(f"{where} has no setting '{key}'. Known: {', '.join(sorted(parameters)) or 'none'}")
    try:
        return found(**settings)
    except ValidationError as error:
        fault = error.errors()[0]
        key = ".".join(map(str, fault["loc"]))
        raise ValueError(f"{where}: {key} is {fault['input']!r}: {fault['msg'].lower()}") from error


def _checked(made: Any, where: str) -> Recipe:
    missing = [name for name in ("name", "source", "begin", "player", "learn", "choose") if not hasattr(made, name)]
    if missing:
        raise ValueError(f"{where} is no recipe, it has no {', '.join(missing)}. Cure: see evolve.recipes.Recipe")
    checked: Recipe = made
    return checked
