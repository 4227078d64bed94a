"""The OpenAI shape of a request and of an answer, shared by every backend that speaks it.

An answer is read as it is: what is odd in it is a fault, no key is ever part of it, and words are never guessed. What
the server itself says (ids, reasons, numbers) must be what it can be; what the model says is the model's own.
"""

import json
import logging
import re
from collections.abc import Mapping
from typing import Any

from harness.model import Completion, Mode, ModelFault, ModelRefused, Request, ToolCall, Usage
from harness.models import figures
from harness.secrecy import SHORT, mask

log = logging.getLogger("harness.models")

REASON = 64  # characters of why an answer ended, at most
ID = 2**15  # of a tool call's id, in which some gateways keep a signed thought
NAME = 256  # of a function's name: a longer one is cut, and names no function either way


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
    arguments: dict[str, Any] = {"messages": messages, **sampling_arguments(request, limit_name)}
    if request.tools:
        arguments["tools"] = [dict(tool) for tool in request.tools]
    if request.choices is not None and not plain:
        action = {"type": "string", "enum": list(dict.fromkeys(request.choices))}
        arguments["response_format"] = _format({"type": "object", "properties": {"action": action}} | _CLOSED)
    elif request.schema_ is not None:
        arguments["response_format"] = _format(request.schema_)
    return arguments | extra_fields(request)


def text_arguments(request: Request) -> dict[str, Any]:
    """Arguments of completions but the model."""
    return {"prompt": request.prompt, **sampling_arguments(request), **extra_fields(request)}


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
    return arguments


#: What no extra field may say otherwise: who is asked, what is asked, and that the answer comes whole.
_OWN = frozenset({"model", "messages", "prompt", "stream", "stream_options"})


def extra_fields(request: Request) -> dict[str, Any]:
    """The request's extra fields, which are sent as they are, and over ours: a format may have a name of its own."""
    own = _OWN if request.choices is None else _OWN | {"response_format"}
    if wrong := sorted(own & request.extra.keys()):
        raise ModelRefused(
            f"a request's extra fields hold {', '.join(wrong)}, which it says itself. Cure: leave that out of extra"
        )
    return request.extra


def read_answer(
    answer: Any, request: Request, *, name: str, seconds: float, prices: tuple[float, float] | None,
    mode: Mode | None = None, secret: str | None = None, cost: Any = None,
) -> Completion:  # fmt: skip
    """Completion from a chat or text answer. ModelFault when it is not shaped like one, or its numbers cannot be true.

    `cost`: dollars as somebody else told them, for where there are no `prices`.
    """
    try:
        choice = answer["choices"][0]
        message = choice.get("message") or {"content": choice.get("text")}
        text = _without(_joined(message.get("content")) or message.get("refusal") or "", secret)
        calls = tuple(
            ToolCall(
                id=_label(call.get("id") or f"call_{number}", ID, secret),
                name=_without(call["function"]["name"], secret)[:NAME],
                arguments=_without(_raw(call["function"].get("arguments")), secret),
            )
            for number, call in enumerate(message.get("tool_calls") or ())
        )
        told = answer.get("usage") or {}
        prompt_tokens = figures.count(told.get("prompt_tokens"))
        output_tokens = figures.count(told.get("completion_tokens"))
        dollars = figures.price(cost)
        if prices:
            dollars = (prompt_tokens * prices[0] + output_tokens * prices[1]) / 1e6 if told else None
        if request.choices is not None:
            text = match_choice(text, request.choices)
        return Completion(
            text=text,
            tool_calls=calls,
            finish_reason=_label(choice.get("finish_reason") or "stop", REASON, secret),
            mode=mode,
            usage=Usage(
                prompt_tokens=prompt_tokens,
                cached_tokens=figures.count((told.get("prompt_tokens_details") or {}).get("cached_tokens")),
                output_tokens=output_tokens,
                dollars=dollars,
                seconds=seconds,
            ),
            prompt_ids=figures.ids(choice.get("prompt_token_ids") or answer.get("prompt_token_ids")),
            output_ids=figures.ids(choice.get("token_ids") or _ids(choice)),
            output_logprobs=_logprobs(choice),
        )
    except (KeyError, IndexError, TypeError, AttributeError, ValueError) as error:
        said = mask(f"({error!r}): {answer}", secret)[:300]
        raise ModelFault(f"{name} answered with something that is no completion {said}", kind="answer") from None


def _joined(content: Any) -> Any:
    """The text of a message's content, which some servers give in typed parts (Mistral's, with its thoughts)."""
    if not isinstance(content, list):
        return content
    return "".join(part["text"] for part in content if part["type"] == "text")


def _without(text: str, secret: str | None) -> str:
    """A model's words without the key, which a server may echo; the environment's other values may be plain words.

    Halves of a surrogate pair, as of a character that was cut, become question marks: nothing can store them.
    """
    if not text.isascii():
        text = text.encode("utf-8", "replace").decode()
    return text.replace(secret, "***") if secret and len(secret) >= SHORT else text


def _label(text: str, most: int, secret: str | None) -> str:
    """A word of the server itself, without the key. Raises ValueError when it is too long, or more than a word."""
    text = _without(text, secret)
    if len(text) > most or not text.isprintable():
        raise ValueError("the id of a tool call, or why the answer ended, is too long or cannot be printed")
    return text


def _raw(arguments: Any) -> str:
    return arguments if isinstance(arguments, str) else json.dumps(arguments or {})  # some servers send an object


def _ids(choice: Mapping[str, Any]) -> list[Any] | None:
    tokens = (choice.get("logprobs") or {}).get("content") or ()
    return [token["id"] for token in tokens] if tokens and all("id" in token for token in tokens) else None


def _logprobs(choice: Mapping[str, Any]) -> tuple[float, ...] | None:
    told = choice.get("logprobs") or {}
    if tokens := told.get("content"):
        return figures.logprobs([token["logprob"] for token in tokens])
    return figures.logprobs(told.get("token_logprobs"))


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
