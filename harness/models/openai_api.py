"""Any server that speaks the OpenAI API: one call is one HTTP request, and nothing hidden in between.

The runner retries, so that every try is seen, paid for and journalled once. A key is read from the environment by name
and goes nowhere but to the server.
"""

import os
import time
from typing import Any
from urllib.parse import urlsplit

from harness.model import Completion, Mode, ModelRefused, Request
from harness.models.chat import ChatModel
from harness.models.failure import Failure
from harness.models.server import Server
from harness.models.wire import read_answer, text_arguments
from harness.secrecy import wrong_variable

_PATHS = {"chat": "chat/completions", "completions": "completions"}


class OpenAIModel(ChatModel):
    """A model behind `api_base` (default: OpenAI's own). `timeout` in seconds; prices in dollars per million tokens.

    `logprobs` asks for log-probabilities, `token_ids` also for token ids (vLLM and llama.cpp give them).
    """

    def __init__(
        self,
        model: str,
        *,
        api_base: str | None = None,
        api_key_env: str = "OPENAI_API_KEY",
        timeout: float = 120.0,
        price_in: float | None = None,
        price_out: float | None = None,
        logprobs: bool = False,
        token_ids: bool = False,
        name: str | None = None,
    ) -> None:
        address = (api_base or os.environ.get("OPENAI_BASE_URL") or "https://api.openai.com/v1").rstrip("/")
        super().__init__(name or f"openai/{model}", address, address, timeout, price_in, price_out)
        self.model = model
        self._key = key_for(address, api_key_env)
        self._key_hint = f"check the key in the environment variable {api_key_env}"
        self._fixed: dict[str, Any] = {"model": model} | ({"return_token_ids": True} if token_ids else {})
        self._logprobs = logprobs or token_ids
        self._continues = False  # /completions has answered
        self._server = Server(address, _headers(self._key), timeout)

    async def _complete(self, request: Request) -> Completion:
        """Answer a `prompt` without constraints by /completions, everything else by /chat/completions."""
        began = time.perf_counter()
        mode: Mode | None = None
        if _unconstrained(request) and "completions" not in self.lacks:
            answer = await self._text(request)
        else:
            answer, mode = await self._chat(request, {"logprobs": True} if self._logprobs else {})
        seconds = time.perf_counter() - began
        return read_answer(
            answer, request, name=self.name, seconds=seconds, prices=self.prices, mode=mode, secret=self._key
        )

    async def close(self) -> None:
        """Close the connections of the running event loop; idempotent."""
        await self._server.close()

    async def _text(self, request: Request) -> dict[str, Any]:
        extra = {"logprobs": 1} if self._logprobs else {}
        try:
            answer = await self._steadily("completions", text_arguments(request) | extra)
            self._continues = True
            return answer
        except ModelRefused as refused:
            if refused.status not in (404, 405, 501) or self._continues:
                raise
        answer, _ = await self._chat(request, {"logprobs": True} if self._logprobs else {})
        self.learn("completions", "has no /completions for this model: a prompt is sent as one user message")
        return answer

    async def _ask(self, endpoint: str, arguments: dict[str, Any]) -> dict[str, Any]:
        answer = await self._server.post(_PATHS[endpoint], self._fixed | arguments)
        if isinstance(answer, Failure):
            raise self.fault(answer)
        return answer


def _headers(key: str | None) -> dict[str, str]:
    """The key, and the organisation and project that OpenAI is to charge, where the environment names them."""
    headers = {"Authorization": f"Bearer {key}"} if key else {}
    for name, variable in (("OpenAI-Organization", "OPENAI_ORG_ID"), ("OpenAI-Project", "OPENAI_PROJECT_ID")):
        if value := os.environ.get(variable, "").strip():
            headers[name] = value
    return headers


def _unconstrained(request: Request) -> bool:
    return request.prompt is not None and request.choices is None and request.schema_ is None and not request.tools


def key_for(address: str, variable: str) -> str | None:
    """The key in environment variable `variable`; None for a server on this machine that needs none."""
    if fault := wrong_variable(variable):
        raise ModelRefused(fault)
    if key := os.environ.get(variable, "").strip():
        if not (key.isascii() and key.isprintable()):
            raise ModelRefused(f"the environment variable {variable} holds no key: it has a line break or odd letters")
        return key
    host = urlsplit(address).hostname or ""
    if host in ("localhost", "::1") or host.startswith("127."):
        return None
    raise ModelRefused(f"{address} needs a key: export {variable}=..., or name another variable with api_key_env")
