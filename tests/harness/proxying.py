"""A real proxy on a real socket in front of a scripted model, and OpenAI's own client for it."""

import asyncio
import itertools
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import openai

from harness.journal import Journal
from harness.model import Completion, Model, Request, ToolCall, Usage
from harness.models.scripted import ScriptedModel
from harness.proxy.calls import gone
from harness.proxy.conversation import Conversations
from harness.proxy.server import Proxy
from harness.trajectory import Trajectory

WEATHER: Any = {
    "type": "function",
    "function": {
        "name": "weather", "description": "The weather.",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
    },
}  # fmt: skip


class Scripted(ScriptedModel):
    """Answers with `fn`, and remembers what it was asked. Not deterministic: each call is one of its own."""

    deterministic = False

    def __init__(self, fn: Callable[[Request], Any]) -> None:
        self.asked: list[Request] = []
        super().__init__(fn)

    async def complete(self, request: Request) -> Completion:
        self.asked.append(request)
        return await super().complete(request)


def said(text: str, *calls: tuple[str, str], **rest: Any) -> Completion:
    """A completion with tool calls of (name, arguments)."""
    made = tuple(ToolCall(id=f"call_{n}", name=name, arguments=told) for n, (name, told) in enumerate(calls))
    return Completion(text=text, tool_calls=made, usage=Usage(prompt_tokens=7, output_tokens=3, dollars=0.5), **rest)


@asynccontextmanager
async def serving(
    folder: Path, model: Model | Callable[[Request], Any], *, patience: float = 10.0, token: str | None = None,
    **rest: Any,
) -> AsyncIterator[tuple[str, Conversations]]:  # fmt: skip
    """(url, conversations) of a proxy that journals into `folder`; its episodes end with it."""
    answering = Scripted(model) if not hasattr(model, "complete") else model
    with Journal(folder) as journal:
        conversations = Conversations(journal, answering, **rest)
        proxy = Proxy(conversations, names=[answering.name], patience=patience, token=token)
        await proxy.start()
        conversations.server = proxy  # type: ignore[attr-defined]
        try:
            yield proxy.url, conversations
        finally:
            await proxy.close()
            await conversations.close()


@asynccontextmanager
async def client(url: str, key: str = "sk-instar-task", *, retries: int = 0) -> AsyncIterator[openai.AsyncOpenAI]:
    """OpenAI's client."""
    async with openai.AsyncOpenAI(base_url=f"{url}/v1", api_key=key, max_retries=retries) as made:
        yield made


async def post(url: str, body: Any = None, *, method: str = "POST", **headers: str) -> tuple[int, Any]:
    """Status and JSON of a plain request."""
    async with aiohttp.ClientSession() as http, http.request(method, url, json=body, headers=headers) as answer:
        return answer.status, await answer.json()


def user(text: str) -> list[Any]:
    """One user message."""
    return [{"role": "user", "content": text}]


def written(folder: Path) -> Sequence[Trajectory]:
    """The trajectories in the journal."""
    with Journal(folder, readonly=True) as journal:
        return list(journal.trajectories())


def held(folder: Path) -> bytes:
    """All that lies in `folder`."""
    return b"".join(file.read_bytes() for file in folder.iterdir())


async def leave(conversations: Conversations, where: str, body: Any) -> None:
    """Ask, and go away when the model has been asked; the server has noticed it when this returns."""

    async def ask() -> None:
        async with aiohttp.ClientSession() as http, http.post(where, json=body) as answer:
            await answer.read()

    def pending() -> list[Any]:
        calls = conversations.server._calls.values()  # type: ignore[attr-defined]
        return [http for one in calls for _, _, http in one.pending]

    asking = asyncio.ensure_future(ask())
    await when(pending)
    asking.cancel()
    await asyncio.gather(asking, return_exceptions=True)
    await when(lambda: gone(pending()[0]))


async def when(check: Callable[[], Any]) -> None:
    """Wait until `check` holds."""
    async with asyncio.timeout(20):
        for _ in itertools.count():
            if check():
                return
            await asyncio.sleep(0.01)
