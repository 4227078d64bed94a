"""A small world for these tests: a corridor in which one goes right until the end, with faults to order."""

import asyncio
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from envs import Benchmark, Env, Observation, Step, Task, Tool, fixed
from harness.agent import Agent
from harness.folder import Harness
from harness.model import Model
from harness.recall import Recall
from harness.runner import Job, Runner, RunStopped
from harness.trajectory import Trajectory

#: Called with ("make" | "reset" | "step" | "close" | "tools", task id); what it raises, the world raises.
Trouble = Callable[[str, str], object]


@dataclass
class Corridor(Env):
    """`length` steps to the right; reward 1 at the end. `jump` is a tool that moves by `n`."""

    trouble: Trouble
    choices: bool = True
    task: Task | None = None
    at: int = 0
    seen: list[str] = field(default_factory=list)

    async def reset(self, task: Task, seed: int) -> Observation:
        self.task, self.at = task, 0
        return self.trouble("reset", task.id) or self._look()

    async def step(self, action: str) -> Step:
        assert self.task is not None
        self.seen.append(action)
        if wrong := self.trouble("step", self.task.id):
            return wrong
        if action.startswith("{"):
            self.at += json.loads(action)["arguments"]["n"]
        elif action in ("left", "right"):
            self.at += 1 if action == "right" else -1
        else:
            return Step(Observation(f"Nothing happens. You are at {self.at}.", self._look().choices), 0.0)
        done = self.at >= self.task.data["length"]
        return Step(self._look(), 1.0 if done else 0.0, done)

    def tools(self) -> Sequence[Tool]:
        self.trouble("tools", "")
        return [Tool("jump", "Jump.", {"type": "object", "properties": {"n": {"type": "integer"}}})]

    async def close(self) -> None:
        self.trouble("close", self.task.id if self.task else "")

    def _look(self) -> Observation:
        return Observation(f"You are at {self.at}.", ("left", "right") if self.choices else None)


def no_trouble(where: str, task: str) -> None:
    """All is well."""


def corridor(
    trouble: Trouble = no_trouble, *, tasks: int = 8, length: int = 3, max_steps: int = 6, choices: bool = True
) -> Benchmark:
    """A benchmark of corridors; the worlds that it made are in `benchmark.make_env.made`."""
    made: list[Corridor] = []

    def make_env() -> Corridor:
        trouble("make", "")
        made.append(Corridor(trouble, choices))
        return made[-1]

    make_env.made = made  # type: ignore[attr-defined]
    all_tasks = [
        Task(id=f"c{n}", split="valid", goal=f"reach the end of {n}", data={"length": length}) for n in range(tasks)
    ]
    return Benchmark("corridor", make_env, fixed(all_tasks), max_steps=max_steps)


def harness(loop: str = "choice", toml: Mapping[str, str] | None = None, **files: str) -> Harness:
    """A harness for `loop`; `toml` maps table names to their lines, `files` are prompts by name and files by path."""
    tables = {"control": f'loop = "{loop}"', **(toml or {})}
    settings = "\n".join(f"[{name}]\n{lines}" for name, lines in tables.items())
    prompts = {"system": "Task: {goal}", "step": "{memories}{observation}"} | files
    return Harness.from_files(
        {"harness.toml": settings, **{f"prompts/{k}.md": v for k, v in prompts.items() if "." not in k},
         **{k: v for k, v in prompts.items() if "." in k}}
    )  # fmt: skip


def agent(model: Model, loop: str = "choice", recall: Recall | None = None, **rest: object) -> Agent:
    """An agent on `harness(loop, ...)`."""
    return Agent.equip(harness(loop, **rest), model, recall)  # type: ignore[arg-type]


def outcome(runner: Runner, jobs: Sequence[Job], *, settle: bool = True) -> list[Trajectory]:
    """What became of `jobs`: also when all of them were lost, which stops a run."""
    try:
        return asyncio.run(runner.run(jobs, settle=settle))
    except RunStopped:
        found = [runner.journal.trajectory(job.key) for job in jobs]
        assert all(t is not None and (t.status == "gap" or t.fault == "bug") for t in found)
        return [t for t in found if t is not None]
