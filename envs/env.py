"""The contract of an environment: four async methods over text.

An `Env` plays one episode at a time. All its randomness comes from the seed given to `reset`; two instances
share nothing; an illegal action is answered with text, not raised; what is raised is a fault of the
infrastructure and becomes missing data, never a score.
"""

from collections.abc import Sequence
from typing import Protocol, runtime_checkable

from envs.task import Observation, Step, Task, Tool


class EnvFault(Exception):
    """The world itself broke (a dead container, a lost server): missing data, not a failure of the agent.

    `late`: it did not answer in time, and would take as long again.
    """

    late = False


class SandboxFault(EnvFault):
    """The sandbox in which a world or an agent's code runs broke: missing data, too."""


@runtime_checkable
class Env(Protocol):
    """One world. `reset` may be called again after an episode; `close` may be called twice.

    A class that names it as its base inherits `tools` (none) and `close` (nothing to free).
    """

    async def reset(self, task: Task, seed: int) -> Observation:
        """Start `task` afresh; equal task and seed give equal episodes for equal actions."""
        ...

    async def step(self, action: str) -> Step:
        """Do `action`; a tool call arrives as the JSON text {"name": ..., "arguments": {...}}."""
        ...

    def tools(self) -> Sequence[Tool]:
        """The functions this world offers beside plain-text actions; often none."""
        return ()

    async def close(self) -> None:
        """Free what the world holds; idempotent."""
        return None
