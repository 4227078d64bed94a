"""What a second Ray worker brings: the same run on one worker and on two, with a model that takes 200 ms to answer.

Measured: efficiency, the time on one worker over twice the time on two, with so many episodes at once in each worker;
workers are up before the clock runs. Beside it: what a step costs the process that keeps the journal when Ray brings
it, and how many steps a second come through when the model answers at once. Run from the root, with the ray extra:
`python -m bench ray [--quick]`.
"""

import asyncio
import tempfile
import time
from typing import Any

from envs import Benchmark, Env, Observation, Step, Task, fixed
from harness import Agent, Harness
from harness.cluster import RayStage, stage_for
from harness.journal import Journal
from harness.model import Request
from harness.models.connect import connect
from harness.outpost import Facts, Orders
from harness.runner import Job, Runner

STEPS = 10
LATENCY = 0.2
AT_ONCE = 16  # episodes in each worker
EFFICIENCY = 0.9
HARNESS = Harness.from_files(
    {
        "harness.toml": 'name = "counter"\n[model]\ntemperature = 1.0\n[control]\nloop = "choice"',
        "prompts/step.md": "{situation}\nAction:",
    }
)


class Counter(Env):
    """Ten times the word `add`, and the game is won."""

    async def reset(self, task: Task, seed: int) -> Observation:
        self.task, self.count = task.id, 0
        return self._see()

    def _see(self) -> Observation:
        return Observation(f"{self.task}: the counter shows {self.count} of {STEPS}.", ("add", "wait"))

    async def step(self, action: str) -> Step:
        self.count += action == "add"
        won = self.count == STEPS
        return Step(self._see(), reward=1.0 if won else 0.0, done=won)


benchmark = Benchmark(
    "counter",
    Counter,
    fixed([Task(id=f"count-{i}", split="test", goal=f"Count to ten in game {i}.") for i in range(512)]),
    max_steps=STEPS,
)


async def slow(request: Request) -> str:
    """What a remote model is to us: time."""
    await asyncio.sleep(LATENCY)
    return "add"


def quick(request: Request) -> str:
    """No time at all."""
    return "add"


def _stage(workers: int, model: str) -> RayStage:
    spec = f"scripted:bench.ray:{model}"
    here = Facts.of(benchmark, connect(spec), None, None)
    return stage_for("ray", Orders("bench.ray:benchmark", spec), benchmark, here, workers=workers)


async def _play(stage: RayStage | None, model: str, n: int, at_once: int) -> tuple[float, float]:
    """Seconds of the clock, and of this process's CPU, for `n` episodes."""
    agent = Agent.equip(HARNESS, connect(f"scripted:bench.ray:{model}"))
    jobs = [Job(agent, task) for task in benchmark.tasks("test", n)]
    with tempfile.TemporaryDirectory() as folder, Journal(folder) as journal:
        clock, cpu = time.perf_counter(), time.process_time()
        played = await Runner(benchmark, journal, concurrency=at_once, elsewhere=stage).run(jobs)
        spent = time.perf_counter() - clock, time.process_time() - cpu
    assert all(trajectory.score == 1.0 for trajectory in played)
    return spent


async def _on(workers: int, model: str, n: int, at_once: int) -> tuple[float, float]:
    """The same on so many workers that are up and have played before."""
    stage = _stage(workers, model)
    try:
        await _play(stage, model, 2 * workers, 2 * workers)
        return await _play(stage, model, n, at_once)
    finally:
        await stage.close()


def run(quick: bool) -> dict[str, Any]:
    """Figures, goals and whether all are met."""
    n = AT_ONCE * (4 if quick else 16)
    one, _ = asyncio.run(_on(1, "slow", n, AT_ONCE))
    two, cpu = asyncio.run(_on(2, "slow", n, 2 * AT_ONCE))
    fast, _ = asyncio.run(_on(2, "quick", n, 2 * AT_ONCE))
    _, home = asyncio.run(_play(None, "quick", n, 2 * AT_ONCE))
    steps = n * STEPS
    figures = {
        "one_worker_s": one,
        "two_workers_s": two,
        "least_possible_s": steps * LATENCY / (2 * AT_ONCE),
        "efficiency_of_two": one / (2 * two),
        "driver_cpu_ms_a_step": cpu * 1e3 / steps,
        "here_cpu_ms_a_step": home * 1e3 / steps,
        "steps_a_second_at_no_latency": steps / fast,
    }
    goal = {"bound": "least", "value": EFFICIENCY, "met": figures["efficiency_of_two"] >= EFFICIENCY}
    return {
        "figures": {name: float(f"{value:.3g}") for name, value in figures.items()},
        "goals": {"efficiency_of_two": goal},
        "met": goal["met"],
    }
