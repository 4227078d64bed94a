"""The game: a counter stands at 0, and ten times `inc` wins. One step is one call of the model and one of the world.

Everybody plays it as a conversation of a system message, what is seen, and what was said, which grows with each step.
"""

import re

STEPS = 10
SYSTEM = "You play a counter game. Answer each observation with one action: inc or dec. " * 4
ACTION = re.compile(r"Action: *(\w+)")


class Counter:
    """The world of one episode."""

    def __init__(self, name: str = "0") -> None:
        self.name, self.count = name, 0

    def look(self) -> str:
        """What is seen; it differs from step to step and from episode to episode, so that no answer serves twice."""
        return f"Game {self.name}: the counter is {self.count}, and {STEPS} wins."

    def act(self, action: str) -> tuple[str, float, bool]:
        """What is seen then, the reward, and whether it is over."""
        self.count += {"inc": 1, "dec": -1}.get(action, 0)
        won = self.count >= STEPS
        return self.look(), float(won), won


def answer(turn: int) -> str:
    """What the model says at its turn number `turn`."""
    return f"The counter is at {turn}, so I increment it once more.\nAction: inc"


def chosen(text: str) -> str:
    """The action in an answer; "" when there is none."""
    found = ACTION.search(text)
    return found.group(1) if found else ""
