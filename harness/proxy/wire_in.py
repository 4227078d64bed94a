"""A body of chat/completions becomes a `Request`: all of it is kept, or the client is told what cannot be.

What a `Request` has no place for goes into `extra` and on to the server; what neither can hold (several answers,
pictures, sound) is refused with the field's name. Only what changes no answer is left out: how the answer is sent, and
hints to a cache.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from harness.model import Message, Model, Request, ToolCall
from harness.proxy.refusal import bad

_MOST = 2**53  # what every reader of JSON holds
Role = Literal["system", "user", "assistant", "tool"]
#: Fields of a message that change no answer.
_IDLE = {"annotations", "cache_control", "provider_specific_fields"}
#: Fields that a model in this process has no use for; and values that mean "as usual".
_SERVICE = {
    "logprobs", "metadata", "parallel_tool_calls", "prompt_cache_key", "prompt_cache_retention", "return_token_ids",
    "safety_identifier", "service_tier", "store", "top_logprobs", "user",
}  # fmt: skip
_USUAL: dict[str, Any] = {
    "frequency_penalty": 0, "logit_bias": {}, "modalities": ["text"], "presence_penalty": 0, "tool_choice": "auto",
    "top_p": 1,
}  # fmt: skip
_ROLES: dict[str, Role] = {
    "developer": "system",
    "system": "system",
    "user": "user",
    "assistant": "assistant",
    "tool": "tool",
}


@dataclass(frozen=True)
class Defaults:
    """What holds where a client says nothing."""

    temperature: float = 1.0
    max_tokens: int = 2048


@dataclass(frozen=True)
class Asked:
    """A client's request, and how it wants the answer."""

    request: Request
    stream: bool = False
    usage: bool = False  # in the stream
    logprobs: bool = False
    token_ids: bool = False


def read_chat(body: Mapping[str, Any], defaults: Defaults) -> Asked:
    """The request of a chat/completions body. Raises Refusal for what is wrong or cannot be held."""
    rest = {key: value for key, value in body.items() if value is not None and key != "model"}
    for old, new in (("functions", "tools"), ("function_call", "tool_choice")):
        if old in rest:
            raise bad(f"{old} is the old form and is not taken. Cure: use {new}", old)
    if rest.pop("n", 1) != 1:
        raise bad("n: one request has one answer here. Cure: send the request n times", "n")
    if "audio" in rest or "audio" in list(rest.get("modalities") or ()):
        raise bad("sound is not supported", "modalities")
    said = rest.pop("messages", None)
    if not isinstance(said, list) or not said:
        raise bad("messages must be a list with at least one message", "messages")
    messages = tuple(_message(one, f"messages[{place}]") for place, one in enumerate(said))
    stream = typed(rest, "stream", bool, False)
    options = typed(rest, "stream_options", dict, {})
    schema, extra = _format(rest)
    return Asked(
        request_of(messages, rest, defaults, schema=schema, extra=extra), stream=stream,
        usage=bool(options.get("include_usage")), logprobs=body.get("logprobs") is True,
        token_ids=body.get("return_token_ids") is True,
    )  # fmt: skip


def request_of(
    messages: tuple[Message, ...], rest: dict[str, Any], defaults: Defaults, *, schema: dict[str, Any] | None,
    extra: dict[str, Any],
) -> Request:  # fmt: skip
    """A Request from the sampling fields of `rest`, which is used up; what is left of it goes into `extra`."""
    most = typed(rest, "max_tokens", int, defaults.max_tokens)
    most = typed(rest, "max_completion_tokens", int, most)
    if not 1 <= most <= _MOST:
        raise bad("max_tokens must be at least 1, and a number that a server can hold", "max_tokens")
    temperature = typed(rest, "temperature", (int, float), defaults.temperature)
    if not 0 <= temperature <= _MOST:  # also of NaN, and of whole numbers that no float holds
        raise bad("temperature must be a number that is 0 or more", "temperature")
    stop = typed(rest, "stop", (str, list), [])
    stops = (stop,) if isinstance(stop, str) else tuple(stop)
    if not all(isinstance(one, str) for one in stops):
        raise bad("stop must be a text or a list of texts", "stop")
    tools = typed(rest, "tools", list, [])
    for place, tool in enumerate(tools):
        if not isinstance(tool, dict) or tool.get("type") != "function" or not isinstance(tool.get("function"), dict):
            raise bad("only tools of type function are supported", f"tools[{place}]")
        if not isinstance(tool["function"].get("name"), str):
            raise bad("a function needs a name", f"tools[{place}].function.name")
    return Request(
        messages=messages, tools=tuple(tools), temperature=float(temperature), max_tokens=most, stop=stops,
        seed=typed(rest, "seed", int, None), schema_=schema, extra=rest | extra,
    )  # fmt: skip


