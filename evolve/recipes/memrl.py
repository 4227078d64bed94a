"""`memrl`: the weights and prompts stay as they are, and the memory learns which experiences are worth recalling.

Source: MemRL (mechanism and numbers from its public code): two-phase retrieval (similarity, then utility), and
Q <- (1 - a) Q + a r with a = .3 and r = +1 / -1 for what was recalled.

Deviations. Step unit, for models too small to use a whole example: each step of a success is an item of its own
(situation -> move); its first utility is the discounted return .9^(steps to the end), not 0, so that a lucky detour
counts less than the last step before success; only items whose move was taken are credited. Before the first round
a policy that picks moves at random explores (no model, no cost), because a model that never succeeds has nothing to
learn from; `explore = 0` turns it off. Failures are reflected upon only when there is a proposer to write reflections.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

from evolve.lab import Lab
from evolve.source import Stream
from evolve.view import transcript
from harness.agent import Player, PolicyPlayer
from harness.folder import Harness
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

    @property
    def source(self) -> Stream:
        """Training tasks after those that were explored."""
        return Stream(rounds=self.rounds, batch=self.batch, offset=self.explore)

    async def begin(self, lab: Lab) -> None:
        """Explore with random moves, and remember what happened to succeed."""
        lab.store  # noqa: B018 - a memory exists from the start, also where nothing is learnt
        if not self.explore or lab.harness.settings.control.loop != "choice":
            return
        pool = lab.benchmark.tasks("train")
        batch = [(pool[at % len(pool)], at // len(pool)) for at in range(self.explore)]
        wanderer = PolicyPlayer("wander", lab.harness)
        lab.say(f"exploring: {self.explore} episodes of random moves, no model calls")
        found = await lab.learn_from(wanderer, batch, phase="explore", arm="wander")
        self._store(lab, found, "explore")

    def player(self, lab: Lab) -> Player:
        """The unchanged harness, with its memory."""
        return lab.agent(remembers=True)

    async def learn(self, lab: Lab, number: int, trajectories: Sequence[Trajectory]) -> None:
        """Credit what was recalled, then remember this round's successes and, if a proposer can, its failures."""
        from memory import QRule

        rewards = [pair for trajectory in trajectories for pair in self._rewards(lab, trajectory)]
        lab.store.credit(rewards, QRule(alpha=self.alpha))
        lab.record("credited", {"rewards": rewards}, key=f"round-{number}")
        self._store(lab, trajectories, f"round-{number}")
        if lab.proposer is not None and lab.harness.settings.memory.unit == "episode":
            await self._reflect(lab, number, trajectories)

    async def choose(self, lab: Lab) -> Harness:
        """The harness never changed."""
        return lab.harness

    def _rewards(self, lab: Lab, trajectory: Trajectory) -> list[tuple[str, float]]:
        if trajectory.score is None:
            return []
        reward = 1.0 if trajectory.score >= lab.benchmark.success_at else -1.0
        if lab.harness.settings.memory.unit == "episode":
            return [(item, reward) for item in trajectory.retrieved]
        bodies = {item.id: item.body for item in lab.store.get_many(trajectory.retrieved).values()}
        followed = {i for turn in trajectory.turns for i in turn.retrieved if bodies.get(i) == turn.move}
        return [(item, reward) for item in trajectory.retrieved if item in followed]

    def _store(self, lab: Lab, trajectories: Sequence[Trajectory], key: str) -> None:
        from memory import Item, QRule, Stats

        good = [t for t in trajectories if t.score is not None and t.score >= lab.benchmark.success_at]
        if lab.harness.settings.memory.unit == "episode":
            items = [
                Item.make("experience", lab.scope, t.goal, transcript(t), provenance=(t.id,), stats=Stats(utility=0.0))
                for t in good
            ]
            lab.remember(items, key=key)
            return
        returns: dict[str, float] = {}
        again: list[tuple[str, float]] = []
        made: dict[str, Item] = {}
        for trajectory in good:
            for ahead, turn in enumerate(reversed(_useful(trajectory.turns))):
                value = self.discount**ahead
                item = Item.make("step", lab.scope, turn.situation, turn.move, provenance=(trajectory.id,))
                if item.id in made or lab.store.get(item.id) is not None:
                    again.append((item.id, value))
                    made.setdefault(item.id, item)  # put() adds the new evidence to a known item
                else:
                    made[item.id] = item
                    returns[item.id] = value
        items = [i.model_copy(update={"stats": Stats(utility=returns.get(i.id, 0.0))}) for i in made.values()]
        new = lab.remember(items, key=key)
        lab.store.credit(again, QRule(alpha=self.alpha))
        lab.say(f"{key}: {len(good)} successes of {len(trajectories)} taught {new} new steps; {len(lab.store)} known")

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


def _useful(turns: Sequence[Turn]) -> list[Turn]:
    """The valid turns that can be remembered."""
    return [turn for turn in turns if turn.situation and not turn.invalid]
