"""Tests on bare counts and sums: exact where counting can be exact, and the same answer in any order.

The formulas are small enough to write out; heavy libraries stay out of the way until a sample is really needed.
"""

import math
import random
from collections.abc import Sequence
from statistics import NormalDist
from typing import Any

#: A sign-flip test is exact while its distribution has at most this many distinct sums (2^16 flips).
EXACT_SUMS = 1 << 15
#: And while all its steps together count at most this many (about a second).
EXACT_WORK = 1 << 22
#: Signs that one block of draws holds at most.
_BLOCK = 1 << 22


def mcnemar(wins: int, losses: int) -> float:
    """Exact two-sided p of `wins` against `losses` discordant pairs under a fair coin."""
    n = wins + losses
    tail: int = sum(math.comb(n, k) for k in range(min(wins, losses) + 1))
    p: float = 2 * tail / (1 << n)
    return min(1.0, p)


def sign_end(wins: int, losses: int, level: float) -> float:
    """The end nearer to 0 of the interval of P(win) - P(loss) among discordant pairs, by inverting `mcnemar`.

    For more wins than losses the lower one (Clopper and Pearson's), mirrored for fewer, 0 for as many. It lies beyond 0
    if `mcnemar` rejects at `level`, and on the other side if not.
    """
    if wins == losses:
        return 0.0
    from scipy.special import betaincinv

    least = float(betaincinv(max(wins, losses), min(wins, losses) + 1, (1 - level) / 2))
    return (2 * least - 1) * (1 if wins > losses else -1)


def sign_flip(sums: Sequence[float], rng: random.Random, resamples: int = 9999) -> tuple[float, bool]:
    """Two-sided p of |sum| when each entry (one a task) may change sign, and whether it is exact.

    Else it is a share of `resamples` draws, with the observed signs counted as one of them (Phipson and Smyth 2010).
    """
    scaled = _scaled(sums)
    if not scaled:
        return 1.0, True
    import numpy as np

    observed = abs(math.fsum(scaled)) - 1e-9
    # The first sign is fixed: the distribution is symmetric, so half of it tells all.
    totals = np.array(scaled[:1])
    chances: np.ndarray[Any, np.dtype[Any]] = np.ones(1)
    work = 0
    for value in scaled[1:]:
        both = np.round(np.concatenate([totals + value, totals - value]), 10)
        totals, where = np.unique(both, return_inverse=True)
        work += len(totals)
        if len(totals) > EXACT_SUMS or work > EXACT_WORK:
            return _flip_sample(scaled, observed, rng, resamples), False
        chances = np.bincount(where, weights=np.concatenate([chances, chances]) / 2)
    return min(1.0, float(chances[np.abs(totals) >= observed].sum())), True


def holm(p_values: Sequence[float]) -> list[float]:
    """Adjusted p values, in the order given: what is at most alpha may be claimed, all claims together err with alpha.

    Source: Holm 1979, step-down. Valid however the tests depend on each other, so also with a shared baseline.
    """
    order = sorted(range(len(p_values)), key=lambda i: p_values[i])
    adjusted, highest = [0.0] * len(order), 0.0
    for rank, i in enumerate(order):
        highest = max(highest, min(1.0, (len(order) - rank) * p_values[i]))
        adjusted[i] = highest
    return adjusted


def wilson(share: float, n: float, level: float = 0.95, freedom: int | None = None) -> tuple[float, float]:
    """Wilson score interval of a share of n; `freedom`: with Student's quantile, where n is itself an estimate."""
    if freedom is None:
        z2 = NormalDist().inv_cdf((1 + level) / 2) ** 2
    else:
        from scipy.special import stdtrit

        z2 = float(stdtrit(freedom, (1 + level) / 2)) ** 2
    centre = (share + z2 / (2 * n)) / (1 + z2 / n)
    half = math.sqrt(z2 * (share * (1 - share) / n + z2 / (4 * n * n))) / (1 + z2 / n)
    return (0.0 if share == 0 else max(0.0, centre - half)), (1.0 if share == 1 else min(1.0, centre + half))


def pass_at_k(n: int, successes: int, k: int) -> float:
    """Unbiased chance that some of k attempts succeeds, from `successes` of n (Chen et al. 2021)."""
    _check_k(n, successes, k)
    return 1.0 - math.comb(n - successes, k) / math.comb(n, k)


def pass_hat_k(n: int, successes: int, k: int) -> float:
    """Unbiased chance that all of k attempts succeed (pass^k of tau-bench)."""
    _check_k(n, successes, k)
    return math.comb(successes, k) / math.comb(n, k)


def _scaled(sums: Sequence[float]) -> list[float]:
    """The sums that are not 0 in ascending order, in a unit in which they are whole numbers, if there is an easy one.

    Whole numbers have few distinct totals, which is what keeps the test exact for many tasks.
    """
    left = sorted(s for s in sums if s)
    if not left:
        return []
    unit, largest = min(map(abs, left)), max(map(abs, left))
    whole = [s / unit for s in left] if largest <= EXACT_SUMS * unit else []
    if whole and all(abs(w - round(w)) <= 1e-9 * abs(w) for w in whole):
        return [float(round(w)) for w in whole]
    return [s / largest for s in left]


def _flip_sample(scaled: Sequence[float], observed: float, rng: random.Random, resamples: int) -> float:
    import numpy as np

    draw = np.random.default_rng(rng.getrandbits(63))
    values, hits, left = np.asarray(scaled), 0, resamples
    while left:
        rows = min(left, 1000, max(1, _BLOCK // len(values)))
        signs = draw.integers(0, 2, size=(rows, len(values)), dtype=np.int8) * 2 - 1
        hits += int(np.count_nonzero(np.abs(signs.astype(np.float64) @ values) >= observed))
        left -= rows
    return (1 + hits) / (1 + resamples)


def _check_k(n: int, successes: int, k: int) -> None:
    if not (1 <= k <= n and 0 <= successes <= n):
        raise ValueError(f"needs 1 <= k <= n and 0 <= successes <= n, got n={n}, successes={successes}, k={k}")
