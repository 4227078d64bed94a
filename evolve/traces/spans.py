"""A trajectory as spans in the GenAI semantic conventions of OpenTelemetry, equal each time they are made.

One trace is one trajectory: `invoke_agent` over it all, a `chat` for each model call, an `execute_tool` for each action
that was tried on the world. Ids are hashes of (run, episode, turn, call), so sending a run twice changes nothing. What
was said goes out only if `content` is asked for, as the conventions want it; what no convention has a name for (score,
reward, seed, ...) is under `instar.`. The conventions are "in development"; the names are those of mid 2026.

The journal knows when a turn ended and how long each call took. A call is put at the beginning of its turn, after the
calls before it; what is left of the turn is the world's.
"""

import hashlib
import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit

import harness
from evolve.traces.trace import Trace, run_id
from harness.model import Message
from harness.trajectory import Call, Turn

INTERNAL, CLIENT = 1, 3  # span kinds, as OTLP numbers them
SCOPE = "instar"
#: What a run says of itself in each batch of spans, by its key in the plan; enough to read it back.
_TOLD = ("command", "name", "env", "harness", "model", "seed", "split", "recipe", "benchmark")
#: Providers whose name in the conventions is not the one that litellm uses.
_PROVIDERS = {
    "azure": "azure.ai.openai", "azure_ai": "azure.ai.inference", "bedrock": "aws.bedrock", "gemini": "gcp.gemini",
    "mistral": "mistral_ai", "vertex_ai": "gcp.vertex_ai", "watsonx": "ibm.watsonx.ai", "xai": "x_ai",
}  # fmt: skip
_LONE = re.compile("[\ud800-\udfff]")
#: Attributes hold plain values and lists of texts; None is left out.
Value = str | bool | int | float | list[str] | None


@dataclass(frozen=True)
class Span:
    """One span; ids in hex, times in nanoseconds since 1970. `error`: why it failed."""

    trace: str
    id: str
    parent: str
    name: str
    kind: int
    start: int
    end: int
    attributes: dict[str, Any] = field(default_factory=dict)
    error: str | None = None


def resource(plan: dict[str, Any]) -> dict[str, Any]:
    """What all spans of a run share."""
    told = {f"instar.{key}": _plain(plan[key]) for key in _TOLD if plan.get(key) is not None}
    return _clean({
        "service.name": "instar", "service.version": str(plan.get("instar") or harness.__version__),
        "instar.run": run_id(plan), **told,
    })  # fmt: skip


def spans_of(one: Trace, plan: dict[str, Any], *, content: bool = False) -> list[Span]:
    """The spans of a trajectory, the whole before its parts. `content`: with what was said and seen."""
    return _Spans(one, plan, content).spans()


