"""The endpoint: HTTP in front of sessions, for clients that know nothing of us but the OpenAI API.

A call whose client went away is finished and journalled, since it is paid for; the same request again gets that answer
instead of a second call. While a model thinks, a stream says so in comments, and until `patience` is over a failure
can still have its own status. Web pages may not ask: a foreign `Host` or `Origin` is refused.
"""

import asyncio
import hmac
import json
import logging
import math
import secrets
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol
from weakref import WeakKeyDictionary

from harness.model import Completion, Request
from harness.proxy import wire_out
from harness.proxy.refusal import Refusal, bad, refusal_for
from harness.proxy.responses import Threads, read_responses
from harness.proxy.session import Session
from harness.proxy.wire_in import read_chat

if TYPE_CHECKING:
    from aiohttp import web

log = logging.getLogger("harness.proxy")

MOST = 32 * 2**20  # bytes of a request
UNCLAIMED = 64  # answers of a session that are kept for clients that went away
CLOSING = 5.0  # seconds that calls in flight have when the proxy closes
LOCAL = ("127.0.0.1", "localhost", "::1")


class Sessions(Protocol):
    """Finds the session of a key. Raises Refusal for a key that it does not know."""

    def find(self, key: str) -> Session: ...


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
            if name == digest and _gone(waiting):
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
        unclaimed = [entry for entry in self.pending if entry[1].done() and _gone(entry[2])]
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


