"""From plain arguments to a finished run: what the command line and ten lines of Python both call.

A run's folder is named after everything that shapes its result, so the same call finds its own journal again and goes
on where it was cut off; a call that differs in anything gets a folder of its own.
"""

import asyncio
import json
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AsyncExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from pydantic import BaseModel, ConfigDict

from envs import Benchmark
from evolve.budget import Budget
from evolve.evolver import Outcome
from evolve.evolver import evolve as _evolve
from evolve.lab import Lab
from evolve.pairing import compare_runs as compare_runs
from evolve.recipes import Recipe, settings_of
from evolve.recipes import recipe as _recipe
from evolve.setup import Setup, digest
from evolve.stats import MAX_MISSING
from evolve.tally import Evaluation as Evaluation
from evolve.tally import Tally
from harness.folder import Harness
from harness.journal import FILE as JOURNAL
from harness.journal import Journal, JournalError
from harness.model import Model
from harness.models.connect import connect
from harness.runner import Job, Progress, Runner
from harness.trajectory import Trajectory

if TYPE_CHECKING:
    from harness.cluster import RayStage

#: Tasks of a run, and of an exam, when nobody says how many: these, or all if the split has fewer.
_RUN, _EXAM = 40, 50
Watch = Callable[[Progress], None]
T = TypeVar("T")


def silent(_: str) -> None:
    """Says nothing."""


