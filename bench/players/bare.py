"""The limit: a loop that keeps the conversation, turns it into JSON and back, and writes each episode as a line.

`json` with the standard library's, `orjson` with that one; `http` sends it through asyncio's own streams.
"""

import asyncio
import json
import tempfile
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from bench.players.game import SYSTEM, Counter, chosen
from bench.players.stub import completion

Call = Callable[[list[dict[str, str]]], Awaitable[str]]


def load() -> None:
    """There is nothing to import."""


def prepare(variant: str, at_once: int, url: str) -> Callable[[int], list[float]]:
    """Play n games."""
    loop = asyncio.new_event_loop()
    folder = Path(tempfile.mkdtemp())
    dumps: Callable[[Any], str | bytes] = json.dumps
    loads: Callable[[Any], Any] = json.loads
    if variant == "orjson":
        import orjson

        dumps, loads = orjson.dumps, orjson.loads
    call = _over_http(url) if variant == "http" else _here(dumps, loads)

    async def games(names: Any, file: Any, rewards: list[float]) -> None:
        for name in names:
            world = Counter(str(name))
            talk, reward, over = (
                [{"role": "system", "content": SYSTEM}, {"role": "user", "content": world.look()}],
                0.0,
                False,
            )
            while not over:
                said = await call(talk)
                seen, reward, over = world.act(chosen(said))
                talk += [{"role": "assistant", "content": said}, {"role": "user", "content": seen}]
            line = dumps({"game": name, "talk": talk, "reward": reward})
            file.write((line if isinstance(line, bytes) else line.encode()) + b"\n")
            rewards.append(reward)

    async def together(n: int) -> list[float]:
        rewards: list[float] = []
        with (folder / "games.jsonl").open("ab") as file:
            names = iter(range(n))
            await asyncio.gather(*(games(names, file, rewards) for _ in range(min(at_once, n))))
        return rewards

    return lambda n: loop.run_until_complete(together(n))


def _here(dumps: Callable[[Any], Any], loads: Callable[[Any], Any]) -> Call:
    async def call(talk: list[dict[str, str]]) -> str:
        request = loads(dumps({"model": "say", "messages": talk}))
        await asyncio.sleep(0)
        return str(loads(dumps(completion(request)))["choices"][0]["message"]["content"])

    return call


def _over_http(url: str) -> Call:
    parts = urlsplit(url)
    free: list[tuple[asyncio.StreamReader, asyncio.StreamWriter]] = []

    async def call(talk: list[dict[str, str]]) -> str:
        body = json.dumps({"model": "say", "messages": talk}).encode()
        reader, writer = free.pop() if free else await asyncio.open_connection(parts.hostname, parts.port)
        writer.write(b"POST /v1/chat/completions HTTP/1.1\r\ncontent-length: %d\r\n\r\n%s" % (len(body), body))
        head = (await reader.readuntil(b"\r\n\r\n")).lower()
        data = await reader.readexactly(int(head.partition(b"content-length:")[2].split(b"\r\n", 1)[0]))
        free.append((reader, writer))
        return str(json.loads(data)["choices"][0]["message"]["content"])

    return call
