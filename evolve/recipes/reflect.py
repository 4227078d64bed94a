"""`reflect`: a proposer edits the prompts from what happened, and a sequential paired test on fresh tasks decides.

Source: reflective prompt evolution as in GEPA (propose from a minibatch, keep what is better); the gate is ours.
Deviations: an edit is judged on validation tasks, which no proposer sees, in pairs that share task and seed; one line
of descent, no Pareto pool yet. What is returned is the last version that was accepted, or the unedited harness.

What holds: each task of the valid split judges at most one edit of a run, in an order that was drawn before the first
edit, and the split's tasks being independent draws, any useless edit is accepted in a run with a chance of at most
`alpha` (`evolve/gate.py`, `evolve/alpha.py`), however often one looks. When no such task is left, the run ends: a task
played twice is no second draw, and at temperature 0 hardly more than a copy.
"""

from collections.abc import Sequence
from dataclasses import field
from typing import Literal

from pydantic import ConfigDict, Field
from pydantic.dataclasses import dataclass

from envs import Task
from evolve.alpha import AlphaLedger
from evolve.budget import BudgetExhausted
from evolve.gate import SequentialPaired, Verdict
from evolve.lab import Lab, paired_differences
from evolve.ledger import Ledger
from evolve.lineage import Instar, Lineage
from evolve.patch import Patch, PatchError, apply
from evolve.propose import Composer, NoEvidence, ProposalError, Proposer, Rewriter
from evolve.recipes.explore import explore
from evolve.source import Stream
from evolve.view import View
from harness.agent import Agent, Player
from harness.folder import Harness
from harness.runner import RecipeStopped
from harness.settings import HarnessError
from harness.trajectory import Trajectory

_NONE_LEFT = "no fresh validation task is left"


