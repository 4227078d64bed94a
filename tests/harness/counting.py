"""A world for runs with faults: ten choices between counting on and not; each step that counts earns a tenth."""

from envs import Benchmark, Env, Observation, Step, Task, fixed


class Counter(Env):
    """Ten steps, whatever is done in them."""

    async def reset(self, task: Task, seed: int) -> Observation:
        self.at = self.steps = 0
        return Observation("The counter is at 0.")

    async def step(self, action: str) -> Step:
        self.steps += 1
        self.at += action == "inc"
        return Step(Observation(f"The counter is at {self.at}."), 0.1 if action == "inc" else 0.0, self.steps >= 10)


tasks = [Task(id=f"t{n}", split="valid", goal=f"count, in game {n}", data={}) for n in range(2000)]
benchmark = Benchmark("counting", Counter, fixed(tasks), max_steps=30)
