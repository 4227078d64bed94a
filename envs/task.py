"""A task and what an environment says about it: the only values that cross an environment's border.

They hold text and plain data, never live objects, so that any of them can be journalled, sent to another
process, or replayed.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, JsonValue


class Task(BaseModel):
    """One problem to solve: `goal` is what the agent is told, `data` what the environment needs to build it."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    id: str = Field(min_length=1)
    split: str = Field(min_length=1)
    goal: str
    data: dict[str, JsonValue] = Field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Observation:
    """What the agent sees: `text`, the admissible `choices` if the world knows them, and optional structured data."""

    text: str
    choices: tuple[str, ...] | None = None
    data: Mapping[str, Any] | None = None


@dataclass(frozen=True, slots=True)
class Step:
    """The world's answer to one action. `reward` None means unscored; `done` ends the episode.

    `info["feedback"]`, if it is a text, is an evaluator's words: kept for learning, never shown to the agent.
    """

    observation: Observation
    reward: float | None = None
    done: bool = False
    info: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Tool:
    """A function the world offers: `parameters` is a JSON schema of its arguments."""

    name: str
    description: str
    parameters: Mapping[str, Any] = field(default_factory=lambda: {"type": "object", "properties": {}})
