"""Three doors: every metal has its key, the same in all houses, and a wrong key breaks off in the lock."""

from random import Random

from envs import Benchmark, Env, Observation, Step, Task, fixed

KEY = {"iron": "red", "brass": "blue", "copper": "red", "tin": "green", "silver": "blue"}


class Doors(Env):
    async def reset(self, task, seed):
        self.doors, self.keys = task.data["doors"].split("-"), Random(seed).sample(["red", "green", "blue"], 3)
        return self.look(task.goal)

    def look(self, news):
        return Observation(f"{news} Next: a door of {self.doors[0]}." if self.doors else news, tuple(self.keys))

    async def step(self, action):
        if not self.doors or action not in self.keys:
            return Step(self.look("Nothing happens."), done=not self.doors)
        fits = KEY[self.doors[0]] == action
        self.doors = self.doors[1:] if fits else []
        return Step(self.look("It opens." if fits else "The key breaks."), reward=fits / 3, done=not self.doors)


houses = Random(0).sample([f"{a}-{b}-{c}" for a in KEY for b in KEY for c in KEY], 100)
splits = ["train"] * 60 + ["valid"] * 20 + ["test"] * 20
tasks = [Task(id=h, split=s, goal="Leave the house.", data={"doors": h}) for h, s in zip(houses, splits, strict=True)]
benchmark = Benchmark("doors", Doors, fixed(tasks), policies={"expert": lambda env, rng: lambda _: KEY[env.doors[0]]})
