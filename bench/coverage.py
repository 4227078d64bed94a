"""Do intervals and tests err as often as they say, on simulated benchmarks? Part of `python -m bench stats`.

A benchmark has 40 to 200 tasks; their chances of success are draws from a beta distribution whose mean (.1 to .9) and
concentration (1 to 10) are drawn anew for each benchmark, and a fifth of all episodes is missing at random. Graded
scores are again beta draws around the task's chance. What is covered is the mean over the distribution of tasks. The
second arm either mends a share of the failures (or the first arm does), or is no better: with the same chances (`null`)
or with others of the same mean (`other tasks`). Everything goes through the functions that runs use. `hard` is what no
interval manages: 40 tasks and a mean within .03 to .1 of an end.
"""

import math
import os
import random
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass

from evolve.contest import contest
from evolve.stats import Method, Scores, compare, mean_interval, pass_rates

MISSING = 0.2
ALPHA = 0.05
#: How far from its nominal value an error may be.
SLACK = 0.015
CANDIDATES = 5
METHODS: dict[str, Method] = {"mean": "auto", "mean, t": "t", "mean, bootstrap": "bootstrap"}
Chances = list[float]


@dataclass(frozen=True)
class Kind:
    """What an episode yields, and how many a task has at least and at most."""

    name: str
    graded: bool
    episodes: tuple[int, int]


KINDS = (
    Kind("binary, one episode", False, (1, 1)),
    Kind("binary, 2-5 episodes", False, (2, 5)),
    Kind("graded, one episode", True, (1, 1)),
    Kind("graded, 2-5 episodes", True, (2, 5)),
)


@dataclass(frozen=True)
class World:
    """One benchmark: its tasks' chances are Beta(a, b)."""

    kind: Kind
    tasks: int
    episodes: int
    a: float
    b: float

    @classmethod
    def drawn(cls, kind: Kind, rng: random.Random) -> "World":
        mean, concentration = rng.uniform(0.1, 0.9), math.exp(rng.uniform(0.0, math.log(10)))
        tasks, episodes = rng.randint(40, 200), rng.randint(*kind.episodes)
        return cls(kind, tasks, episodes, mean * concentration, (1 - mean) * concentration)

    @property
    def mean(self) -> float:
        """The true mean score."""
        return self.a / (self.a + self.b)

    def rate(self, k: int, every: bool) -> float:
        """The true pass^k, or pass@k."""
        one = self.a if every else self.b
        moment = math.prod((one + i) / (self.a + self.b + i) for i in range(k))
        return moment if every else 1 - moment

    def chances(self, rng: random.Random) -> Chances:
        return [rng.betavariate(self.a, self.b) for _ in range(self.tasks)]

    def scores(self, chances: Chances, rng: random.Random) -> Scores:
        """What a run finds."""
        return {
            (f"{task:03d}", episode): None if rng.random() < MISSING else self._score(chance, rng)
            for task, chance in enumerate(chances)
            for episode in range(self.episodes)
        }

    def _score(self, chance: float, rng: random.Random) -> float:
        if not self.kind.graded:
            return float(rng.random() < chance)
        return rng.betavariate(max(4 * chance, 1e-9), max(4 * (1 - chance), 1e-9))


def mended(chances: Chances, share: float) -> Chances:
    """A better agent: of each task's failures it mends this share."""
    return [chance + share * (1 - chance) for chance in chances]


def naive(scores: Scores) -> tuple[float, float]:
    """What is usually printed: all episodes as if they were independent."""
    values = [score for score in scores.values() if score is not None]
    mean = math.fsum(values) / len(values)
    half = 1.96 * math.sqrt(math.fsum((v - mean) ** 2 for v in values) / (len(values) - 1) / len(values))
    return mean - half, mean + half


def measures(kind: Kind, seed: int) -> dict[str, bool]:
    """One benchmark: by figure, whether the interval covered, or the test rejected."""
    rng = random.Random(seed)
    world = World.drawn(kind, rng)
    chances = world.chances(rng)
    first = world.scores(chances, rng)
    found: dict[str, bool] = {}

    def covers(name: str, low: float | None, high: float | None, truth: float) -> None:
        assert low is not None, (kind, seed, name)
        assert high is not None, (kind, seed, name)
        found[name] = low <= truth <= high

    for name, method in METHODS.items():
        mean = mean_interval(first, method=method)
        covers(name, mean.low, mean.high, world.mean)
    covers("mean, naive", *naive(first), world.mean)
    if world.episodes > 1 and not kind.graded:
        for name, method in METHODS.items():
            rates = pass_rates(first, 2, method=method)
            covers(name.replace("mean", "pass@2"), rates.any_low, rates.any_high, world.rate(2, every=False))
            covers(name.replace("mean", "pass^2"), rates.all_low, rates.all_high, world.rate(2, every=True))
    share = rng.uniform(0.0, 0.4)
    better, sign = world.scores(mended(chances, share), rng), rng.choice([-1, 1])
    effect = compare(*((first, better) if sign > 0 else (better, first)), max_missing=1.0)
    covers("difference", effect.low, effect.high, sign * share * (1 - world.mean))
    null = compare(first, world.scores(chances, rng), max_missing=1.0)
    covers("difference, null", null.low, null.high, 0.0)
    found["test, null"] = null.winner is not None
    if null.test == "exact McNemar" and null.p_value is not None:
        n, fewer = null.wins + null.losses, min(null.wins, null.losses)
        middle = math.comb(n, fewer) / 2**n * (0.5 if null.wins == null.losses else 1.0)
        found["test, null, by the mid-p rule"] = null.p_value - middle <= ALPHA
    stretch = math.exp(rng.uniform(-1.5, 1.5))
    other = World(kind, world.tasks, world.episodes, world.a * stretch, world.b * stretch)
    found["test, other tasks"] = compare(first, other.scores(other.chances(rng), rng), max_missing=1.0).p_value <= ALPHA
    return found


