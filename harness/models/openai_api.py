"""Any server that speaks the OpenAI API, through the `openai` package with its own retries switched off.

The runner retries, so that every try is seen, paid for and journalled once. A key is read from the environment by name
and goes nowhere but to the server.
"""

import asyncio
import json
import os
import time
from typing import Any
from urllib.parse import urlsplit

from harness.model import Completion, Mode, ModelFault, ModelRefused, Request
from harness.models.chat import ChatModel
from harness.models.wire import fault_from, read_answer, sampling_arguments
from harness.secrecy import mask, wrong_variable


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
        self.timeout = timeout
        self._key = key_for(address, api_key_env)
        self._key_hint = f"check the key in the environment variable {api_key_env}"
        self._body = {"return_token_ids": True} if token_ids else None
        self._logprobs = logprobs or token_ids
        self._continues = False  # /completions has answered
        self._client: Any = None
        self._loop: asyncio.AbstractEventLoop | None = None

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
        """Close the connections; idempotent."""
        client, self._client = self._client, None
        if client is not None and self._loop is asyncio.get_running_loop():
            await client.close()

    async def _text(self, request: Request) -> dict[str, Any]:
        extra = {"logprobs": 1} if self._logprobs else {}
        try:
            answer = await self._steadily(
                "completions", {"prompt": request.prompt} | sampling_arguments(request) | extra
            )
            self._continues = True
            return answer
        except ModelRefused as refused:
            if refused.status not in (404, 405, 501) or self._continues:
                raise
        answer, _ = await self._chat(request, {"logprobs": True} if self._logprobs else {})
        self.learn("completions", "has no /completions for this model: a prompt is sent as one user message")
        return answer

    async def _ask(self, endpoint: str, arguments: dict[str, Any]) -> dict[str, Any]:
        import openai

        client = self._connection()
        create = (client.chat.completions if endpoint == "chat" else client.completions).with_raw_response.create
        try:
            raw = await create(model=self.model, extra_body=self._body, **arguments)
        except openai.OpenAIError as error:
            raise fault_from(
                error, name=self.name, address=self.address, key_hint=self._key_hint, secret=self._key
            ) from None  # its own text may hold the key
        text = raw.http_response.text
        try:
            answer = json.loads(text)
        except ValueError:
            answer = None
        if not isinstance(answer, dict):
            what = "no JSON" if answer is None else "no completion"
            said = mask(text, self._key)[:200]
            raise ModelFault(f"{self.address} ({self.name}) answered with {what}: {said!r}") from None
        return answer

    def _connection(self) -> Any:
        """The client of the running loop: connections cannot outlive the loop that they were made in."""
        loop = asyncio.get_running_loop()
        if self._client is None or self._loop is not loop:
            import openai

            self._client = openai.AsyncOpenAI(
                base_url=self.address, api_key=self._key or "none", timeout=self.timeout, max_retries=0
            )
            self._loop = loop
        return self._client


def _unconstrained(request: Request) -> bool:
    return request.prompt is not None and request.choices is None and request.schema_ is None and not request.tools


def key_for(address: str, variable: str) -> str | None:
    """The key in environment variable `variable`; None for a server on this machine that needs none."""
    if fault := wrong_variable(variable):
        raise ModelRefused(fault)
    if key := os.environ.get(variable, "").strip():
        return key
    host = urlsplit(address).hostname or ""
    if host in ("localhost", "::1") or host.startswith("127."):
        return None
    raise ModelRefused(f"{address} needs a key: export {variable}=..., or name another variable with api_key_env")
