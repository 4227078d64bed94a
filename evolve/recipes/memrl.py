"""`memrl`: the weights and prompts stay as they are, and the memory learns which experiences are worth recalling.

Source: MemRL (mechanism and numbers from its public code): two-phase retrieval (similarity, then utility), and
Q <- (1 - a) Q + a r with a = .3 for what was recalled.

Deviations. Step unit, for models too small to use a whole example: each step that led to reward is an item of its own
(situation -> move). What a step is worth is the discounted reward that followed it (.9 a step), both as first utility
(the source: 0) and as r (the source: +1 / -1 by the whole episode's outcome), so that a lucky detour counts less than
the last step before success; only items whose move was taken are credited. Before the first round a policy that picks
moves at random explores (no model, no cost), because a model that never succeeds has nothing to learn from; `explore =
0` turns it off. A memory whose agent did not beat its control over all rounds, each played before it taught anything,
is not kept. Whole episodes (`unit = "episode"`) are as in the source, a task joining the key of one that an earlier
round remembered from a cosine of .9 on; only what the harness can show of them is kept, the middle cut out. A proposer,
if given, reflects on failures.
"""

from collections.abc import Iterable, Sequence
from dataclasses import field
from typing import TYPE_CHECKING

from pydantic import ConfigDict, Field
from pydantic.dataclasses import dataclass

from evolve.budget import BudgetExhausted
from evolve.gate import Strict
from evolve.lab import Lab, paired_differences
from evolve.recipes.explore import explore
from evolve.source import Stream
from evolve.view import transcript
from harness.agent import Agent, Player
from harness.runner import RecipeStopped
from harness.trajectory import Trajectory, Turn
from memory.item import clean

if TYPE_CHECKING:
    from memory import Item


#: Characters of an episode that are worth showing, however much room there is.
MAX_BODY = 3000