class _Spans:
    def __init__(self, one: Trace, plan: dict[str, Any], content: bool) -> None:
        self.one, self.plan, self.content = one, plan, content
        self.t = one.trajectory
        self.key = f"{run_id(plan)}/{self.t.id}@{self.t.started!r}"
        self.id = _hash(self.key, 16)
        self.root = _hash(f"{self.key}#", 8)
        self.model, provider = _model(self.t.model)
        self.shared: dict[str, Value] = {
            "gen_ai.provider.name": provider, "gen_ai.request.model": self.model, "gen_ai.conversation.id": self.t.id,
        }  # fmt: skip
        address = urlsplit(str(plan.get("address") or ""))
        if address.hostname:
            self.shared |= {"server.address": address.hostname, "server.port": address.port}

    def spans(self) -> list[Span]:
        t = self.t
        start, end = _nano(t.started), _nano(t.started + t.seconds)
        parts = [*self._parts(start, end)]
        gap = t.status == "gap"
        reason = {"error.type": t.fault or "gap"} if gap else {}
        name = str(self.plan.get("name") or "agent")
        whole = {
            "gen_ai.operation.name": "invoke_agent", **self.shared, "gen_ai.agent.name": name,
            "gen_ai.agent.version": t.harness,
            "gen_ai.usage.input_tokens": sum(call.usage.prompt_tokens for call in t.all_calls),
            "gen_ai.usage.output_tokens": sum(call.usage.output_tokens for call in t.all_calls),
            "instar.task": t.task, "instar.split": t.split, "instar.episode": t.episode, "instar.seed": str(t.seed),
            "instar.arm": t.arm, "instar.model": t.model, "instar.status": t.status, "instar.score": t.score,
            "instar.dollars": t.dollars, "instar.turns": len(t.turns), "instar.fault": t.fault or None,
            "instar.reason": t.reason or None, **reason,
        }  # fmt: skip
        if self.content:
            whole |= {"instar.goal": t.goal, "instar.final": t.final}
        root = Span(self.id, self.root, "", f"invoke_agent {name}", INTERNAL, start, max(start, end), _clean(whole),
                    (t.reason or "the episode was lost") if gap else None)  # fmt: skip
        return [root, *parts]

    def _parts(self, start: int, end: int) -> Iterator[Span]:
        t, since = self.t, start
        results = [turn.observation for turn in t.turns[1:]] + [t.final]
        pending: list[Any] = []
        for number, (turn, until) in enumerate(zip(t.turns, self._turned(start, end), strict=True)):
            at = since
            for index, call in enumerate(turn.calls):
                chat = self._chat(call, number, index, at, until)
                at = chat.end
                yield chat
            if turn.calls:
                pending = list(turn.calls[-1].tool_calls)
            yield self._act(turn, number, results[number], _taken(turn, pending), at, until)
            since = until
        for index, call in enumerate(t.unfinished):
            chat = self._chat(call, len(t.turns), index, since, max(since, end))
            since = chat.end
            yield chat

    def _turned(self, start: int, end: int) -> list[int]:
        """When each turn ended. A journal that was written later than the episode does not know: then, evenly."""
        turned = [_nano(at) for at in self.one.turned]
        count = len(self.t.turns)
        slack = 10**9
        known = len(turned) == count and turned == sorted(turned)
        if not known or (turned and not (start - slack <= turned[0] and turned[-1] <= end + slack)):
            return [start + (end - start) * (number + 1) // max(1, count) for number in range(count)]
        return [min(max(at, start), max(start, end)) for at in turned]

    def _chat(self, call: Call, turn: int, index: int, start: int, until: int) -> Span:
        operation = "chat" if call.messages is not None else "text_completion"
        used, seconds = call.usage, 0.0 if call.cached else call.usage.seconds
        told: dict[str, Value] = {
            "gen_ai.operation.name": operation, **self.shared,
            "gen_ai.usage.input_tokens": used.prompt_tokens, "gen_ai.usage.output_tokens": used.output_tokens,
            "gen_ai.usage.cache_read.input_tokens": used.cached_tokens or None,
            "gen_ai.response.finish_reasons": [call.finish_reason],
            "instar.turn": turn, "instar.call": index, "instar.digest": call.digest, "instar.dollars": used.dollars,
            "instar.seconds": used.seconds, "instar.cached": call.cached or None, "instar.mode": call.mode,
            "instar.faults": list(call.faults) or None,
        }  # fmt: skip
        if self.content:
            asked = call.messages if call.messages is not None else (Message(role="user", content=call.prompt or ""),)
            answer = Message(role="assistant", content=call.output, tool_calls=call.tool_calls)
            told |= {
                "gen_ai.input.messages": _json([_parts(message) for message in asked]),
                "gen_ai.output.messages": _json([_parts(answer) | {"finish_reason": call.finish_reason}]),
                "gen_ai.tool.definitions": _json(list(call.tools)) if call.tools else None,
            }
        end = min(start + _nano(seconds), max(start, until))
        return Span(self.id, _hash(f"{self.key}/{turn}/{index}", 8), self.root, f"{operation} {self.model}", CLIENT,
                    start, end, _clean(told))  # fmt: skip

    def _act(self, turn: Turn, number: int, result: str, taken: Any, start: int, end: int) -> Span:
        name = taken.name if taken is not None else "act"
        told: dict[str, Value] = {
            "gen_ai.operation.name": "execute_tool", "gen_ai.tool.name": name, "gen_ai.tool.type": "function",
            "gen_ai.tool.call.id": taken.id if taken is not None else None, "gen_ai.conversation.id": self.t.id,
            "instar.turn": number, "instar.reward": turn.reward, "instar.retrieved": list(turn.retrieved) or None,
            "instar.invalid": turn.invalid or None, "error.type": "invalid_action" if turn.invalid else None,
        }  # fmt: skip
        if self.content:
            told |= {
                "gen_ai.tool.call.arguments": turn.action, "gen_ai.tool.call.result": result,
                "instar.observation": turn.observation, "instar.situation": turn.situation or None,
                "instar.move": turn.move or None, "instar.feedback": turn.feedback or None,
            }  # fmt: skip
        error = "the model's answer was no usable action" if turn.invalid else None
        return Span(self.id, _hash(f"{self.key}/{number}/act", 8), self.root, f"execute_tool {name}", INTERNAL,
                    start, max(start, end), _clean(told), error)  # fmt: skip


def _taken(turn: Turn, pending: list[Any]) -> Any:
    """The tool call that the turn carried out, taken from those the model had made; None where that is not clear."""
    for call in pending:
        try:
            arguments = json.loads(call.arguments or "{}")
        except ValueError:
            arguments = None
        plain = arguments.get("action") if isinstance(arguments, dict) and call.name == "act" else None
        whole = json.dumps({"name": call.name, "arguments": arguments}, ensure_ascii=False)
        if turn.invalid or turn.action in (plain, whole):
            pending.remove(call)
            return call
    return None


def _parts(message: Message) -> dict[str, Any]:
    """A message in the shape that the conventions give it."""
    if message.role == "tool":
        part = {"type": "tool_call_response", "id": message.tool_call_id, "response": message.content}
        return {"role": "tool", "parts": [part]}
    parts: list[dict[str, Any]] = [{"type": "text", "content": message.content}] if message.content else []
    for call in message.tool_calls:
        parts.append({"type": "tool_call", "id": call.id, "name": call.name, "arguments": _arguments(call.arguments)})
    return {"role": message.role, "parts": parts}


def _arguments(text: str) -> Any:
    """Arguments as an object where that says exactly the same, else the text that the model wrote."""
    try:
        value = json.loads(text)
    except ValueError:
        return text
    return value if isinstance(value, dict) and json.dumps(value) == text else text


def _model(name: str) -> tuple[str, str]:
    """The model's own name, and its provider as the conventions call it."""
    provider, slash, rest = name.removeprefix("litellm/").partition("/")
    if slash and provider and ":" not in provider:
        return rest, _PROVIDERS.get(provider, provider)
    return name, "instar"  # a model of this process


def _plain(value: Any) -> Any:
    return value if isinstance(value, str | bool | int | float) else _json(value)


def _json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)


def _clean(told: dict[str, Value]) -> dict[str, Any]:
    """Attributes that can be sent: without None, and with lone surrogates, which UTF-8 cannot hold, spelled out."""
    return {key: _sendable(value) for key, value in told.items() if value is not None}


def _sendable(value: Any) -> Any:
    if isinstance(value, str):
        return _LONE.sub("\ufffd", value)
    return [_sendable(part) for part in value] if isinstance(value, Sequence) else value


def _nano(seconds: float) -> int:
    """Nanoseconds, as exact as the float is: times 10^9 it would lose a few hundred of them."""
    whole = int(seconds)
    return whole * 10**9 + round((seconds - whole) * 1e9)


def _hash(text: str, size: int) -> str:
    """The first `size` bytes of a hash, in hex; never all zero, which would mean no id."""
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[: 2 * size].replace("0" * 2 * size, "1")
