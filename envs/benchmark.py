"""A benchmark: named splits of tasks, the world they are played in, and how an episode is scored.

The splits are functions of nothing but their size, so that task number i of a split is the same task for
everyone. `evaluator` states what kind of evidence a score is, because a formal check and a judge's opinion
do not weigh the same.
"""

import math
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import IntEnum
from numbers import Real

from envs.env import Env, EnvFault
from envs.task import Observation, Task

_ROUNDING = 1e-9  # what sums of binary fractions may be off by
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
    return math.fsum(given) if given else None


def solves(score: float, success_at: float) -> bool:
    """Whether `score` counts as solved: ten rewards of a tenth are a whole, whatever binary fractions make of them."""
    return score >= success_at - _ROUNDING * max(1.0, abs(success_at))


#: What a field must be, in words.
_WANTED = {
    "name": "a text", "make_env": "a function that makes an Env", "splits": "a mapping (see envs.fixed)",
    "metric": "a function of the rewards", "evaluator": "an Evaluator", "licence": "a text",
    "description": "a text", "reward_range": "two numbers", "success_at": "a number", "max_steps": "a whole number",
    "policies": "a mapping of names to functions",
}  # fmt: skip


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

    def __post_init__(self) -> None:
        """Raise TypeError for a field of the wrong kind: here its maker is still near."""
        span, reach, whole = self.reward_range, self.success_at, self.max_steps
        right = {
            "name": isinstance(self.name, str) and bool(self.name), "make_env": callable(self.make_env),
            "splits": isinstance(self.splits, Mapping),
            "metric": callable(self.metric), "evaluator": isinstance(self.evaluator, Evaluator),
            "licence": isinstance(self.licence, str), "description": isinstance(self.description, str),
            "reward_range": isinstance(span, Sequence) and len(span) == 2 and all(isinstance(x, Real) for x in span),
            "success_at": isinstance(reach, Real), "max_steps": isinstance(whole, int),
            "policies": isinstance(self.policies, Mapping),
        }  # fmt: skip
        for name, fits in right.items():
            if not fits:
                raise TypeError(f"{name} cannot be {getattr(self, name)!r}. Cure: {name} is {_WANTED[name]}")

    def tasks(self, split: str, n: int | None = None, offset: int = 0) -> list[Task]:
        """Tasks [offset, offset + n) of `split`; raises ValueError when the split is unknown or too small."""
        if split not in self.splits:
            raise ValueError(
                f"benchmark '{self.name}' has no split '{split}'; it has: {', '.join(sorted(self.splits))}. "
                "Cure: name one of these as the split"
            )
        if not callable(self.splits[split]):
            raise ValueError(
                f"benchmark '{self.name}': split '{split}' is a {type(self.splits[split]).__name__} and not callable. "
                "Cure: splits=fixed(tasks)"
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
        """The episode's score; without any reward it is the lowest one (the agent ran out of steps).

        Raises EnvFault for a metric's value that is no number in `reward_range`; what the metric raises, it raises.
        """
        value = self.metric(rewards)
        low, high = self.reward_range
        if value is None:
            return low
        try:
            if not isinstance(value, Real) or not math.isfinite(score := float(value)):
                raise EnvFault(f"the metric gave a {type(value).__name__} that is no finite number")
        except OverflowError as error:
            raise EnvFault("the metric gave a number too large to hold") from error
        slack = _ROUNDING * (high - low)
        if not low - slack <= score <= high + slack:
            raise EnvFault(
                f"the metric gave {score:.12g}, which is outside of reward_range {self.reward_range}. "
                "Cure: a reward_range that holds every score, or another metric"
            )
        return min(max(score, low), high)

    def solved(self, score: float) -> bool:
        """Whether `score` counts as solved; every comparison with `success_at` is this one."""
        return solves(score, self.success_at)
