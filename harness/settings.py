"""`harness.toml`: the settings of a harness, typed, with no key that is silently ignored.

A wrong type, an unknown key or a newer format gives one error that names the file, the key and what would be right.
"""

import tomllib
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, JsonValue, ValidationError

from harness.secrecy import wrong_address, wrong_variable

FORMAT = 1
#: A name that is safe as part of a folder's.
NAME = r"^[A-Za-z0-9_-][A-Za-z0-9_.-]{0,63}$"


class HarnessError(Exception):
    """A harness folder is not usable; the message names the file, the key and the cure."""


class _Table(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)


class ModelSettings(_Table):
    """`[model]`: which model answers. `options` go to its backend as they are (api_base, timeout, threads ...)."""

    name: str = "embedded"
    temperature: float = Field(default=0.0, ge=0)
    max_tokens: int = Field(default=256, ge=1)
    options: dict[str, JsonValue] = Field(default_factory=dict)


class ControlSettings(_Table):
    """`[control]`: the loop, its requests' form, the wording of situations (`slots` abstracts the goal's things).

    `form` is that of `Agent.request`, which the choice loop and a `control.py` use; the others are conversations.
    """

    loop: Literal["choice", "react", "tools", "control", "command"] = "choice"
    form: Literal["completion", "chat"] = "completion"
    wording: Literal["plain", "slots"] = "plain"
    history: int = Field(default=4, ge=0)


class CommandSettings(_Table):
    """`[command]`: a foreign agent for the `command` loop: its words, its folder, and which variables it inherits."""

    argv: list[str] = Field(default_factory=list)
    cwd: str = ""
    env: list[str] = Field(default_factory=list)


class LimitSettings(_Table):
    """`[limits]`: bounds of one episode; 0 steps means the benchmark's own bound, 0 calls as many as steps.

    `seconds` is working time: pauses and broken calls of a server do not count. `wall` is the clock's (0: ten times
    `seconds`, at least an hour). 0 tokens or dollars: no limit of their own.
    """

    steps: int = Field(default=0, ge=0)
    calls: int = Field(default=0, ge=0)
    seconds: float = Field(default=600.0, gt=0)
    wall: float = Field(default=0.0, ge=0)
    tokens: int = Field(default=0, ge=0)
    dollars: float = Field(default=0.0, ge=0)
    invalid: int = Field(default=5, ge=1)


class MemorySettings(_Table):
    """`[memory]`: what is recalled. The names and defaults are MemRL's (two-phase retrieval)."""

    policy: Literal["none", "memrl"] = "none"
    unit: Literal["step", "episode"] = "step"
    k1: int = Field(default=5, ge=1)
    k2: int = Field(default=3, ge=1)
    delta: float = Field(default=0.0, ge=-1, le=1)
    q_min: float = -1e9
    w_sim: float = Field(default=0.5, ge=0)
    w_q: float = Field(default=0.5, ge=0)
    epsilon: float = Field(default=0.0, ge=0, le=1)
    tokens: int = Field(default=600, ge=0)


class SkillSettings(_Table):
    """`[skills]`: how much of the folder's skills is disclosed, and within how many tokens."""

    disclose: Literal["none", "catalogue", "bodies"] = "catalogue"
    tokens: int = Field(default=400, ge=0)


class Settings(_Table):
    """All of `harness.toml`."""

    format: int = FORMAT
    name: str = Field(default="agent", pattern=NAME)  # a part of the run folder's name
    model: ModelSettings = ModelSettings()
    control: ControlSettings = ControlSettings()
    command: CommandSettings = CommandSettings()
    limits: LimitSettings = LimitSettings()
    memory: MemorySettings = MemorySettings()
    skills: SkillSettings = SkillSettings()


def parse_settings(text: str, where: str) -> Settings:
    """Settings from TOML text; `where` names the file in errors. Raises HarnessError."""
    try:
        raw: dict[str, Any] = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise HarnessError(f"{where}: not valid TOML: {error}") from error
    found = raw.get("format", FORMAT)
    if isinstance(found, int) and found > FORMAT:
        raise HarnessError(
            f"{where}: format {found} is newer than this instar understands ({FORMAT}). Cure: update instar"
        )
    try:
        settings = Settings.model_validate(raw)
    except ValidationError as error:
        raise HarnessError("\n".join(_explain(fault, where) for fault in error.errors())) from error
    options = settings.model.options  # these files go into the journal, so no secret may be among them
    wrong = wrong_address(options.get("api_base"))
    if not wrong and "api_key_env" in options:
        wrong = wrong_variable(options["api_key_env"])
    if not wrong and "api_key" in options:
        wrong = 'never write a key here. Cure: export MY_KEY=..., and api_key_env = "MY_KEY"'
    if wrong:
        raise HarnessError(f"{where}: [model.options]: {wrong}")
    return settings


def _explain(fault: Any, where: str) -> str:
    *tables, key = [str(part) for part in fault["loc"]]
    place = f"[{'.'.join(tables)}] {key}" if tables else key
    if fault["type"] == "extra_forbidden":
        return f"{where}: {place}: there is no such setting. Cure: remove it, or see docs/harness.md for what there is"
    if fault["loc"] == ("name",) and fault["type"] == "string_pattern_mismatch":
        return (
            f"{where}: name: {fault['input']!r} cannot be part of a folder's name. Cure: letters, digits, '-', '_' and "
            "'.', at most 64 and no '.' at the start"
        )
    return f"{where}: {place}: {fault['msg'].lower()}, but it is {fault['input']!r}"
