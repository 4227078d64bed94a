"""Scores become claims here: every mean has an interval, every comparison is paired, every gap is counted.

Episodes of one task resemble each other, so the task is the unit of evidence and intervals are robust to it. A gap
(None) is never turned into a number; it is shown with the best and worst it could have done, and a mean or a
comparison that lost too much says that it cannot decide. A comparison's interval excludes 0 exactly if its test
rejects, so that no reader can take one against the other. Equal inputs give equal outputs in any order.
"""

import math
import random
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from statistics import NormalDist
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, model_validator

from envs.benchmark import solves
from evolve.exact import mcnemar, pass_at_k, pass_hat_k, sign_end, sign_flip, wilson
from evolve.interval import (
    Groups,
    agresti_min,
    agresti_min_interval,
    bootstrap,
    cluster_error,
    constant,
    score_interval,
    t_quantile,
)

#: (task id, episode or seed number) -> score, None for a gap.
Scores = Mapping[tuple[str, int], float | None]
#: Draws of a sign-flip test that is not exact.
RESAMPLES = 9999
#: Differences smaller than this share of the score range are ties.
TIE = 1e-12
#: The largest share of gaps with which a mean or a comparison still decides anything.
MAX_MISSING = 0.2
#: Weight of a pretended task at either end of a pass rate: without it rare failures look like none (`bench/stats.py`).
PASS_ENDS = 0.25
Method = Literal["auto", "t", "bootstrap"]


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
    decided: bool  # False: more is missing than was allowed, so the mean says too little

    @model_validator(mode="before")
    @classmethod
    def _decided_by_default(cls, told: Any) -> Any:
        """A mean that was written down before there was `decided` is judged by the usual share."""
        if isinstance(told, dict) and "decided" not in told and {"episodes", "missing"} <= told.keys():
            return {**told, "decided": _decided(told["episodes"], told["missing"], MAX_MISSING)}
        return told

    def summary(self) -> str:
        """One line of text."""
        return self._text() if self.decided else f"undecided, too much is missing: {self._text()}"

    def _text(self) -> str:
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
    worst: float | None = None  # the difference over all shared keys if every gap had gone worst for the candidate
    best: float | None = None

    def summary(self) -> str:
        """One line of text."""
        if self.difference is None or self.low is None or self.high is None or self.p_value is None:
            return f"undecided: {self.reason}"
        verdict = "undecided" if not self.decided else f"{self.winner} better" if self.winner else "no difference shown"
        lost = f", {self.missing} missing" if self.missing else ""
        if self.missing and self.worst is not None and self.best is not None:
            lost += f" (between {self.worst:+.3f} and {self.best:+.3f})"
        alone = f", {self.unpaired} unpaired" if self.unpaired else ""
        return (
            f"{verdict}: {self.difference:+.3f} [{self.low:+.3f}, {self.high:+.3f}], p = {self.p_value:.3g} "
            f"({self.test}); {self.wins} won, {self.losses} lost, {self.ties} tied{lost}{alone}; {self.reason}"
        )


