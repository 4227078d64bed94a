"""A server of bytes: a test says what goes over each connection, so that a client meets what no framework sends."""

import asyncio
import json
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

ANSWER = {"choices": [{"message": {"content": "hi"}, "finish_reason": "stop"}], "usage": {"prompt_tokens": 1}}


@dataclass
class Line:
    """One connection: read a request from it, write anything to it."""

    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter
    number: int

    async def request(self) -> tuple[str, bytes] | None:
        """Head (as sent) and body of the next request; None when the client is gone."""
        try:
            head = (await self.reader.readuntil(b"\r\n\r\n")).decode("latin-1")
        except (asyncio.IncompleteReadError, ConnectionError):
            return None
        length = [line for line in head.split("\r\n") if line.lower().startswith("content-length:")]
        return head, await self.reader.readexactly(int(length[0].split(":")[1]) if length else 0)

    async def send(self, body: bytes | Any = ANSWER, status: int = 200, **headers: str) -> None:
        """An answer; what is not bytes goes as JSON. `content_type="..."` is a header."""
        content = body if isinstance(body, bytes) else json.dumps(body).encode()
        told = {"Content-Type": "application/json", "Content-Length": str(len(content))}
        told |= {name.replace("_", "-").title(): value for name, value in headers.items()}
        lines = "".join(f"{name}: {value}\r\n" for name, value in told.items())
        await self.raw(f"HTTP/1.1 {status} X\r\n{lines}\r\n".encode() + content)

    async def raw(self, content: bytes) -> None:
        self.writer.write(content)
        await self.writer.drain()


Serve = Callable[[Line], Awaitable[None]]


@dataclass
class Raw:
    """The server: its `url`, and the heads and bodies that it was sent, as far as `serve` has read them with `read`."""

    url: str = ""
    lines: int = 0
    heads: list[str] = field(default_factory=list)
    bodies: list[dict[str, Any]] = field(default_factory=list)

    async def read(self, line: Line) -> bool:
        """Read the next request and keep it; False when the client is gone."""
        found = await line.request()
        if found is None:
            return False
        self.heads.append(found[0])
        self.bodies.append(json.loads(found[1]) if found[1] else {})
        return True


@asynccontextmanager
async def serving(
    serve: Callable[[Raw, Line], Awaitable[None]], tls: ssl.SSLContext | None = None
) -> AsyncIterator[Raw]:
    """A server whose every connection is played by `serve`, and closed when that returns."""
    raw, tasks = Raw(), set()

    async def play(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        tasks.add(asyncio.current_task())
        raw.lines += 1
        try:
            await serve(raw, Line(reader, writer, raw.lines))
        except (ConnectionError, asyncio.CancelledError):
            pass
        finally:
            writer.close()

    server = await asyncio.start_server(play, "127.0.0.1", 0, ssl=tls, backlog=1024)
    raw.url = f"http{'s' if tls else ''}://127.0.0.1:{server.sockets[0].getsockname()[1]}/v1"
    try:
        yield raw
    finally:
        server.close()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def always(raw: Raw, line: Line) -> None:
    """Answer every request with the same completion."""
    while await raw.read(line):
        await line.send()


def answering(*arguments: Any, **headers: str) -> Callable[[Raw, Line], Awaitable[None]]:
    """Answer every request with what `Line.send` makes of these."""

    async def serve(raw: Raw, line: Line) -> None:
        while await raw.read(line):
            await line.send(*arguments, **headers)

    return serve
