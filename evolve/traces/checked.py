"""What comes in is checked as if an enemy had written it: what a report or a comparison cannot read is refused here.

Our own journals hold nothing of the kind, so only an import pays for this. Each check raises ValueError that says what
is wrong, without the value; who calls it knows the file and the line.
"""

import math
import re
from collections.abc import Iterable, Mapping
from typing import Annotated, Any
from urllib.parse import urlsplit

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator

from envs.benchmark import Evaluator
from evolve.evolver import Outcome
from evolve.gate import Verdict
from evolve.patch import Patch
from evolve.stats import Mean, PassRates
from harness.model import Usage
from harness.trajectory import Trajectory

DEEP = 100  # levels of lists and objects in one line
COUNT = 2**53  # what JSON numbers hold exactly everywhere, and sums of them OpenTelemetry's 64 bits
LATEST = 253_402_300_800.0  # Unix seconds at which the year 10000 begins: no calendar shows it
LONGEST, DEAREST, FARTHEST = 1e10, 1e12, 1e15  # seconds, dollars, and how far a reward is from zero
_LONE = re.compile("[\ud800-\udfff]")

Count = Annotated[int, Field(ge=0, lt=COUNT)]


class _Told(BaseModel):
    """What readers need of something that holds more."""

    model_config = ConfigDict(frozen=True, extra="allow", allow_inf_nan=False)


class _Facts(_Told):
    name: str
    reward_range: Annotated[list[float], Field(min_length=2, max_length=2)]
    evaluator: str | int | None = None
    success_at: float | None = None

    @field_validator("reward_range")
    @classmethod
    def _in_order(cls, ends: list[float]) -> list[float]:
        if ends[0] > ends[1] or max(map(abs, ends)) > FARTHEST:
            raise ValueError("no range of rewards")
        return ends

    @field_validator("evaluator")
    @classmethod
    def _known(cls, told: str | int | None) -> str | int | None:
        known = (
            {rank.name for rank in Evaluator} if isinstance(told, str) else {None, *(rank.value for rank in Evaluator)}
        )
        if told not in known:
            raise ValueError("no evaluator of this version of instar")
        return told


class _Plan(_Told):
    command: str
    harness: str
    name: str
    env: str
    world: str
    benchmark: _Facts
    tasks: dict[str, str]
    model: str
    seed: Annotated[int, Field(gt=-(2**64), lt=2**64)]
    split: str
    options: dict[str, Any]
    files: dict[str, str]
    settings: dict[str, Any] = {}
    proposer_options: dict[str, Any] = {}
    recipe: str | None = None
    proposer: str | None = None
    budget: str | None = None
    memory: str | None = None
    memory_digest: str | None = None
    address: str | None = None
    episodes: Count = 1

    @field_validator("address")
    @classmethod
    def _reached(cls, told: str | None) -> str | None:
        _ = urlsplit(told or "").port  # raises ValueError
        return told


class _Evaluation(_Told):
    mean: Mean
    solved: Count
    rates: PassRates | None = None
    asked: Count | None = None
    taught: Count | None = None


class _Round(_Told):
    round: Count
    evolved: Mean
    control: Mean


class _Proposal(_Told):
    step: Count
    parent: str
    child: str = ""
    proposer: str = ""
    patch: Patch | None = None
    unusable: str = ""

    @field_validator("patch")
    @classmethod
    def _there(cls, patch: Patch | None) -> Patch:
        if patch is None:
            raise ValueError("no patch")
        return patch


class _Ask(_Told):
    prompt: str
    output: str
    usage: Usage


class _Entry(_Told):
    id: str
    kind: str
    key: str
    body: str


class _Remembered(_Told):
    added: list[_Entry]


class _Credited(_Told):
    rewards: list[tuple[str, float]]


class _Forgotten(_Told):
    ids: list[str]


class _Taught(_Told):
    taught: list[str]
    judged: list[str]


_EVENTS: Mapping[str, type[BaseModel]] = {
    "outcome": Outcome, "evaluation": _Evaluation, "round": _Round, "verdict": Verdict, "proposal": _Proposal,
    "ask": _Ask, "remembered": _Remembered, "credited": _Credited, "forgotten": _Forgotten, "taught": _Taught,
}  # fmt: skip


