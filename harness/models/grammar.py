"""A constraint is written as a grammar that the sampler cannot leave, so a small model always answers in form.

Choices become an alternation of token ids, in the tokens that the model itself would use: a grammar over letters lets
it begin with a lone space (which it likes before digits) and spell the rest in pieces it has never seen. Tools become a
JSON schema, because small models have no native calls.
"""

import json
from collections.abc import Iterable, Sequence
from typing import Any

from harness.model import Message, ModelRefused, Request, ToolCall

_TYPES = {"string", "number", "integer", "boolean", "null", "object", "array"}


def check_choices(choices: Sequence[str]) -> None:
    """Raise ModelRefused when a choice cannot be asked for."""
    if not choices:
        raise ModelRefused("a request with an empty list of choices can have no answer: hand in at least one choice")
    for choice in choices:
        if not choice.strip() or "\0" in choice:
            raise ModelRefused(f"{choice!r} cannot be a choice: it is blank or holds a NUL character")


def answer_rule(pieces: Iterable[tuple[int, str | Sequence[int]]]) -> str:
    """One text as a GBNF sequence, from (token id, piece) pairs; a piece that is half a character is a list of bytes.

    Such halves are written as the letters that they make together: the engine loses its place after them otherwise.
    """
    parts: list[str] = []
    halves = bytearray()
    for token, piece in pieces:
        if isinstance(piece, str):
            parts += [_literal(halves), f"<[{token}]>"] if halves else [f"<[{token}]>"]
            halves.clear()
        else:
            halves += bytes(piece)
    return " ".join([*parts, _literal(halves)] if halves else parts)


def _literal(text: bytes | bytearray) -> str:
    return '"' + "".join(f"\\U{ord(char):08x}" for char in text.decode()) + '"'


def choice_grammar(rules: Iterable[str]) -> str:
    """GBNF for exactly one of `rules`."""
    return "root ::= " + " | ".join(dict.fromkeys(rules))


def schema_grammar(schema: dict[str, Any]) -> str:
    """Grammar of the compact JSON texts that fit `schema`, for the llguidance engine inside llama.cpp.

    Spaces are fixed, because a small model left free to indent spends its whole answer on it. The engine drops what
    it cannot compile without a word: unknown type names are refused here, the rest by `check_json`.
    """
    _check_types(schema)
    layout = {"whitespace_flexible": False, "item_separator": ", ", "key_separator": ": "}
    return f"%llguidance {{}}\nstart: %json {json.dumps(schema | {'x-guidance': layout})}"


def _check_types(part: Any) -> None:
    if isinstance(part, list):
        for one in part:
            _check_types(one)
    elif isinstance(part, dict):
        kinds = part.get("type", [])
        for kind in [kinds] if isinstance(kinds, str) else kinds if isinstance(kinds, list) else []:
            if kind not in _TYPES:
                raise ModelRefused(f"the JSON schema names an unknown type {kind!r}: use one of {sorted(_TYPES)}")
        for key, one in part.items():
            if key not in ("enum", "const", "default", "examples"):  # data, not schemas
                _check_types(one)


def check_json(text: str, schema: dict[str, Any]) -> None:
    """Raise ModelRefused when a finished answer is no JSON at all, so the engine could not hold `schema`."""
    try:
        json.loads(text)
    except ValueError as error:
        raise ModelRefused(
            f"llama.cpp cannot hold this JSON schema and answered freely ({text[:60]!r}): "
            f"simplify it: {json.dumps(schema)[:300]}"
        ) from error


def tools_schema(tools: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """JSON schema of {"name", "arguments"} for any one of `tools`, or of {"reply": text} when no tool is wanted."""
    shapes: list[dict[str, Any]] = []
    for tool in tools:
        function = tool.get("function")
        if not isinstance(function, dict) or not isinstance(function.get("name"), str):
            raise ModelRefused(f'a tool must read {{"type": "function", "function": {{"name": ...}}}}, not {tool!r}')
        arguments = {"additionalProperties": False, **(function.get("parameters") or {"type": "object"})}
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
