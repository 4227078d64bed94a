"""The endpoint: HTTP in front of sessions, for clients that know nothing of us but the OpenAI API.

A call whose client went away is finished and journalled, since it is paid for; the same request again gets that answer
instead of a second call. While a model thinks, a stream says so in comments, and until `patience` is over a failure
can still have its own status. Web pages may not ask: a foreign `Host` or `Origin` is refused.
"""

import asyncio
import contextlib
import hmac
import json
import logging
import traceback
from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any, Protocol
from weakref import WeakKeyDictionary

from harness.model import Completion
from harness.proxy import wire_out
from harness.proxy.calls import Calls, gone
from harness.proxy.refusal import Refusal, bad, refusal_for
from harness.proxy.responses import Threads, read_responses
from harness.proxy.session import Session
from harness.proxy.wire_in import read_chat
from harness.proxy.words import plain
from harness.secrecy import mask

if TYPE_CHECKING:
    from aiohttp import web

log = logging.getLogger("harness.proxy")

MOST = 32 * 2**20  # bytes of a request
CLOSING = 5.0  # seconds that calls in flight have when the proxy closes
LOCAL = ("127.0.0.1", "localhost", "::1")


class Sessions(Protocol):
    """Finds the session of a key. Raises Refusal for a key that it does not know.

    `look` is for a request that may come to nothing, and keeps nothing; `find` is for one that asks the model.
    """

    def look(self, key: str) -> Session: ...

    def find(self, key: str) -> Session: ...


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

    @property
    def listening(self) -> bool:
        """Whether it has started, and is not closed."""
        return self._runner is not None

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
        except Exception as error:  # noqa: BLE001 - told, and where it is a mistake of ours it is logged
            refusal = _refusal(error, http)
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

    def _key(self, http: "web.Request") -> str:
        """The key of a client that may ask, without the proxy's token. Raises Refusal."""
        key = http.match_info.get("key", "")
        if not key:
            scheme, _, key = http.headers.get("Authorization", "").partition(" ")
            key = key.strip() if scheme.lower() == "bearer" else ""
        if not key or not key.isascii():
            raise Refusal(
                401, "no key. Cure: send Authorization: Bearer sk-instar-NAME, or use the path /s/sk-instar-NAME/v1",
                code="invalid_api_key",
            )  # fmt: skip
        if self._token is not None:
            key, _, token = key.rpartition(".")
            if not key or not hmac.compare_digest(token.encode(), self._token.encode()):
                raise Refusal(401, "the key does not end in the proxy's token, after a dot", code="invalid_api_key")
        return key

    def _calls_of(self, session: Session) -> Calls:
        return self._calls.setdefault(session, Calls())

    async def _chat(self, http: "web.Request") -> "web.StreamResponse":
        key, body = self._key(http), await _body(http)
        asked = read_chat(body, self.sessions.look(key).defaults)
        session = self.sessions.find(key)  # only now: a request that is refused opens nothing
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
        key, body = self._key(http), await _body(http)
        known = self.sessions.look(key)
        threads = self._calls[known].threads if known in self._calls else Threads()
        asked = read_responses(body, known.defaults, threads)
        session = self.sessions.find(key)
        calls = self._calls_of(session)
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
            answer = web.json_response(told(await asyncio.shield(call)))
            with contextlib.suppress(ConnectionResetError):
                if not gone(http):
                    await answer.prepare(http)
                    await answer.write_eof()
                    got = True
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
            with contextlib.suppress(ConnectionResetError):
                await answer.prepare(http)
                while not call.done():
                    await answer.write(b": the model is at work\n\n")
                    await asyncio.wait([call], timeout=self._patience)
                for piece in self._told(http, call, pieces):
                    await answer.write(piece.encode())
                got = not gone(http)
                await answer.write_eof()
        finally:
            calls.delivered(call, got=got)
        return answer

    def _told(
        self, http: "web.Request", call: "asyncio.Task[Completion]", pieces: Callable[[Completion], Iterable[str]]
    ) -> Iterable[str]:
        """The pieces of a stream that has begun: a failure is one of them, since the status has been sent."""
        try:
            return pieces(call.result())
        except Exception as error:  # noqa: BLE001 - told, and where it is a mistake of ours it is logged
            return [f"event: error\ndata: {json.dumps(_event(_refusal(error, http)))}\n\n"]

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
        if self.names and self._token is None:
            return self.names
        key = self._key(http)
        return self.names or [self.sessions.look(key).model.name]

    async def _task(self, http: "web.Request") -> "web.StreamResponse":
        from aiohttp import web

        return web.json_response(self.sessions.look(self._key(http)).task())

    async def _act(self, http: "web.Request") -> "web.StreamResponse":
        from aiohttp import web

        key, body = self._key(http), await _body(http)
        action = body.get("action")
        if not isinstance(action, str):
            raise bad('the body must be {"action": TEXT}; a call of a tool is its JSON as text', "action")
        session = self.sessions.look(key)
        return web.json_response(await self._calls_of(session).do(session.act(action)))

    async def _finish(self, http: "web.Request") -> "web.StreamResponse":
        from aiohttp import web

        key, body = self._key(http), await _body(http)
        score, reason = body.get("score"), body.get("reason", "")
        if score is not None and (not isinstance(score, (int, float)) or isinstance(score, bool)):
            raise bad("score must be a number, or null where there is none", "score")
        if not isinstance(reason, str):
            raise bad("reason must be a text", "reason")
        session = self.sessions.look(key)
        return web.json_response(await self._calls_of(session).do(session.finish(score, reason)))


def check_host(host: str, token: str | None) -> None:
    """Raise ValueError where everybody could ask, and spend the user's money."""
    if host not in LOCAL and token is None:
        raise ValueError(
            f"the proxy would be open to everybody who can reach {host}, and spend your money. Cure: --token-env "
            "NAME, a variable with a secret that clients append to their keys, or leave --host out"
        )


def _refusal(error: Exception, http: "web.Request") -> Refusal:
    """What a client is told of `error`; one that nobody expected is in the log, without the client's key."""
    from pydantic import ValidationError

    if known := refusal_for(error):
        return known
    if isinstance(error, ValidationError):  # what no check before it thought of
        told = error.errors(include_url=False, include_input=False)[0]
        return bad(f"the request cannot be held: {told['msg']}", ".".join(map(str, told["loc"])))
    route = http.match_info.route.resource
    where = route.canonical if route is not None else "an unknown address"
    trace = plain(mask("".join(traceback.format_exception(error))))
    log.error("the proxy could not answer %s %s\n%s", http.method, where, trace)
    return Refusal(500, f"the proxy failed: {type(error).__name__}", kind="server_error")


async def _body(http: "web.Request") -> dict[str, Any]:
    try:
        body = json.loads(await http.read())
    except (ValueError, RecursionError) as error:
        raise bad(f"the body is no JSON that can be read: {error}") from error
    if not isinstance(body, dict):
        raise bad("the body must be a JSON object")
    return body


def _event(refusal: Refusal) -> dict[str, Any]:
    """An error inside a stream: clients of chat and of responses each find what they look for."""
    told = refusal.body
    return told | {"type": "error", "code": refusal.code, "message": told["error"]["message"], "param": refusal.param}
