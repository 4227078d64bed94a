"""Tests on bare counts and sums: exact where counting can be exact, and the same answer in any order.

The formulas are small enough to write out; heavy libraries stay out of the way until a sample is really needed.
"""

import math
import random
from collections.abc import Sequence
from statistics import NormalDist

#: A sign-flip test is exact while its distribution has at most this many distinct sums (2^16 flips).
EXACT_SUMS = 1 << 15


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
    """Two-sided p of |sum| when each entry (one a task) may change sign, and whether it is exact."""
    largest = max(map(abs, sums), default=0.0)
    if largest == 0.0:
        return 1.0, True
    scaled = sorted(s / largest for s in sums if s)
    observed = abs(math.fsum(scaled)) - 1e-9
    # The first sign is fixed: the distribution is symmetric, so half of it tells all.
    counts: dict[float, int] = {round(scaled[0], 10): 1}
    for value in scaled[1:]:
        longer: dict[float, int] = {}
        for total, count in counts.items():
            for flipped in (round(total + value, 10), round(total - value, 10)):
                longer[flipped] = longer.get(flipped, 0) + count
        counts = longer
        if len(counts) > EXACT_SUMS:
            return _flip_sample(scaled, observed, rng, resamples), False
    return sum(count for total, count in counts.items() if abs(total) >= observed) / 2 ** (len(scaled) - 1), True


def wilson(share: float, n: int, level: float = 0.95) -> tuple[float, float]:
    """Wilson score interval of a share of n."""
    z2 = NormalDist().inv_cdf((1 + level) / 2) ** 2
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


def _flip_sample(scaled: Sequence[float], observed: float, rng: random.Random, resamples: int) -> float:
    import numpy as np

    draw = np.random.default_rng(rng.getrandbits(63))
    values, hits, left = np.asarray(scaled), 0, resamples
    while left:
        rows = min(left, 1000)
        signs = draw.integers(0, 2, size=(rows, len(values)), dtype=np.int8) * 2 - 1
        hits += int(np.count_nonzero(np.abs(signs @ values) >= observed))
        left -= rows
    return (1 + hits) / (1 + resamples)


def _check_k(n: int, successes: int, k: int) -> None:
    if not (1 <= k <= n and 0 <= successes <= n):
        raise ValueError(f"needs 1 <= k <= n and 0 <= successes <= n, got n={n}, successes={successes}, k={k}")
