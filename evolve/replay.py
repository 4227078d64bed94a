"""A run again with one thing changed: what it did not change is served from its record, and costs nothing.

The tasks, seeds and numbers of the episodes are those of the source run, so that the two are compared pair by pair. An
equal request to the same model gets the recorded answer. With `from_step` every episode is first brought to that turn
by the recorded answers, whatever is asked there, and goes its own way from then on. That assumes that the world does
the same on the same actions; where it did not, the replay says so.
"""

from collections.abc import Callable, Mapping
from typing import Any

from pydantic import BaseModel, ConfigDict

from envs import Benchmark, Task
from evolve.budget import Budget
from evolve.lab import fingerprint
from evolve.pairing import compare_runs
from evolve.session import Watch, in_folder, silent
from evolve.setup import Setup, digest
from evolve.stats import MAX_MISSING, Comparison
from evolve.tally import Evaluation, Tally
from harness.finished import Finished
from harness.folder import Harness
from harness.journal import Journal, JournalError
from harness.known import TAPED
from harness.model import Model
from harness.record import Tape
from harness.runner import Job, Runner
from harness.trajectory import Trajectory


class Replay(BaseModel):
    """What a replay found. `same`: episodes that went as they had; `first`: at which turn the others first differed.

    `astray`: episodes that left the record before `from_step`, so that they do not show what the change does.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    folder: str
    source: str
    from_step: int
    evaluation: Evaluation
    comparison: Comparison
    served: int  # calls from the record
    asked: int  # calls that had to be paid
    same: int
    first: dict[int, int]
    astray: int


def replay(
    source: str, *, harness: Harness | str | None = None, model: str | Model | None = None,
    options: Mapping[str, Any] | None = None, env: str | Benchmark | None = None, from_step: int = 0,
    tasks: list[str] | None = None, concurrency: int = 2, calls: int | None = None, worlds: int | None = None,
    isolate: bool | float = False, budget: str | None = None, out: str | None = None, watch: Watch | None = None,
    say: Callable[[str], None] = silent,
) -> Replay:  # fmt: skip
    """Play the episodes of the benchmark run in folder `source` again, with `harness`, `model` or `env` changed.

    `tasks`: ids of those to play (default: all). Raises JournalError for a run that cannot be replayed, else as `run`.
    """
    if from_step < 0:
        raise ValueError(f"from_step {from_step}: count turns from 0")
    with Journal(source, readonly=True) as journal:
        plan = _plan(journal)
        played = {(row.task, row.episode) for row in journal.finished("run/")}
    if harness is None:
        harness = Harness.from_files(plan["files"])
    changed = model is not None
    episodes = int(plan.get("episodes", 1))
    setup = Setup(
        harness if isinstance(harness, Harness) else Harness.load(harness),
        env if env is not None else plan["env"],
        model if model is not None else plan["model"],
        options if changed or options is not None else _options(plan),
        plan["seed"], concurrency, plan.get("memory"), isolate,
    )  # fmt: skip
    limit = Budget.parse(budget or "")
    setup.check_price(limit.dollars)
    benchmark = setup.benchmark()
    chosen = _tasks(benchmark, plan, tasks)
    if setup.plan("run", benchmark, ())["memory_digest"] != plan.get("memory_digest"):
        raise JournalError(
            f"the memory {plan['memory']} has changed since the run recalled from it. Cure: bring it back, or run anew"
        )
    answering = setup.connect()
    plan_ = setup.plan(
        "run", benchmark, chosen, split=plan["split"], n=len(chosen), episodes=episodes, budget=budget,
        replays={"source": digest({k: v for k, v in plan.items() if k != "memory"}), "from_step": from_step},
    )  # fmt: skip

    async def go(journal: Journal, _: object) -> Replay:
        agent, store = setup.agent(benchmark, answering, say)
        with Journal(source, readonly=True) as old:
            runner = Runner(
                benchmark, journal, seed=setup.seed, concurrency=concurrency, calls=calls, worlds=worlds, watch=watch,
                tape=lambda key: Tape(old.trajectory(key), from_step),
            )  # fmt: skip
            jobs = [Job(agent, t, n) for n in range(episodes) for t in chosen if (t.id, n) in played]
            say(f"{len(jobs)} episodes of {source} again; journal: {journal.folder}")
            tally = _Differences(benchmark, limit, journal, old, from_step)
            try:
                await tally.play(runner, jobs, agent.calls(benchmark))
            finally:
                if store is not None:
                    store.close()
            evaluation = tally.evaluation(journal, episodes, len(jobs), None, MAX_MISSING)
            return tally.found(source, evaluation)

    return in_folder(setup, plan_, out, [answering] if setup.owns_model else [], go, benchmark)


class _Differences(Tally):
    """A tally that also compares each episode with the one it replays."""

    def __init__(self, benchmark: Benchmark, limit: Budget, journal: Journal, old: Journal, from_step: int) -> None:
        super().__init__(benchmark, limit)
        self._journal, self._old, self._from = journal, old, from_step
        self.asked = self.served = self.same = self.astray = 0
        self.first: dict[int, int] = {}

    def add(self, index: int, found: Trajectory | Finished) -> None:
        super().add(index, found)
        self.asked += found.calls - found.cached
        new = found if isinstance(found, Trajectory) else self._journal.trajectory(found.id)
        old = self._old.trajectory(found.id)
        known = {call.digest for call in old.all_calls} if old is not None else set()
        calls = new.all_calls if new is not None else ()
        self.served += sum(call.cached and (call.digest in known or call.digest.endswith(TAPED)) for call in calls)
        turn = _differs(old, new)
        if turn is None:
            self.same += 1
        else:
            self.first[turn] = self.first.get(turn, 0) + 1
            self.astray += turn < self._from

    def charge(self, found: Trajectory | Finished) -> None:
        """Only what had to be asked: the record is paid already."""
        row = found if isinstance(found, Finished) else Finished.of(found)
        self.limit.add(
            calls=row.calls - row.cached, tokens=row.paid_tokens, dollars=row.paid_dollars, seconds=row.seconds
        )

    def found(self, source: str, evaluation: Evaluation) -> Replay:
        """The result."""
        return Replay(
            folder=evaluation.folder, source=source, from_step=self._from, evaluation=evaluation,
            comparison=compare_runs(source, evaluation.folder), served=self.served, asked=self.asked, same=self.same,
            first=dict(sorted(self.first.items())), astray=self.astray,
        )  # fmt: skip


def _differs(old: Trajectory | None, new: Trajectory | None) -> int | None:
    """The first turn in which another action was taken, or the same one had another result."""
    a, b = ([_seen(turn) for turn in t.turns] if t is not None else [] for t in (old, new))
    for number, (one, other) in enumerate(zip(a, b, strict=False)):
        if one != other:
            return number
    if len(a) != len(b):
        return min(len(a), len(b))
    return None if old is not None and new is not None and old.score == new.score else len(a)


def _seen(turn: Any) -> tuple[Any, ...]:
    return turn.observation, turn.action, turn.reward, turn.invalid


def _plan(journal: Journal) -> dict[str, Any]:
    planned = journal.last("plan")
    if planned is None:
        raise JournalError(f"{journal.folder}: the run never began (its journal has no plan). Cure: start it again")
    if planned.body["command"] != "run":
        raise JournalError(
            f"{journal.folder}: is no benchmark run, and only those can be replayed. "
            "Cure: instar run the harness that it chose (best/), and replay that"
        )
    return planned.body


def _options(plan: Mapping[str, Any]) -> dict[str, Any]:
    return {**plan["options"], **({"api_base": plan["address"]} if plan.get("address") else {})}


def _tasks(benchmark: Benchmark, plan: Mapping[str, Any], wanted: list[str] | None) -> list[Task]:
    """The source's tasks in its order, checked to be the same ones."""
    known: dict[str, str] = plan["tasks"]
    if missing := [task for task in wanted or () if task not in known]:
        raise JournalError(f"the run has no task {missing[0]}. Cure: choose among {', '.join(list(known)[:5])}, ...")
    found = {task.id: task for task in benchmark.tasks(plan["split"]) if task.id in known}
    for task in wanted or known:
        if task not in found or fingerprint(found[task]) != known[task]:
            raise JournalError(
                f"task {task} is not what it was when the run was played. Cure: bring that version of "
                f"{benchmark.name} back, or run anew"
            )
    return [found[task] for task in (known if wanted is None else wanted)]