def check_plan(plan: Any) -> tuple[float, float]:
    """The range of rewards of a plan that every reader can read."""
    if not isinstance(plan, dict) or not plan:
        raise ValueError("no plan" if not plan else "the plan is not an object")
    check_plain(plan)
    _check_names(plan[name] for name in ("harness", "model", "env", "split") if isinstance(plan.get(name), str))
    try:
        low, high = _Plan.model_validate(plan).benchmark.reward_range
    except ValidationError as error:
        raise ValueError(f"no plan that can be read: {first_of(error)}") from error
    return low, high


def check_event(kind: str, key: str, body: dict[str, Any]) -> None:
    """One of the other events: those that readers know, whole; of any other, that its numbers are finite."""
    _check_names((kind, key))
    check_plain(body)
    if kind in _EVENTS:
        try:
            found = _EVENTS[kind].model_validate(body)
        except ValidationError as error:
            raise ValueError(f"no {kind} ({first_of(error)})") from error
        if isinstance(found, _Ask):
            _check_usage("usage", found.usage)


def check_trajectory(told: Trajectory, reach: tuple[float, float]) -> None:
    """Numbers that can be summed, dated and sent, and a score within `reach`."""
    _check_names((told.id, told.task, told.split, told.harness, told.model, told.arm))
    _within("episode", told.episode, 0, 2**31)
    _within("seed", told.seed, -(2**64), 2**64)
    _within("started", told.started, 0, LATEST)
    _within("seconds", told.seconds, 0, LONGEST)
    if told.score is not None:
        if told.status == "gap":
            raise ValueError("score: a gap has none")
        _within("score", told.score, *reach)
    for number, turn in enumerate(told.turns):
        if turn.reward is not None:
            _within(f"turns.{number}.reward", turn.reward, -FARTHEST, FARTHEST)
    for call in told.all_calls:
        _check_usage("usage of a call", call.usage)
    _check_usage("lost.usage", told.lost.usage)
    _within("lost.calls", told.lost.calls, 0, COUNT)


def check_times(told: Any, most: int) -> list[float]:
    """Unix seconds, at most so many."""
    if not isinstance(told, list) or len(told) > most:
        raise ValueError("turned: not one time for each turn")
    return [check_time("turned", at) for at in told]


def check_time(what: str, told: Any) -> float:
    """Unix seconds."""
    if not isinstance(told, int | float) or isinstance(told, bool):
        raise ValueError(f"{what}: not a number")
    _within(what, told, 0, LATEST)
    return float(told)


def check_depth(told: Any) -> None:
    """Not nested so deep that a reader would run out of stack."""
    level = [told]
    for _ in range(DEEP):
        level = [
            part
            for one in level
            for part in (one.values() if isinstance(one, dict) else one)
            if isinstance(part, dict | list)
        ]
        if not level:
            return
    raise ValueError(f"nested deeper than {DEEP} levels")


def check_plain(told: Any) -> None:
    """Numbers that are finite, and whole ones of at most 64 bits."""
    waiting = [told]
    while waiting:
        match waiting.pop():
            case dict() as one:
                waiting += one.values()
            case list() as one:
                waiting += one
            case float() as one if not math.isfinite(one):
                raise ValueError("a number that is not finite")
            case int() as one if abs(one) > 2**64:
                raise ValueError("a whole number of more than 64 bits")


def first_of(error: ValidationError) -> str:
    """The first thing that is wrong, where and why, without the value."""
    found = error.errors(include_url=False, include_input=False)[0]
    return f"{'.'.join(map(str, found['loc'])) or 'whole'}: {found['msg']}"


def _check_names(names: Iterable[str]) -> None:
    """Names are keys of the database and parts of lines; half a character is neither."""
    for name in names:
        if _LONE.search(name):
            raise ValueError("half a character (a lone surrogate, such as \\ud800) in a name, which no file can hold")


def _check_usage(what: str, used: Usage) -> None:
    for name in ("prompt_tokens", "cached_tokens", "output_tokens"):
        _within(f"{what}: {name}", getattr(used, name), 0, COUNT)
    _within(f"{what}: seconds", used.seconds, 0, LONGEST)
    if used.dollars is not None:
        _within(f"{what}: dollars", used.dollars, 0, DEAREST)


def _within(what: str, value: float, low: float, high: float) -> None:
    if not low <= value <= high:  # not a number is not
        raise ValueError(f"{what}: not within {low:g} and {high:g}")
