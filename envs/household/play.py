"""The household as an environment: one episode at a time, scored only by whether the goal holds.

Nothing here is random, so the seed changes nothing: equal actions give equal episodes. The goal stands in
`Task.goal` and is not repeated in the observation.
"""

from collections.abc import Sequence

from envs.household.layout import Layout
from envs.household.world import World
from envs.task import Observation, Step, Task, Tool


class Household:
    """A room in text: reward 1.0 and the end when the goal holds, 0.0 before; cut off at `max_steps`."""

    def __init__(self) -> None:
        self.world: World | None = None
        self._left = 0

    async def reset(self, task: Task, seed: int) -> Observation:
        """Set the room up afresh; raises ValueError when `task` carries no household layout. `seed` is not needed."""
        layout = Layout.of(task)
        self.world, self._left = World(layout), layout.max_steps
        return self._observe(self.world, self.world.look())

    async def step(self, action: str) -> Step:
        """Do `action`, any text at all; raises RuntimeError only outside an episode."""
        world = self.world
        if world is None or self._left <= 0:
            raise RuntimeError("no episode is running in this household: call reset first")
        observation = self._observe(world, world.act(action))
        self._left -= 1
        if world.solved():
            self._left = 0
            return Step(observation, 1.0, True)
        if self._left == 0:
            return Step(observation, 0.0, True, {"truncated": True})
        return Step(observation, 0.0, False)

    def tools(self) -> Sequence[Tool]:
        """None: everything is said in plain commands."""
        return ()

    async def close(self) -> None:
        """Forget the episode."""
        self.world, self._left = None, 0

    @staticmethod
    def _observe(world: World, text: str) -> Observation:
        return Observation(text, world.choices(), {"at": world.at, "holding": world.holding})
