"""What each peer's script shares: the game, one core, and how it is measured."""

import json
import os
import resource
import sys
import time
from collections.abc import Callable

STEPS = 10


class Counter:
    """Ten times the word `add`, and the game is won."""

    def __init__(self) -> None:
        self.count = 0

    def see(self) -> str:
        """What there is to see."""
        return f"The counter shows {self.count} of {STEPS}."

    def step(self, action: str) -> str:
        """Do `action`; what there is to see then."""
        self.count += action == "add"
        return self.see()


def measure(play: Callable[[int, int], int]) -> None:
    """`play(n, at_once)` returns how many episodes were won; all must be."""
    os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})
    at_once, n = int(sys.argv[1]), int(sys.argv[2])
    spent = []
    for episodes in (2, n, n, n):
        began = time.process_time()
        won = play(episodes, at_once)
        spent.append((time.process_time() - began) * 1e3 / (episodes * STEPS))
        assert won == episodes, f"{won} of {episodes} were won"
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    print(json.dumps({"ms": min(spent[1:]), "mb": peak}), flush=True)
    os._exit(0)
