"""How fast the household steps, beside the fastest that any environment of this contract could be.

Measured: steps a second through the async `step`, admissible choices included, with actions drawn at random; resets
and made tasks a second. The limit is the same loop over an environment that only looks its answer up in a dict, in the
same run: a ratio travels to other machines, a rate does not. Run from the root: `python -m bench.envs [--quick]`
(as a script its own name would hide the package).
"""

import asyncio
import json
import random
import statistics
import sys
import time
from typing import Any

from envs import Env, Observation, Step, Task
from envs.household import Household, benchmark

LEVELS = (1, 6)
STEPS_PER_S = 20_000.0
#: Least share of the limit's speed that the household must reach; a slower one has grown a needless cost.
SHARE_OF_LIMIT = 0.08


class Limit:
    """The least an environment can do: one dict lookup, one observation, one step."""

    def __init__(self) -> None:
        self.choices = tuple(f"go to place {number}" for number in range(8))
        self.answers = {text: f"You arrive at {text}." for text in self.choices}
        self.left = 0

    async def reset(self, task: Task, seed: int) -> Observation:
        self.left = int(str(task.data["max_steps"]))
        return Observation("You are in the middle of a room.", self.choices)

    async def step(self, action: str) -> Step:
        self.left -= 1
        return Step(Observation(self.answers.get(action, "Nothing happens."), self.choices), 0.0, self.left == 0)

    def tools(self) -> tuple[()]:
        return ()

    async def close(self) -> None:
        return None


async def _walk(env: Env, tasks: list[Task], steps: int) -> tuple[float, float]:
    """(steps, resets) a second over `steps` random steps, each without the time of the other."""
    rng = random.Random(0)
    done, resets, stepping, resetting = 0, 0, 0.0, 0.0
    while done < steps:
        start = time.perf_counter()
        observation = await env.reset(tasks[resets % len(tasks)], 0)
        middle = time.perf_counter()
        ended = False
        while not ended:
            step = await env.step(rng.choice(observation.choices or ("look",)))
            observation, ended = step.observation, step.done
            done += 1
        resetting += middle - start
        stepping += time.perf_counter() - middle
        resets += 1
    return done / stepping, resets / resetting


def run(quick: bool) -> dict[str, Any]:
    """{"figures": ..., "goals": ..., "met": ...}; medians of five turns, limit and household taking turns."""
    steps = 4_000 if quick else 40_000
    figures: dict[str, float] = {}
    for level in LEVELS:
        start = time.perf_counter()
        tasks = benchmark(level).tasks("train", 50 if quick else 500)
        made = len(tasks) / (time.perf_counter() - start)
        ours, limits, resets = [], [], []
        for _ in range(5):
            rate, reset_rate = asyncio.run(_walk(Household(), tasks, steps))
            ours.append(rate)
            resets.append(reset_rate)
            limits.append(asyncio.run(_walk(Limit(), tasks, steps))[0])
        figures[f"household_steps_per_s_level_{level}"] = round(statistics.median(ours))
        figures[f"household_share_of_limit_level_{level}"] = round(
            statistics.median(our / limit for our, limit in zip(ours, limits, strict=True)), 3
        )
        figures[f"household_resets_per_s_level_{level}"] = round(statistics.median(resets))
        figures[f"household_tasks_made_per_s_level_{level}"] = round(made)
    rates = [figures[f"household_steps_per_s_level_{level}"] for level in LEVELS]
    shares = [figures[f"household_share_of_limit_level_{level}"] for level in LEVELS]
    figures["household_steps_per_s"] = min(rates)
    goals = {
        f"household steps a second >= {STEPS_PER_S:.0f} at every level": min(rates) >= STEPS_PER_S,
        f"household share of the limit >= {SHARE_OF_LIMIT} at every level": min(shares) >= SHARE_OF_LIMIT,
    }
    return {"figures": figures, "goals": goals, "met": all(goals.values())}


if __name__ == "__main__":
    print(json.dumps(run("--quick" in sys.argv[1:]), indent=2))
