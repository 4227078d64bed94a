"""Does the evidence machinery keep its word? Error rates, pairs to a decision, and agreement with scipy.

    python -m bench stats [--quick]

Pairs are pass/fail differences: +1 with chance `better`, -1 with `worse`, else a tie. A false accept is a run of 20
candidates, none better than its incumbent, that keeps at least one. The fixed-sample rival is the exact one-sided
McNemar test at the same alpha, with the smallest number of pairs that gives it the power that our gate reached.
Coverage of intervals and error of tests: `bench/coverage.py` says on what.
"""

import random
import resource
from collections.abc import Callable
from typing import Any

from bench.coverage import goals as coverage_goals
from bench.coverage import simulate
from evolve.alpha import AlphaLedger
from evolve.exact import mcnemar, sign_flip, wilson
from evolve.gate import Gate, SequentialPaired, Strict, Verdict

ALPHA = 0.05
CANDIDATES = 20
#: Chance of a win, and of a loss, of a useless edit: most pairs tie, as they do with shared seeds.
NULLS = (0.0, 0.02, 0.05, 0.1, 0.25, 0.45)
#: Mean difference -> (better, worse).
EFFECTS = {0.2: (0.3, 0.1), 0.4: (0.5, 0.1)}


def play(gate: Gate, rng: random.Random, better: float, worse: float, batch: int = 1) -> Verdict:
    """Feed pairs until the gate has decided."""
    while True:
        rolls = [rng.random() for _ in range(batch)]
        verdict = gate.look([1.0 if r < better else -1.0 if r < better + worse else 0.0 for r in rolls])
        if verdict.final:
            return verdict


def runs_with_a_false_accept(
    runs: int, seed: int, budget: Callable[[], AlphaLedger] | None, gate: Gate, useful_every: int = 0
) -> dict[str, float]:
    """Share of runs that keep a useless edit, share of useful edits found, pairs a candidate."""
    rng = random.Random(seed)
    wrong = found = useful = pairs = 0
    for _ in range(runs):
        ledger, failed = budget() if budget else None, False
        for k in range(CANDIDATES):
            helps = bool(useful_every) and k % useful_every == 0
            better, worse = EFFECTS[0.4] if helps else (rng.choice(NULLS),) * 2
            verdict = play(gate.start(ledger.next() if ledger else None), rng, better, worse, batch=5)
            accepted = verdict.decision == "accept"
            if ledger:
                ledger.settle(accepted)
            useful, found, pairs = useful + helps, found + (helps and accepted), pairs + verdict.n
            failed |= accepted and not helps
        wrong += failed
    out = {"false_accept": wrong / runs, "pairs_per_candidate": round(pairs / runs / CANDIDATES, 1)}
    return {**out, "found": found / useful} if useful else out


def fixed_sample_size(better: float, worse: float, power: float) -> int:
    """Pairs with which the exact one-sided McNemar test at ALPHA first has `power`."""
    import numpy as np
    from scipy.stats import binom

    m = np.arange(1001)
    critical = binom.isf(ALPHA, m, 0.5) + 1  # fewest wins among m discordant pairs that are significant
    given = binom.sf(critical - 1, m, better / (better + worse))
    low, high = 1, 1000
    while low < high:
        n = (low + high) // 2
        reached = float(binom.pmf(m[: n + 1], n, better + worse) @ given[: n + 1]) >= power
        low, high = (low, n) if reached else (n + 1, high)
    return low


