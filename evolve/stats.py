"""Scores become claims here: every mean has an interval, every comparison is paired, every gap is counted.

Episodes of one task resemble each other, so the task is the unit of evidence and intervals are robust to it. A gap
(None) is never turned into a number; it is shown with the best and worst it could have done, and a comparison that
lost too many pairs says that it cannot decide. A comparison's interval excludes 0 exactly if its test rejects, so that
no reader can take one against the other. Equal inputs give equal outputs in any order.
"""

import math
import random
from collections.abc import Iterable, Mapping, Sequence
from statistics import NormalDist
from typing import Literal

from pydantic import BaseModel, ConfigDict

from envs.benchmark import solves
from evolve.exact import mcnemar, pass_at_k, pass_hat_k, sign_end, sign_flip, wilson

#: (task id, episode or seed number) -> score, None for a gap.
Scores = Mapping[tuple[str, int], float | None]
#: Draws of a sign-flip test that is not exact.
RESAMPLES = 9999
#: Differences smaller than this share of the score range are ties.
TIE = 1e-12


class Mean(BaseModel):
    """Mean score with its interval; `worst`/`best` is the mean if every gap had earned the range's lowest/highest."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    mean: float | None
    low: float | None
    high: float | None
    level: float
    method: str
    episodes: int
    tasks: int
    missing: int
    worst: float | None
    best: float | None

    def summary(self) -> str:
        """One line of text."""
        if self.mean is None:
            return f"no score ({self.missing} missing)"
        ends = "" if self.low is None or self.high is None else f" [{self.low:.3f}, {self.high:.3f}]"
        text = f"{self.mean:.3f}{ends}, {self.episodes} episodes of {self.tasks} tasks"
        if self.missing and self.worst is not None and self.best is not None:
            return f"{text}, {self.missing} missing (between {self.worst:.3f} and {self.best:.3f})"
        return f"{text}, {self.missing} missing" if self.missing else text


class Comparison(BaseModel):
    """Candidate against baseline on shared (task, episode). `decided` False means: too little data to say anything."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    baseline: float | None
    candidate: float | None
    difference: float | None  # candidate - baseline, over the pairs
    low: float | None
    high: float | None
    level: float
    test: str
    p_value: float | None
    pairs: int
    tasks: int
    wins: int
    losses: int
    ties: int
    missing: int  # shared keys with a gap on either side
    unpaired: int  # keys that only one side has
    minimum_detectable: float | None  # the difference that these pairs show with 80 % power
    pairs_needed: int | None  # pairs to show the observed difference with 80 % power
    decided: bool
    winner: Literal["baseline", "candidate"] | None
    reason: str

    def summary(self) -> str:
        """One line of text."""
        if self.difference is None or self.low is None or self.high is None or self.p_value is None:
            return f"undecided: {self.reason}"
        verdict = "undecided" if not self.decided else f"{self.winner} better" if self.winner else "no difference shown"
        lost = f", {self.missing} missing" if self.missing else ""
        alone = f", {self.unpaired} unpaired" if self.unpaired else ""
        return (
            f"{verdict}: {self.difference:+.3f} [{self.low:+.3f}, {self.high:+.3f}], p = {self.p_value:.3g} "
            f"({self.test}); {self.wins} won, {self.losses} lost, {self.ties} tied{lost}{alone}; {self.reason}"
        )


