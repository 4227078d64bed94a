"""The lab is what a recipe works with: rollouts, questions to the proposer, the memory, and the record of it all.

An evolution is a deterministic function of its journal. After a kill the same command runs the recipe from the start;
every episode, answer and decision that the journal knows is served from it, so nothing is paid or counted twice, and
the memory and the lineage, which are derived, come out the same.
"""

import hashlib
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from envs import Benchmark, Task
from evolve.budget import Budget, BudgetExhausted
from evolve.stats import Mean, Scores, mean_interval
from harness.agent import Agent, Player
from harness.folder import Harness
from harness.journal import Journal, JournalError, timeless
from harness.model import Message, Model, ModelFault, Request, Usage
from harness.runner import Job, Runner
from harness.seeds import stream
from harness.trajectory import Trajectory

if TYPE_CHECKING:
    import random

    from memory import Item, Store

#: A task and the number of the episode to play on it.
Batch = Sequence[tuple[Task, int]]


@dataclass
class Lab:
    """One evolution at work. `proposer` answers for the recipe, `model` for the agents; they may be the same."""

    harness: Harness
    benchmark: Benchmark
    model: Model
    journal: Journal
    runner: Runner
    budget: Budget
    seed: int = 0
    proposer: Model | None = None
    say: Callable[[str], None] = lambda _: None
    control_spent: Budget = field(default_factory=Budget)
    taught: set[str] = field(default_factory=set)
    judged: set[str] = field(default_factory=set)
    fresh: set[str] = field(default_factory=set)  # ids of the last batch's tasks that had taught nothing before it
    _store: "Store | None" = None

    @property
    def folder(self) -> Path:
        """The run folder."""
        return self.journal.folder

    @property
    def scope(self) -> str:
        """The memory scope of this benchmark."""
        return self.benchmark.name

    def agent(self, harness: Harness | None = None, *, remembers: bool = False) -> Agent:
        """An agent on `harness`; one that `remembers` recalls from this run's memory."""
        from harness.recall import recall_from

        chosen = harness or self.harness
        recall = recall_from(self.store, chosen.settings.memory, self.scope) if remembers else None
        return Agent.equip(chosen, self.model, recall=recall)

    async def rollouts(
        self, player: Player, batch: Batch, *, phase: str, arm: str, budget: Budget | None = None, settle: bool = True
    ) -> list[Trajectory]:
        """Play `batch`; the cost goes to the run's budget unless another one is named.

        What is decided on is settled: its gaps stay gaps. Without `settle` the same call may fill them later.
        """
        jobs = [Job(player, task, number, arm, phase) for task, number in batch]
        results = await self.runner.run(jobs, settle=settle)
        for trajectory in results:
            (self.budget if budget is None else budget).charge(trajectory)
        return results

    async def learn_from(self, player: Player, batch: Batch, *, phase: str, arm: str) -> list[Trajectory]:
        """Rollouts whose trajectories may teach: their tasks are remembered for the overlap check."""
        prints = {task.id: fingerprint(task) for task, _ in batch}
        self.fresh = {id for id, known in prints.items() if known not in self.taught}
        self.taught |= set(prints.values())
        return await self.rollouts(player, batch, phase=phase, arm=arm)

    async def judge_on(self, player: Player, batch: Batch, *, phase: str, arm: str) -> list[Trajectory]:
        """Rollouts that a decision rests on: their tasks, too, may not be examined."""
        self.judged |= {fingerprint(task) for task, _ in batch}
        return await self.rollouts(player, batch, phase=phase, arm=arm)

    async def ask(self, text: str, *, key: str, max_tokens: int = 1500) -> str:
        """The proposer's answer to `text`; `key` names the question, and its answer is in the journal for ever."""
        if unit := self.budget.exhausted():
            raise BudgetExhausted(f"no {unit} are left to ask the proposer")
        known = self.journal.last("ask", key)
        if known is None:
            if self.proposer is None:
                raise ValueError("this recipe asks a proposer, and none was given. Cure: --proposer MODEL")
            request = Request(messages=(Message(role="user", content=text),), temperature=0.7, max_tokens=max_tokens)
            request = request.model_copy(update={"seed": self.stream(key, "ask").getrandbits(31)})
            completion = await _patiently(self.proposer, request)
            body = {"model": self.proposer.name, "prompt": text, "output": completion.text}
            self.record("ask", body | {"usage": completion.usage.model_dump()}, key)
            known = self.journal.last("ask", key)
            assert known is not None
        elif known.body["prompt"] != text:
            raise JournalError(
                f"{self.folder}: the answer to '{key}' in the journal is to another question, so what came before went "
                "differently this time. Cure: choose another folder with --out"
            )
        used = Usage.model_validate(known.body["usage"])
        tokens = used.prompt_tokens + used.output_tokens
        self.budget.add(calls=1, tokens=tokens, dollars=used.dollars, seconds=used.seconds)
        return str(known.body["output"])

    def record(self, kind: str, body: dict[str, Any], key: str = "") -> None:
        """Write an event down, once: a resumed run comes by again, and must come by with the same.

        After a person made the memory forget something the rest may differ, and what was written first stands.
        """
        known = self.journal.last(kind, key)
        if known is None:
            self.journal.append(kind, body, key)
        elif timeless(known.body) != timeless(json.loads(json.dumps(body))) and not self.forgotten():
            raise JournalError(
                f"{self.folder}: '{kind} {key}' went differently than the journal says. Either code or libraries have "
                "changed since, or something here is not deterministic. Cure: choose another folder with --out"
            )

    def forgotten(self) -> int:
        """How many items a person made the memory forget."""
        return len(self._store.forgotten()) if self._store is not None else 0

    def stream(self, *names: str | int) -> "random.Random":
        """A random stream of the run, by name."""
        return stream(self.seed, "evolve", *names)

    @property
    def store(self) -> "Store":
        """The run's memory. It is derived: a resumed run rebuilds it from the journal, less what was forgotten."""
        if self._store is None:
            from evolve.rebuild import fresh_store

            self._store = fresh_store(self.journal)
        return self._store

    def remember(self, items: Sequence["Item"], *, key: str) -> int:
        """Put items into the memory and say so in the journal; returns how many were new."""
        new = [item for item, added in zip(items, self.store.put(items), strict=True) if added]
        body = {
            "added": [
                {"id": i.id, "kind": i.kind, "key": i.key, "body": i.body, "from": list(i.provenance)} for i in new
            ]
        }
        self.record("remembered", body, key)
        return len(new)

    def keep(self, harness: Harness) -> None:
        """Put the chosen harness into `best/` of the run folder, whole or not at all."""
        import shutil

        target, part = self.folder / "best", self.folder / "best.part"
        if target.exists():
            return
        shutil.rmtree(part, ignore_errors=True)
        harness.save(part)
        part.rename(target)

    def mean(self, trajectories: Sequence[Trajectory]) -> Mean:
        """Mean score with its interval."""
        return mean_interval(scores(trajectories), reward_range=self.benchmark.reward_range)

    def close(self) -> None:
        """Close the memory; the journal belongs to whoever opened it."""
        if self._store is not None:
            self._store.close()
            self._store = None


def scores(trajectories: Sequence[Trajectory]) -> Scores:
    """Scores by (task, episode), gaps as None."""
    return {(t.task, t.episode): t.score for t in trajectories}


def paired_differences(candidate: Sequence[Trajectory], baseline: Sequence[Trajectory]) -> list[float | None]:
    """Candidate minus baseline by (task, episode), in the candidate's order; None where either has a gap."""
    new, old = scores(candidate), scores(baseline)
    pairs = [(score, old[key]) for key, score in new.items() if key in old]
    return [None if a is None or b is None else a - b for a, b in pairs]


def fingerprint(task: Task) -> str:
    """Hash of what a task is, whatever it is called: equal for two tasks of the same goal and data."""
    return hashlib.sha256(json.dumps([task.goal, task.data], sort_keys=True).encode()).hexdigest()[:16]


async def _patiently(model: Model, request: Request, tries: int = 5) -> Any:
    import asyncio

    for attempt in range(tries):
        try:
            return await model.complete(request)
        except ModelFault as fault:
            if attempt == tries - 1 or not fault.transient:
                raise
            await asyncio.sleep(min(600.0, fault.retry_after or 0.5 * 2**attempt))
    raise AssertionError("unreachable")
