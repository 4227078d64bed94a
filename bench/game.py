"""One figure of the counter game in a process of its own, on one core: `python -m bench.game HOW AT_ONCE EPISODES`.

HOW is `ours` (a scripted model), `ours@PORT` (our client against `bench.stub`), or `bare`, a loop that any could be
held against: the same world and model, each step written as a line of JSON. Prints CPU milliseconds a step (least of
three) and the peak of resident memory in megabytes.
"""

import asyncio
import json
import os
import resource
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from envs import Benchmark, Env, Observation, Step, Task, fixed
from harness import Agent, Harness
from harness.finished import Finished
from harness.journal import Journal
from harness.model import Model, Request
from harness.models.scripted import ScriptedModel
from harness.runner import Job, Runner
from harness.trajectory import Trajectory

STEPS = 10
CHOICE = Harness.from_files(
    {
        "harness.toml": 'name = "counter"\n[control]\nloop = "choice"\nform = "completion"',
        "prompts/step.md": "{situation}\nAction:",
    }
)
REACT = Harness.from_files(
    {
        "harness.toml": 'name = "counter"\n[control]\nloop = "react"\nform = "chat"',
        "prompts/system.md": "You play a counter game. Answer each observation with one line, ACTION: and the action.\n"
        * 4,
        "prompts/step.md": "{goal}\n{observation}",
    }
)


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


def _benchmark(n: int) -> Benchmark:
    tasks = [Task(id=f"count-{i}", split="test", goal=f"Count to ten in game {i}.") for i in range(n)]
    return Benchmark("counter", Counter, fixed(tasks), max_steps=STEPS)


def _ours(n: int, at_once: int, port: str) -> None:
    from harness.models.openai_api import OpenAIModel

    benchmark, won = _benchmark(n), 0
    model: Model = ScriptedModel(lambda request: "add")
    if port:
        model = OpenAIModel("counter", api_base=f"http://127.0.0.1:{port}/v1", api_key_env="NO_SUCH_VARIABLE")
    agent = Agent.equip(REACT if port else CHOICE, model)
    jobs = [Job(agent, task) for task in benchmark.tasks("test")]

    def each(index: int, found: Trajectory | Finished) -> None:
        nonlocal won
        won += found.score == 1.0

    async def play(journal: Journal) -> None:
        await Runner(benchmark, journal, concurrency=at_once).play(jobs, each)
        await model.close()

    with tempfile.TemporaryDirectory() as folder, Journal(folder) as journal:
        asyncio.run(play(journal))
    assert won == n


def _bare(n: int, at_once: int) -> None:
    model = ScriptedModel(lambda request: "add")

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
        asyncio.run(together(file))


def main(how: str, at_once: int, n: int) -> None:
    """Measure and print."""
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})
    name, _, port = how.partition("@")
    spent = []
    for episodes in (max(2, at_once // 8), n, n, n):  # the first is no measurement: imports, compiled patterns
        began = time.process_time()
        _bare(episodes, at_once) if name == "bare" else _ours(episodes, at_once, port)
        spent.append((time.process_time() - began) * 1e3 / (episodes * STEPS))
    kilo = 1024 if sys.platform != "darwin" else 1024 * 1024
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / kilo
    print(json.dumps({"ms": min(spent[1:]), "mb": peak}))


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]))
