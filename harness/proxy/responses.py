"""The Responses API is another wording of the same chat: it is read into a `Request`, and the answer told in its form.

Earlier answers are known by their ids as long as the session lives, so `previous_response_id` works; what only OpenAI's
own service can do (tools that it runs itself, background work, kept conversations) is refused.
"""

from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from harness.model import Completion, Message, ToolCall
from harness.proxy.refusal import Refusal, bad
from harness.proxy.wire_in import Asked, Defaults, request_of, text_of, typed

KEPT = 1000  # answers of a session that can be named by a later request
#: Fields that change no answer.
_IDLE = {"background", "include", "max_tool_calls", "metadata", "model", "store", "truncation"}
_REFUSED = {"conversation": "kept conversations", "prompt": "prompts that lie with OpenAI"}


@dataclass
class Threads:
    """The conversations that earlier answers of a session ended, by the ids of these answers."""

    known: "OrderedDict[str, tuple[Message, ...]]" = field(default_factory=OrderedDict)

    def before(self, id: str | None) -> tuple[Message, ...]:
        """All that was said until answer `id`, the answer included."""
        if id is None:
            return ()
        if id not in self.known:
            raise Refusal(
                400, f"Previous response with id '{id}' not found. Cure: send the whole conversation as input",
                code="previous_response_not_found", param="previous_response_id",
            )  # fmt: skip
        return self.known[id]

    def keep(self, id: str, said: tuple[Message, ...], completion: Completion) -> None:
        """Remember the answer `id` to `said`."""
        answer = Message(role="assistant", content=completion.text, tool_calls=completion.tool_calls)
        self.known[id] = (*said, answer)
        while len(self.known) > KEPT:
            self.known.popitem(last=False)


@dataclass(frozen=True)
class AskedResponse(Asked):
    """A request to /responses; `said` is what a later one may go on from (instructions hold for one request only)."""

    said: tuple[Message, ...] = ()
    keep: bool = True


def read_responses(body: Mapping[str, Any], defaults: Defaults, threads: Threads) -> AskedResponse:
    """The request of a /responses body. Raises Refusal for what is wrong or cannot be held."""
    rest = {key: value for key, value in body.items() if value is not None}
    for name, what in _REFUSED.items():
        if rest.get(name):
            raise bad(f"{what} are not supported. Cure: send the whole conversation as input", name)
    if rest.get("background") or rest.get("truncation", "disabled") != "disabled":
        raise bad(
            "background and truncation are not supported", "background" if rest.get("background") else "truncation"
        )
    keep = rest.get("store") is not False
    for name in (*_IDLE, *_REFUSED):
        rest.pop(name, None)
    said = (*threads.before(typed(rest, "previous_response_id", str, None)), *_input(rest.pop("input", None)))
    instructions = typed(rest, "instructions", str, "")
    head = (Message(role="system", content=instructions),) if instructions else ()
    stream = typed(rest, "stream", bool, False)
    rest.pop("stream_options", None)
    rest["max_tokens"] = typed(rest, "max_output_tokens", int, defaults.max_tokens)
    schema, extra = _text(typed(rest, "text", dict, {}))
    if effort := typed(rest, "reasoning", dict, {}).get("effort"):
        extra["reasoning_effort"] = effort
    rest["tools"] = [_tool(tool, f"tools[{place}]") for place, tool in enumerate(typed(rest, "tools", list, []))]
    choice = rest.get("tool_choice")
    if isinstance(choice, dict):
        if choice.get("type") != "function":
            raise bad("tool_choice must name a function", "tool_choice")
        rest["tool_choice"] = {"type": "function", "function": {"name": choice.get("name")}}
    request = request_of((*head, *said), rest, defaults, schema=schema, extra=extra)
    return AskedResponse(request, stream=stream, said=said, keep=keep)


def _input(given: Any) -> tuple[Message, ...]:
    if isinstance(given, str):
        return (Message(role="user", content=given),)
    if not isinstance(given, list) or not given:
        raise bad("input must be a text or a list of items", "input")
    said: list[Message] = []
    for number, item in enumerate(given):
        place = f"input[{number}]"
        if not isinstance(item, dict):
            raise bad("an item must be an object", place)
        kind = item.get("type", "message")
        if kind == "message":
            role = {"developer": "system"}.get(str(item.get("role")), item.get("role"))
            if role not in ("system", "user", "assistant"):
                raise bad("role must be one of system, developer, user, assistant", f"{place}.role")
            said.append(Message(role=role, content=text_of(item.get("content"), place)))
        elif kind == "function_call":
            _add_call(said, item, place)
        elif kind == "function_call_output":
            said.append(
                Message(
                    role="tool", content=text_of(item.get("output"), place), tool_call_id=_name(item, "call_id", place)
                )
            )
        else:
            raise bad(f"an item of type {kind!r} cannot be held. Cure: leave it out", place)
    return tuple(said)


def _add_call(said: list[Message], item: Mapping[str, Any], place: str) -> None:
    """Calls follow the assistant's text as items of their own; in a chat they are part of its message."""
    call = ToolCall(
        id=_name(item, "call_id", place), name=_name(item, "name", place), arguments=_name(item, "arguments", place)
    )
    last = said.pop() if said and said[-1].role == "assistant" else Message(role="assistant", content="")
    said.append(last.model_copy(update={"tool_calls": (*last.tool_calls, call)}))


def _name(item: Mapping[str, Any], field: str, place: str) -> str:
    value = item.get(field)
    if not isinstance(value, str):
        raise bad(f"{field} must be a text", f"{place}.{field}")
    return value


def _text(told: dict[str, Any]) -> tuple[dict[str, Any] | None, dict[str, Any]]:
    """Schema and other fields of `text`, in the words of chat/completions."""
    extra = {"verbosity": told["verbosity"]} if told.get("verbosity") else {}
    form = told.get("format") or {"type": "text"}
    if not isinstance(form, dict):
        raise bad("text.format must be an object", "text.format")
    if form.get("type") == "text":
        return None, extra
    if form.get("type") != "json_schema":
        return None, extra | {"response_format": form}
    inner = {key: value for key, value in form.items() if key != "type"}
    if not isinstance(inner.get("schema"), dict):
        raise bad("text.format of type json_schema needs a schema", "text.format")
    return inner["schema"], extra | {"response_format": {"type": "json_schema", "json_schema": inner}}


def _tool(tool: Any, place: str) -> dict[str, Any]:
    if not isinstance(tool, dict) or tool.get("type") != "function":
        kind = tool.get("type") if isinstance(tool, dict) else None
        raise bad(f"a tool of type {kind!r} is not supported: only functions are", place)
    return {"type": "function", "function": {k: v for k, v in tool.items() if k != "type" and v is not None}}
