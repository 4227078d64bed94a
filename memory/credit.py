"""What an item earned from the outcome of the tasks it was used in: plain arithmetic, no store.

A reward is a number or there is no credit at all: an unscored episode (None, NaN) must not move a utility.
"""

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

from memory.item import Stats

#: The stats after one more reward.
Rule = Callable[[Stats, float], Stats]


def q_update(q: float, reward: float, *, alpha: float = 0.3, gamma: float = 0.0, next_best: float = 0.0) -> float:
    """Q <- (1 - alpha) Q + alpha (reward + gamma * next_best). Source: MemRL, whose published runs use .3 and 0."""
    return (1.0 - alpha) * q + alpha * (reward + gamma * next_best)


def laplace(successes: int, uses: int) -> float:
    """(successes + 1) / (uses + 2), in (0, 1): .5 before any use. Source: EvolveR's score of a principle."""
    if not 0 <= successes <= uses:
        raise ValueError(f"successes must lie between 0 and uses, not {successes} of {uses}")
    return (successes + 1) / (uses + 2)


@dataclass(frozen=True, slots=True)
class QRule:
    """MemRL's update as a rule: utility moves by `q_update` (never under `floor`), a positive reward is a success."""

    alpha: float = 0.3
    gamma: float = 0.0
    next_best: float = 0.0
    floor: float | None = None

    def __post_init__(self) -> None:
        if not 0.0 < self.alpha <= 1.0:
            raise ValueError(f"alpha must lie in (0, 1], not {self.alpha}")

    def __call__(self, stats: Stats, reward: float) -> Stats:
        utility = q_update(stats.utility, reward, alpha=self.alpha, gamma=self.gamma, next_best=self.next_best)
        if self.floor is not None:
            utility = max(self.floor, utility)
        return Stats.model_construct(
            utility=utility, visits=stats.visits + 1, successes=stats.successes + (1 if reward > 0 else 0)
        )


def credited(stats: Mapping[str, Stats], rewards: Iterable[tuple[str, float]], rule: Rule) -> dict[str, Stats]:
    """The new stats of every rewarded item, one reward after the other; ids that are not in `stats` are left out."""
    new: dict[str, Stats] = {}
    for id, reward in rewards:
        if not math.isfinite(reward):
            raise ValueError(f"item {id}: the reward {reward} is not a number. Cure: leave unscored episodes out.")
        if id in stats:
            new[id] = rule(new.get(id, stats[id]), reward)
    return new
