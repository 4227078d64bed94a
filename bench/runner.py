"""What our runner costs beside the least that any could cost: a bare asyncio loop that writes each step as a JSON line.

Measured: CPU time of a step in a game of ten steps with a model that answers at once, journal on disk, at one and at 32
episodes at once; CPU time and memory of `import harness`, and of `instar --help`. CPU time, because other work on the
machine does not add to it. Run from the root: `python -m bench runner [--quick]`.
"""

import asyncio
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from envs import Benchmark, Env, Observation, Step, Task, fixed
from harness import Agent, Harness
from harness.journal import Journal
from harness.model import Request
from harness.models.scripted import ScriptedModel
from harness.runner import Job, Runner

STEPS = 10
HARNESS = Harness.from_files(
    {
        "harness.toml": 'name = "counter"\n[control]\nloop = "choice"\nform = "completion"',
        "prompts/step.md": "{situation}\nAction:",
    }
)
GOALS = {  # figure: the most it may be
    "cpu_ms_a_step_at_1": 0.25,
    "cpu_ms_a_step_at_32": 0.25,
    "import_harness_cpu_s": 0.3,
    "import_harness_mb": 60.0,
    "instar_help_cpu_s": 0.3,
}


class Counter(Env):
    """Ten times the word `add`, and the game is won; what is seen differs at each step, so that no answer repeats."""

    async def reset(self, task: Task, seed: int) -> Observation:
        self.task, self.count = task.id, 0
        return self._see()

    def _see(self) -> Observation:
        return Observation(f"{self.task}: the counter shows {self.count} of {STEPS}.", ("add", "wait"))

    async def step(self, action: str) -> Step:
        self.count += action == "add"
        won = self.count == STEPS
        return Step(self._see(), reward=1.0 if won else 0.0, done=won)


def _add(request: Request) -> str:
    return "add"


def _benchmark(n: int) -> Benchmark:
    tasks = [Task(id=f"count-{i}", split="test", goal=f"Count to ten in game {i}.") for i in range(n)]
    return Benchmark("counter", Counter, fixed(tasks), max_steps=STEPS)


def _ours(n: int, at_once: int) -> float:
    """CPU milliseconds a step of our runner."""
    benchmark = _benchmark(n)
    agent = Agent.equip(HARNESS, ScriptedModel(_add))
    jobs = [Job(agent, task) for task in benchmark.tasks("test")]
    with tempfile.TemporaryDirectory() as folder, Journal(folder) as journal:
        start = time.process_time()
        played = asyncio.run(Runner(benchmark, journal, concurrency=at_once).run(jobs))
        spent = time.process_time() - start
    assert all(trajectory.score == 1.0 for trajectory in played)
    return spent * 1e3 / (n * STEPS)


def _bare(n: int, at_once: int) -> float:
    """CPU milliseconds a step of the same game with the same model in a bare loop."""
    model = ScriptedModel(_add)

    async def play(tasks: Any, file: Any) -> None:
        for task in tasks:
            env = Counter()
            seen, done = await env.reset(task, 0), False
            while not done:
                request = Request(prompt=f"{task.goal}\n{seen.text}\nAction:", choices=seen.choices)
                answer = await model.complete(request)
                step = await env.step(answer.text)
                line = {"task": task.id, "prompt": request.prompt, "answer": answer.text, "reward": step.reward}
                file.write(json.dumps(line) + "\n")
                file.flush()
                seen, done = step.observation, step.done

    async def together(file: Any) -> None:
        queue = iter(_benchmark(n).tasks("test"))
        await asyncio.gather(*(play(queue, file) for _ in range(at_once)))

    with tempfile.TemporaryDirectory() as folder, (Path(folder) / "steps.jsonl").open("w") as file:
        start = time.process_time()
        asyncio.run(together(file))
        return (time.process_time() - start) * 1e3 / (n * STEPS)


def _process(command: list[str], times: int) -> float:
    """Least CPU seconds of a process: the least, because other work on the machine only adds."""

    def once() -> float:
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime

    return min(once() for _ in range(times))


def _import_mb() -> float:
    """Peak resident megabytes of a Python that has imported harness."""
    code = "import resource, harness; print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)"
    kilo = 1024 if sys.platform != "darwin" else 1024 * 1024
    return int(subprocess.check_output([sys.executable, "-c", code], text=True)) / kilo


def run(quick: bool) -> dict[str, Any]:
    """Figures, goals and whether all are met; of three turns each, ours and bare taking turns, the least."""
    n, times = (60, 3) if quick else (400, 5)
    figures: dict[str, float] = {}
    _ours(5, 1), _bare(5, 1)  # what is imported or compiled once is no cost of a step
    for at_once in (1, 32):
        turns = [(_ours(n, at_once), _bare(n, at_once)) for _ in range(3)]
        ours, bare = (min(side) for side in zip(*turns, strict=True))
        figures |= {f"cpu_ms_a_step_at_{at_once}": ours, f"bare_ms_a_step_at_{at_once}": bare}
        figures[f"to_bare_at_{at_once}"] = ours / bare
    figures["import_harness_cpu_s"] = _process([sys.executable, "-c", "import harness"], times)
    figures["python_cpu_s"] = _process([sys.executable, "-c", "pass"], times)
    figures["import_harness_mb"] = _import_mb()
    instar = os.path.join(os.path.dirname(sys.executable), "instar")
    figures["instar_help_cpu_s"] = _process([instar, "--help"], times)
    goals = {name: {"bound": "most", "value": value, "met": figures[name] <= value} for name, value in GOALS.items()}
    rounded = {name: float(f"{value:.3g}") for name, value in figures.items()}
    return {"figures": rounded, "goals": goals, "met": all(goal["met"] for goal in goals.values())}
