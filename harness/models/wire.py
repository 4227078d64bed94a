"""The OpenAI shape of a request, an answer and a failure, shared by every backend that speaks it.

Nothing is retried here and no key is ever part of a message. What a server turns out not to know is asked for in
another way once, said in the log, and remembered.
"""

import json
import logging
import re
from collections.abc import Mapping
from email.utils import parsedate_to_datetime
from time import time
from typing import Any

from harness.model import Completion, ContextOverflow, Mode, ModelFault, ModelRefused, Request, ToolCall, Usage
from harness.secrecy import SHORT, mask

log = logging.getLogger("harness.models")

_OVERFLOW = re.compile(
    r"context.?(length|size|window)|maximum context|prompt is too long|too many (input )?tokens|input is too long", re.I
)


def chat_arguments(request: Request, *, plain: bool, limit_name: str = "max_tokens") -> dict[str, Any]:
    """Arguments of chat/completions but the model. `plain` leaves out the response format of choices."""
    if (request.prompt is not None) == bool(request.messages):
        raise ModelRefused("a request needs either messages or a prompt, and not both")
    if request.choices is not None and (request.schema_ is not None or request.tools):
        raise ModelRefused("choices go with neither a schema nor tools")
    messages: list[dict[str, Any]] = []
    if request.prompt is not None:
        messages.append({"role": "user", "content": request.prompt})
    for said in request.messages:
        message: dict[str, Any] = {"role": said.role, "content": said.content}
        if said.tool_calls:
            message["tool_calls"] = [
                {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": call.arguments}}
                for call in said.tool_calls
            ]
        if said.tool_call_id is not None:
            message["tool_call_id"] = said.tool_call_id
        messages.append(message)
    arguments = {"messages": messages, **sampling_arguments(request, limit_name)}
    if request.tools:
        arguments["tools"] = [dict(tool) for tool in request.tools]
    if request.choices is not None and not plain:
        action = {"type": "string", "enum": list(dict.fromkeys(request.choices))}
        arguments["response_format"] = _format({"type": "object", "properties": {"action": action}} | _CLOSED)
    elif request.schema_ is not None:
        arguments["response_format"] = _format(request.schema_)
    return arguments


_CLOSED = {"required": ["action"], "additionalProperties": False}


def _format(schema: Mapping[str, Any]) -> dict[str, Any]:
    return {"type": "json_schema", "json_schema": {"name": "answer", "strict": True, "schema": dict(schema)}}


def sampling_arguments(request: Request, limit_name: str = "max_tokens") -> dict[str, Any]:
    """Temperature, length, stops and seed; what is not asked for is not sent."""
    arguments: dict[str, Any] = {"temperature": request.temperature, limit_name: request.max_tokens}
    if request.stop:
        arguments["stop"] = list(request.stop)
    if request.seed is not None:
        arguments["seed"] = request.seed % 2**31  # some servers hold no more
    return arguments | request.extra


def read_answer(
    answer: Any, request: Request, *, name: str, seconds: float, prices: tuple[float, float] | None,
    mode: Mode | None = None, secret: str | None = None,
) -> Completion:  # fmt: skip
    """Completion from a chat or text answer. ModelFault when it is not shaped like one."""
    try:
        choice = answer["choices"][0]
        message = choice.get("message") or {"content": choice.get("text")}
        text = _without(message.get("content") or message.get("refusal") or "", secret)
        calls = tuple(
            ToolCall(
                id=call.get("id") or f"call_{number}",
                name=call["function"]["name"],
                arguments=_without(_raw(call["function"].get("arguments")), secret),
            )
            for number, call in enumerate(message.get("tool_calls") or ())
        )
        told = answer.get("usage") or {}
        prompt_tokens, output_tokens = told.get("prompt_tokens") or 0, told.get("completion_tokens") or 0
        dollars = (prompt_tokens * prices[0] + output_tokens * prices[1]) / 1e6 if prices and told else None
        if request.choices is not None:
            text = match_choice(text, request.choices)
        return Completion(
            text=text,
            tool_calls=calls,
            finish_reason=choice.get("finish_reason") or "stop",
            mode=mode,
            usage=Usage(
                prompt_tokens=prompt_tokens,
                cached_tokens=(told.get("prompt_tokens_details") or {}).get("cached_tokens") or 0,
                output_tokens=output_tokens,
                dollars=dollars,
                seconds=seconds,
            ),
            prompt_ids=choice.get("prompt_token_ids") or answer.get("prompt_token_ids"),
            output_ids=choice.get("token_ids") or _ids(choice),
            output_logprobs=_logprobs(choice),
        )
    except (KeyError, IndexError, TypeError, AttributeError, ValueError) as error:
        said = mask(f"({error!r}): {answer}", secret)[:300]
        raise ModelFault(f"{name} answered with something that is no completion {said}") from None


def _without(text: str, secret: str | None) -> str:
    """A model's words without the key, which a server may echo; the environment's other values may be plain words."""
    return text.replace(secret, "***") if secret and len(secret) >= SHORT else text


def _raw(arguments: Any) -> str:
    return arguments if isinstance(arguments, str) else json.dumps(arguments or {})  # some servers send an object


def _ids(choice: Mapping[str, Any]) -> tuple[int, ...] | None:
    tokens = (choice.get("logprobs") or {}).get("content") or ()
    return tuple(token["id"] for token in tokens) if tokens and all("id" in token for token in tokens) else None


def _logprobs(choice: Mapping[str, Any]) -> tuple[float, ...] | None:
    told = choice.get("logprobs") or {}
    if tokens := told.get("content"):
        return tuple(token["logprob"] for token in tokens)
    return tuple(told["token_logprobs"]) if told.get("token_logprobs") else None


def match_choice(text: str, choices: tuple[str, ...]) -> str:
    """The choice that an answer means: as JSON, as the text itself, or the longest one that the text names.

    An answer that means none is returned as it is: a wrong answer is the model's own, and the loop's to judge.
    """
    bare = text.strip().removeprefix("```json").removeprefix("```").removesuffix("```").strip()
    try:
        value = json.loads(bare)
    except ValueError:
        value = None
    if isinstance(value, dict) and isinstance(value.get("action"), str):
        bare = value["action"]
    elif isinstance(value, str):
        bare = value
    if bare in choices:
        return bare
    folded = bare.strip().strip("\"'`.").casefold()
    for choice in choices:
        if choice.strip().casefold() == folded:
            return choice
    named = [c for c in choices if re.search(rf"(?<!\w){re.escape(c.strip().casefold())}(?!\w)", bare.casefold())]
    longest = max(named, key=len, default=None)
    if longest is not None and all(other.casefold() in longest.casefold() for other in named):
        return longest
    return text


def fault_from(error: Any, *, name: str, address: str, key_hint: str, secret: str | None) -> Exception:
    """Our error for an `openai` (or litellm: its errors are subclasses) exception."""
    import openai

    said = _said(error, secret)
    status = getattr(error, "status_code", None)
    if isinstance(error, openai.APITimeoutError) or status == 408:
        return ModelFault(f"{address} did not answer in time ({name}): raise 'timeout', or look at the server")
    if isinstance(error, openai.APIConnectionError) or status is None:
        return ModelFault(f"{address} cannot be reached ({name}): {said}")
    if status in (401, 403):
        return ModelRefused(
            f"{address} refused the key or its rights ({status}, {name}): {key_hint}", status=status, said=said
        )
    body = error.body if isinstance(getattr(error, "body", None), dict) else {}
    body = body["error"] if isinstance(body.get("error"), dict) else body
    code = str(getattr(error, "code", None) or body.get("code") or body.get("type") or "")
    if status in (400, 413, 422) and (
        "context" in code or type(error).__name__ == "ContextWindowExceededError" or _OVERFLOW.search(said)
    ):
        tokens, limit = _overflow(said, body)
        return ContextOverflow(f"{name} at {address}: the prompt does not fit: {said}", tokens=tokens, limit=limit)
    if status == 404:
        return ModelRefused(
            f"{address} has no model or path for {name!r} ({said}): check the model's name and api_base",
            status=status, said=said,
        )  # fmt: skip
    if status == 429 and "insufficient_quota" in (code + said):
        return ModelRefused(f"{address}: the account has no money left for {name} ({said})", status=status, said=said)
    if status < 400 or status in (409, 425, 429) or (status >= 500 and status != 501):
        return ModelFault(f"{address} answered {status} ({name}): {said}", retry_after=_retry_after(error))
    return ModelRefused(f"{address} refused the request to {name} ({status}): {said}", status=status, said=said)


def _said(error: Any, secret: str | None) -> str:
    text = mask(str(getattr(error, "message", None) or error), secret)[:400]
    cause = mask(str(error.__cause__ or ""), secret)
    return f"{text} ({cause})"[:600] if cause and cause not in text else text


def _overflow(said: str, body: Mapping[str, Any]) -> tuple[int | None, int | None]:
    """(prompt tokens, limit), from the body where it tells them, else the larger and smaller number of the message."""
    if isinstance(body.get("n_prompt_tokens"), int) and isinstance(body.get("n_ctx"), int):
        return body["n_prompt_tokens"], body["n_ctx"]
    limit = re.search(r"(?:length|size|window|limit|maximum)\D{0,40}?(\d{3,})", said)
    numbers = [int(number) for number in re.findall(r"\d{3,}", said)]
    least = int(limit.group(1)) if limit else min(numbers, default=None)
    more = [number for number in numbers if least is not None and number > least]
    return min(more, default=None), least


def _retry_after(error: Any) -> float | None:
    """Seconds to wait, from Retry-After as a number or a date."""
    answer = getattr(getattr(error, "response", None), "headers", None) or {}
    value = (getattr(error, "litellm_response_headers", None) or answer).get("retry-after")
    if not value:
        return None
    try:
        return max(0.0, float(value))
    except ValueError:
        pass
    try:
        return max(0.0, parsedate_to_datetime(value).timestamp() - time())
    except ValueError:
        return None
