"""A call is made once, whoever waits for its answer: what a client left behind serves the same request again.

Clients give up early and send the request again, as if it had cost nothing. So a call whose client went away is
finished, and the next equal request of the session gets its answer. Equal requests of clients that still wait are
different calls: they may be samples.
"""

import asyncio
from collections.abc import Coroutine
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from harness.model import Completion, Request
from harness.proxy.responses import Threads
from harness.proxy.session import Session

if TYPE_CHECKING:
    from aiohttp import web

UNCLAIMED = 64  # answers of a session that are kept for clients that went away


@dataclass
class Calls:
    """The calls of one session that are not delivered yet, each with the connection that waits for it.

    `doing`: actions under way, which end also when nobody waits for them any more.
    """

    threads: Threads = field(default_factory=Threads)
    pending: "list[tuple[str, asyncio.Task[Completion], web.Request]]" = field(default_factory=list)
    doing: "set[asyncio.Task[dict[str, Any]]]" = field(default_factory=set)

    def take(self, session: Session, request: Request, http: "web.Request") -> "asyncio.Task[Completion]":
        """The call that answers `request`: one whose client went away, or a new one."""
        digest = request.digest()
        for place, (name, call, waiting) in enumerate(self.pending):
            if name == digest and gone(waiting):
                self.pending[place] = (name, call, http)
                return call
        call = asyncio.ensure_future(session.ask(request))
        call.add_done_callback(lambda done: done.cancelled() or done.exception())  # so that nobody need fetch it
        self.pending.append((digest, call, http))
        return call

    def delivered(self, call: "asyncio.Task[Completion]", *, got: bool) -> None:
        """The client has its answer, or it has not `got` it; a failure is nothing to keep."""
        failed = call.done() and (call.cancelled() or call.exception() is not None)
        if got or failed:
            self.pending = [entry for entry in self.pending if entry[1] is not call]
        unclaimed = [entry for entry in self.pending if entry[1].done() and gone(entry[2])]
        for entry in unclaimed[: max(0, len(unclaimed) - UNCLAIMED)]:
            self.pending.remove(entry)

    async def do(self, action: "Coroutine[Any, Any, dict[str, Any]]") -> dict[str, Any]:
        """Carry out `action` to its end."""
        task = asyncio.ensure_future(action)
        self.doing.add(task)
        task.add_done_callback(self.doing.discard)
        return await asyncio.shield(task)

    async def stop(self) -> None:
        """Cancel what is in flight."""
        tasks: list[asyncio.Task[Any]] = [*(call for _, call, _ in self.pending), *self.doing]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        self.pending.clear()


def gone(http: "web.Request") -> bool:
    """Whether nobody is at the other end any more."""
    return http.transport is None or http.transport.is_closing()
