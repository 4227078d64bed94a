"""verifiers 0.1 (MultiTurnEnv) with a client that answers at once; nothing is saved."""

import asyncio
import logging
import os
import sys

os.environ |= {"PRIME_API_KEY": "x", "HF_HUB_OFFLINE": "1"}

import verifiers as vf
from datasets import Dataset
from verifiers.types import Response, ResponseMessage, Usage

sys.path.append(os.path.dirname(__file__))
from clock import STEPS, Counter, measure

logging.getLogger("verifiers").setLevel(logging.ERROR)


class Always(vf.Client):
    """Answers `add`."""

    def __init__(self) -> None:
        self.logger, self._client, self._config = logging.getLogger("always"), None, None

    async def get_response(self, prompt, model, sampling_args, tools=None, **kwargs):
        """The one answer."""
        await asyncio.sleep(0)
        usage = Usage(prompt_tokens=100, reasoning_tokens=0, completion_tokens=16, total_tokens=116)
        message = ResponseMessage(content="add", finish_reason="stop", is_truncated=False)
        return Response(id="1", created=0, model=model, message=message, usage=usage)

    def setup_client(self, config):
        """Nothing to set up."""

    async def to_native_tool(self, tool):
        """None are used."""

    async def to_native_prompt(self, messages):
        """As it is."""
        return [], {}

    async def get_native_response(self, *args, **kwargs):
        """Never asked."""

    async def raise_from_native_response(self, response):
        """Never wrong."""

    async def from_native_response(self, response):
        """Never asked."""

    async def close(self):
        """Nothing to close."""


class Game(vf.MultiTurnEnv):
    """The game as an environment of several turns."""

    async def setup_state(self, state):
        """A new counter."""
        state["game"] = Counter()

    async def env_response(self, messages, state, **kwargs):
        """Do what was answered."""
        said = messages[-1]
        text = state["game"].step(said.content if hasattr(said, "content") else said["content"])
        seen = [{"role": "user", "content": text}]
        if state["game"].count >= STEPS:
            state["final_env_response"] = seen
        return seen


async def won(state, **kwargs):
    """1 for a counter that came to its end."""
    return float(state["game"].count == STEPS)


loop = asyncio.new_event_loop()
asyncio.set_event_loop(loop)


def play(n: int, at_once: int) -> int:
    """How many of n were won."""
    data = Dataset.from_list([{"question": Counter().see(), "answer": str(i)} for i in range(n)])
    rubric, system = vf.Rubric(funcs=[won]), "You play a counter game."
    env = Game(dataset=data, eval_dataset=data, system_prompt=system, rubric=rubric, max_turns=30)
    work = env.evaluate(
        Always(), "counter", num_examples=n, rollouts_per_example=1, max_concurrent=at_once, independent_scoring=True,
        on_progress=lambda *a, **k: None, on_start=lambda *a, **k: None,
    )  # fmt: skip
    return sum(output["reward"] == 1.0 for output in loop.run_until_complete(work)["outputs"])


measure(play)