def hard(kind: Kind, seed: int) -> dict[str, bool]:
    """One benchmark on which means are close to an end: whether the intervals covered."""
    rng = random.Random(seed)
    mean, concentration = rng.uniform(0.03, 0.1), math.exp(rng.uniform(0.0, math.log(10)))
    a, b = mean * concentration, (1 - mean) * concentration
    world = World(kind, 40, rng.randint(*kind.episodes), *((a, b) if rng.random() < 0.5 else (b, a)))
    scores = world.scores(world.chances(rng), rng)
    found = {}
    for name, method in METHODS.items():
        got = mean_interval(scores, method=method)
        assert got.low is not None, (kind, seed, name)
        assert got.high is not None, (kind, seed, name)
        found[f"hard: {name}"] = got.low <= world.mean <= got.high
    return found


def families(kind: Kind, seed: int) -> dict[str, bool]:
    """One benchmark with several candidates, of which none or two are better: whether a useless one is called so."""
    rng = random.Random(seed)
    world = World.drawn(kind, rng)
    chances = world.chances(rng)
    first, found = world.scores(chances, rng), {}
    for useful in (0, 2):
        played = {str(i): world.scores(mended(chances, 0.3) if i < useful else chances, rng) for i in range(CANDIDATES)}
        judged = contest(first, played, max_missing=1.0).candidates[useful:]
        name = f"{CANDIDATES} candidates, {useful} better"
        found[f"{name}, Holm"] = any(entry.comparison.winner for entry in judged)
        alone = (compare(first, played[entry.name], max_missing=1.0) for entry in judged)
        found[f"{name}, uncorrected"] = any(comparison.winner for comparison in alone)
    return found


def share_of(measure: Callable[[Kind, int], dict[str, bool]], kind: Kind, seeds: range) -> Counter[str]:
    """How often each figure came true, and out of how many."""
    total: Counter[str] = Counter()
    for seed in seeds:
        for name, true in measure(kind, seed).items():
            total[name] += true
            total[f"of {name}"] += 1
    return total


def simulate(benchmarks: int, seed: int) -> dict[str, dict[str, float]]:
    """For each kind of benchmark and each figure: the share of `benchmarks` in which it covered, or was rejected."""
    step = max(1, benchmarks // 20)
    starts = range(0, benchmarks, step)
    jobs = [
        (measure, kind, range(seed * 10**6 + start, seed * 10**6 + min(start + step, benchmarks)))
        for measure, kinds in ((measures, KINDS), (hard, KINDS), (families, KINDS[:2]))
        for kind in kinds
        for start in starts
    ]
    totals: dict[str, Counter[str]] = {kind.name: Counter() for kind in KINDS}
    with ProcessPoolExecutor(max_workers=os.cpu_count()) as pool:
        for (_, kind, _), counts in zip(jobs, pool.map(share_of, *zip(*jobs, strict=True)), strict=True):
            totals[kind.name].update(counts)
    return {
        kind: {name: round(n / counts[f"of {name}"], 4) for name, n in counts.items() if not name.startswith("of ")}
        for kind, counts in totals.items()
    }


def goals(found: dict[str, dict[str, float]], benchmarks: int) -> dict[str, bool]:
    """What was promised. With few benchmarks their own chance, three standard errors of it, is allowed for."""
    slack = SLACK + (3 * math.sqrt(ALPHA * (1 - ALPHA) / benchmarks) if benchmarks < 2000 else 0.0)
    each = [(kind, name, value) for kind, row in found.items() for name, value in row.items()]

    def nominal(*names: str) -> bool:
        return all(abs(1 - ALPHA - value) <= slack for _, name, value in each if name in names)

    tests = [(kind, value) for kind, name, value in each if name in ("test, null", "test, other tasks")]
    return {
        "95 % intervals of means cover .95 +- .015": nominal("mean", "mean, bootstrap"),
        "95 % intervals of pass@k and pass^k cover .95 +- .015": nominal("pass@2", "pass^2"),
        "95 % intervals of paired differences cover .95 +- .015": nominal("difference"),
        "they cover at least .935 without a difference": all(
            value >= 1 - ALPHA - slack for _, name, value in each if name == "difference, null"
        ),
        "paired tests of graded scores err .05 +- .015": all(
            abs(value - ALPHA) <= slack for kind, value in tests if kind.startswith("graded")
        ),
        "exact tests of pass/fail scores err at most .065": all(value <= ALPHA + slack for _, value in tests),
        f"of {CANDIDATES} candidates any useless one wins at most .065": all(
            value <= ALPHA + slack for _, name, value in each if name.endswith("Holm")
        ),
    }
