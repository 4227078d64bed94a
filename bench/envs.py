"""How fast the household steps, beside the fastest that any environment of this contract could be.

Measured: steps a second through the async `step`, admissible choices included, with actions drawn at random; resets
and made tasks a second. The limit is the same loop over an environment that only looks its answer up in a dict, in the
same run: a ratio travels to other machines, a rate does not. Beside it the same world in a worker process: CPU a step
on either side of the line, how long a worker takes to be ready, and how long a reset takes once it is. Run from the
root: `python -m bench.envs [--quick]` (as a script its own name would hide the package).
"""

import asyncio
import json
import math
import random
import statistics
import sys
import time
from typing import Any

from envs import Env, Observation, Step, Task
from envs.household import Household, benchmark

LEVELS = (1, 6)
STEPS_PER_S = 20_000.0
#: Most ms of CPU that a step in a worker may take of this process: what a runner's step may, in all.
ISOLATED_MS = 0.25
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


async def _isolated(steps: int) -> dict[str, float]:
    """Level 1 in a worker: ms of CPU a step here and there, seconds until a worker is ready, ms of a reset then."""
    from envs.worker import Workers, isolated

    household = isolated(benchmark(), "household")
    tasks, pool = household.tasks("train", 50), household.make_env
    assert isinstance(pool, Workers)
    found: dict[str, float] = {}
    try:
        began = time.perf_counter()
        env = pool()
        await env.reset(tasks[0], 0)
        found["worker_start_s"] = time.perf_counter() - began
        pid = env.pid
        resets = []
        for task in tasks[:20]:
            await env.close()
            began = time.perf_counter()
            await env.reset(task, 0)
            resets.append(time.perf_counter() - began)
        found["warm_reset_ms"] = 1e3 * statistics.median(resets)
        here, there = time.process_time(), _cpu_of(pid)
        await _walk(env, tasks, steps)
        found["cpu_ms_a_step_here"] = 1e3 * (time.process_time() - here) / steps
        found["cpu_ms_a_step_there"] = 1e3 * (_cpu_of(pid) - there) / steps
        await env.close()
    finally:
        pool.close()
    return found


def _cpu_of(pid: int) -> float:
    """Seconds that process `pid` has computed for; nan where the system does not tell."""
    try:
        with open(f"/proc/{pid}/schedstat", encoding="ascii") as file:
            return int(file.read().split()[0]) / 1e9
    except OSError:
        return math.nan


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
    for name, value in asyncio.run(_isolated(steps // 4)).items():
        figures[f"isolated_{name}"] = round(value, 4)
    rates = [figures[f"household_steps_per_s_level_{level}"] for level in LEVELS]
    shares = [figures[f"household_share_of_limit_level_{level}"] for level in LEVELS]
    figures["household_steps_per_s"] = min(rates)
    goals = {
        f"household steps a second >= {STEPS_PER_S:.0f} at every level": min(rates) >= STEPS_PER_S,
        f"isolated, ms of CPU a step here <= {ISOLATED_MS}": figures["isolated_cpu_ms_a_step_here"] <= ISOLATED_MS,
        f"household share of the limit >= {SHARE_OF_LIMIT} at every level": min(shares) >= SHARE_OF_LIMIT,
    }
    return {"figures": figures, "goals": goals, "met": all(goals.values())}


if __name__ == "__main__":
    print(json.dumps(run("--quick" in sys.argv[1:]), indent=2))
