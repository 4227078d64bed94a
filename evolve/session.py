"""From plain arguments to a finished run: what the command line and ten lines of Python both call.

A run's folder is named after everything that shapes its result, so the same call finds its own journal again and goes
on where it was cut off; a call that differs in anything gets a folder of its own.
"""

import asyncio
import hashlib
import json
import os
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from pydantic import BaseModel, ConfigDict

import harness as _harness
from envs import Benchmark
from envs.registry import load
from evolve.budget import Budget
from evolve.evolver import Outcome, Plan
from evolve.evolver import evolve as _evolve
from evolve.lab import Lab, fingerprint, scores
from evolve.recipes import Recipe
from evolve.recipes import recipe as _recipe
from evolve.stats import Comparison, Mean, compare, mean_interval
from harness.agent import Agent
from harness.folder import Harness
from harness.journal import Journal, JournalError
from harness.model import Model
from harness.models.connect import connect
from harness.recall import recall_from
from harness.runner import Job, Progress, Runner
from harness.trajectory import Trajectory

if TYPE_CHECKING:
    from memory import Store

#: Episodes between two looks at the budget.
_CHUNK = 8
Watch = Callable[[Progress], None]
T = TypeVar("T")


def _silent(_: str) -> None:
    """Says nothing."""


class Evolution(BaseModel):
    """What an evolution found; `folder` holds its journal, its memory, and the chosen harness in `best/`."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    folder: str
    outcome: Outcome


class Evaluation(BaseModel):
    """What a benchmark run found; `folder` holds its journal."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    folder: str
    mean: Mean
    solved: int
    cost: dict[str, float | None]
    cached: int


@dataclass(frozen=True)
class Setup:
    """What a run is made from. `model` and `options` override its `[model]`; `memory` is a run folder or a file."""

    harness: Harness
    env: str
    model: str | None = None
    options: Mapping[str, Any] | None = None
    seed: int = 0
    concurrency: int = 2
    memory: str | None = None

    def benchmark(self) -> Benchmark:
        """The benchmark that `env` names."""
        return load(self.env)

    def connect(self) -> Model:
        """The model that answers for the agents."""
        return connect(self.model_spec, self.model_options)

    @property
    def model_spec(self) -> str:
        """The model's name, as given or as in the harness."""
        return self.model or self.harness.settings.model.name

    @property
    def model_options(self) -> dict[str, Any]:
        """Backend options; a local model gets one instance for each episode that may run at once, up to the cores."""
        options: dict[str, Any] = dict(self.harness.settings.model.options) if self.model is None else {}
        options |= self.options or {}
        if self.model_spec == "embedded" or self.model_spec.startswith("gguf:"):
            options.setdefault("instances", max(1, min(self.concurrency, os.cpu_count() or 1)))
        return options

    def memory_digest(self) -> str | None:
        """Hash of what there is to recall, since that shapes the result and may change between two calls."""
        if self.memory is None:
            return None
        with self.store() as store:
            items = [(i.id, i.version, i.stats.utility) for scope in store.scopes() for i in store.items(scope)]
        return hashlib.sha256(json.dumps(sorted(items)).encode()).hexdigest()[:16]

    def store(self) -> "Store":
        """The memory to recall from, for reading. Raises MemoryFault."""
        from memory import Store

        path = Path(self.memory or "")
        return Store.open(path / "memory.db" if path.is_dir() else path, readonly=True)

    def describe(self) -> dict[str, Any]:
        """Everything that shapes the result, as plain data without secrets."""
        hidden = {key: value for key, value in self.model_options.items() if key != "instances"}
        return {
            "harness": self.harness.version, "name": self.harness.settings.name, "env": self.env,
            "model": self.model_spec, "options": hidden, "seed": self.seed, "memory": self.memory_digest(),
        }  # fmt: skip


