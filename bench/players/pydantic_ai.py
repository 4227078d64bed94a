"""pydantic-ai with one tool: `mock`, a function as the model; `http`, its OpenAI model and a server."""

import asyncio
from collections.abc import Callable
from typing import Any

from bench.players.game import STEPS, SYSTEM, Counter, answer


def load() -> None:
    """Import what a run needs."""
    import pydantic_ai.models.function  # noqa: F401


def prepare(variant: str, at_once: int, url: str) -> Callable[[int], list[float]]:
    """Play n games."""
    from pydantic_ai import Agent, RunContext
    from pydantic_ai.messages import ModelResponse, TextPart, ToolCallPart
    from pydantic_ai.models.function import FunctionModel

    loop = asyncio.new_event_loop()
    asyncio.set_event_loop(loop)

    async def fake(messages: list[Any], info: Any) -> Any:
        await asyncio.sleep(0)
        turn = len(messages) // 2
        said = TextPart(answer(turn))
        return ModelResponse([said, ToolCallPart("step", {"action": "inc"})] if turn < STEPS else [said])

    if variant == "http":
        from pydantic_ai.models.openai import OpenAIChatModel
        from pydantic_ai.providers.openai import OpenAIProvider

        model: Any = OpenAIChatModel("call", provider=OpenAIProvider(base_url=url, api_key="none"))
    else:
        model = FunctionModel(fake)
    agent = Agent(model, system_prompt=SYSTEM, deps_type=dict)

    @agent.tool
    async def step(context: RunContext[dict], action: str) -> str:  # type: ignore[type-arg]
        """Act in the counter game: inc or dec."""
        seen, context.deps["reward"], _ = context.deps["game"].act(action)
        return str(seen)

    async def together(n: int) -> list[float]:
        rewards, names = [], iter(range(n))

        async def games() -> None:
            for name in names:
                episode: dict[str, Any] = {"game": Counter(str(name)), "reward": 0.0}
                await agent.run(episode["game"].look(), deps=episode)
                rewards.append(episode["reward"])

        await asyncio.gather(*(games() for _ in range(min(at_once, n))))
        return rewards

    return lambda n: loop.run_until_complete(together(n))
