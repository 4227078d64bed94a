"""inspect_ai with a solver of the game, and its log: `mock`, its mockllm; `http`, its OpenAI model and a server."""

import os
import tempfile
from collections.abc import Callable
from typing import Any

from bench.players.game import SYSTEM, Counter, answer, chosen

os.environ.setdefault("OPENAI_API_KEY", "none")


def load() -> None:
    """Import what a run needs."""
    import inspect_ai
    import inspect_ai.model  # noqa: F401


def prepare(variant: str, at_once: int, url: str) -> Callable[[int], list[float]]:
    """Play n games."""
    from inspect_ai import Task
    from inspect_ai import eval as evaluate
    from inspect_ai.dataset import MemoryDataset, Sample
    from inspect_ai.model import ChatMessageSystem, ChatMessageUser, ModelOutput, ModelUsage, get_model
    from inspect_ai.scorer import Score, mean, scorer
    from inspect_ai.solver import solver

    @solver
    def game() -> Any:
        async def solve(state: Any, generate: Any) -> Any:
            world, over, reward = Counter(str(state.sample_id)), False, 0.0
            state.messages = [ChatMessageSystem(content=SYSTEM), ChatMessageUser(content=world.look())]
            while not over:
                state = await generate(state)
                seen, reward, over = world.act(chosen(state.output.completion))
                state.messages.append(ChatMessageUser(content=seen))
            state.store.set("reward", reward)
            return state

        return solve

    @scorer(metrics=[mean()])
    def won() -> Any:
        async def score(state: Any, target: Any) -> Any:
            return Score(value=state.store.get("reward", 0.0))

        return score

    def fake(messages: Any, tools: Any, choice: Any, config: Any) -> Any:
        said = ModelOutput.from_content("mockllm", answer(len(messages) // 2 - 1))
        said.usage = ModelUsage(input_tokens=100, output_tokens=16, total_tokens=116)  # else it counts with tiktoken
        return said

    if variant == "http":
        model = get_model("openai/say", base_url=url, api_key="none", responses_api=False)
    else:
        model = get_model("mockllm/model", custom_outputs=fake)
    folder = tempfile.mkdtemp()

    def play(n: int) -> list[float]:
        samples = MemoryDataset([Sample(input="play", id=number) for number in range(1, n + 1)])
        [log] = evaluate(
            Task(dataset=samples, solver=game(), scorer=won()), model=model, max_samples=at_once,
            max_connections=at_once, display="none", log_dir=folder, log_level="error", score_display=False,
        )  # fmt: skip
        if log.status != "success" or log.results is None:
            raise RuntimeError(f"inspect_ai: {log.error}")
        return [1.0] * round(log.results.scores[0].metrics["mean"].value * n)

    return play