class PassRates(BaseModel):
    """`any_of_k` is pass@k (some attempt of k succeeds), `all_of_k` is pass^k; `short` tasks had under k episodes."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    k: int
    any_of_k: float | None
    all_of_k: float | None
    tasks: int
    short: int


def mean_interval(
    scores: Scores, *, level: float = 0.95, reward_range: tuple[float, float] | None = (0.0, 1.0)
) -> Mean:
    """Mean over scored episodes and its interval at `level`.

    One pass/fail episode a task: Wilson. Otherwise a t interval on the cluster-robust (by task) standard error.
    Constant scores: the exact binomial bound on the share of tasks that would differ. `reward_range` None means
    unbounded. Raises ValueError for a score outside the range.
    """
    _check_level(level)
    by_task, missing = _by_task(scores, reward_range)
    values = [value for task in by_task.values() for value in task]
    n, tasks = len(values), len(by_task)
    if not n:
        ends = reward_range if reward_range and missing else (None, None)
        return Mean(
            mean=None, low=None, high=None, level=level, method="no data", episodes=0, tasks=0, missing=missing,
            worst=ends[0], best=ends[1],
        )  # fmt: skip
    mean = math.fsum(values) / n
    low: float | None
    high: float | None
    if n == tasks and _binary([values], reward_range):
        floor, top = reward_range or (0.0, 1.0)
        low, high = (floor + (top - floor) * end for end in wilson((mean - floor) / (top - floor), n, level))
        method = "Wilson"
    elif max(values) - min(values) <= TIE:
        low, high = _constant(mean, tasks, level, reward_range)
        method = "constant scores" if low is not None else "constant scores, unbounded range: no interval"
    elif tasks < 2:
        low, high, method = None, None, "one task: no interval"
    else:
        half = _t(level, tasks - 1) * _cluster_error(by_task.values(), mean)
        low, high = _clip(mean - half, reward_range), _clip(mean + half, reward_range)
        method = "t, clustered by task"
    worst, best = (
        (math.fsum([*values, missing * end]) / (n + missing)) for end in reward_range or (math.nan, math.nan)
    )
    return Mean(
        mean=mean, low=low, high=high, level=level, method=method, episodes=n, tasks=tasks, missing=missing,
        worst=worst if reward_range else None, best=best if reward_range else None,
    )  # fmt: skip


def compare(
    baseline: Scores,
    candidate: Scores,
    *,
    level: float = 0.95,
    reward_range: tuple[float, float] | None = (0.0, 1.0),
    max_missing: float = 0.2,
) -> Comparison:
    """Paired two-sided comparison on the keys that both sides share.

    One pass/fail episode a task: exact McNemar, interval of Agresti and Min (2005). Otherwise a sign-flip test with
    one sign a task (exact while its distribution stays small, else Monte-Carlo with +1 correction from a fixed stream),
    and a t interval clustered by task. Where interval and test disagree about 0, the interval's end nearer to 0 is
    replaced by that of the inverted test (McNemar's as Clopper and Pearson do, given how many pairs differ). Undecided
    when more than `max_missing` of the shared pairs have a gap.
    """
    _check_level(level)
    for side in (baseline, candidate):
        _by_task(side, reward_range)
    shared = sorted(baseline.keys() & candidate.keys())
    pairs = [(key, a, b) for key in shared if (a := baseline[key]) is not None and (b := candidate[key]) is not None]
    missing, unpaired = len(shared) - len(pairs), len(baseline.keys() ^ candidate.keys())
    diffs: dict[str, list[float]] = {}
    for (task, _), a, b in pairs:
        diffs.setdefault(task, []).append(b - a)
    n, tasks = len(pairs), len(diffs)
    too_few = _too_few(n, tasks, len(shared), missing, max_missing)
    if tasks < 2:
        return Comparison(
            baseline=None, candidate=None, difference=None, low=None, high=None, level=level, test="none", p_value=None,
            pairs=n, tasks=tasks, wins=0, losses=0, ties=0, missing=missing, unpaired=unpaired, minimum_detectable=None,
            pairs_needed=None, decided=False, winner=None, reason=too_few,
        )  # fmt: skip
    width = reward_range[1] - reward_range[0] if reward_range else 1.0
    flat = [d for task in diffs.values() for d in task]
    wins, losses = sum(d > TIE * width for d in flat), sum(d < -TIE * width for d in flat)
    difference = math.fsum(flat) / n
    low: float | None
    high: float | None
    error: float | None
    if n == tasks and _binary([[a, b] for _, a, b in pairs], reward_range):
        p, test = mcnemar(wins, losses), "exact McNemar"
        centre, share_error = _agresti_min(wins, losses, n)
        half = NormalDist().inv_cdf((1 + level) / 2) * share_error
        low, high = (width * max(-1.0, min(1.0, end)) for end in (centre - half, centre + half))
        error = width * share_error

        def inverted() -> float:
            return width * sign_end(wins, losses, level) * (wins + losses) / n
    else:
        p, exact = _flip(diffs.values(), 0.0)
        test = "exact sign flips by task" if exact else f"{RESAMPLES} sign flips by task"

        def inverted() -> float:
            return 0.0 if p > 1 - level else _flip_end(diffs.values(), difference, 1 - level)

        if max(flat) - min(flat) <= TIE * width:
            low, high = _constant(difference, tasks, level, (-width, width))
            error = None
        else:
            error = _cluster_error(diffs.values(), difference)
            half = _t(level, tasks - 1) * error
            low, high = difference - half, difference + half
    if low is not None and high is not None and (p <= 1 - level) != (low > 0 or high < 0):
        low, high = (inverted(), high) if difference > 0 else (low, inverted())
    power = NormalDist().inv_cdf((1 + level) / 2) + NormalDist().inv_cdf(0.8)
    detectable = None if error is None else power * error
    needed = None if not detectable or abs(difference) <= TIE * width else math.ceil(n * (detectable / difference) ** 2)
    significant = p <= 1 - level and not too_few
    winner: Literal["baseline", "candidate"] | None = None
    if significant:
        winner = "candidate" if difference > 0 else "baseline"
    more = f", {needed} needed for 80 % power" if needed and not winner else ""
    reason = too_few or f"{n} pairs of {tasks} tasks{more}"
    return Comparison(
        baseline=math.fsum(a for _, a, _ in pairs) / n, candidate=math.fsum(b for _, _, b in pairs) / n,
        difference=difference, low=low, high=high, level=level, test=test, p_value=p, pairs=n, tasks=tasks, wins=wins,
        losses=losses, ties=n - wins - losses, missing=missing, unpaired=unpaired, minimum_detectable=detectable,
        pairs_needed=needed, decided=not too_few, winner=winner, reason=reason,
    )  # fmt: skip


def pass_rates(scores: Scores, k: int, success_at: float = 1.0) -> PassRates:
    """pass@k and pass^k averaged over the tasks with at least k scored episodes; the others are counted as short."""
    by_task, _ = _by_task(scores, None)
    counts = [(len(v), sum(solves(x, success_at) for x in v)) for v in by_task.values() if len(v) >= k]
    short = len({task for task, _ in scores}) - len(counts)
    some = math.fsum(pass_at_k(n, c, k) for n, c in counts) / len(counts) if counts else None
    every = math.fsum(pass_hat_k(n, c, k) for n, c in counts) / len(counts) if counts else None
    return PassRates(k=k, any_of_k=some, all_of_k=every, tasks=len(counts), short=short)


def _by_task(scores: Scores, reward_range: tuple[float, float] | None) -> tuple[dict[str, list[float]], int]:
    """Scored episodes grouped by task in sorted order, and the number of gaps."""
    groups: dict[str, list[float]] = {}
    missing = 0
    for (task, episode), score in sorted(scores.items(), key=lambda pair: pair[0]):
        if score is None:
            missing += 1
            continue
        if not math.isfinite(score) or (reward_range and not reward_range[0] <= score <= reward_range[1]):
            raise ValueError(
                f"task '{task}', episode {episode}: score {score} is not a number in {reward_range or 'the reals'}; "
                "give the benchmark's reward range, or None for an unbounded score, and None for a gap"
            )
        groups.setdefault(task, []).append(float(score))
    return groups, missing


def _too_few(n: int, tasks: int, shared: int, missing: int, max_missing: float) -> str:
    """Why nothing can be decided, '' when it can."""
    if not shared:
        return "no task and episode was run by both sides"
    if missing > max_missing * shared:
        return f"{missing} of {shared} pairs are missing (at most {max_missing:.0%} may be): run the gaps again"
    return "" if tasks >= 2 else f"{n} pairs of {tasks} task: at least two tasks are needed"


def _binary(groups: Iterable[Iterable[float]], reward_range: tuple[float, float] | None) -> bool:
    return {value for group in groups for value in group} <= set(reward_range or (0.0, 1.0))


def _cluster_error(groups: Iterable[Sequence[float]], mean: float) -> float:
    """Standard error of the mean over all values when values of one group go together (CR1)."""
    residuals = [(math.fsum(group) - len(group) * mean, len(group)) for group in groups]
    g, n = len(residuals), sum(size for _, size in residuals)
    return math.sqrt(g / (g - 1) * math.fsum(r * r for r, _ in residuals)) / n


def _agresti_min(wins: int, losses: int, n: int) -> tuple[float, float]:
    """Centre and error of the paired difference of proportions, half a pair added to each of the four cells."""
    b, c, m = wins + 0.5, losses + 0.5, n + 2
    return (b - c) / m, math.sqrt(b + c - (b - c) ** 2 / m) / m


def _constant(
    value: float, tasks: int, level: float, reward_range: tuple[float, float] | None
) -> tuple[float | None, float | None]:
    """All tasks agree: at most a share u of others differs (Clopper-Pearson), and by no more than the range."""
    if reward_range is None:
        return None, None
    u = 1 - ((1 - level) / 2) ** (1 / tasks)
    return value + u * (reward_range[0] - value), value + u * (reward_range[1] - value)


def _flip(diffs: Iterable[Sequence[float]], shift: float) -> tuple[float, bool]:
    """Sign-flip test, one sign a task, of the differences less `shift`."""
    return sign_flip([math.fsum(task) - shift * len(task) for task in diffs], random.Random(0), RESAMPLES)


def _flip_end(diffs: Iterable[Sequence[float]], difference: float, alpha: float) -> float:
    """How far from 0 towards `difference` the test rejects, given that it rejects 0."""
    tasks, near, far = list(diffs), 0.0, difference
    for _ in range(14):
        middle = (near + far) / 2
        near, far = (middle, far) if _flip(tasks, middle)[0] <= alpha else (near, middle)
    return (near + far) / 2


def _t(level: float, freedom: int) -> float:
    from scipy.special import stdtrit

    return float(stdtrit(freedom, (1 + level) / 2))


def _clip(value: float, reward_range: tuple[float, float] | None) -> float:
    return value if reward_range is None else max(reward_range[0], min(reward_range[1], value))


def _check_level(level: float) -> None:
    if not 0 < level < 1:
        raise ValueError(f"level {level} is not between 0 and 1; 0.95 is usual")