class Proxy:
    """The server for `sessions` on `host` and `port` (0: any that is free). Without a `token` only for this machine.

    With a `token` each key must end in it, after a dot: `sk-instar-task7.TOKEN`.
    """

    def __init__(
        self, sessions: Sessions, *, names: Iterable[str] = (), host: str = "127.0.0.1", port: int = 0,
        token: str | None = None, patience: float = 10.0,
    ) -> None:  # fmt: skip
        check_host(host, token)
        self.sessions, self.names, self.host, self.port = sessions, list(names), host, port
        self._token, self._patience = token, patience
        self._calls: WeakKeyDictionary[Session, Calls] = WeakKeyDictionary()
        self._runner: web.AppRunner | None = None

    @property
    def url(self) -> str:
        """Where it listens, without the /v1."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"http://{host}:{self.port}"

    async def start(self) -> None:
        """Listen. Raises OSError where the port is taken."""
        from aiohttp import web

        @web.middleware
        async def guard(request: web.Request, handler: Any) -> web.StreamResponse:
            return await self._guard(request, handler)

        app = web.Application(client_max_size=MOST, middlewares=[guard])
        for prefix in ("", "/s/{key}"):
            for version in ("/v1", ""):
                app.router.add_post(f"{prefix}{version}/chat/completions", self._chat)
                app.router.add_post(f"{prefix}{version}/responses", self._responses)
                app.router.add_get(f"{prefix}{version}/models", self._models)
                app.router.add_get(f"{prefix}{version}/models/{{name:.+}}", self._model)
            app.router.add_get(f"{prefix}/instar/task", self._task)
            app.router.add_post(f"{prefix}/instar/act", self._act)
            app.router.add_post(f"{prefix}/instar/finish", self._finish)
        self._runner = web.AppRunner(app, access_log=None, shutdown_timeout=CLOSING)
        await self._runner.setup()
        site = web.TCPSite(self._runner, self.host, self.port)
        try:
            await site.start()
        except OSError as error:
            await self.close()
            raise OSError(
                f"{self.url}: the proxy cannot listen there: {error.strerror}. Cure: another --port (0 is any that is "
                "free) or --host"
            ) from error
        self.port = self._runner.addresses[0][1]

    async def close(self) -> None:
        """Stop listening; calls in flight have a moment to end. Idempotent."""
        runner, self._runner = self._runner, None
        if runner is None:
            return
        await runner.cleanup()
        for calls in list(self._calls.values()):
            await calls.stop()

    async def stop(self, session: Session) -> None:
        """Cancel the calls of `session` that are in flight."""
        if session in self._calls:
            await self._calls.pop(session).stop()

    async def _guard(
        self, http: "web.Request", handler: "Callable[[web.Request], Awaitable[web.StreamResponse]]"
    ) -> "web.StreamResponse":
        """Who may ask, and every failure in one shape."""
        from aiohttp import web

        try:
            self._check_origin(http)
            return await handler(http)
        except web.HTTPRequestEntityTooLarge:
            refusal = Refusal(413, f"a request of more than {MOST // 2**20} MiB is not taken", code="too_large")
        except web.HTTPException as error:
            refusal = Refusal(error.status, f"{http.method} {http.path}: {error.reason}", code="unknown_url")
        except Exception as error:
            known = refusal_for(error)
            if known is None:
                log.error("the proxy could not answer %s", http.path, exc_info=error)
                known = Refusal(500, f"the proxy failed: {type(error).__name__}", kind="server_error")
            refusal = known
        return web.json_response(refusal.body, status=refusal.status, headers=refusal.headers)

    def _check_origin(self, http: "web.Request") -> None:
        if self._token is not None:  # a page cannot know it
            return
        for name in ("Host", "Origin"):
            told = http.headers.get(name, "")
            host = told.rpartition("://")[2]
            host = host[1:].partition("]")[0] if host.startswith("[") else host.partition(":")[0]
            if told and host.lower() not in LOCAL:
                raise Refusal(403, f"{name} {told!r} is not this machine: web pages may not ask", code="foreign_host")

    def _session(self, http: "web.Request") -> Session:
        key = http.match_info.get("key", "")
        if not key:
            scheme, _, key = http.headers.get("Authorization", "").partition(" ")
            key = key.strip() if scheme.lower() == "bearer" else ""
        if not key:
            raise Refusal(
                401, "no key. Cure: send Authorization: Bearer sk-instar-NAME, or use the path /s/sk-instar-NAME/v1",
                code="invalid_api_key",
            )  # fmt: skip
        if self._token is not None:
            key, _, token = key.rpartition(".")
            if not key or not hmac.compare_digest(token.encode(), self._token.encode()):
                raise Refusal(401, "the key does not end in the proxy's token, after a dot", code="invalid_api_key")
        return self.sessions.find(key)

    def _calls_of(self, session: Session) -> Calls:
        return self._calls.setdefault(session, Calls())

    async def _chat(self, http: "web.Request") -> "web.StreamResponse":
        session = self._session(http)
        asked = read_chat(await _body(http), session.defaults)
        calls = self._calls_of(session)
        call = calls.take(session, asked.request, http)
        name = session.model.name
        if not asked.stream:
            return await self._whole(http, calls, call, lambda done: wire_out.chat_answer(done, asked, name))

        def pieces(done: Completion) -> Iterable[str]:
            for chunk in wire_out.chat_chunks(done, asked, name):
                yield f"data: {json.dumps(chunk)}\n\n"
            yield "data: [DONE]\n\n"

        return await self._stream(http, calls, call, pieces)

    async def _responses(self, http: "web.Request") -> "web.StreamResponse":
        session, body = self._session(http), await _body(http)
        calls = self._calls_of(session)
        asked = read_responses(body, session.defaults, calls.threads)
        call = calls.take(session, asked.request, http)

        def answer(done: Completion) -> dict[str, Any]:
            told = wire_out.response_answer(done, asked, session.model.name, body)
            if asked.keep:
                calls.threads.keep(told["id"], asked.said, done)
            return told

        if not asked.stream:
            return await self._whole(http, calls, call, answer)

        def pieces(done: Completion) -> Iterable[str]:
            for event in wire_out.response_events(answer(done)):
                yield f"event: {event['type']}\ndata: {json.dumps(event)}\n\n"

        return await self._stream(http, calls, call, pieces)

    async def _whole(
        self, http: "web.Request", calls: Calls, call: "asyncio.Task[Completion]",
        told: Callable[[Completion], Mapping[str, Any]],
    ) -> "web.StreamResponse":  # fmt: skip
        from aiohttp import web

        got = False
        try:
            completion = await asyncio.shield(call)
            answer = web.json_response(told(completion))
            if not _gone(http):
                await answer.prepare(http)
                await answer.write_eof()
                got = True
        except ConnectionResetError:
            got = False
        finally:
            calls.delivered(call, got=got)
        return answer

    async def _stream(
        self, http: "web.Request", calls: Calls, call: "asyncio.Task[Completion]",
        pieces: Callable[[Completion], Iterable[str]],
    ) -> "web.StreamResponse":  # fmt: skip
        from aiohttp import web

        answer = web.StreamResponse(headers={"Content-Type": "text/event-stream", "Cache-Control": "no-cache"})
        got = False
        try:
            await asyncio.wait([call], timeout=self._patience)
            if call.done():
                call.result()  # a failure still has its own status
            await answer.prepare(http)
            while not call.done():
                await answer.write(b": the model is at work\n\n")
                await asyncio.wait([call], timeout=self._patience)
            try:
                for piece in pieces(call.result()):
                    await answer.write(piece.encode())
            except ConnectionResetError:
                raise
            except Exception as error:
                refusal = refusal_for(error)
                if refusal is None:
                    raise
                await answer.write(f"event: error\ndata: {json.dumps(_event(refusal))}\n\n".encode())
            got = not _gone(http)
            await answer.write_eof()
        except ConnectionResetError:
            got = False
        finally:
            calls.delivered(call, got=got)
        return answer

    async def _models(self, http: "web.Request") -> "web.StreamResponse":
        from aiohttp import web

        return web.json_response(wire_out.models(self._names(http)))

    async def _model(self, http: "web.Request") -> "web.StreamResponse":
        from aiohttp import web

        name = http.match_info["name"]
        if name not in self._names(http):
            raise Refusal(404, f"there is no model {name!r} here; whatever name you send is answered by this proxy's",
                          code="model_not_found", param="model")  # fmt: skip
        return web.json_response(wire_out.model(name))

    def _names(self, http: "web.Request") -> list[str]:
        return self.names or [self._session(http).model.name]

    async def _task(self, http: "web.Request") -> "web.StreamResponse":
        from aiohttp import web

        return web.json_response(self._session(http).task())

    async def _act(self, http: "web.Request") -> "web.StreamResponse":
        from aiohttp import web

        session, body = self._session(http), await _body(http)
        action = body.get("action")
        if not isinstance(action, str):
            raise bad('the body must be {"action": TEXT}; a call of a tool is its JSON as text', "action")
        return web.json_response(await self._calls_of(session).do(session.act(action)))

    async def _finish(self, http: "web.Request") -> "web.StreamResponse":
        from aiohttp import web

        session, body = self._session(http), await _body(http)
        score, reason = body.get("score"), body.get("reason", "")
        number = isinstance(score, (int, float)) and not isinstance(score, bool) and math.isfinite(score)
        if not number and score is not None:
            raise bad("score must be a number, or null where there is none", "score")
        if not isinstance(reason, str):
            raise bad("reason must be a text", "reason")
        score = None if score is None else float(score)
        return web.json_response(await self._calls_of(session).do(session.finish(score, reason)))


def check_host(host: str, token: str | None) -> None:
    """Raise ValueError where everybody could ask, and spend the user's money."""
    if host not in LOCAL and token is None:
        raise ValueError(
            f"the proxy would be open to everybody who can reach {host}, and spend your money. Cure: --token-env "
            "NAME, a variable with a secret that clients append to their keys, or leave --host out"
        )


