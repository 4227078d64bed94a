"""Which tasks come next: a stream through the training split that never offers more than the budget can pay."""

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
    offset: int = 0

    def batches(self, benchmark: Benchmark, budget: Budget, calls_each: int) -> Iterator[list[tuple[Task, int]]]:
        """Batches of (task, episode number), each cut to what `budget` certainly pays at `calls_each` calls an episode.

        The cut is made between batches, on what finished, so that it does not depend on the order of finishing.
        """
        pool = benchmark.sample(self.split)
        for number in range(self.rounds):
            fits = budget.episodes(calls_each)
            size = self.batch if fits is None else min(self.batch, fits)
            if size < 1 or budget.exhausted():
                return
            start = self.offset + number * self.batch
            yield [(pool[at % len(pool)], at // len(pool)) for at in range(start, start + size)]
