"""A constraint is written as a grammar that the sampler cannot leave, so a small model always answers in form.

Choices become one alternation of literals; tools become a JSON schema, because small models have no native calls.
"""

import json
from collections.abc import Sequence
from typing import Any

from harness.model import Message, ModelRefused, Request, ToolCall

_ESCAPES = {'"': '\\"', "\\": "\\\\", "\n": "\\n", "\r": "\\r", "\t": "\\t"}


def literal(text: str) -> str:
    """`text` as one quoted GBNF literal; what cannot be printed is written as an escape."""
    return '"' + "".join(_ESCAPES.get(c) or (c if c.isprintable() else _code(c)) for c in text) + '"'


def _code(char: str) -> str:
    point = ord(char)
    return f"\\u{point:04x}" if point <= 0xFFFF else f"\\U{point:08x}"


def choices_grammar(choices: Sequence[str], *, lead: str = "", end: str = "") -> str:
    """GBNF for `lead`, exactly one of `choices`, then `end`. Raises ModelRefused when a choice cannot be asked for."""
    if not choices:
        raise ModelRefused("a request with an empty list of choices can have no answer: hand in at least one choice")
    for choice in choices:
        if not choice.strip() or "\0" in choice:
            raise ModelRefused(f"{choice!r} cannot be a choice: it is blank or holds a NUL character")
    alternatives = " | ".join(literal(lead + choice + end) for choice in dict.fromkeys(choices))
    return f"root ::= {alternatives}"


def schema_grammar(schema: dict[str, Any]) -> str:
    """Grammar of the JSON texts that fit `schema`, for the llguidance engine inside llama.cpp."""
    return f"%llguidance {{}}\nstart: %json {json.dumps(schema)}"


def tools_schema(tools: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """JSON schema of {"name", "arguments"} for any one of `tools`, or of {"reply": text} when no tool is wanted."""
    shapes: list[dict[str, Any]] = []
    for tool in tools:
        function = tool.get("function")
        if not isinstance(function, dict) or not isinstance(function.get("name"), str):
            raise ModelRefused(f'a tool must read {{"type": "function", "function": {{"name": ...}}}}, not {tool!r}')
        arguments = function.get("parameters") or {"type": "object", "properties": {}, "additionalProperties": False}
        shapes.append(_closed(name={"const": function["name"]}, arguments=arguments))
    shapes.append(_closed(reply={"type": "string"}))
    return {"anyOf": shapes}


def _closed(**properties: Any) -> dict[str, Any]:
    return {"type": "object", "properties": properties, "required": list(properties), "additionalProperties": False}


def tools_told(request: Request) -> tuple[Message, ...]:
    """The chat with its tools, calls and results written out as text, for a model whose template knows none."""
    said: list[Message] = []
    names: dict[str, str] = {}
    for message in request.messages:
        if message.role == "tool":
            name = names.get(message.tool_call_id or "", "the tool")
            said.append(Message(role="user", content=f"Result of {name}: {message.content}"))
        elif message.tool_calls:
            names.update((call.id, call.name) for call in message.tool_calls)
            calls = [f'{{"name": {json.dumps(c.name)}, "arguments": {c.arguments}}}' for c in message.tool_calls]
            said.append(Message(role="assistant", content="\n".join([message.content, *calls]).strip()))
        else:
            said.append(message)
    if not request.tools:
        return tuple(said)
    functions = "\n".join(json.dumps(tool.get("function"), ensure_ascii=False) for tool in request.tools)
    manual = (
        f"You can call these functions:\n{functions}\n"
        'To call one, answer with JSON: {"name": "...", "arguments": {...}}. '
        'When you need none, answer with {"reply": "..."}.'
    )
    if said and said[0].role == "system":
        return (Message(role="system", content=f"{said[0].content}\n\n{manual}"), *said[1:])
    return (Message(role="system", content=manual), *said)


def tools_read(text: str, request: Request) -> tuple[str, tuple[ToolCall, ...]]:
    """(plain text, tool calls) of an answer that `tools_schema` shaped; an answer cut short stays text as it is."""
    try:
        answer = json.loads(text)
    except ValueError:
        return text, ()
    if isinstance(answer, dict) and isinstance(answer.get("reply"), str):
        return answer["reply"], ()
    if not isinstance(answer, dict) or not isinstance(answer.get("name"), str):
        return text, ()
    number = sum(len(message.tool_calls) for message in request.messages)
    arguments = json.dumps(answer.get("arguments", {}), ensure_ascii=False)
    return "", (ToolCall(id=f"call_{number}", name=answer["name"], arguments=arguments),)
