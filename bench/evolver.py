"""What the evolver adds to what an evolution pays for anyway, with a model that answers at once.

Measured, in CPU time: a gate's look at one pair; an episode of an evolution, exploring and with memory, beside the same
episodes played by a bare loop over the world without journal, memory or statistics. How well it evolves, beside other
evolvers, is not measured yet: peers come later. Run from the root: `python -m bench evolver [--quick]`.
"""

import asyncio
import random
import re
import tempfile
import time
from typing import Any

from envs.household import benchmark
from evolve.gate import SequentialPaired
from evolve.session import evolve
from harness.journal import Journal
from harness.model import Request
from harness.starter import starter

GOALS = {"gate_us_a_pair": 200.0, "exploring_ms_an_episode": 10.0, "playing_ms_an_episode": 40.0}


def imitate(request: Request) -> str:
    """Does what the nearest example did, if it may."""
    choices = request.choices or ("look",)
    moves = re.findall(r"^Action: (.+)$", request.prompt or "", re.M)
    return next((move for move in reversed(moves) if move in choices), choices[0])


def _gate(pairs: int) -> float:
    """CPU microseconds a pair, one look a pair, decisions included."""
    rng = random.Random(0)
    differences = [float(rng.choice((-1, 0, 0, 0, 1))) for _ in range(pairs)]
    fed, start = 0, time.process_time()
    while fed < pairs:
        gate = SequentialPaired(max_pairs=100).start(0.05)
        final = False
        while not final and fed < pairs:
            final = gate.look([differences[fed]]).final
            fed += 1
    return (time.process_time() - start) * 1e6 / pairs


def _evolution(explore: int, rounds: int, batch: int, n: int) -> tuple[float, int]:
    """CPU seconds of a memory evolution, and how many episodes it played."""
    settings = {"explore": explore, "rounds": rounds, "batch": batch}
    with tempfile.TemporaryDirectory() as folder:
        start = time.process_time()
        evolve(
            starter("small"), "household", settings=settings, n=n, model="scripted:bench.evolver:imitate", out=folder
        )
        spent = time.process_time() - start
        with Journal(folder, readonly=True) as journal:
            return spent, sum(1 for _ in journal.events("episode"))


def _bare(episodes: int) -> float:
    """CPU milliseconds an episode of random moves in the same world and nothing else."""
    world, rng = benchmark(), random.Random(0)
    tasks = world.tasks("train", episodes)

    async def play() -> None:
        for task in tasks:
            env = world.make_env()
            seen, done, steps = await env.reset(task, 0), False, 0
            while not done and steps < world.max_steps:
                step = await env.step(rng.choice(seen.choices or ("look",)))
                seen, done, steps = step.observation, step.done, steps + 1

    start = time.process_time()
    asyncio.run(play())
    return (time.process_time() - start) * 1e3 / episodes


def run(quick: bool) -> dict[str, Any]:
    """Figures, goals and whether all are met."""
    explore, batch, n = (100, 8, 10) if quick else (400, 12, 50)
    _evolution(4, 1, 2, 2)  # what is imported or loaded once is no cost of an episode
    exploring, explored = _evolution(explore, 0, 1, 2)
    whole, played = _evolution(explore, 3, batch, n)
    bare = _bare(explore)
    figures = {
        "gate_us_a_pair": _gate(2000 if quick else 20_000),
        "exploring_ms_an_episode": exploring * 1e3 / explored,
        "playing_ms_an_episode": (whole - exploring) * 1e3 / (played - explored),
        "bare_ms_an_episode": bare,
        "exploring_to_bare": exploring * 1e3 / explored / bare,
    }
    goals = {name: {"bound": "most", "value": value, "met": figures[name] <= value} for name, value in GOALS.items()}
    rounded = {name: float(f"{value:.3g}") for name, value in figures.items()}
    return {"figures": rounded, "goals": goals, "met": all(goal["met"] for goal in goals.values())}
