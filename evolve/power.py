"""How many tasks and episodes a comparison needs: planned from what a finished run shows, before money is spent.

A paired difference varies between tasks (the candidate helps some more than others) and within them (luck); more
episodes a task average out luck only, more tasks both. What the run cannot tell (how alike two agents' tasks are hard,
or, with one episode a task, what was luck) is assumed and said, and where it is unknown the larger size is given.

Sources: the variance of a paired comparison is Miller's (2024, arXiv 2411.00640), the parts are those of a one-way
random-effects analysis of variance (Searle, Casella and McCulloch 1992), the power is that of a t test over tasks
(noncentral t). Tests of pass/fail scores are exact, which costs half a step of what they count: the continuity
correction of Edwards (1948), and his McNemar test with one episode a task.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from pydantic import BaseModel, ConfigDict

from evolve.interval import Groups, t_quantile
from evolve.stats import Scores

#: A plan with more tasks than this is no plan.
MOST_TASKS = 1_000_000
#: How alike two agents' tasks are hard, if nobody says or shows it.
CORRELATION = 0.5
EPISODES = (1, 2, 4, 8)
#: Differences that are planned for, as shares of the score range.
EFFECTS = (0.05, 0.1, 0.2)


@dataclass(frozen=True, slots=True)
class Spread:
    """Variance of a paired difference as (between tasks, within a task); several where the run cannot tell which."""

    parts: tuple[tuple[float, float], ...]

    def of_task(self, episodes: float) -> float:
        """Variance of one task's mean difference over `episodes` episodes, the largest that is possible."""
        return max(between + within / episodes for between, within in self.parts)


class Size(BaseModel):
    """What shows `effect` with `episodes` a task; None: more than a million tasks."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    effect: float
    episodes: int
    tasks: int | None  # with a scored pair of each
    asked: int | None  # tasks to play, if as many episodes are lost as in the run


class Reach(BaseModel):
    """Episodes a task with which the run's own number of tasks shows `effect`; None: no number of episodes is enough,
    or, with `known` False, the run has one episode a task and cannot tell."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    effect: float
    episodes: int | None
    known: bool


