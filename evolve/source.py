"""Which tasks come next: a stream through the training split that never offers more than the budget can pay.

Rounds come first in the (shuffled) split and exploring takes what lies behind them, so that a round is played on tasks
that have taught nothing yet wherever the split is large enough.
"""

from collections.abc import Iterator
from dataclasses import dataclass

from envs import Benchmark, Task
from evolve.budget import Budget


@dataclass(frozen=True)
class Stream:
    """Batches of `batch` fresh training tasks, `rounds` of them at most; a split that runs out starts over."""

    split: str = "train"
    rounds: int = 3
    batch: int = 12

    @property
    def size(self) -> int:
        """How many episodes the rounds take at most."""
        return self.rounds * self.batch

    def batches(self, benchmark: Benchmark, budget: Budget, calls_each: int) -> Iterator[list[tuple[Task, int]]]:
        """Batches of (task, episode number), each cut to what `budget` certainly pays at `calls_each` calls an episode.

        The cut is made between batches, on what finished, so that it does not depend on the order of finishing.
        """
        pool = benchmark.sample(self.split)
        for number in range(self.rounds):
            size = budget.affords(self.batch, calls_each)
            if size < 1:
                return
            start = number * self.batch
            yield [(pool[at % len(pool)], at // len(pool)) for at in range(start, start + size)]