@dataclass(config=ConfigDict(extra="forbid", allow_inf_nan=False))
class Reflect:
    """Prompt evolution. `proposer`: "rewrite" asks a model, "compose" needs none, "auto" asks one if one was given."""

    rounds: int = Field(default=6, ge=1)
    batch: int = Field(default=8, ge=1)
    explore: int = Field(default=200, ge=0)  # random episodes for the composer; the rewriter needs none
    proposer: Literal["auto", "rewrite", "compose"] = "auto"
    view: View = "failures"
    max_pairs: int = Field(default=40, ge=1)
    look: int = Field(default=8, ge=1)  # pairs between two looks of the gate
    alpha: float = Field(default=0.05, gt=0, lt=1)
    growth: int = Field(default=6000, ge=0)  # characters an edit may add
    patience: int = Field(default=3, ge=1)  # unusable proposals in a row that end the run
    name: str = field(default="reflect", init=False)

    def __post_init__(self) -> None:
        self._lineage, self._ledger = Lineage(), Ledger()
        self._alphas = AlphaLedger(self.alpha, planned=self.rounds)
        self._best: Harness | None = None
        self._files: dict[str, Harness] = {}
        self._seen: list[Trajectory] = []
        self._fresh: list[Task] = []  # validation tasks that have judged nothing yet
        self._unusable = 0

    @property
    def splits(self) -> tuple[str, ...]:
        """What it learns from or decides on."""
        return ("train", "valid")

    @property
    def source(self) -> Stream:
        """The training tasks of the rounds."""
        return Stream(rounds=self.rounds, batch=self.batch)

    def _maker(self, lab: Lab) -> Proposer:
        chosen = self.proposer if self.proposer != "auto" else "rewrite" if lab.proposer is not None else "compose"
        return Rewriter(self.view) if chosen == "rewrite" else Composer()

    async def begin(self, lab: Lab) -> None:
        """Plant the root; explore where the proposer composes from successes."""
        if self.proposer == "rewrite" and lab.proposer is None:
            raise ValueError(
                "recipe reflect with proposer = rewrite asks a model, and none was given. Cure: --proposer MODEL"
            )
        self.__post_init__()  # one recipe may run twice
        valid = lab.benchmark.tasks("valid")
        if not valid:  # an error now, not after an hour
            raise ValueError(
                f"benchmark {lab.benchmark.name}: the valid split has no tasks, so nothing can judge an edit. "
                "Cure: give it some, the more the better"
            )
        self._fresh = lab.stream("gate").sample(valid, len(valid))
        self._best = lab.harness
        self._files[lab.harness.version] = lab.harness
        self._lineage.add(Instar(id=lab.harness.version))
        if self._maker(lab).name == "compose":
            self._seen += await explore(lab, self.explore, self.source)

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
        if lab.budget.affords(2, lab.agent().calls(lab.benchmark)) < 2:
            lab.say(f"proposal {number}: not made, the budget pays no trial of it")
            return
        try:
            patch = await maker.propose(lab, number, parent, seen, self._ledger)
            child = self._child(parent, patch, number)
        except BudgetExhausted as exhausted:
            raise RecipeStopped(str(exhausted)) from exhausted
        except (ProposalError, PatchError, HarnessError) as error:
            self._unusable += not isinstance(error, NoEvidence)
            lab.record("proposal", {"step": number, "parent": parent.version, "unusable": str(error)}, key=str(number))
            lab.say(f"proposal {number}: unusable: {error}")
            if self._unusable >= self.patience:
                raise RecipeStopped(
                    f"the proposer gave {self._unusable} unusable proposals in a row; the last: {error}"
                ) from error
            return
        self._unusable = 0
        body = {"step": number, "parent": parent.version, "child": child.version, "proposer": maker.name}
        lab.record("proposal", body | {"patch": patch.model_dump(mode="json")}, key=str(number))
        verdict = await self._judge(lab, number, parent, child)
        lab.record("verdict", verdict.model_dump(mode="json"), key=str(number))
        lab.say(f"proposal {number}: {verdict.decision}: {verdict.reason}")
        self._ledger.add(
            patch,
            parent=parent.version,
            step=number,
            decision=verdict.decision,
            reason=verdict.reason,
            gain=verdict.mean_difference,
        )
        if child.version not in self._lineage:
            self._lineage.add(
                Instar(id=child.version, parents=(parent.version,), step=number, patch=patch, verdict=verdict)
            )
        self._files[child.version] = child
        if verdict.decision == "accept":
            self._best = child
        self._lineage.save(lab.folder / "lineage.json")
        if not self._fresh and number + 1 < self.rounds:
            raise RecipeStopped(f"{_NONE_LEFT}, so no further edit can be judged")

    async def choose(self, lab: Lab) -> Agent:
        """The last accepted version, or the root: each accepted one beat the one before it on fresh tasks."""
        self._lineage.save(lab.folder / "lineage.json")
        return lab.agent(self._best)

    def _child(self, parent: Harness, patch: Patch, number: int) -> Harness:
        if known := self._ledger.seen(patch, parent.version):
            raise ProposalError(f"this very edit was tried before ({known.decision}: {known.reason})")
        try:
            files = apply(parent.files, patch, max_growth=self.growth)
            child = Harness.from_files(files, where=f"proposal on {parent.version}")
        except (PatchError, HarnessError) as error:
            self._ledger.add(patch, parent=parent.version, step=number, decision="failed", reason=str(error))
            raise
        if child.version in self._files:
            raise ProposalError(f"the edit leads back to a version that was tried before ({child.version})")
        return child

    async def _judge(self, lab: Lab, number: int, parent: Harness, child: Harness) -> Verdict:
        """Look after every few fresh validation pairs, until the gate has its verdict, or tasks or budget end."""
        low, high = lab.benchmark.reward_range
        calls = lab.agent().calls(lab.benchmark)
        gate = SequentialPaired(max_pairs=self.max_pairs, bound=high - low).start(self._alphas.next())
        at, verdict = 0, gate.look([])
        while not verdict.final:
            most = min(self.look, self.max_pairs - at, len(self._fresh))
            size = lab.budget.affords(2 * most, calls) // 2
            if size < 1:
                why = "the budget ended first" if self._fresh else _NONE_LEFT
                verdict = verdict.model_copy(update={"final": True, "reason": f"{why}; {verdict.reason}"})
                break
            pairs, self._fresh = [(task, 0) for task in self._fresh[:size]], self._fresh[size:]
            at += size
            phase = f"gate-{number}-{at}"
            new = await lab.judge_on(lab.agent(child), pairs, phase=phase, arm="candidate")
            old = await lab.judge_on(lab.agent(parent), pairs, phase=phase, arm="incumbent")
            verdict = gate.look(paired_differences(new, old))
        self._alphas.settle(verdict.decision == "accept")
        return verdict
