"""What passes between us and a worker: a length, then one JSON object. Nothing that a world hands back is ever run.

The worker says what a world did wrong where it can still name it; this side believes nothing of what comes, since a
world may have got hold of the line and written into it.
"""

import json
import struct
from collections.abc import Mapping, Sequence
from numbers import Real
from typing import Any

from envs.task import Observation, Step, Tool

LARGEST = 64 * 2**20  # bytes of one message
_HEAD = struct.Struct(">I")


class BadFrame(ValueError):
    """What came, or was to be sent, is no message."""


def pack(message: Mapping[str, Any]) -> bytes:
    """The bytes of `message`. Raises BadFrame for what JSON cannot hold, or what is too large."""
    try:
        body = json.dumps(message, separators=(",", ":")).encode()
    except (TypeError, ValueError, RecursionError) as error:
        raise BadFrame(f"JSON cannot hold it: {str(error)[:200]}") from error
    if len(body) > LARGEST:
        raise BadFrame(f"it has {len(body) / 2**20:.0f} MiB, and at most {LARGEST / 2**20:.0f} pass")
    return _HEAD.pack(len(body)) + body


class Unpacker:
    """Puts messages together from pieces of any size."""

    def __init__(self) -> None:
        self._held = bytearray()

    def feed(self, piece: bytes) -> list[dict[str, Any]]:
        """The messages that are complete with `piece`. Raises BadFrame."""
        self._held += piece
        found = []
        while len(self._held) >= _HEAD.size:
            (size,) = _HEAD.unpack_from(self._held)
            if size > LARGEST:
                raise BadFrame(f"a message of {size} bytes was announced")
            end = _HEAD.size + size
            if len(self._held) < end:
                break
            try:
                message = json.loads(self._held[_HEAD.size : end])
            except (ValueError, RecursionError) as error:
                raise BadFrame(f"no JSON: {str(error)[:200]}") from error
            if not isinstance(message, dict):
                raise BadFrame(f"a {type(message).__name__}, no object")
            del self._held[:end]
            found.append(message)
        return found


def from_observation(seen: object, what: str) -> list[Any]:
    """Plain data of what a world returned from `what`. Raises TypeError that says what is wrong with it."""
    if not isinstance(seen, Observation):
        raise TypeError(f"{what} returned a {type(seen).__name__}, no Observation")
    if not isinstance(seen.text, str):
        raise TypeError(f"{what} returned an Observation whose text is a {type(seen.text).__name__}")
    choices = seen.choices
    if choices is not None and (isinstance(choices, str) or not isinstance(choices, Sequence)):
        raise TypeError(f"{what} returned choices that are a {type(choices).__name__}, no tuple of texts")
    return [seen.text, None if choices is None else list(choices), None if seen.data is None else dict(seen.data)]


def to_observation(plain: object) -> Observation:
    """The observation that `plain` tells of. Raises BadFrame."""
    if isinstance(plain, list) and len(plain) == 3:
        text, choices, data = plain
        listed = choices is None or (isinstance(choices, list) and all(isinstance(choice, str) for choice in choices))
        if isinstance(text, str) and listed and (data is None or isinstance(data, dict)):
            return Observation(text, None if choices is None else tuple(choices), data)
    raise BadFrame("it is no observation")


def from_step(step: object) -> list[Any]:
    """Plain data of what a world returned from `step`. Raises TypeError that says what is wrong with it."""
    if not isinstance(step, Step):
        raise TypeError(f"step returned a {type(step).__name__}, no Step")
    if type(step.done).__name__ not in ("bool", "bool_"):  # numpy's is one too
        raise TypeError(f"step returned a done that is a {type(step.done).__name__}, neither True nor False")
    reward = step.reward
    if reward is not None and not isinstance(reward, Real):
        raise TypeError(f"step returned a reward that is a {type(reward).__name__}, no number")
    plain = None if reward is None else float(reward)
    return [from_observation(step.observation, "step"), plain, bool(step.done), dict(step.info)]


def to_step(plain: object) -> Step:
    """The step that `plain` tells of. Raises BadFrame."""
    if isinstance(plain, list) and len(plain) == 4:
        observation, reward, done, info = plain
        number = reward is None or isinstance(reward, float)
        if number and isinstance(done, bool) and isinstance(info, dict):
            return Step(to_observation(observation), reward, done, info)
    raise BadFrame("it is no step")


def from_tools(tools: object) -> list[list[Any]]:
    """Plain data of a world's tools. Raises TypeError that says what is wrong with them."""
    if not isinstance(tools, Sequence) or not all(isinstance(tool, Tool) for tool in tools):
        raise TypeError(f"tools() returned a {type(tools).__name__}, no list of Tools")
    return [[tool.name, tool.description, dict(tool.parameters)] for tool in tools]


def to_tools(plain: object) -> tuple[Tool, ...]:
    """The tools that `plain` tells of. Raises BadFrame."""
    if isinstance(plain, list) and all(isinstance(tool, list) and len(tool) == 3 for tool in plain):
        kinds = [tuple(map(type, tool)) for tool in plain]
        if all(kind == (str, str, dict) for kind in kinds):
            return tuple(Tool(*tool) for tool in plain)
    raise BadFrame("it is no list of tools")