def run(
    harness: Harness | str, env: str, *, split: str = "valid", n: int = 40, model: str | None = None,
    options: Mapping[str, Any] | None = None, memory: str | None = None, seed: int = 0, concurrency: int = 2,
    budget: str | None = None, out: str | None = None, watch: Watch | None = None, say: Callable[[str], None] = _silent,
) -> Evaluation:  # fmt: skip
    """Play `n` tasks of `split` once each and return the mean score with its interval.

    Goes on where an equal call was cut off, and fills the gaps of one that was not. A budget may leave tasks unplayed.
    Raises HarnessError, EnvError, ModelRefused, RunStopped, JournalError, MemoryFault or ValueError.
    """
    setup = Setup(_loaded(harness), env, model, options, seed, concurrency, memory)
    limit = Budget.parse(budget or "")
    plan = {"command": "run", **setup.describe(), "split": split, "n": n, "budget": budget}
    benchmark = setup.benchmark()
    tasks = benchmark.tasks(split, n)
    plan["tasks"] = _digest([[task.id, fingerprint(task)] for task in tasks])

    answering = setup.connect()  # a wrong name or a missing file is an error before anything is written

    async def go(journal: Journal) -> Evaluation:
        agent, store = _equipped(setup, benchmark, answering, say)
        runner = Runner(benchmark, journal, seed=seed, concurrency=concurrency, watch=watch)
        say(f"{len(tasks)} episodes of at most {agent.steps(benchmark)} steps; journal: {journal.folder}")
        try:
            results = await _within(limit, runner, [Job(agent, task) for task in tasks], agent.steps(benchmark))
        finally:
            if store is not None:
                store.close()
        if len(results) < len(tasks):
            say(f"the budget ended after {len(results)} of {len(tasks)} episodes ({limit.describe()})")
        evaluation = _evaluated(journal, benchmark, results)
        body, last = evaluation.model_dump(mode="json", exclude={"folder"}), journal.last("evaluation")
        if last is None or last.body != body:
            journal.append("evaluation", body)
        return evaluation

    return _in_folder(setup, plan, out, [answering], go)


def evolve(
    harness: Harness | str, env: str, *, recipe: str = "memrl", settings: Mapping[str, Any] | None = None,
    budget: str | None = None, model: str | None = None, options: Mapping[str, Any] | None = None,
    proposer: str | None = None, proposer_options: Mapping[str, Any] | None = None, split: str = "test", n: int = 50,
    seed: int = 0, concurrency: int = 2, out: str | None = None, watch: Watch | None = None,
    say: Callable[[str], None] = _silent,
) -> Evolution:  # fmt: skip
    """Evolve `harness` by `recipe` beside its control, examine both on `n` tasks of `split`, return the evidence.

    The run folder keeps the journal, the memory, the lineage and the chosen harness (`best/`). Goes on where an equal
    call was cut off. Raises HarnessError, EnvError, ModelRefused, RunStopped, JournalError or ValueError.
    """
    setup = Setup(_loaded(harness), env, model, options, seed, concurrency)
    chosen = _recipe(recipe, **(settings or {}))
    limit = Budget.parse(budget or "")
    plan = {
        "command": "evolve", **setup.describe(), "recipe": recipe, "settings": _settings_of(chosen), "budget": budget,
        "proposer": proposer, "proposer_options": dict(proposer_options or {}), "split": split, "n": n,
    }  # fmt: skip
    benchmark = setup.benchmark()
    benchmark.tasks("train", 1)  # a missing split is an error now, not after an hour
    plan["tasks"] = _digest([[task.id, fingerprint(task)] for task in benchmark.tasks(split, n)])

    answering = setup.connect()  # a wrong name or a missing file is an error before anything is written
    adviser = connect(proposer, proposer_options) if proposer else None

    async def go(journal: Journal) -> Evolution:
        runner = Runner(benchmark, journal, seed=seed, concurrency=concurrency, watch=watch)
        lab = Lab(setup.harness, benchmark, answering, journal, runner, limit, seed, adviser, say)
        say(
            f"recipe {recipe}; exam: 2 x {n} episodes of at most {lab.agent().steps(benchmark)} steps; "
            f"journal: {journal.folder}"
        )
        try:
            return Evolution(folder=str(journal.folder), outcome=await _evolve(lab, chosen, Plan(split, n)))
        finally:
            lab.close()

    return _in_folder(setup, plan, out, [answering, *([adviser] if adviser is not None else [])], go)


def compare_runs(a: str, b: str) -> Comparison:
    """Paired comparison of two finished runs on the tasks and episodes that both played; `b` is the candidate."""
    sides = []
    for folder in (a, b):
        with Journal(folder, readonly=True) as journal:
            sides.append(final_scores(journal))
    return compare(*sides)


def final_scores(journal: Journal) -> dict[tuple[str, int], float | None]:
    """Scores of a run: all of a benchmark run, or the evolved arm's exam of an evolution."""
    chosen: dict[str, Trajectory] = {}
    for trajectory in journal.trajectories():
        if trajectory.id.startswith(("run/", "exam/evolved/")):
            chosen[trajectory.id] = trajectory  # of a gap that was filled later, the last one counts
    if not chosen:
        raise JournalError(f"{journal.folder}: no finished episodes to compare. Cure: let the run finish first")
    return dict(scores(list(chosen.values())))


