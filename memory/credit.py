"""What an item earned from the outcome of the tasks it was used in: plain arithmetic, no store.

A reward is a number or there is no credit at all: an unscored episode (None, NaN) must not move a utility.
"""

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

from memory.item import Stats

#: The stats after one more reward.
Rule = Callable[[Stats, float], Stats]


def q_update(q: float, reward: float, alpha: float = 0.3) -> float:
    """Q <- (1 - alpha) Q + alpha reward. Source: MemRL, whose published runs use .3."""
    return (1.0 - alpha) * q + alpha * reward


@dataclass(frozen=True, slots=True)
class QRule:
    """MemRL's update as a rule: utility moves by `q_update`, a positive reward is a success."""

    alpha: float = 0.3

    def __post_init__(self) -> None:
        if not 0.0 < self.alpha <= 1.0:
            raise ValueError(f"alpha must lie in (0, 1], not {self.alpha}")

    def __call__(self, stats: Stats, reward: float) -> Stats:
        return Stats.model_construct(
            utility=q_update(stats.utility, reward, self.alpha),
            visits=stats.visits + 1,
            successes=stats.successes + (1 if reward > 0 else 0),
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