class Rooms:
    """The sessions of episodes that are being played in this process, each under a key that nobody can guess."""

    def __init__(self) -> None:
        self.open: dict[str, Session] = {}

    def find(self, key: str) -> Session:
        """The session of `key`. Raises Refusal."""
        if key not in self.open:
            raise Refusal(401, "this key belongs to no episode that is being played", code="invalid_api_key")
        return self.open[key]


@dataclass
class _Shared:
    proxy: Proxy
    rooms: Rooms
    users: int = 0
    ready: asyncio.Lock = field(default_factory=asyncio.Lock)


_shared: "WeakKeyDictionary[asyncio.AbstractEventLoop, _Shared]" = WeakKeyDictionary()


@asynccontextmanager
async def room(session: Session) -> AsyncIterator[tuple[str, str]]:
    """(address, key) under which `session` can be reached; its calls are cancelled at the end.

    All episodes of an event loop share one server, which lives as long as any of them.
    """
    loop = asyncio.get_running_loop()
    if loop not in _shared:
        rooms = Rooms()
        _shared[loop] = _Shared(Proxy(rooms), rooms)
    shared = _shared[loop]
    key = f"sk-instar-{secrets.token_urlsafe(24)}"
    shared.users += 1
    try:
        async with shared.ready:
            if shared.proxy._runner is None:
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


def _gone(http: "web.Request") -> bool:
    return http.transport is None or http.transport.is_closing()


async def _body(http: "web.Request") -> dict[str, Any]:
    try:
        body = json.loads(await http.read())
    except ValueError as error:
        raise bad(f"the body is no JSON: {error}") from error
    if not isinstance(body, dict):
        raise bad("the body must be a JSON object")
    return body


def _event(refusal: Refusal) -> dict[str, Any]:
    """An error inside a stream: clients of chat and of responses each find what they look for."""
    told = refusal.body
    return told | {"type": "error", "code": refusal.code, "message": told["error"]["message"], "param": refusal.param}
