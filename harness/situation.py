"""How a moment is worded, so that it can be remembered, recognised, and acted on elsewhere.

`plain` wording uses the world's own words. `slots` wording names things by their part in the problem: the goal's
things become <A>, <B> ..., the thing last acted on <here>, things never acted on <new>, others <old>; what merely
lies about is <thing>. A lesson from one layout then reads the same in another. The wording uses only the goal, the
agent's own actions and the text it was shown: numbered names ("cabinet 3") are what it recognises, nothing of any
particular world.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import islice

from envs import Observation
from harness.trajectory import Turn

_NAME = re.compile(r"\b([a-z]+) (\d+)\b")
#: Words of a goal that are not its things.
_PLAIN = frozenset(
    [
        "a", "an", "the", "some", "any", "two", "three", "one", "all", "both", "it", "them", "this", "that", "in", "on",
        "at", "to", "of", "and", "or", "then", "with", "under", "from", "into", "onto", "by", "put", "place", "move",
        "bring", "take", "get", "find", "look", "examine", "use", "make", "turn", "open", "close", "go", "clean",
        "cleaned", "hot", "heat", "heated", "cool", "cooled", "cold", "hold",
    ]
)  # fmt: skip
_LIST = re.compile(r"\ban? <thing>(?:,? (?:and )?an? <thing>)+")


@dataclass(frozen=True)
class Situation:
    """`text` is the moment in words; `moves` maps each possible move, in that wording, to the actions it stands for."""

    text: str
    moves: dict[str, tuple[str, ...]]


def describe(wording: str, goal: str, turns: Sequence[Turn], observation: Observation, history: int) -> Situation:
    """The situation after `turns`, showing at most `history` past moves."""
    if wording == "slots":
        return _slots(goal, turns, observation, history)
    done = [*islice((turn.action for turn in reversed(turns) if not turn.invalid), history)][::-1]
    text = f"Goal: {goal}\n" + (f"Done: {', '.join(done)}\n" if done else "") + f"Now: {_line(observation.text)}"
    return Situation(text, {choice: (choice,) for choice in observation.choices or ()})


def _slots(goal: str, turns: Sequence[Turn], observation: Observation, history: int) -> Situation:
    shown = (observation.text, *(observation.choices or ()), *(turn.observation for turn in turns))
    if not any(_NAME.search(text) for text in shown):
        return describe("plain", goal, turns, observation, history)  # a world without numbered names has no slots
    words = re.findall(r"[a-z]+", goal.lower())
    wanted = list(dict.fromkeys(word for word in words if word not in _PLAIN))
    slot = {kind: f"<{chr(ord('A') + rank)}>" for rank, kind in enumerate(wanted[:26])}
    touched = [
        name for turn in turns if not turn.invalid for name in _names(turn.action) if name.split()[0] not in slot
    ]
    here = touched[-1] if touched else ""

    def move(text: str) -> str:
        def swap(match: re.Match[str]) -> str:
            name = match.group(0)
            if match.group(1) in slot:
                return slot[match.group(1)]
            return "<here>" if name == here else "<old>" if name in touched else "<new>"

        return _NAME.sub(swap, text)

    def sight(text: str) -> str:
        def swap(match: re.Match[str]) -> str:
            if match.group(1) in slot:
                return slot[match.group(1)]
            return "<here>" if match.group(0) == here else "<thing>"

        return _LIST.sub("things", _NAME.sub(swap, _line(text)))

    done = list(dict.fromkeys(turn.move for turn in reversed(turns) if turn.move and not turn.invalid))[:history][::-1]
    aim = re.sub(r"[a-z]+", lambda word: slot.get(word.group(0), word.group(0)), goal.lower())
    text = f"Goal: {aim}\n" + (f"Done: {', '.join(done)}\n" if done else "") + f"Now: {sight(observation.text)}"
    moves: dict[str, tuple[str, ...]] = {}
    for choice in observation.choices or ():
        name = move(choice)
        moves[name] = (*moves.get(name, ()), choice)
    return Situation(text, moves)


def _names(text: str) -> list[str]:
    return [match.group(0) for match in _NAME.finditer(text)]


def _line(text: str) -> str:
    return " ".join(text.split())
