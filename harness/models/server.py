"""A server behind one address: JSON there and JSON back, and a call is one HTTP request that is sent once.

A request that was sent may be at work, whatever became of its connection, so that nothing here sends it again: whoever
retries sees, pays and records each try. No redirect is followed either: it would turn a POST into a GET, or carry the
key to somebody else. So that hardly any request meets a connection which its server is just closing, idle ones are
dropped before the usual servers do that.
"""

import asyncio
import errno
import io
import json
import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit, urlunsplit

from harness import __version__
from harness.model import ModelRefused
from harness.models.failure import Failure, answered, parsed, words

if TYPE_CHECKING:
    from aiohttp import ClientResponse, ClientSession

CONNECT = 30.0  # seconds until there is a connection
IDLE = 4.0  # seconds for which an unused connection is kept; uvicorn (vLLM, SGLang), llama.cpp and Node keep it for 5
MOST = 64 * 2**20  # bytes of an answer
LARGE = 2**20  # bytes of a body that is sent piece by piece

_encode = json.JSONEncoder(separators=(",", ":")).encode


class Server:
    """Keeps connections to `address`, as many as there are calls at once, for each event loop its own.

    `headers` go with each call, which may take `timeout` seconds. The environment's proxies are heeded
    (http_proxy, https_proxy, all_proxy, no_proxy; lower or upper case); a .netrc is not.
    """

    def __init__(self, address: str, headers: Mapping[str, str], timeout: float) -> None:
        parts = urlsplit(address)
        self._address = address
        self._before = urlunsplit((parts.scheme, parts.netloc, parts.path.rstrip("/"), "", ""))
        self._after = f"?{parts.query}" if parts.query else ""
        self._headers = {
            "Accept": "application/json",
            "Content-Type": "application/json",
            "User-Agent": f"instar/{__version__}",
            **headers,
        }
        self._timeout = timeout
        self._proxy: str | None = None
        self._sessions: dict[asyncio.AbstractEventLoop, ClientSession] = {}

    async def post(self, path: str, body: dict[str, Any]) -> dict[str, Any] | Failure:
        """The answer to `body` at `path`, or why there is none."""
        session = self._sessions.get(asyncio.get_running_loop()) or await self._open()
        import aiohttp

        data = _encode(body).encode()
        sent = data if len(data) < LARGE else io.BytesIO(data)
        try:
            async with session.post(
                f"{self._before}/{path}{self._after}", data=sent, proxy=self._proxy, allow_redirects=False
            ) as response:
                content = await _content(response)
                if content is None:
                    return Failure(f"more than {MOST >> 20} MB", response.status)
                return _read(response, content)
        except aiohttp.ConnectionTimeoutError:
            return Failure(f"no connection within {min(CONNECT, self._timeout):g} s")
        except TimeoutError:
            return Failure("", late=True)
        except (aiohttp.ClientError, OSError) as error:
            return Failure(_why(error))

    async def close(self) -> None:
        """Close the connections of the running loop; idempotent."""
        session = self._sessions.pop(asyncio.get_running_loop(), None)
        if session is not None:
            await session.close()

    async def _open(self) -> "ClientSession":
        """The session of the running loop: connections cannot outlive the loop that they were made in."""
        import aiohttp

        self._proxy = proxy_for(self._address)
        session = self._sessions[asyncio.get_running_loop()] = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=0, keepalive_timeout=IDLE),
            cookie_jar=aiohttp.DummyCookieJar(),
            headers=self._headers,
            timeout=aiohttp.ClientTimeout(total=self._timeout, connect=min(CONNECT, self._timeout)),
        )
        for loop in [loop for loop in self._sessions if loop.is_closed()]:  # nobody can close theirs any more
            await self._sessions.pop(loop).close()
        return session


def proxy_for(address: str) -> str | None:
    """The proxy that the environment names for `address`. Raises ModelRefused for one that is not spoken to."""
    from urllib.request import getproxies, proxy_bypass

    parts = urlsplit(address)
    if proxy_bypass(parts.netloc):
        return None
    known = getproxies()
    proxy = known.get(parts.scheme) or known.get("all")
    if not proxy:
        return None
    proxy = proxy if "://" in proxy else f"http://{proxy}"
    if urlsplit(proxy).scheme not in ("http", "https"):
        raise ModelRefused(
            f"the environment names a {urlsplit(proxy).scheme} proxy for {address}, and only http and https ones are "
            f"spoken to. Cure: another one, or none by no_proxy={parts.hostname}"
        )
    return proxy


async def _content(response: "ClientResponse") -> bytes | None:
    """All of an answer; None when it is too long."""
    pieces, size = [], 0
    async for piece in response.content.iter_any():
        size += len(piece)
        if size > MOST:
            return None
        pieces.append(piece)
    return b"".join(pieces)


def _read(response: "ClientResponse", content: bytes) -> dict[str, Any] | Failure:
    text, status = _text(response, content), response.status
    body = parsed(text)
    if status < 300:
        if not isinstance(body, dict):
            return Failure(f"{'no JSON' if body is None else 'no completion'}: {' '.join(text.split())!r}", status)
        error = body.get("error")
        if "choices" in body or not isinstance(error, dict) or type(error.get("code")) is not int:
            return body
        status = error["code"]  # OpenRouter's way of telling that the provider behind it failed
        if not 400 <= status < 600:
            return body
    elif status < 400:
        where = response.headers.get("Location", "").partition("?")[0]
        return Failure(f"it points to {where or 'no other address'}. Cure: set api_base to where the server is", status)
    return answered(status, words(body, text), body, response.headers)


def _text(response: "ClientResponse", content: bytes) -> str:
    try:
        return content.decode()
    except UnicodeDecodeError:  # it is in another charset, or the model was cut off within a character
        try:
            return content.decode(response.charset or "utf-8", "replace")
        except LookupError:
            return content.decode("utf-8", "replace")


def _why(error: Exception) -> str:
    said = " ".join(str(error).split()) or type(error).__name__
    said = re.sub(r"//[^/\s@]*@", "//", said)  # a proxy's password
    if "CERTIFICATE_VERIFY_FAILED" in said:
        return f"{said}. Cure: name the file with its certificate authority in SSL_CERT_FILE"
    if getattr(error, "errno", None) == errno.EMFILE:
        return f"{said}. Cure: raise the limit of open files (ulimit -n), or lower the concurrency"
    return said
