"""`memrl`: the weights and prompts stay as they are, and the memory learns which experiences are worth recalling.

Source: MemRL (mechanism and numbers from its public code): two-phase retrieval (similarity, then utility), and
Q <- (1 - a) Q + a r with a = .3 for what was recalled.

Deviations. Step unit, for models too small to use a whole example: each step that led to reward is an item of its own
(situation -> move). What a step is worth is the discounted reward that followed it (.9 a step), both as first utility
(the source: 0) and as r (the source: +1 / -1 by the whole episode's outcome), so that a lucky detour counts less than
the last step before success; only items whose move was taken are credited. Before the first round a policy that picks
moves at random explores (no model, no cost), because a model that never succeeds has nothing to learn from; `explore =
0` turns it off. A memory whose agent did not beat its control over all rounds, each played before it taught anything,
is not kept. Whole episodes (`unit = "episode"`) are as in the source; a proposer, if given, reflects on failures.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

from evolve.gate import Strict
from evolve.lab import Lab, paired_differences
from evolve.source import Stream
from evolve.view import transcript
from harness.agent import Agent, Player, PolicyPlayer
from harness.trajectory import Trajectory, Turn


@dataclass
class MemRL:
    """Memory learning. `explore` random episodes, then `rounds` of `batch`; `alpha` and `discount` as above."""

    explore: int = 400
    rounds: int = 3
    batch: int = 12
    alpha: float = 0.3
    discount: float = 0.9
    name: str = field(default="memrl", init=False)
    _differences: list[float | None] = field(default_factory=list, init=False)

    @property
    def source(self) -> Stream:
        """Training tasks after those that were explored."""
        return Stream(rounds=self.rounds, batch=self.batch, offset=self.explore)

    async def begin(self, lab: Lab) -> None:
        """Explore with random moves, and remember what happened to succeed."""
        lab.store  # noqa: B018 - a memory exists from the start, also where nothing is learnt
        if not self.explore or lab.harness.settings.control.loop != "choice":
            return
        pool = lab.benchmark.sample("train")
        batch = [(pool[at % len(pool)], at // len(pool)) for at in range(self.explore)]
        wanderer = PolicyPlayer("wander", lab.harness)
        lab.say(f"exploring: {self.explore} episodes of random moves, no model calls")
        found = await lab.learn_from(wanderer, batch, phase="explore", arm="wander")
        self._store(lab, found, "explore")

    def player(self, lab: Lab) -> Player:
        """The unchanged harness, with its memory."""
        return lab.agent(remembers=True)

    async def learn(
        self, lab: Lab, number: int, trajectories: Sequence[Trajectory], control: Sequence[Trajectory]
    ) -> None:
        """Credit what was recalled, then remember this round's successes and, if a proposer can, its failures."""
        from memory import QRule

        self._differences += paired_differences(trajectories, control)
        rewards = [pair for trajectory in trajectories for pair in self._rewards(lab, trajectory)]
        lab.store.credit(rewards, QRule(alpha=self.alpha))
        lab.record("credited", {"rewards": rewards}, key=f"round-{number}")
        self._store(lab, trajectories, f"round-{number}")
        if lab.proposer is not None and lab.harness.settings.memory.unit == "episode":
            await self._reflect(lab, number, trajectories)

    async def choose(self, lab: Lab) -> Agent:
        """The unchanged harness, with its memory if the rounds speak for it."""
        if not self._differences:
            return lab.agent(remembers=True)
        verdict = Strict(pairs=len(self._differences)).look(self._differences)
        lab.record("verdict", verdict.model_dump(mode="json"), key="memory")
        kept = verdict.decision == "accept"
        lab.say(f"memory {'kept' if kept else 'not kept'}: over all rounds, {verdict.reason}")
        return lab.agent(remembers=kept)

    def _rewards(self, lab: Lab, trajectory: Trajectory) -> list[tuple[str, float]]:
        if trajectory.score is None:
            return []
        if lab.harness.settings.memory.unit == "episode":
            reward = 1.0 if trajectory.score >= lab.benchmark.success_at else -1.0
            return [(item, reward) for item in trajectory.retrieved]
        bodies = {item.id: item.body for item in lab.store.get_many(trajectory.retrieved).values()}
        earned: dict[str, float] = {}  # of an item that was followed twice, its first use counts
        for turn, worth in zip(trajectory.turns, self._returns(trajectory.turns), strict=True):
            for item in turn.retrieved:
                if bodies.get(item) == turn.move:
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
        from memory import Item, QRule, Stats

        scored = [t for t in trajectories if t.score is not None]
        good = [t for t in scored if (t.score or 0.0) >= lab.benchmark.success_at]
        items: dict[str, Item] = {}
        again: list[tuple[str, float]] = []
        if lab.harness.settings.memory.unit == "episode":
            for t in good:
                item = Item.make("experience", lab.scope, t.goal, transcript(t), provenance=(t.id,))
                items[item.id] = item
        else:
            for t in scored:
                for turn, worth in zip(t.turns, self._returns(t.turns), strict=True):
                    if worth <= 0 or turn.invalid or not turn.situation:
                        continue
                    stats = Stats(utility=worth)
                    item = Item.make("step", lab.scope, turn.situation, turn.move, provenance=(t.id,), stats=stats)
                    if item.id in items or lab.store.get(item.id) is not None:
                        again.append((item.id, worth))
                    first = items.setdefault(item.id, item)  # of a known item, put() keeps the stats
                    if t.id not in first.provenance:
                        items[item.id] = first.model_copy(update={"provenance": (*first.provenance, t.id)})
        new = lab.remember(list(items.values()), key=key)
        lab.store.credit(again, QRule(alpha=self.alpha))
        lab.say(f"{key}: {len(good)} successes of {len(trajectories)} taught {new} new items; {len(lab.store)} known")

    async def _reflect(self, lab: Lab, number: int, trajectories: Sequence[Trajectory]) -> None:
        from memory import Item

        items = []
        for trajectory in trajectories:
            if trajectory.score is None or trajectory.score >= lab.benchmark.success_at:
                continue
            question = (
                "An agent failed at this task. In at most three sentences, say what went wrong and what to do instead "
                f"next time. Name no object that only this task has.\n\n{transcript(trajectory)}"
            )
            text = await lab.ask(question, key=f"reflect/{trajectory.id}", max_tokens=200)
            items.append(Item.make("reflection", lab.scope, trajectory.goal, text, provenance=(trajectory.id,)))
        lab.remember(items, key=f"reflections-{number}")
