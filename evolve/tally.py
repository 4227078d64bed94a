"""A benchmark run is summed up while it is played: what is kept of an episode is its score and its cost."""

from collections import Counter

from pydantic import BaseModel, ConfigDict

from envs import Benchmark
from evolve.budget import Budget, BudgetExhausted
from evolve.stats import Mean, PassRates, mean_interval, pass_rates
from harness.finished import Finished
from harness.journal import Journal
from harness.runner import Job, Runner
from harness.trajectory import Trajectory

_CHUNK = 8  # episodes between two looks at the budget, or as many as are played at once


class Evaluation(BaseModel):
    """What a benchmark run found; `folder` holds its journal."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    folder: str
    asked: int  # episodes asked for; a budget may have left some unplayed
    mean: Mean
    rates: PassRates | None = None  # with several episodes a task
    solved: int
    cost: dict[str, float | None]
    cached: int
    retried: dict[str, int] = {}  # calls that failed and were then answered, by kind
    missing: dict[str, int] = {}  # gaps, by fault
    taught: int | None = None  # tasks that taught the memory which was recalled from, as far as it is known


class Tally:
    """The sums of a run on `benchmark` under a budget of `limit`."""

    def __init__(self, benchmark: Benchmark, limit: Budget) -> None:
        self.benchmark, self.limit, self.total = benchmark, limit, Budget()
        self.scores: dict[tuple[str, int], float | None] = {}
        self.solved = self.cached = 0
        self.retried: Counter[str] = Counter()
        self.missing: Counter[str] = Counter()

    @property
    def played(self) -> int:
        """Episodes so far."""
        return len(self.scores)

    def add(self, index: int, found: Trajectory | Finished) -> None:
        """Count one episode."""
        self.charge(found)
        self.total.charge(found)
        self.scores[found.task, found.episode] = found.score
        self.solved += found.score is not None and self.benchmark.solved(found.score)
        self.cached += found.cached
        self.retried.update(dict(found.retried))
        if found.status == "gap":
            self.missing[found.fault or "unknown"] += 1

    def charge(self, found: Trajectory | Finished) -> None:
        """Take what an episode cost from the budget: answers from the record as if they had been asked."""
        self.limit.charge(found)

    async def play(self, runner: Runner, jobs: list[Job], calls: int, *, fill: bool = True) -> None:
        """Play jobs in order: all at once, or with a budget a few at a time, as long as it certainly pays the next."""
        begun = 0
        while begun < len(jobs):
            few = max(_CHUNK, runner.concurrency)
            some = jobs[begun : begun + (len(jobs) if self.limit.unlimited else self.limit.affords(few, calls))]
            if not some:
                if not begun:
                    raise BudgetExhausted(
                        f"no episode was begun: one may take {calls} calls, and the budget is {self.limit.describe()}. "
                        "Cure: a larger budget, or a smaller [limits] calls or steps in harness.toml"
                    )
                break
            begun += len(some)
            await runner.play(some, self.add, settle=False, fill=fill)

    def evaluation(
        self, journal: Journal, episodes: int, asked: int, taught: int | None, max_missing: float
    ) -> Evaluation:
        """What came out, of `asked` episodes; written down where it is new."""
        benchmark = self.benchmark
        found = Evaluation(
            folder=str(journal.folder),
            asked=asked,
            mean=mean_interval(self.scores, reward_range=benchmark.reward_range, max_missing=max_missing),
            rates=pass_rates(self.scores, episodes, benchmark.success_at) if episodes > 1 else None,
            solved=self.solved,
            cost={unit: _rounded(spent) for unit, spent in self.total.cost().items()},
            cached=self.cached,
            retried=dict(sorted(self.retried.items())),
            missing=dict(sorted(self.missing.items())),
            taught=taught,
        )
        body, last = found.model_dump(mode="json", exclude={"folder"}), journal.last("evaluation")
        if last is None or last.body != body:
            journal.append("evaluation", body)
        return found


def _rounded(spent: float | None) -> float | None:
    """A sum that does not depend on which episode ended first."""
    return None if spent is None else float(f"{spent:.12g}")
