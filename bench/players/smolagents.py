"""smolagents' ToolCallingAgent, one thread an episode: `mock`, a model in this process; `http`, the openai SDK."""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from bench.players.game import STEPS, Counter, answer


def load() -> None:
    """Import what a run needs."""
    import smolagents  # noqa: F401


def prepare(variant: str, at_once: int, url: str) -> Callable[[int], list[float]]:
    """Play n games."""
    from smolagents import LogLevel, Model, OpenAIServerModel, Tool, ToolCallingAgent
    from smolagents.models import (
        ChatMessage,
        ChatMessageToolCall,
        ChatMessageToolCallFunction,
        MessageRole,
    )
    from smolagents.monitoring import TokenUsage

    pool = ThreadPoolExecutor(at_once)

    class Step(Tool):  # type: ignore[misc]
        name, description, output_type = "step", "Act in the counter game.", "string"
        inputs = {"action": {"type": "string", "description": "inc or dec"}}  # noqa: RUF012 - its own way

        def __init__(self, game: Counter) -> None:
            super().__init__()
            self.game, self.reward = game, 0.0

        def forward(self, action: str) -> str:
            seen, self.reward, _ = self.game.act(action)
            return seen

    class Fake(Model):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__(model_id="fake")
            self.turn = 0

        def generate(self, messages: Any, **more: Any) -> Any:
            last = self.turn == STEPS
            function = ChatMessageToolCallFunction(
                name="final_answer" if last else "step", arguments={"answer": "done"} if last else {"action": "inc"}
            )
            called = ChatMessageToolCall(id=f"call_{self.turn}", type="function", function=function)
            self.turn += 1
            return ChatMessage(
                role=MessageRole.ASSISTANT, content=answer(self.turn - 1), tool_calls=[called],
                token_usage=TokenUsage(input_tokens=100, output_tokens=16),
            )  # fmt: skip

    shared = OpenAIServerModel(model_id="call", api_base=url, api_key="none") if variant == "http" else None

    def game(number: int) -> float:
        tool = Step(Counter(str(number)))
        agent = ToolCallingAgent(
            tools=[tool], model=shared or Fake(), max_steps=STEPS + 2, verbosity_level=LogLevel.OFF
        )
        agent.run(tool.game.look())
        return tool.reward

    return lambda n: list(pool.map(game, range(n)))