class PassRates(BaseModel):
    """`any_of_k` is pass@k (some attempt of k succeeds), `all_of_k` is pass^k; `short` tasks had under k episodes.

    The intervals are of the mean over tasks; what was written down before there were any has none. `*_worst` and
    `*_best` are over all tasks, had every one of the `missing` episodes failed or succeeded; `decided` as of a mean,
    of the tasks that have a rate.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    k: int
    any_of_k: float | None
    all_of_k: float | None
    tasks: int
    short: int
    any_low: float | None = None
    any_high: float | None = None
    all_low: float | None = None
    all_high: float | None = None
    level: float | None = None
    method: str = ""
    missing: int = 0
    any_worst: float | None = None
    any_best: float | None = None
    all_worst: float | None = None
    all_best: float | None = None
    decided: bool = True

    def summary(self) -> str:
        """One line of text."""
        parts = []
        for name, rate, ends, bounds in (
            (f"pass@{self.k}", self.any_of_k, (self.any_low, self.any_high), (self.any_worst, self.any_best)),
            (f"pass^{self.k}", self.all_of_k, (self.all_low, self.all_high), (self.all_worst, self.all_best)),
        ):
            parts.append(f"{name} none" if rate is None else f"{name} {rate:.3f}{_ends(*ends)}")
            if self.missing and bounds[0] is not None and bounds[1] is not None:
                parts[-1] += f" (between {bounds[0]:.3f} and {bounds[1]:.3f})"
        short = f", {self.short} tasks had fewer than {self.k} scored episodes" if self.short else ""
        text = f"{', '.join(parts)}, {self.tasks} tasks{short}"
        return text if self.decided else f"undecided, too much is missing: {text}"


def _ends(low: float | None, high: float | None) -> str:
    return "" if low is None or high is None else f" [{low:.3f}, {high:.3f}]"


def mean_interval(
    scores: Scores, *, level: float = 0.95, reward_range: tuple[float, float] | None = (0.0, 1.0),
    method: Method = "auto", max_missing: float = MAX_MISSING,
) -> Mean:  # fmt: skip
    """Mean over scored episodes and its interval at `level`; undecided when more than `max_missing` of them are gaps.

    One pass/fail episode a task: Wilson. Otherwise Wilson's interval at the clustered (by task) error, or a t interval
    on that error for an unbounded range (`reward_range` None). `method` "t" and "bootstrap" (BCa over tasks) give those
    instead. Scores or task means that are all equal: the exact binomial bound on the share of tasks that would differ.
    Raises ValueError for a score outside the range.
    """
    _check_level(level)
    by_task, missing = _by_task(scores, reward_range)
    values = [value for task in by_task.values() for value in task]
    n, tasks = len(values), len(by_task)
    decided = _decided(n, missing, max_missing)
    if not n:
        ends = reward_range if reward_range and missing else (None, None)
        return Mean(
            mean=None, low=None, high=None, level=level, method="no data", episodes=0, tasks=0, missing=missing,
            worst=ends[0], best=ends[1], decided=decided,
        )  # fmt: skip
    mean = math.fsum(values) / n
    low, high, name = _interval(list(by_task.values()), mean, level, reward_range, method)
    worst, best = (
        (math.fsum([*values, missing * end]) / (n + missing)) for end in reward_range or (math.nan, math.nan)
    )
    return Mean(
        mean=mean, low=low, high=high, level=level, method=name, episodes=n, tasks=tasks, missing=missing,
        worst=worst if reward_range else None, best=best if reward_range else None, decided=decided,
    )  # fmt: skip


def compare(
    baseline: Scores,
    candidate: Scores,
    *,
    level: float = 0.95,
    reward_range: tuple[float, float] | None = (0.0, 1.0),
    max_missing: float = MAX_MISSING,
) -> Comparison:
    """Paired two-sided comparison on the keys that both sides share.

    One pass/fail episode a task: exact McNemar, interval of Agresti and Min (2005). Otherwise a sign-flip test with
    one sign a task (exact while its distribution stays small, else Monte-Carlo with +1 correction from a fixed stream),
    and a t interval clustered by task. Where interval and test disagree about 0, the interval's end nearer to 0 is
    replaced by that of the inverted test (McNemar's as Clopper and Pearson do, given how many pairs differ). Undecided
    when more than `max_missing` of the shared pairs have a gap; `worst` and `best` bound what these gaps hide.
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
    worst, best = _bounds([(baseline[key], candidate[key]) for key in shared], reward_range)
    too_few = _too_few(n, tasks, len(shared), missing, max_missing)
    if tasks < 2:
        return Comparison(
            baseline=None, candidate=None, difference=None, low=None, high=None, level=level, test="none", p_value=None,
            pairs=n, tasks=tasks, wins=0, losses=0, ties=0, missing=missing, unpaired=unpaired, minimum_detectable=None,
            pairs_needed=None, decided=False, winner=None, reason=too_few, worst=worst, best=best,
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
        low, high = (width * end for end in agresti_min_interval(wins, losses, n, level))
        error = width * agresti_min(wins, losses, n)[1]

        def inverted() -> float:
            return width * sign_end(wins, losses, level) * (wins + losses) / n
    else:
        p, exact = _flip(diffs.values(), 0.0)
        test = "exact sign flips by task" if exact else f"{RESAMPLES} sign flips by task"

        def inverted() -> float:
            return 0.0 if p > 1 - level else _flip_end(diffs.values(), difference, 1 - level)

        error = cluster_error(diffs.values(), difference)
        if error <= TIE * width:
            low, high = constant(difference, tasks, level, (-width, width))
            error = None
        else:
            half = t_quantile(level, tasks - 1) * error
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
        pairs_needed=needed, decided=not too_few, winner=winner, reason=reason, worst=worst, best=best,
    )  # fmt: skip


def pass_rates(
    scores: Scores, k: int, success_at: float = 1.0, *, level: float = 0.95, method: Method = "auto"
) -> PassRates:
    """pass@k and pass^k averaged over the tasks with at least k scored episodes; the others are counted as short.

    Each task's unbiased rate is one number, and the interval is of their mean: Wilson's at its error, with a quarter of
    a task pretended at either end, or by `method` as for a mean.
    """
    _check_level(level)
    by_task, missing = _by_task(scores, None)
    asked = Counter(task for task, _ in scores)
    counts = [(len(v), sum(solves(x, success_at) for x in v)) for v in by_task.values() if len(v) >= k]
    short = len(asked) - len(counts)
    decided = short <= MAX_MISSING * len(asked)
    won = {task: sum(solves(x, success_at) for x in by_task.get(task, ())) for task in asked}
    gaps = {task: n - len(by_task.get(task, ())) for task, n in asked.items()}
    whole = [task for task, n in asked.items() if n >= k]
    ends: dict[str, float] = {}
    for name, rate in (("any", pass_at_k), ("all", pass_hat_k)) if whole else ():
        ends[f"{name}_worst"] = math.fsum(rate(asked[t], won[t], k) for t in whole) / len(whole)
        ends[f"{name}_best"] = math.fsum(rate(asked[t], won[t] + gaps[t], k) for t in whole) / len(whole)
    if not counts:
        return PassRates(
            k=k, any_of_k=None, all_of_k=None, tasks=0, short=short, level=level, method="no data", missing=missing,
            decided=decided, **ends,
        )  # fmt: skip
    some, every = ([[rate(n, c, k)] for n, c in counts] for rate in (pass_at_k, pass_hat_k))
    means = [math.fsum(value for (value,) in rates) / len(rates) for rates in (some, every)]
    (any_low, any_high, name), (all_low, all_high, other) = (
        _interval(rates, mean, level, (0.0, 1.0), method, ends=PASS_ENDS)
        for rates, mean in zip((some, every), means, strict=True)
    )
    return PassRates(
        k=k, any_of_k=means[0], all_of_k=means[1], tasks=len(counts), short=short, any_low=any_low, any_high=any_high,
        all_low=all_low, all_high=all_high, level=level, method=name if name == other else f"{name}; {other}",
        missing=missing, decided=decided, **ends,
    )  # fmt: skip


def _interval(
    groups: Groups, mean: float, level: float, reward_range: tuple[float, float] | None, method: Method,
    ends: float = 0.0,
) -> tuple[float | None, float | None, str]:  # fmt: skip
    """Ends of the interval of `mean`, and what it is called; both None where there is none."""
    tasks, n = len(groups), sum(len(group) for group in groups)
    floor, top = reward_range or (0.0, 1.0)
    width = top - floor
    if method == "auto" and not ends and n == tasks and _binary(groups, reward_range):
        low, high = wilson((mean - floor) / width, n, level)
        return floor + width * low, floor + width * high, "Wilson"
    error = cluster_error(groups, mean) if tasks > 1 else max(abs(value - mean) for group in groups for value in group)
    if tasks == 1 and error > TIE * width:
        return None, None, "one task: no interval"
    if error <= TIE * width and not (ends and method == "auto" and tasks > 1):
        flat = constant(mean, tasks, level, reward_range)
        return *flat, "constant scores" if reward_range else "constant scores, unbounded range: no interval"
    if method == "bootstrap":
        return *bootstrap(groups, level, random.Random(0)), "BCa bootstrap over tasks"
    if method == "auto" and reward_range:
        low, high = score_interval([[(value - floor) / width for value in group] for group in groups], level, ends)
        return floor + width * low, floor + width * high, "Wilson, clustered by task"
    half = t_quantile(level, tasks - 1) * error
    return _clip(mean - half, reward_range), _clip(mean + half, reward_range), "t, clustered by task"


def _bounds(
    shared: Iterable[tuple[float | None, float | None]], reward_range: tuple[float, float] | None
) -> tuple[float | None, float | None]:
    """Mean difference over all shared keys if every gap had gone worst, and best, for the candidate."""
    pairs = list(shared)
    if reward_range is None or not pairs:
        return None, None
    low, high = reward_range
    worst = math.fsum((low if b is None else b) - (high if a is None else a) for a, b in pairs)
    best = math.fsum((high if b is None else b) - (low if a is None else a) for a, b in pairs)
    return worst / len(pairs), best / len(pairs)


def _decided(episodes: int, missing: int, max_missing: float) -> bool:
    return episodes > 0 and missing <= max_missing * (episodes + missing)


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


def _clip(value: float, reward_range: tuple[float, float] | None) -> float:
    return value if reward_range is None else max(reward_range[0], min(reward_range[1], value))


def _check_level(level: float) -> None:
    if not 0 < level < 1:
        raise ValueError(f"level {level} is not between 0 and 1; 0.95 is usual")
