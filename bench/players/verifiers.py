"""verifiers (0.1: MultiTurnEnv), with a client in this process (`mock`) or through a server (`http`)."""

import asyncio
import logging
import os
from collections.abc import Callable
from typing import Any

from bench.players.game import SYSTEM, Counter, answer, chosen

os.environ |= {"HF_HUB_OFFLINE": "1", "STUB_KEY": "none"}


def load() -> None:
    """Import what a run needs."""
    import datasets  # noqa: F401
    import verifiers  # noqa: F401


def prepare(variant: str, at_once: int, url: str) -> Callable[[int], list[float]]:
    """Play n games."""
    import verifiers as vf
    from datasets import Dataset
    from verifiers.types import ClientConfig, Response, ResponseMessage, Usage

    logging.getLogger("verifiers").setLevel(logging.ERROR)
    loop = asyncio.new_event_loop()
    asyncio.set_event_loop(loop)

    class Fake(vf.Client):  # type: ignore[misc]
        def __init__(self) -> None:
            self.logger, self._client, self._config = logging.getLogger("fake"), None, None

        async def get_response(self, prompt: Any, model: str, *rest: Any, **more: Any) -> Any:
            await asyncio.sleep(0)
            said = ResponseMessage(content=answer(len(prompt) // 2 - 1), finish_reason="stop", is_truncated=False)
            used = Usage(prompt_tokens=100, reasoning_tokens=0, completion_tokens=16, total_tokens=116)
            return Response(id="fake", created=0, model=model, message=said, usage=used)

        def setup_client(self, config: Any) -> None: ...
        async def to_native_tool(self, tool: Any) -> None: ...
        async def to_native_prompt(self, messages: Any) -> Any:
            return [], {}

        async def get_native_response(self, *rest: Any, **more: Any) -> None: ...
        async def raise_from_native_response(self, response: Any) -> None: ...
        async def from_native_response(self, response: Any) -> None: ...
        async def close(self) -> None: ...

    class Game(vf.MultiTurnEnv):  # type: ignore[misc]
        async def setup_state(self, state: Any) -> None:
            state["game"], state["won"] = Counter(str(state["answer"])), 0.0

        async def env_response(self, messages: Any, state: Any, **more: Any) -> list[dict[str, str]]:
            last = messages[-1]
            said = last["content"] if isinstance(last, dict) else last.content
            seen, state["won"], over = state["game"].act(chosen(said or ""))
            shown = [{"role": "user", "content": seen}]
            if over:
                state["final_env_response"] = shown
            return shown

    async def won(state: Any, **more: Any) -> float:
        return float(state["won"])

    def quiet(*rest: Any, **more: Any) -> None: ...

    client = Fake() if variant == "mock" else ClientConfig(api_base_url=url, api_key_var="STUB_KEY")

    def play(n: int) -> list[float]:
        rows = [{"question": Counter(str(i)).look(), "answer": str(i)} for i in range(n)]
        data = Dataset.from_list(rows)
        game = Game(dataset=data, eval_dataset=data, system_prompt=SYSTEM, rubric=vf.Rubric(funcs=[won]), max_turns=30)
        found = loop.run_until_complete(
            game.evaluate(
                client,
                "say",
                num_examples=n,
                rollouts_per_example=1,
                max_concurrent=at_once,
                independent_scoring=True,
                on_progress=quiet,
                on_start=quiet,
            )
        )
        return [output["reward"] for output in found["outputs"]]

    return play
