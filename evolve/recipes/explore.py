"""Exploring: random moves find what a weak model never would, and cost no model call."""

from evolve.budget import Budget
from evolve.lab import Lab
from evolve.source import Stream
from harness.agent import PolicyPlayer
from harness.trajectory import Trajectory


async def explore(lab: Lab, n: int) -> list[Trajectory]:
    """Play the first `n` training episodes by random moves. Without a choice of moves there is nothing to draw from."""
    loop = lab.harness.settings.control.loop
    if n and loop != "choice":
        lab.say(f'not exploring: random moves need [control] loop = "choice", and this harness has "{loop}"')
    if not n or loop != "choice":
        return []
    lab.say(f"exploring: {n} episodes of random moves, no model calls")
    (batch,) = Stream(rounds=1, batch=n).batches(lab.benchmark, Budget(), 0)
    return await lab.learn_from(PolicyPlayer("wander", lab.harness), batch, phase="explore", arm="wander")