def pairs_to_decision(effect: float, repeats: int, seed: int) -> dict[str, float]:
    """Mean pairs of our gate under an effect and under no effect, against the fixed sample for the same power."""
    rng = random.Random(seed)
    better, worse = EFFECTS[effect]
    null = (better + worse) / 2
    ours = [play(SequentialPaired(ALPHA), rng, better, worse) for _ in range(repeats)]
    useless = [play(SequentialPaired(ALPHA), rng, null, null) for _ in range(repeats)]
    power = sum(v.decision == "accept" for v in ours) / repeats
    fixed = fixed_sample_size(better, worse, min(power, 0.995))
    mean, wasted = (sum(v.n for v in vs) / repeats for vs in (ours, useless))
    return {
        "power": power, "mean_pairs": round(mean, 1), "fixed_pairs": fixed, "ratio": round(mean / fixed, 3),
        "fixed_pairs_at_80": fixed_sample_size(better, worse, 0.8), "mean_pairs_useless": round(wasted, 1),
        "false_accept_one_test": sum(v.decision == "accept" for v in useless) / repeats,
    }  # fmt: skip


def agreement(seed: int, draws: int) -> dict[str, float]:
    """Largest distance of our p values and intervals from scipy's."""
    import numpy as np
    from scipy import stats

    rng = random.Random(seed)
    counts = [(b, c) for b in range(0, 60, 3) for c in range(0, 60, 4) if b + c]
    exact = max(abs(mcnemar(b, c) - float(stats.binomtest(b, b + c).pvalue)) for b, c in counts)
    flips = 0.0
    for _ in range(draws):
        sums = [rng.choice([-1, 0, 1]) + rng.random() for _ in range(10)]
        peer = stats.permutation_test(
            (np.asarray(sums),), lambda x, axis: np.sum(x, axis=axis), permutation_type="samples", n_resamples=np.inf
        )
        flips = max(flips, abs(sign_flip(sums, random.Random(0))[0] - float(peer.pvalue)))
    ends = 0.0
    for k, n in [(0, 10), (3, 10), (10, 10), (57, 134)]:
        peer = stats.binomtest(k, n).proportion_ci(method="wilson")
        ends = max(ends, abs(wilson(k / n, n)[0] - float(peer.low)), abs(wilson(k / n, n)[1] - float(peer.high)))
    return {"mcnemar": exact, "sign_flip": flips, "wilson": ends}


def run(quick: bool) -> dict[str, Any]:
    """Figures, goals and whether they were met."""
    start = _cpu()
    runs, repeats = (200, 300) if quick else (2000, 3000)
    sequential = SequentialPaired(ALPHA)

    def ledger() -> AlphaLedger:
        return AlphaLedger(ALPHA, planned=CANDIDATES)

    figures: dict[str, Any] = {
        "false_accept_runs": {
            "all_useless": runs_with_a_false_accept(runs, 2, ledger, sequential),
            "every_fourth_useful": runs_with_a_false_accept(runs, 3, ledger, sequential, useful_every=4),
            "no_ledger": runs_with_a_false_accept(runs, 4, None, sequential),
            "strict_30_pairs": runs_with_a_false_accept(runs, 5, None, Strict(pairs=30)),
        },
        "pairs": {str(effect): pairs_to_decision(effect, repeats, 6) for effect in EFFECTS},
        "distance_from_scipy": agreement(7, 10 if quick else 100),
        "coverage": simulate(runs, 8),
    }
    figures["cpu_seconds"] = round(_cpu() - start, 1)
    guarded = [figures["false_accept_runs"][name] for name in ("all_useless", "every_fourth_useful")]
    goals = {
        "runs of 20 that keep a useless edit <= .05": all(row["false_accept"] <= ALPHA for row in guarded),
        "pairs to decision <= 1.0 of a fixed sample of equal power": all(
            row["ratio"] <= 1.0 for row in figures["pairs"].values()
        ),
        "p values and intervals within 1e-9 of scipy": max(figures["distance_from_scipy"].values()) <= 1e-9,
        **coverage_goals(figures["coverage"], runs),
    }
    return {"figures": figures, "goals": goals, "met": all(goals.values())}


def _cpu() -> float:
    """Processor seconds of this process and of those that it waited for."""
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(usage.ru_utime + usage.ru_stime for usage in used)
