"""A world of doors and players that open a known share of them, for tests of runs that differ by a known amount."""

import re

from envs import Benchmark, Env, Observation, Step, Task, fixed
from envs.env import EnvFault
from harness.folder import Harness
from harness.model import Request
from harness.models.scripted import ScriptedModel
from harness.starter import starter


class Door(Env):
    """Each task has a door of its own that opens; a broken one is no failure of the agent's."""

    async def reset(self, task: Task, seed: int) -> Observation:
        self.task = task
        return Observation(task.goal, ("left", "right"))

    async def step(self, action: str) -> Step:
        if self.task.data["broken"]:
            raise EnvFault("the door fell off")
        return Step(Observation("done"), reward=float(action == self.task.data["opens"]), done=True)


def doors(broken: tuple[int, ...] = (), tasks: int = 24) -> Benchmark:
    def task(split: str, i: int) -> Task:
        data = {"opens": ("left", "right")[i % 2], "broken": split == "valid" and i in broken}
        return Task(id=f"{split}-{i}", split=split, goal=f"door {i}", data=data)

    return Benchmark("doors", Door, fixed([task(s, i) for s in ("train", "valid", "test") for i in range(tasks)]))


def player(right: float) -> ScriptedModel:
    """Opens every second door, and this share of the others."""
    name = f"right-{right}"

    def answer(request: Request) -> str:
        number = int(re.findall(r"door (\d+)", request.prompt or "")[-1])
        return ("left", "right")[number % 2] if number % 2 == 0 or number / 24 < right else "left"

    return ScriptedModel(answer, name=name)


def agent() -> Harness:
    """Is told the goal as it is."""
    return Harness.from_files(dict(starter("small").files) | {"prompts/step.md": "{goal} {memories}{situation}"})