def fitting(request: Request, model: Model) -> Request:
    """`request` as `model` can take it: one in this process is no service, so what is meant for one is left out."""
    from harness.models.gguf import GGUFModel

    if not request.extra or not isinstance(model, GGUFModel):
        return request
    left = {key: value for key, value in request.extra.items() if key not in _SERVICE and _USUAL.get(key) != value}
    tools = request.tools
    if left.get("tool_choice") == "none":
        tools = ()
        del left["tool_choice"]
    if request.schema_ is not None:
        left.pop("response_format", None)
    return request.model_copy(update={"extra": left, "tools": tools})


def text_of(content: Any, place: str) -> str:
    """The text of a message's content: a text, or a list of parts that are texts."""
    if isinstance(content, str):
        return content
    if not isinstance(content, list):
        raise bad("content must be a text or a list of parts", f"{place}.content")
    texts = []
    for number, part in enumerate(content):
        kind = part.get("type") if isinstance(part, dict) else None
        if kind not in ("text", "input_text", "output_text", "refusal"):
            raise bad(
                f"a part of type {kind!r} is not supported: only text can be held for now (no pictures, sound or "
                "files). Cure: send text",
                f"{place}.content[{number}]",
            )
        text = part.get("refusal" if kind == "refusal" else "text")
        if not isinstance(text, str):
            raise bad("a part of text needs a text", f"{place}.content[{number}]")
        texts.append(text)
    return "\n".join(texts)


def _message(said: Any, place: str) -> Message:
    if not isinstance(said, dict):
        raise bad("a message must be an object", place)
    told = {key: value for key, value in said.items() if value not in (None, [], {}) and key not in _IDLE}
    role = _ROLES.get(str(told.pop("role", "")))
    if role is None:
        raise bad("role must be one of system, developer, user, assistant, tool", f"{place}.role")
    content = told.pop("content", None)
    if role == "assistant":
        content = content or told.pop("refusal", None) or ""
    elif content is None and said.get("content") != []:
        raise bad(f"a {role} message needs a content", f"{place}.content")
    calls: tuple[ToolCall, ...] = ()
    answers = None
    if role == "assistant":
        calls = tuple(call_of(one, f"{place}.tool_calls[{n}]") for n, one in enumerate(told.pop("tool_calls", ())))
        told.pop("refusal", None)
    elif role == "tool":
        answers = told.pop("tool_call_id", None)
        told.pop("name", None)  # the call that it answers says it already
        if not isinstance(answers, str):
            raise bad("a tool message needs the tool_call_id that it answers", f"{place}.tool_call_id")
    if told:
        field = min(told)
        raise bad(f"{field} of a message cannot be held. Cure: leave it out", f"{place}.{field}")
    return Message(role=role, content=text_of(content or "", place), tool_calls=calls, tool_call_id=answers)


def call_of(said: Any, place: str) -> ToolCall:
    function = said.get("function") if isinstance(said, dict) else None
    if not isinstance(function, dict) or said.get("type", "function") != "function":
        raise bad("only calls of type function are supported", place)
    arguments = function.get("arguments", "")
    if not isinstance(arguments, str):
        arguments = json.dumps(arguments)
    if not isinstance(said.get("id"), str) or not isinstance(function.get("name"), str):
        raise bad("a call needs an id and the name of a function", place)
    return ToolCall(id=said["id"], name=function["name"], arguments=arguments)


def _format(rest: dict[str, Any]) -> tuple[dict[str, Any] | None, dict[str, Any]]:
    """The JSON schema of `response_format`, and the field itself for servers: its name and strictness count, too."""
    told = typed(rest, "response_format", dict, {})
    kind = told.get("type", "text")
    if kind == "text":
        return None, {}
    if kind != "json_schema":
        return None, {"response_format": told}
    inner = told.get("json_schema")
    schema = inner.get("schema") if isinstance(inner, dict) else None
    if not isinstance(inner, dict) or not isinstance(schema, dict):
        raise bad("response_format of type json_schema needs json_schema.schema", "response_format")
    return schema, {"response_format": told}


def typed(rest: dict[str, Any], name: str, kind: Any, default: Any) -> Any:
    """Take the field `name` out of `rest`; it must be of `kind`."""
    value = rest.pop(name, default)
    kinds = kind if isinstance(kind, tuple) else (kind,)
    if value is default:
        return value
    if not isinstance(value, kinds) or (isinstance(value, bool) and bool not in kinds):
        wanted = " or ".join(one.__name__ for one in kinds)
        raise bad(f"{name} must be of type {wanted}, and is a {type(value).__name__}", name)
    return value
