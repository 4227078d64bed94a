"""The border to code that is not ours: whatever breaks beyond it is missing data, and what comes over it is checked.

An environment may exit, cancel, or hand back a number that no file can hold. None of that may end a run, or be found
out only after all was paid for; only a real cancellation and Ctrl-C pass.
"""

import asyncio
import math
import traceback
from collections.abc import Mapping, Sequence
from numbers import Real
from types import TracebackType

from envs import EnvFault, Observation, Step, Tool


class Border:
    """The context that `border` gives; it has no state, and is no generator, since every step of a world crosses it."""

    __slots__ = ()

    def __enter__(self) -> None:
        return None

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is None or isinstance(error, (EnvFault, KeyboardInterrupt, GeneratorExit)):
            return
        task = asyncio.current_task() if isinstance(error, asyncio.CancelledError) else None
        if task is not None and task.cancelling():  # somebody wants us to stop
            return
        raise EnvFault(where(error)) from error  # SystemExit, too: an environment does not end the run


_BORDER = Border()


def border() -> Border:
    """Turn whatever breaks inside into an EnvFault that names the place."""
    return _BORDER


def where(error: BaseException) -> str:
    """What broke in code that is not ours, with the file and line."""
    frame = traceback.extract_tb(error.__traceback__)[-1]
    return f"{type(error).__name__}: {error} ({frame.filename}:{frame.lineno})"


def seen(found: object, what: str) -> Observation:
    """`found`, which must be a well-formed Observation; raises EnvFault."""
    if not isinstance(found, Observation):
        raise EnvFault(f"{what} returned a {type(found).__name__}, no Observation")
    if not isinstance(found.text, str):
        raise EnvFault(f"{what} returned an Observation whose text is a {type(found.text).__name__}")
    choices = found.choices
    if choices is not None and not (
        isinstance(choices, Sequence) and not isinstance(choices, str) and all(isinstance(c, str) for c in choices)
    ):
        raise EnvFault(f"{what} returned the choices {shown(choices)}, which are no tuple of texts")
    return found


def stepped(step: object) -> tuple[Observation, float | None, bool, str]:
    """Observation, reward, done and feedback of a world's answer; raises EnvFault. A reward of no finite number must
    not become a score."""
    if not isinstance(step, Step) or not isinstance(step.observation, Observation):
        raise EnvFault(f"step returned a {type(step).__name__}, no Step with an Observation")
    if not isinstance(step.info, Mapping):
        raise EnvFault(f"step returned the info {shown(step.info)}, which is no mapping")
    words = step.info.get("feedback")
    if type(step.done).__name__ not in ("bool", "bool_"):  # numpy's is one too
        raise EnvFault(f"step returned done = {shown(step.done)}, which is neither True nor False")
    observation = seen(step.observation, "step")
    return observation, _reward(step.reward), bool(step.done), words if isinstance(words, str) else ""


def offered(tools: object) -> Sequence[Tool]:
    """`tools`, which must be a sequence of well-formed Tools; raises EnvFault."""
    if not isinstance(tools, Sequence) or not all(
        isinstance(t, Tool) and isinstance(t.name, str) and isinstance(t.parameters, Mapping) for t in tools
    ):
        raise EnvFault(f"tools() returned {shown(tools)}, which is no list of Tools with names and parameters")
    return tools


def shown(value: object) -> str:
    """`value` in at most 80 characters, also where it cannot even be shown."""
    try:
        return repr(value)[:80]
    except Exception:  # noqa: BLE001 - its own __repr__, or a number of too many digits
        return f"a {type(value).__name__}"


def _reward(reward: object) -> float | None:
    if reward is None:
        return None
    try:
        if isinstance(reward, Real) and math.isfinite(number := float(reward)):
            return number
    except OverflowError:
        pass
    raise EnvFault(f"step returned the reward {shown(reward)}, which is no finite number")
