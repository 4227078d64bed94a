"""A benchmark: named splits of tasks, the world they are played in, and how an episode is scored.

The splits are functions of nothing but their size, so that task number i of a split is the same task for
everyone. `evaluator` states what kind of evidence a score is, because a formal check and a judge's opinion
do not weigh the same.
"""

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import IntEnum

from envs.env import Env
from envs.task import Observation, Task

#: Chooses an action for an observation.
Policy = Callable[[Observation], str]
#: Makes a policy for an environment (an expert may look inside it) and a random stream.
PolicyMaker = Callable[[Env, random.Random], Policy]
#: The first n tasks of a split (all of them for None).
Split = Callable[[int | None], Sequence[Task]]


class Evaluator(IntEnum):
    """Rank of the evidence behind a score; higher is stronger."""

    SELF = 1
    JUDGE = 2
    RULE = 3
    EXECUTION = 4
    FORMAL_CHECK = 5


def total_reward(rewards: Sequence[float | None]) -> float | None:
    """The sum of the rewards that were given, None when there was none."""
    given = [reward for reward in rewards if reward is not None]
    return sum(given) if given else None


@dataclass(frozen=True)
class Benchmark:
    """Tasks, world and metric. `max_steps` bounds an episode; `success_at` is the score that counts as solved."""

    name: str
    make_env: Callable[[], Env]
    splits: Mapping[str, Split]
    metric: Callable[[Sequence[float | None]], float | None] = total_reward
    evaluator: Evaluator = Evaluator.RULE
    licence: str = "unknown"
    description: str = ""
    reward_range: tuple[float, float] = (0.0, 1.0)
    success_at: float = 1.0
    max_steps: int = 50
    policies: Mapping[str, PolicyMaker] = field(default_factory=dict)

    def tasks(self, split: str, n: int | None = None, offset: int = 0) -> list[Task]:
        """Tasks [offset, offset + n) of `split`; raises ValueError when the split is unknown or too small."""
        if split not in self.splits:
            raise ValueError(
                f"benchmark '{self.name}' has no split '{split}'; it has: {', '.join(sorted(self.splits))}"
            )
        tasks = list(self.splits[split](None if n is None else offset + n))[offset:]
        if n is not None and len(tasks) < n:
            raise ValueError(
                f"benchmark '{self.name}', split '{split}': asked for tasks {offset}..{offset + n - 1}, "
                f"only {offset + len(tasks)} exist. Cure: ask for fewer (--n {offset + len(tasks)})"
            )
        return tasks

    def sample(self, split: str, n: int | None = None) -> list[Task]:
        """`n` tasks of `split` in a shuffled order, the same for everyone: a fair part also of a sorted split.

        Raises ValueError as `tasks` does.
        """
        tasks = self.tasks(split)
        if n is not None and n > len(tasks):
            tasks = self.tasks(split, n)  # some splits grow on demand; others say that they are too small
        random.Random(f"{self.name}/{split}").shuffle(tasks)
        return tasks[:n]

    def score(self, rewards: Sequence[float | None]) -> float:
        """The episode's score; without any reward it is the lowest one (the agent ran out of steps)."""
        value = self.metric(rewards)
        return self.reward_range[0] if value is None else value
