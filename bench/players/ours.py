"""Our runner, each episode journalled turn by turn.

`mock`: the react loop and a model in this process that nothing is known of beforehand. `known`: a deterministic one,
whose answers are indexed for all episodes. `tools`: function calls instead of text. `http` and `http-tools`: through
a server. `run`: the whole of `evolve.run`, with its statistics.
"""

import asyncio
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from bench.players.game import STEPS, SYSTEM, Counter, answer


def load() -> None:
    """Import what a run needs."""
    import harness.journal
    import harness.runner  # noqa: F401


def prepare(variant: str, at_once: int, url: str) -> Callable[[int], list[float]]:
    """Play n games."""
    from envs import Benchmark, Env, Observation, Step, Task, fixed
    from harness import Agent, Harness
    from harness.journal import Journal
    from harness.model import Completion, Request, ToolCall, Usage
    from harness.models.openai_api import OpenAIModel
    from harness.runner import Job, Runner

    tools = variant.endswith("tools")
    harness = Harness.from_files(
        {
            "harness.toml": f'name = "counter"\n[control]\nloop = "{"tools" if tools else "react"}"',
            "prompts/system.md": SYSTEM,
            "prompts/step.md": "{observation}",
        }
    )

    class World(Env):
        async def reset(self, task: Task, seed: int) -> Observation:
            self.game = Counter(task.id)
            return Observation(self.game.look())

        async def step(self, action: str) -> Step:
            seen, reward, over = self.game.act(action)
            return Step(Observation(seen), reward, over)

    class Fake:
        name, deterministic = "fake", variant == "known"

        async def complete(self, request: Request) -> Completion:
            await asyncio.sleep(0)
            turn = len(request.messages) // 2 - 1
            made = (ToolCall(id=f"call_{turn}", name="act", arguments='{"action":"inc"}'),) if tools else ()
            used = Usage(prompt_tokens=100, output_tokens=16, dollars=0.0)
            return Completion(text=answer(turn), tool_calls=made, usage=used)

        async def close(self) -> None:
            return None

    def model() -> Any:
        return OpenAIModel("call" if tools else "say", api_base=url) if variant.startswith("http") else Fake()

    def benchmark(n: int) -> Benchmark:
        tasks = [Task(id=f"count-{i}", split="valid", goal="Win.") for i in range(n)]
        return Benchmark("counter", World, fixed(tasks), max_steps=3 * STEPS)

    async def games(n: int, folder: str, rewards: list[float]) -> None:
        played, answering = benchmark(n), model()
        agent = Agent.equip(harness, answering)
        jobs = [Job(agent, task) for task in played.tasks("valid")]
        with Journal(folder) as journal:
            runner = Runner(played, journal, concurrency=at_once)
            await runner.play(jobs, lambda index, found: rewards.append(found.score or 0.0))
        await answering.close()

    def play(n: int) -> list[float]:
        rewards: list[float] = []
        with tempfile.TemporaryDirectory() as folder:
            if variant == "run":
                from evolve import run

                found = run(
                    harness, benchmark(n), n=n, model=model(), concurrency=at_once, out=str(Path(folder) / "run")
                )
                return [1.0] * found.solved
            asyncio.run(games(n, folder, rewards))
        return rewards

    return play
