"""`reflect`: a proposer edits the prompts from what happened, and a sequential paired test on fresh tasks decides.

Source: reflective prompt evolution as in GEPA (propose from a minibatch, keep what is better); the gate is ours.
Deviations: an edit is judged on validation tasks it was not made from, in pairs that share task and seed, by a test
that may stop at any time and whose error holds over all edits of the run (`evolve/gate.py`); one line of descent, no
Pareto pool yet. What is returned is the best by validation, the unedited harness included.
"""

import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal

from envs import Task
from evolve.alpha import AlphaLedger
from evolve.gate import SequentialPaired, Verdict
from evolve.lab import Lab, scores
from evolve.ledger import Ledger
from evolve.lineage import Instar, Lineage
from evolve.patch import Patch, PatchError, apply
from evolve.propose import Composer, NoEvidence, ProposalError, Proposer, Rewriter
from evolve.source import Stream
from evolve.view import View
from harness.agent import Agent, Player, PolicyPlayer
from harness.folder import Harness
from harness.runner import ProposerStopped
from harness.settings import HarnessError
from harness.trajectory import Trajectory


@dataclass
class Reflect:
    """Prompt evolution. `proposer`: "rewrite" asks a model, "compose" needs none, "auto" asks one if one was given."""

    rounds: int = 6
    batch: int = 8
    explore: int = 200  # random episodes for the composer; the rewriter needs none
    proposer: Literal["auto", "rewrite", "compose"] = "auto"
    view: View = "failures"
    max_pairs: int = 40
    look: int = 8  # pairs between two looks of the gate
    alpha: float = 0.05
    growth: int = 6000  # characters an edit may add
    validate: int = 24
    patience: int = 3  # unusable proposals in a row that end the run
    name: str = field(default="reflect", init=False)
    lineage: Lineage = field(default_factory=Lineage, init=False)
    ledger: Ledger = field(default_factory=Ledger, init=False)
    _best: Harness | None = field(default=None, init=False)
    _files: dict[str, Harness] = field(default_factory=dict, init=False)
    _seen: list[Trajectory] = field(default_factory=list, init=False)
    _unusable: int = field(default=0, init=False)
    _cursor: int = field(default=0, init=False)
    _alphas: AlphaLedger = field(default_factory=AlphaLedger, init=False)

    @property
    def source(self) -> Stream:
        """Training tasks after those that were explored."""
        return Stream(rounds=self.rounds, batch=self.batch, offset=self.explore)

    def _maker(self, lab: Lab) -> Proposer:
        chosen = self.proposer if self.proposer != "auto" else "rewrite" if lab.proposer is not None else "compose"
        return Rewriter(self.view) if chosen == "rewrite" else Composer()

    async def begin(self, lab: Lab) -> None:
        """Plant the root; explore where the proposer composes from successes."""
        if self.proposer == "rewrite" and lab.proposer is None:
            raise ValueError(
                "recipe reflect with proposer = rewrite asks a model, and none was given. Cure: --proposer MODEL"
            )
        self._fresh(lab)  # too few validation tasks are an error now, not after an hour
        self._alphas = AlphaLedger(self.alpha)
        self._best = lab.harness
        self._files[lab.harness.version] = lab.harness
        self.lineage.add(Instar(id=lab.harness.version))
        if self._maker(lab).name == "compose" and self.explore and lab.harness.settings.control.loop == "choice":
            pool = lab.benchmark.sample("train")
            batch = [(pool[at % len(pool)], at // len(pool)) for at in range(self.explore)]
            lab.say(f"exploring: {self.explore} episodes of random moves, no model calls")
            wanderer = PolicyPlayer("wander", lab.harness)
            self._seen += await lab.learn_from(wanderer, batch, phase="explore", arm="wander")

    def player(self, lab: Lab) -> Player:
        """The best harness so far, without memory."""
        return lab.agent(self._best)

    async def learn(
        self, lab: Lab, number: int, trajectories: Sequence[Trajectory], control: Sequence[Trajectory]
    ) -> None:
        """Propose one edit from what was seen, and let the gate decide."""
        parent, maker = self._best or lab.harness, self._maker(lab)
        self._seen += trajectories
        seen = self._seen if maker.name == "compose" else trajectories
        if _paid(lab, lab.agent().calls(lab.benchmark)) < 2:
            lab.say(f"proposal {number}: not made, the budget pays no trial of it")
            return
        try:
            patch = await maker.propose(lab, number, parent, seen, self.ledger)
            child = self._child(parent, patch, number)
        except (ProposalError, PatchError, HarnessError) as error:
            self._unusable += not isinstance(error, NoEvidence)
            lab.record("proposal", {"step": number, "parent": parent.version, "unusable": str(error)}, key=str(number))
            lab.say(f"proposal {number}: unusable: {error}")
            if self._unusable >= self.patience:
                raise ProposerStopped(
                    f"the proposer gave {self._unusable} unusable proposals in a row; the last: {error}"
                ) from error
            return
        self._unusable = 0
        body = {"step": number, "parent": parent.version, "child": child.version, "proposer": maker.name}
        lab.record("proposal", body | {"patch": patch.model_dump(mode="json")}, key=str(number))
        verdict = await self._judge(lab, number, parent, child)
        lab.record("verdict", verdict.model_dump(mode="json"), key=str(number))
        lab.say(f"proposal {number}: {verdict.decision}: {verdict.reason}")
        self.ledger.add(
            patch,
            parent=parent.version,
            step=number,
            decision=verdict.decision,
            reason=verdict.reason,
            gain=verdict.mean_difference,
        )
        if child.version not in self.lineage:
            self.lineage.add(
                Instar(id=child.version, parents=(parent.version,), step=number, patch=patch, verdict=verdict)
            )
        self._files[child.version] = child
        if verdict.decision == "accept":
            self._best = child
        self.lineage.save(lab.folder / "lineage.json")

    async def choose(self, lab: Lab) -> Agent:
        """The accepted version (or the root) with the best mean on common validation tasks, the oldest of equals."""
        kept = [node for node in self.lineage.nodes() if node.accepted]
        calls = lab.agent().calls(lab.benchmark)
        if len(kept) > 1 and _paid(lab, calls) < len(kept) * self.validate:
            lab.say("the budget does not pay a comparison of the accepted versions: the last one is returned")
        elif len(kept) > 1:
            tasks = [(task, 0) for task in lab.benchmark.tasks("valid")[-self.validate :]]
            for node in kept:
                agent = lab.agent(self._files[node.id])
                self.lineage.record(
                    node.id, "validation", lab.mean(await lab.rollouts(agent, tasks, phase="validate", arm=node.id))
                )
            self._best = self._files[self.lineage.best().id]
        self.lineage.save(lab.folder / "lineage.json")
        return lab.agent(self._best)

    def _child(self, parent: Harness, patch: Patch, number: int) -> Harness:
        if known := self.ledger.seen(patch, parent.version):
            raise ProposalError(f"this very edit was tried before ({known.decision}: {known.reason})")
        try:
            files = apply(parent.files, patch, max_growth=self.growth)
            child = Harness.from_files(files, where=f"proposal on {parent.version}")
        except (PatchError, HarnessError) as error:
            self.ledger.add(patch, parent=parent.version, step=number, decision="failed", reason=str(error))
            raise
        if child.version in self._files:
            raise ProposalError(f"the edit leads back to a version that was tried before ({child.version})")
        return child

    def _fresh(self, lab: Lab) -> list[Task]:
        """Validation tasks for the gate: all but the last ones, on which the accepted versions are compared."""
        fresh = lab.benchmark.tasks("valid")[: -self.validate or None]
        if not fresh:
            raise ValueError(
                f"benchmark {lab.benchmark.name}: the valid split has no more than {self.validate} tasks. "
                "Cure: a smaller 'validate'"
            )
        return fresh

    async def _judge(self, lab: Lab, number: int, parent: Harness, child: Harness) -> Verdict:
        """Look after every few fresh validation pairs, until the gate has its verdict or the budget ends."""
        low, high = lab.benchmark.reward_range
        fresh, calls = self._fresh(lab), lab.agent().calls(lab.benchmark)
        gate = SequentialPaired(max_pairs=min(self.max_pairs, len(fresh)), bound=high - low).start(self._alphas.next())
        at, verdict = 0, gate.look([])
        while not verdict.final:
            size = min(self.look, gate.max_pairs - at, _paid(lab, calls) // 2)
            if size < 1:
                verdict = verdict.model_copy(
                    update={"final": True, "reason": f"the budget ended first; {verdict.reason}"}
                )
                break
            pairs = [
                (fresh[(self._cursor + at + i) % len(fresh)], (self._cursor + at + i) // len(fresh))
                for i in range(size)
            ]
            at += size
            phase = f"gate-{number}-{at}"
            new = scores(await lab.rollouts(lab.agent(child), pairs, phase=phase, arm="candidate"))
            old = scores(await lab.rollouts(lab.agent(parent), pairs, phase=phase, arm="incumbent"))
            gaps = [(new[task.id, n], old[task.id, n]) for task, n in pairs]
            verdict = gate.look([None if a is None or b is None else a - b for a, b in gaps])
        self._cursor += at
        self._alphas.settle(verdict.decision == "accept")
        return verdict


def _paid(lab: Lab, calls: int) -> int:
    """How many more episodes of at most `calls` calls the budget certainly pays; very many without a limit on calls."""
    fits = lab.budget.episodes(calls)
    return 0 if lab.budget.exhausted() else sys.maxsize if fits is None else fits