def _loaded(harness: Harness | str) -> Harness:
    return harness if isinstance(harness, Harness) else Harness.load(harness)


def _equipped(
    setup: Setup, benchmark: Benchmark, model: Model, say: Callable[[str], None]
) -> tuple[Agent, "Store | None"]:
    if setup.memory is None:
        return Agent.equip(setup.harness, model), None
    store = setup.store()
    recall = recall_from(store, setup.harness.settings.memory, benchmark.name)
    if recall is None:
        say('the memory is not used: the harness says [memory] policy = "none"')
    elif benchmark.name not in store.scopes():
        say(f"the memory holds nothing for {benchmark.name}, only for: {', '.join(store.scopes()) or 'nothing'}")
    return Agent.equip(setup.harness, model, recall), store


async def _within(limit: Budget, runner: Runner, jobs: list[Job], steps: int) -> list[Trajectory]:
    """Play jobs in order, a few at a time, as long as the budget certainly pays the next few."""
    results: list[Trajectory] = []
    while len(results) < len(jobs) and not limit.exhausted():
        fits = limit.episodes(steps)
        some = jobs[len(results) : len(results) + (_CHUNK if fits is None else min(_CHUNK, fits))]
        if limit == Budget():
            some = jobs
        if not some:
            break
        for trajectory in await runner.run(some, settle=False):
            limit.charge(trajectory)
            results.append(trajectory)
    return results


def _evaluated(journal: Journal, benchmark: Benchmark, results: list[Trajectory]) -> Evaluation:
    total = Budget()
    for trajectory in results:
        total.charge(trajectory)
    return Evaluation(
        folder=str(journal.folder),
        mean=mean_interval(scores(results), reward_range=benchmark.reward_range),
        solved=sum(t.score is not None and t.score >= benchmark.success_at for t in results),
        cost=total.cost(),
        cached=sum(t.cached for t in results),
    )


def _in_folder(
    setup: Setup, plan: dict[str, Any], out: str | None, models: Sequence[Model], go: Callable[[Journal], Awaitable[T]]
) -> T:
    """Open the run's journal, write down what the run is, and close it and the models whatever happens."""
    name = f"{plan['command']}-{setup.harness.settings.name}-{_digest(plan)}"

    async def main() -> T:
        try:
            with Journal(Path(out) if out else Path("runs") / name) as journal:
                _claim(journal, plan, setup)
                return await go(journal)
        finally:
            for model in models:
                await model.close()

    return _finished(main())


def _finished(work: Coroutine[Any, Any, T]) -> T:
    """Run to the end, also where an event loop runs already (a notebook): then in a thread of its own."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return asyncio.run(work)
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(asyncio.run, work).result()


def _claim(journal: Journal, plan: dict[str, Any], setup: Setup) -> None:
    """Write down what the run is, or check that the folder's run is this one."""
    known = journal.last("plan")
    if known is None:
        facts = {"benchmark": _facts(setup.benchmark()), "instar": _harness.__version__}
        journal.append("plan", plan | facts | {"files": dict(setup.harness.files)})
        return
    different = [key for key, value in json.loads(json.dumps(plan)).items() if known.body.get(key) != value]
    if different:
        raise JournalError(
            f"{journal.folder}: holds another run (it differs in {', '.join(different)}). "
            "Cure: choose another folder with --out"
        )


def _settings_of(chosen: Recipe) -> dict[str, Any]:
    """All settings of a recipe, defaults included: a default that changes is another run."""
    fields: dict[str, Any] = chosen.__dataclass_fields__  # type: ignore[attr-defined]
    return {name: getattr(chosen, name) for name, field in fields.items() if field.init}


def _facts(benchmark: Benchmark) -> dict[str, Any]:
    """What a reader of the journal must know of the benchmark: its code may be gone, or not to be trusted."""
    return {
        "name": benchmark.name,
        "description": benchmark.description,
        "evaluator": benchmark.evaluator.name,
        "licence": benchmark.licence,
        "reward_range": list(benchmark.reward_range),
        "success_at": benchmark.success_at,
    }


def _digest(plain: Any) -> str:
    return hashlib.sha256(json.dumps(plain, sort_keys=True, default=str).encode()).hexdigest()[:8]
