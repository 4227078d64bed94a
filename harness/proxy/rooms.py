"""One server for all episodes that are played in a process, each under a key of its own that nobody can guess.

It begins to listen with the first episode of an event loop and stops with the last one, so that nobody has to close it.
"""

import asyncio
import secrets
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from weakref import WeakKeyDictionary

from harness.proxy.refusal import Refusal
from harness.proxy.server import Proxy
from harness.proxy.session import Session


class Rooms:
    """The sessions of episodes that are being played in this process, each under a key that nobody can guess."""

    def __init__(self) -> None:
        self.open: dict[str, Session] = {}

    def find(self, key: str) -> Session:
        """The session of `key`. Raises Refusal."""
        if key not in self.open:
            raise Refusal(401, "this key belongs to no episode that is being played", code="invalid_api_key")
        return self.open[key]

    look = find


@dataclass
class _Shared:
    proxy: Proxy
    rooms: Rooms
    users: int = 0
    ready: asyncio.Lock = field(default_factory=asyncio.Lock)


_shared: "WeakKeyDictionary[asyncio.AbstractEventLoop, _Shared]" = WeakKeyDictionary()


@asynccontextmanager
async def room(session: Session) -> AsyncIterator[tuple[str, str]]:
    """(address, key) under which `session` can be reached; its calls are cancelled at the end."""
    loop = asyncio.get_running_loop()
    if loop not in _shared:
        rooms = Rooms()
        _shared[loop] = _Shared(Proxy(rooms), rooms)
    shared = _shared[loop]
    key = f"sk-instar-{secrets.token_urlsafe(24)}"
    shared.users += 1
    try:
        async with shared.ready:
            if not shared.proxy.listening:
                await shared.proxy.start()
        shared.rooms.open[key] = session
        yield shared.proxy.url, key
    finally:
        shared.rooms.open.pop(key, None)
        await shared.proxy.stop(session)
        shared.users -= 1
        if not shared.users:
            _shared.pop(loop, None)
            await shared.proxy.close()
