"""Intervals of means when scores of one task go together: the task is what was drawn, and only tasks are resampled.

Each takes the scores grouped by task. Which of them a figure gets was decided by a simulation of their coverage
(`bench/stats.py`) and not by taste: near 0 and 1 the t interval and the plain bootstrap are too short.
"""

import math
import random
from collections.abc import Collection, Sequence
from statistics import NormalDist

from evolve.exact import wilson

#: Draws of the bootstrap; its ends then move by about 2 % of the interval's width from one stream to another.
RESAMPLES = 4999
#: Numbers that one block of draws holds at most: 16 MB.
_BLOCK = 1 << 21

Groups = Collection[Sequence[float]]


def cluster_error(groups: Groups, mean: float) -> float:
    """Standard error of the mean over all values when values of one group go together (CR1)."""
    residuals = [(math.fsum(group) - len(group) * mean, len(group)) for group in groups]
    g, n = len(residuals), sum(size for _, size in residuals)
    return math.sqrt(g / (g - 1) * math.fsum(r * r for r, _ in residuals)) / n


def t_quantile(level: float, freedom: int) -> float:
    """How many standard errors a two-sided t interval reaches."""
    from scipy.special import stdtrit

    return float(stdtrit(freedom, (1 + level) / 2))


def score_interval(groups: Groups, level: float, ends: float = 0.0) -> tuple[float, float]:
    """Wilson's interval for the mean of scores in 0..1 at the number of trials that the clustered error amounts to.

    An error e is that of mean (1 - mean) / e^2 independent trials. Source: modified Wilson interval of complex surveys
    (Korn and Graubard 1998; Franco, Little, Louis and Slud 2019), with Student's quantile for groups - 1. `ends` is the
    weight of a pretended group at 0, and one at 1, in the error: it keeps up the error of rare events. Needs two
    groups, and scores that are not constant unless `ends` is positive.
    """
    sizes = [len(group) for group in groups]
    n, g = sum(sizes), len(sizes)
    sums = [math.fsum(group) for group in groups]
    mean, extra = math.fsum(sums) / n, ends * n / g
    centre = (math.fsum(sums) + extra) / (n + 2 * extra)
    squares = math.fsum((s - size * centre) ** 2 for s, size in zip(sums, sizes, strict=True))
    squares += ends * (n / g) ** 2 * (centre**2 + (1 - centre) ** 2)
    groups_, weight = g + 2 * ends, n + 2 * extra
    error = math.sqrt(groups_ / (groups_ - 1) * squares) / weight
    trials = centre * (1 - centre) / error**2 * g / groups_
    return wilson(mean, trials, level, freedom=g - 1)


def bootstrap(groups: Groups, level: float, rng: random.Random, resamples: int = RESAMPLES) -> tuple[float, float]:
    """BCa interval of the mean over all values from resampled groups, its ends moved out as Student's are.

    Source: Efron 1987, acceleration from the jackknife over groups; the expanded quantiles are Hesterberg's (2015),
    without which it is too short for few groups. Needs two groups that differ.
    """
    import numpy as np
    from scipy.special import ndtr, ndtri

    sums = np.array([math.fsum(group) for group in groups])
    sizes = np.array([float(len(group)) for group in groups])
    g, mean = len(sums), sums.sum() / sizes.sum()
    draw = np.random.default_rng(rng.getrandbits(63))
    means, rows = np.empty(resamples), max(1, _BLOCK // g)
    for start in range(0, resamples, rows):
        chosen = draw.integers(0, g, size=(min(rows, resamples - start), g))
        means[start : start + rows] = sums[chosen].sum(axis=1) / sizes[chosen].sum(axis=1)
    left = (np.count_nonzero(means < mean) + np.count_nonzero(means == mean) / 2) / resamples
    bias = ndtri(min(max(left, 0.5 / resamples), 1 - 0.5 / resamples))
    without = (sums.sum() - sums) / (sizes.sum() - sizes)
    leaning = without.mean() - without
    acceleration = (leaning**3).sum() / (6 * (leaning**2).sum() ** 1.5)
    reach = math.sqrt(g / (g - 1)) * t_quantile(level, g - 1)
    shifted = bias + np.array([-reach, reach])
    low, high = np.quantile(means, ndtr(bias + shifted / np.maximum(1 - acceleration * shifted, 1e-3)))
    return float(low), float(high)


def constant(
    value: float, tasks: int, level: float, reward_range: tuple[float, float] | None
) -> tuple[float | None, float | None]:
    """All tasks agree: at most a share u of others differs (Clopper-Pearson), and by no more than the range."""
    if reward_range is None:
        return None, None
    u = 1 - ((1 - level) / 2) ** (1 / tasks)
    return value + u * (reward_range[0] - value), value + u * (reward_range[1] - value)


def agresti_min(wins: int, losses: int, n: int) -> tuple[float, float]:
    """Centre and error of the paired difference of proportions, half a pair added to each of the four cells."""
    b, c, m = wins + 0.5, losses + 0.5, n + 2
    return (b - c) / m, math.sqrt(b + c - (b - c) ** 2 / m) / m


def agresti_min_interval(wins: int, losses: int, n: int, level: float) -> tuple[float, float]:
    """Interval of the difference of two paired shares (Agresti and Min 2005)."""
    centre, error = agresti_min(wins, losses, n)
    half = NormalDist().inv_cdf((1 + level) / 2) * error
    return max(-1.0, centre - half), min(1.0, centre + half)