class Plan(BaseModel):
    """Sizes for a paired comparison, from one run or from a pilot of two."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    paired: bool  # from the differences of two runs, not from one run and an assumed correlation
    correlation: float | None
    between: float | None  # variance of the tasks' means: of scores, or of differences if paired; None: cannot be told
    within: float | None
    total: float
    tasks: int
    episodes: float  # a task, the harmonic mean of those scored
    missing: float  # share of episodes, or of pairs
    level: float
    power: float
    detectable: float  # by a comparison of two runs of this size
    sizes: tuple[Size, ...]
    reaches: tuple[Reach, ...]

    def summary(self) -> str:
        """One line of text."""
        sizes = (f"{s.effect:g} takes {s.tasks or f'over {MOST_TASKS:,}'} tasks x {s.episodes}" for s in self.sizes)
        return (
            f"{self.tasks} tasks x {self.episodes:.3g} episodes show a difference of {self.detectable:.3f} with "
            f"{100 * self.power:g} % power; {', '.join(sizes)}"
        )


def variance_parts(groups: Groups) -> tuple[float | None, float | None, float]:
    """(between, within, total) variance of values grouped by task; the first two None without repeated episodes.

    Unbiased for unequal group sizes; a negative estimate of the part between is 0. Needs two tasks.
    """
    sizes = [len(group) for group in groups]
    n, g = sum(sizes), len(sizes)
    means = [math.fsum(group) / len(group) for group in groups]
    mean = math.fsum(math.fsum(group) for group in groups) / n
    among = math.fsum(size * (m - mean) ** 2 for size, m in zip(sizes, means, strict=True)) / (g - 1)
    if n == g:
        return None, None, among
    inside = math.fsum((v - m) ** 2 for group, m in zip(groups, means, strict=True) for v in group) / (n - g)
    usual = (n - math.fsum(size * size for size in sizes) / n) / (g - 1)
    between = max(0.0, (among - inside) / usual)
    return between, inside, between + inside


def t_power(effect: float, variance: float, tasks: int, level: float = 0.95, step: float = 0.0) -> float:
    """Chance that a two-sided test over `tasks` shows `effect`, when a task's mean difference has `variance`.

    `step`: what one more pass of an episode adds to a task's mean, 0 for graded scores.
    """
    if tasks < 2:
        return 0.0
    if variance <= 0:
        return float(abs(effect) > step / tasks)
    from scipy.special import nctdtr

    shift = max(0.0, abs(effect) - step / tasks) / math.sqrt(variance / tasks)
    return 1.0 - float(nctdtr(tasks - 1, shift, t_quantile(level, tasks - 1)))


def detectable(variance: float, tasks: int, *, level: float = 0.95, power: float = 0.8, step: float = 0.0) -> float:
    """The difference that `tasks` show with `power`; arguments as for `t_power`. Needs two tasks."""
    from scipy.special import nctdtrinc

    shift = float(nctdtrinc(tasks - 1, 1 - power, t_quantile(level, tasks - 1)))
    return shift * math.sqrt(variance / tasks) + step / tasks


def tasks_needed(
    effect: float, variance: float, *, level: float = 0.95, power: float = 0.8, step: float = 0.0
) -> int | None:
    """Fewest tasks that show `effect` with `power`; arguments as for `t_power`. None above MOST_TASKS."""
    low, high = 1, 2
    while t_power(effect, variance, high, level, step) < power:
        low, high = high, high * 2
        if low >= MOST_TASKS:
            return None
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if t_power(effect, variance, middle, level, step) >= power else (middle, high)
    return high


def plan(
    scores: Scores, other: Scores | None = None, *, effects: Sequence[float] = (), episodes: Sequence[int] = (),
    correlation: float = CORRELATION, level: float = 0.95, power: float = 0.8,
    reward_range: tuple[float, float] = (0.0, 1.0),
) -> Plan:  # fmt: skip
    """Sizes that show `effects` (default: 5, 10 and 20 % of the range) with `episodes` a task (default: 1, 2, 4, 8).

    From one run: the other agent is taken to vary as much, its tasks' true means to go along with `correlation`, its
    luck not to be shared. With `other`, the pairs themselves are measured. Raises ValueError for fewer than two tasks,
    scores that do not vary, or an argument out of its range.
    """
    width = reward_range[1] - reward_range[0]
    effects, episodes = tuple(effects) or tuple(width * e for e in EFFECTS), tuple(episodes) or EPISODES
    _check(effects, episodes, correlation, level, power, width)
    values = scores if other is None else _differences(scores, other)
    groups = _grouped(values)
    if len(groups) < 2:
        raise ValueError(f"{len(groups)} tasks have a score; planning needs two at least. Cure: run more tasks")
    between, within, total = variance_parts(groups)
    if total <= 0:
        raise ValueError(
            "all scores are equal, so nothing shows how they vary. Cure: plan from a run with some failures and some "
            "successes"
        )
    spread = _spread(between, within, total, None if other is not None else correlation)
    present = round(len(groups) / math.fsum(1 / len(group) for group in groups), 9)
    scored = sum(len(group) for group in groups)
    missing = 1 - scored / len(values)
    kept = (1 - missing) ** (2 if other is None else 1)  # of pairs
    binary = not any(score not in (None, *reward_range) for side in (scores, other or {}) for score in side.values())
    step = width if binary else 0.0

    def needed(effect: float, k: float) -> int | None:
        return tasks_needed(effect, spread.of_task(k), level=level, power=power, step=step / k)

    def size(effect: float, k: int) -> Size:
        tasks = needed(effect, k)
        return Size(effect=effect, episodes=k, tasks=tasks, asked=None if tasks is None else math.ceil(tasks / kept))

    def reach(effect: float) -> Reach:
        def shows(k: float) -> bool:
            return (needed(effect, k) or math.inf) <= len(groups)

        if shows(1):
            return Reach(effect=effect, episodes=1, known=True)
        if between is None or not shows(math.inf):
            return Reach(effect=effect, episodes=None, known=between is not None)
        low, high = 1, 2
        while not shows(high):
            low, high = high, high * 2
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (low, middle) if shows(middle) else (middle, high)
        return Reach(effect=effect, episodes=high, known=True)

    return Plan(
        paired=other is not None, correlation=None if other is not None else correlation, between=between,
        within=within, total=total, tasks=len(groups), episodes=present, missing=missing, level=level, power=power,
        detectable=detectable(
            spread.of_task(present), len(groups), level=level, power=power, step=step / present
        ),
        sizes=tuple(size(effect, k) for effect in effects for k in episodes),
        reaches=tuple(reach(effect) for effect in effects),
    )  # fmt: skip


def _spread(between: float | None, within: float | None, total: float, correlation: float | None) -> Spread:
    """Of the difference: as measured (`correlation` None), or of one run and another that varies as much."""
    if correlation is None:
        return Spread(((total, 0.0) if between is None or within is None else (between, within),))
    if between is None or within is None:  # all of it may be luck, or none
        return Spread(((2 * total * (1 - correlation), 0.0), (0.0, 2 * total)))
    return Spread(((2 * between * (1 - correlation), 2 * within),))


def _differences(baseline: Scores, candidate: Scores) -> Scores:
    shared = baseline.keys() & candidate.keys()
    if not shared:
        raise ValueError("no task and episode was run by both sides. Cure: plan from one run alone")
    pairs = {key: (baseline[key], candidate[key]) for key in shared}
    return {key: None if a is None or b is None else b - a for key, (a, b) in pairs.items()}


def _grouped(scores: Scores) -> list[list[float]]:
    groups: dict[str, list[float]] = {}
    for (task, _), score in sorted(scores.items(), key=lambda pair: pair[0]):
        if score is not None:
            groups.setdefault(task, []).append(score)
    return list(groups.values())


def _check(
    effects: Sequence[float], episodes: Sequence[int], correlation: float, level: float, power: float, width: float
) -> None:
    for name, wrong, right in (
        ("effect", [e for e in effects if not 0 < e <= width], f"above 0 and at most {width:g}, the score range"),
        ("episodes", [k for k in episodes if k < 1], "1 at least"),
        ("correlation", [correlation] * (not 0 <= correlation <= 1), "between 0 and 1"),
        ("level", [level] * (not 0 < level < 1), "between 0 and 1; 0.95 is usual"),
        ("power", [power] * (not 0 < power < 1), "between 0 and 1; 0.8 is usual"),
    ):
        if wrong:
            raise ValueError(f"{name} {wrong[0]} cannot be. Cure: a number {right}")
