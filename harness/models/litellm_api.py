"""Every provider that litellm knows. It costs seconds to import, so only the first model of this kind pays for it.

Its price list comes with the package, never from the network; its retries, telemetry and advertisements are off.
"""

import os
import time
from typing import Any

from harness.model import Completion, ModelRefused, Request
from harness.models.chat import ChatModel
from harness.models.failure import Failure, answered
from harness.models.wire import read_answer
from harness.secrecy import wrong_variable

#: What a request says in the words of any provider; litellm translates it.
_SAID = {
    "logprobs", "max_completion_tokens", "max_tokens", "messages", "response_format", "seed", "stop", "temperature",
    "tools",
}  # fmt: skip
#: What litellm would take for a setting of its own, even if a provider is said to know it.
_SETTINGS = {"extra_headers", "max_retries", "stream", "stream_options", "timeout"}


class LiteLLMModel(ChatModel):
    """A model by litellm's name, 'PROVIDER/NAME'. litellm finds the provider's key, or `api_key_env` names it.

    `timeout` in seconds. Dollars come from `price_in` and `price_out` (per million tokens), else from litellm's list.
    """

    def __init__(
        self,
        model: str,
        *,
        api_base: str | None = None,
        api_key_env: str | None = None,
        timeout: float = 120.0,
        price_in: float | None = None,
        price_out: float | None = None,
        logprobs: bool = False,
        name: str | None = None,
    ) -> None:
        address = api_base or model.partition("/")[0]
        super().__init__(name or f"litellm/{model}", address, api_base, timeout, price_in, price_out)
        if api_key_env is not None and (fault := wrong_variable(api_key_env)):
            raise ModelRefused(fault)
        self._litellm = _library()
        try:
            _, provider, _, _ = self._litellm.get_llm_provider(model, api_base=api_base)
            supported = self._litellm.get_supported_openai_params(model=model, custom_llm_provider=provider) or []
        except self._litellm.BadRequestError as error:
            raise ModelRefused(f"litellm knows no provider for {model!r}: write PROVIDER/NAME") from error
        self.model = model
        self._takes = _SAID | (set(supported) - _SETTINGS)
        self._forwards = provider in {"openai", "azure", "openrouter", *self._litellm.openai_compatible_providers}
        self._key_hint = f"check the key in {api_key_env or 'the environment variable of this provider'}"
        self._fixed: dict[str, Any] = {"timeout": timeout, "num_retries": 0, "max_retries": 0}
        # litellm finds this one by itself: it is read here so that it can be masked.
        self._key = os.environ.get(f"{provider.upper()}_API_KEY", "").strip() or None
        if api_base is not None:
            self._fixed["api_base"] = api_base
        if api_key_env is not None:
            self._key = os.environ.get(api_key_env, "").strip()
            if not self._key:
                raise ModelRefused(f"the environment variable {api_key_env} holds no key for {model}: export it")
            self._fixed["api_key"] = self._key
        self._extra = {"logprobs": True} if logprobs else {}
        if "seed" not in supported:
            self.learn("seed", "takes no seed: its answers are not repeatable")
        if "response_format" not in supported:
            self.learn("response_format", "takes no response_format: choices are matched in its plain text")

    async def _complete(self, request: Request) -> Completion:
        """Answer `request`; a `prompt` is sent as one user message."""
        if request.schema_ is not None and "response_format" in self.lacks:
            raise ModelRefused(f"{self.name} cannot hold a JSON schema: use another model")
        began = time.perf_counter()
        answer, mode = await self._chat(request, self._extra)
        cost = answer.pop("_dollars", None)  # litellm says 0 where it does not know
        return read_answer(
            answer, request, name=self.name, seconds=time.perf_counter() - began, prices=self.prices, mode=mode,
            secret=self._key, cost=cost,
        )  # fmt: skip

    async def close(self) -> None:
        """litellm keeps its own connections."""

    async def _ask(self, endpoint: str, arguments: dict[str, Any]) -> dict[str, Any]:
        import openai  # litellm's errors are subclasses of its errors, and it comes with litellm

        fitting = self._fitting(arguments)
        try:
            response = await self._litellm.acompletion(model=self.model, **self._fixed, **fitting)
        except openai.OpenAIError as error:
            raise self.fault(_failure(error)) from None  # its own text may hold the key
        answer: dict[str, Any] = response.model_dump()
        answer["_dollars"] = response._hidden_params.get("response_cost")
        return answer

    def _fitting(self, arguments: dict[str, Any]) -> dict[str, Any]:
        """`arguments` without any that is a setting of litellm: a request must not choose where the key is sent."""
        taken = {name: value for name, value in arguments.items() if name in self._takes}
        rest = {name: value for name, value in arguments.items() if name not in self._takes}
        if rest and not self._forwards:
            raise ModelRefused(f"{self.name} takes no {', '.join(sorted(rest))}. Cure: leave it out of extra")
        return taken | ({"extra_body": rest} if rest else {})


def _failure(error: Any) -> Failure:
    """The facts of an exception of litellm or of the `openai` package below it."""
    import openai

    said, cause = str(getattr(error, "message", None) or error), str(error.__cause__ or "")
    said = f"{said} ({cause})" if cause and cause not in said else said
    status = 200 if "no 'choices'" in said else getattr(error, "status_code", None)  # for which it makes up a 500
    late = isinstance(error, openai.APITimeoutError)
    if late or isinstance(error, openai.APIConnectionError) or not isinstance(status, int):
        return Failure(said, late=late)  # whatever status litellm makes up for it
    response = getattr(error, "response", None)
    headers = getattr(error, "litellm_response_headers", None) or getattr(response, "headers", None) or {}
    overflow = type(error).__name__ == "ContextWindowExceededError"
    body = getattr(error, "body", None)
    return answered(status, said, body or {"code": getattr(error, "code", None)}, headers, overflow=overflow)


def _library() -> Any:
    os.environ.setdefault("LITELLM_LOCAL_MODEL_COST_MAP", "True")  # else the import asks the network
    try:
        import litellm
    except ImportError as error:
        raise ModelRefused(
            f"this model needs litellm ({error}). Cure: make litellm, or pip install -e '.[litellm]' in a checkout"
        ) from error
    litellm.telemetry = False
    litellm.suppress_debug_info = True
    return litellm
