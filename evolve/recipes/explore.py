"""Exploring: random moves find what a weak model never would, and cost no model call."""

from evolve.lab import Lab
from evolve.source import Stream
from harness.agent import PolicyPlayer
from harness.trajectory import Trajectory


async def explore(lab: Lab, n: int, rounds: Stream) -> list[Trajectory]:
    """Play `n` training episodes by random moves, on tasks that `rounds` leaves over if there are any.

    Few tasks are played several times. Without a choice of moves there is nothing to draw from, and it says so.
    """
    loop = lab.harness.settings.control.loop
    if n and loop != "choice":
        lab.say(f'not exploring: random moves need [control] loop = "choice", and this harness has "{loop}"')
    if not n or loop != "choice":
        return []
    lab.say(f"exploring: {n} episodes of random moves, no model calls")
    pool = lab.benchmark.sample(rounds.split)
    pool = pool[rounds.size :] or pool
    batch = [(pool[at % len(pool)], at // len(pool)) for at in range(n)]
    return await lab.learn_from(PolicyPlayer("wander", lab.harness), batch, phase="explore", arm="wander")