@dataclass(config=ConfigDict(extra="forbid", allow_inf_nan=False))
class MemRL:
    """Memory learning. `explore` random episodes, then `rounds` of `batch`; `alpha` and `discount` as above."""

    explore: int = Field(default=400, ge=0)
    rounds: int = Field(default=3, ge=0)
    batch: int = Field(default=12, ge=1)
    alpha: float = Field(default=0.3, gt=0, le=1)
    discount: float = Field(default=0.9, ge=0, le=1)
    name: str = field(default="memrl", init=False)

    def __post_init__(self) -> None:
        self._differences: list[float | None] = []

    @property
    def remembers(self) -> bool:
        """Its agents recall from a memory that grows while it runs."""
        return True

    @property
    def splits(self) -> tuple[str, ...]:
        """What it learns from or decides on."""
        return ("train",)

    @property
    def source(self) -> Stream:
        """The training tasks of the rounds."""
        return Stream(rounds=self.rounds, batch=self.batch)

    async def begin(self, lab: Lab) -> None:
        """Explore with random moves, and remember what happened to succeed."""
        if lab.harness.settings.memory.policy == "none":
            raise ValueError(
                'recipe memrl evolves a memory, but the harness recalls nothing: it says [memory] policy = "none". '
                'Cure: policy = "memrl" in harness.toml'
            )
        self.__post_init__()  # one recipe may run twice
        lab.store  # noqa: B018 - a memory exists from the start, also where nothing is learnt
        if found := await explore(lab, self.explore, self.source):
            self._store(lab, found, "explore")

    def player(self, lab: Lab) -> Player:
        """The unchanged harness, with its memory."""
        return lab.agent(remembers=True)

    async def learn(
        self, lab: Lab, number: int, trajectories: Sequence[Trajectory], control: Sequence[Trajectory]
    ) -> None:
        """Credit what was recalled, then remember this round's successes and, if a proposer can, its failures."""
        from memory import QRule

        fresh = [trajectory for trajectory in trajectories if trajectory.task in lab.fresh]
        self._differences += paired_differences(fresh, control)
        rewards = [pair for trajectory in trajectories for pair in self._rewards(lab, trajectory)]
        lab.store.credit(rewards, QRule(alpha=self.alpha))
        lab.record("credited", {"rewards": rewards}, key=f"round-{number}")
        self._store(lab, trajectories, f"round-{number}")
        if lab.proposer is not None and lab.harness.settings.memory.unit == "episode":
            await self._reflect(lab, number, trajectories)

    async def choose(self, lab: Lab) -> Agent:
        """The unchanged harness, with its memory if the rounds speak for it; without evidence it is not kept."""
        verdict = Strict(pairs=max(1, len(self._differences))).look(self._differences)
        if not self._differences:
            why = "no round was played on a task that had not taught before, so nothing speaks for it"
            verdict = verdict.model_copy(update={"final": True, "reason": why})
        lab.record("verdict", verdict.model_dump(mode="json"), key="memory")
        kept = verdict.decision == "accept"
        lab.say(f"memory {'kept' if kept else 'not kept'}: {verdict.reason} ({verdict.n} pairs)")
        return lab.agent(remembers=kept)

    def _rewards(self, lab: Lab, trajectory: Trajectory) -> list[tuple[str, float]]:
        if trajectory.score is None:
            return []
        if lab.harness.settings.memory.unit == "episode":
            reward = 1.0 if lab.benchmark.solved(trajectory.score) else -1.0
            return [(item, reward) for item in trajectory.retrieved]
        bodies = {item.id: item.body for item in lab.store.get_many(trajectory.retrieved).values()}
        earned: dict[str, float] = {}  # of an item that was followed twice, its first use counts
        for turn, worth in zip(trajectory.turns, self._returns(trajectory.turns), strict=True):
            for item in turn.retrieved:
                if bodies.get(item) == clean(turn.move):
                    earned.setdefault(item, worth)
        return list(earned.items())

    def _returns(self, turns: Sequence[Turn]) -> list[float]:
        """The discounted reward from each turn on; an unscored turn earns nothing."""
        out, ahead = [], 0.0
        for turn in reversed(turns):
            ahead = (turn.reward or 0.0) + self.discount * ahead
            out.append(ahead)
        return out[::-1]

    def _store(self, lab: Lab, trajectories: Sequence[Trajectory], key: str) -> None:
        from memory import QRule

        scored = [t for t in trajectories if t.score is not None]
        good = [t for t in scored if lab.benchmark.solved(t.score or 0.0)]
        again: list[tuple[str, float]] = []
        if lab.harness.settings.memory.unit == "episode":
            items = _merged(_whole(lab, "experience", t) for t in good)
        else:
            steps = [step for t in scored for step in self._steps(lab, t)]
            items = _merged(steps)
            new = {item.id for item in items} - lab.store.get_many([item.id for item in items]).keys()
            for step in steps:
                if step.id in new:
                    new.remove(step.id)  # the first brings its worth with it
                else:
                    again.append((step.id, step.stats.utility))
        added = lab.remember(items, key=key)
        lab.store.credit(again, QRule(alpha=self.alpha))
        shown = f"{key.replace('-', ' ')}: {len(good)} successes of {len(trajectories)}"
        lab.say(f"{shown} taught {added} new items; {len(lab.store)} known")

    def _steps(self, lab: Lab, trajectory: Trajectory) -> "Iterable[Item]":
        """The steps that led to reward, each worth what followed it."""
        from memory import Item, Stats

        for turn, worth in zip(trajectory.turns, self._returns(trajectory.turns), strict=True):
            if worth > 0 and not turn.invalid and turn.situation:
                stats = Stats(utility=worth)
                yield Item.make("step", lab.scope, turn.situation, turn.move, provenance=(trajectory.id,), stats=stats)

    async def _reflect(self, lab: Lab, number: int, trajectories: Sequence[Trajectory]) -> None:
        items, stopped = [], None
        for trajectory in trajectories:
            if trajectory.score is None or lab.benchmark.solved(trajectory.score):
                continue
            question = (
                "An agent failed at this task. In at most three sentences, say what went wrong and what to do instead "
                f"next time. Name no object that only this task has.\n\n{transcript(trajectory)}"
            )
            try:
                text = await lab.ask(question, key=f"reflect/{trajectory.id}", max_tokens=200)
            except BudgetExhausted as exhausted:
                stopped = exhausted
                break
            items.append(_whole(lab, "reflection", trajectory, text))
        lab.remember(_merged(items), key=f"reflections-{number}")
        if stopped is not None:
            raise RecipeStopped(str(stopped)) from stopped


def _whole(lab: Lab, kind: str, trajectory: Trajectory, text: str | None = None) -> "Item":
    """`text` on a whole episode, or its transcript, under the key of a task like it, cut to the room a prompt has."""
    from memory import Item, Retriever

    key = Retriever(lab.store).shared_key(trajectory.goal, scope=lab.scope, kind=kind)
    room = min(MAX_BODY, _room(lab, key))
    body = transcript(trajectory, room) if text is None else text[:room]
    return Item.make(kind, lab.scope, key, body, provenance=(trajectory.id,))


def _room(lab: Lab, key: str) -> int:
    """How many characters of a body the harness can show under `key`, in one item that has all of the room."""

    def shown(body: str) -> int:
        values = {"key": key, "body": body}
        return len(lab.harness.render("memory", values) if "memory" in lab.harness.prompts else f"{key}\n{body}\n\n")

    each = max(1, shown("x") - shown(""))
    return max(0, lab.harness.settings.memory.tokens * 4 - shown("")) // each


def _merged(items: "Iterable[Item]") -> "list[Item]":
    """Each item once, in order, with all that taught it."""
    merged: dict[str, Item] = {}
    for item in items:
        first = merged.setdefault(item.id, item)
        taught = dict.fromkeys((*first.provenance, *item.provenance))
        merged[item.id] = first.model_copy(update={"provenance": tuple(taught)})
    return list(merged.values())