class Evolution(BaseModel):
    """What an evolution found; `folder` holds its journal, its memory, and the chosen harness in `best/`."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    folder: str
    outcome: Outcome


def run(
    harness: Harness | str, env: str | Benchmark, *, split: str = "valid", n: int | None = None, episodes: int = 1,
    model: str | Model | None = None, options: Mapping[str, Any] | None = None, memory: str | None = None,
    seed: int = 0, concurrency: int = 2, calls: int | None = None, worlds: int | None = None, fill: bool = True,
    isolate: bool | float = False, on: str | None = None, workers: int | None = None, max_missing: float = MAX_MISSING,
    budget: str | None = None, out: str | None = None, watch: Watch | None = None,
    on_episode: Callable[[Trajectory], None] | None = None, say: Callable[[str], None] = silent,
) -> Evaluation:  # fmt: skip
    """Play `n` tasks of `split` (40, or all if it has fewer), `episodes` times each; the mean score with its interval.

    Goes on where an equal call was cut off, and fills the gaps of one that was not (unless `fill` is False). A budget
    may leave tasks unplayed. With more than a share of `max_missing` gaps the mean is undecided. At most `concurrency`
    episodes, `calls` of the model and `worlds` steps of worlds at once; `isolate` puts worlds into worker processes,
    which are stopped when a step takes longer than so many seconds (True: 60). `on` plays in `workers` of Ray (`ray`,
    `ray://HOST:PORT`). `on_episode` is told each episode that ends.
    Raises HarnessError, EnvError, ModelRefused, RunStopped, JournalError, MemoryFault or ValueError.
    """
    setup = Setup(_loaded(harness), env, model, options, seed, concurrency, memory, isolate)
    limit = Budget.parse(budget or "")
    setup.check_price(limit.dollars)
    benchmark = setup.benchmark()
    tasks = benchmark.sample(split, n) if n is not None else benchmark.sample(split)[:_RUN]
    plan = setup.plan("run", benchmark, tasks, split=split, n=len(tasks), episodes=episodes, budget=budget)
    answering = setup.connect()  # a wrong name or a missing file is an error before anything is written

    def stage() -> "RayStage | None":
        return _stage(setup, on, workers, benchmark, answering, calls, worlds, say)

    async def go(journal: Journal, elsewhere: "RayStage | None") -> Evaluation:
        agent, store = setup.agent(benchmark, answering, say)
        taught = _overlap(memory, plan, say)
        runner = Runner(
            benchmark, journal, seed=seed, concurrency=concurrency, calls=calls, worlds=worlds, watch=watch,
            on_episode=on_episode, elsewhere=elsewhere,
        )  # fmt: skip
        jobs = [Job(agent, task, number) for number in range(episodes) for task in tasks]
        steps, where = agent.steps(benchmark), f"journal: {journal.folder}{_known(journal)}"
        say(f"{len(jobs)} episodes of at most {steps} steps; {where}")
        tally = Tally(benchmark, limit)
        try:
            await tally.play(runner, jobs, agent.calls(benchmark), fill=fill)
        finally:
            if store is not None:
                store.close()
        if tally.played < len(jobs):
            say(f"the budget ended after {tally.played} of {len(jobs)} episodes ({limit.describe()})")
        return tally.evaluation(journal, episodes, len(jobs), taught, max_missing)

    return in_folder(setup, plan, out, [answering] if setup.owns_model else [], go, benchmark, stage)


def evolve(
    harness: Harness | str, env: str | Benchmark, *, recipe: str | Recipe = "memrl",
    settings: Mapping[str, Any] | None = None, budget: str | None = None, model: str | Model | None = None,
    options: Mapping[str, Any] | None = None, proposer: str | None = None,
    proposer_options: Mapping[str, Any] | None = None, split: str = "test", n: int | None = None,
    seed: int = 0, concurrency: int = 2, calls: int | None = None, worlds: int | None = None,
    isolate: bool | float = False, on: str | None = None, workers: int | None = None, out: str | None = None,
    watch: Watch | None = None, say: Callable[[str], None] = silent,
) -> Evolution:  # fmt: skip
    """Evolve `harness` by `recipe` beside its control, examine both on `n` tasks of `split` (50, or all).

    The run folder keeps the journal, the memory, the lineage and the chosen harness (`best/`). Goes on where an equal
    call was cut off. `on` as in `run`, for recipes without a memory. Raises HarnessError, EnvError, ModelRefused,
    RunStopped, JournalError or ValueError.
    """
    setup = Setup(_loaded(harness), env, model, options, seed, concurrency, isolate=isolate)
    chosen = _recipe(recipe, **(settings or {}))
    if on is not None and getattr(chosen, "remembers", False):
        raise ValueError(
            f"recipe {chosen.name} has a memory that grows from round to round, and workers elsewhere cannot follow "
            "it. Cure: leave out --on"
        )
    limit = Budget.parse(budget or "")
    setup.check_price(limit.dollars)
    benchmark = setup.benchmark()
    if split in chosen.splits:
        raise ValueError(
            f"the exam cannot be on '{split}': recipe {chosen.name} uses {', '.join(chosen.splits)}. "
            "Cure: another --split"
        )
    benchmark.tasks("train", 1)  # a missing split is an error now, not after an hour
    exam = benchmark.sample(split, n) if n is not None else benchmark.sample(split)[:_EXAM]
    plan = setup.plan(
        "evolve", benchmark, exam, split=split, n=len(exam), recipe=chosen.name, settings=settings_of(chosen),
        budget=budget, proposer=proposer, proposer_options=dict(proposer_options or {}),
    )  # fmt: skip
    answering = setup.connect()  # a wrong name or a missing file is an error before anything is written
    adviser = connect(proposer, proposer_options) if proposer else None
    owned = [*([answering] if setup.owns_model else []), *([adviser] if adviser is not None else [])]

    def stage() -> "RayStage | None":
        return _stage(setup, on, workers, benchmark, answering, calls, worlds, say)

    async def go(journal: Journal, elsewhere: "RayStage | None") -> Evolution:
        runner = Runner(
            benchmark, journal, seed=seed, concurrency=concurrency, calls=calls, worlds=worlds, watch=watch,
            elsewhere=elsewhere,
        )  # fmt: skip
        lab = Lab(setup.harness, benchmark, answering, journal, runner, limit, seed, adviser, say)
        steps = lab.agent().steps(benchmark)
        say(
            f"recipe {chosen.name}; exam: {len(exam)} tasks for each arm, at most {steps} steps each; "
            f"journal: {journal.folder}"
        )
        try:
            return Evolution(folder=str(journal.folder), outcome=await _evolve(lab, chosen, split, exam))
        finally:
            lab.close()

    return in_folder(setup, plan, out, owned, go, benchmark, stage)


def _stage(
    setup: Setup, on: str | None, workers: int | None, benchmark: Benchmark, model: Model, calls: int | None,
    worlds: int | None, say: Callable[[str], None],
) -> "RayStage | None":  # fmt: skip
    """Where rollouts run, None for here."""
    if on is not None:
        return setup.stage(on, workers, benchmark, model, calls=calls, worlds=worlds, say=say)
    if workers is not None:
        raise ValueError("workers are for a run on Ray. Cure: --on ray, or leave --workers out")
    return None


def _known(journal: Journal) -> str:
    """What an earlier call has left."""
    gaps = {row.id: row.status == "gap" for row in journal.finished("run/")}
    cut = len(journal.unfinished())
    if not gaps and not cut:
        return ""
    lost = f", {sum(gaps.values())} of them lost" if any(gaps.values()) else ""
    return f"; going on: {len(gaps)} had ended{lost}, {cut} were cut off"


def _loaded(harness: Harness | str) -> Harness:
    return harness if isinstance(harness, Harness) else Harness.load(harness)


def _overlap(memory: str | None, plan: Mapping[str, Any], say: Callable[[str], None]) -> int | None:
    """How many of the run's tasks taught the memory it recalls from; None when that cannot be known."""
    if memory is None or not (Path(memory) / JOURNAL).is_file():
        return None
    with Journal(memory, readonly=True) as journal:
        known = journal.last("taught")
    if known is None:
        return None
    shared = len(set(plan["tasks"].values()) & {*known.body["taught"], *known.body["judged"]})
    if shared:
        say(
            f"{shared} of {len(plan['tasks'])} tasks are among those that taught this memory: "
            "their scores prove nothing"
        )
    return shared


def in_folder(
    setup: Setup, plan: dict[str, Any], out: str | None, models: Sequence[Model],
    go: Callable[[Journal, "RayStage | None"], Awaitable[T]], benchmark: Benchmark,
    make_stage: Callable[[], "RayStage | None"] | None = None,
) -> T:  # fmt: skip
    """Open the run's journal, write down what the run is, and close it, models and workers whatever happens."""
    free = _free(plan)
    shaping = {key: value for key, value in plan.items() if key not in free}
    name = f"{plan['command']}-{setup.harness.settings.name}-{digest(shaping)[:8]}"

    async def main() -> T:
        async with AsyncExitStack() as closing:
            if setup.isolate:
                closing.callback(benchmark.make_env.close)  # type: ignore[attr-defined]
            for model in models:
                closing.push_async_callback(model.close)
            stage = make_stage() if make_stage is not None else None
            if stage is not None:
                closing.push_async_callback(stage.close)
            with Journal(Path(out) if out else Path("runs") / name) as journal:
                _claim(journal, plan, setup)
                return await go(journal, stage)

    return _finished(main())


def _free(plan: Mapping[str, Any]) -> tuple[str, ...]:
    """What of a plan may differ from call to call: where a memory lies, and how far a benchmark run is to go."""
    return ("memory", "budget") if plan["command"] == "run" else ("memory",)


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
        journal.append("plan", plan | {"files": dict(setup.harness.files)})
        return
    now = json.loads(json.dumps(plan))
    free = _free(plan)
    different = [key for key, value in now.items() if known.body.get(key) != value and key not in free]
    if different:
        raise JournalError(
            f"{journal.folder}: holds another run (it differs in {', '.join(different)}). "
            "Cure: choose another folder with --out"
        )
