"""Spans come back as trajectories: one trace, one trajectory, ours and those of others alike.

Read are OTLP/JSON files: a batch a line, or one document. `invoke_agent` says who acted, each `chat` (or
`text_completion`, `generate_content`) is a model call, each `execute_tool` an action and what was seen after it. A call
whose messages were not recorded cannot be learnt from: it is left out and counted. A trace that tells no score stays
unscored, and an agent that ended in an error is a gap: whose fault it was, spans do not say.
"""

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from evolve.traces.checked import check_plan, check_trajectory, first_of
from evolve.traces.imported import Imported
from evolve.traces.lines import broken, numbered, parsed
from evolve.traces.trace import TraceFault
from harness.model import Message, ToolCall, Usage
from harness.trajectory import Call, Trajectory, Turn

_CHATS = ("chat", "text_completion", "generate_content")
_ROLES = {"system": "system", "developer": "system", "user": "user", "assistant": "assistant", "model": "assistant"}
#: What reading a span of a stranger may raise.
_WRONG = (KeyError, TypeError, ValueError, AttributeError, ArithmeticError, RecursionError)


@dataclass(frozen=True)
class _Span:
    trace: str
    parent: str
    start: int
    end: int
    told: dict[str, Any]
    error: str | None

    @property
    def operation(self) -> str:
        return str(self.told.get("gen_ai.operation.name", ""))

    @property
    def order(self) -> tuple[int, int, int, int]:
        """By our numbers where there are some, else by time."""
        turn, call = self.told.get("instar.turn"), self.told.get("instar.call")
        if isinstance(turn, int):
            return (0, turn, call if isinstance(call, int) else 1_000_000_000, self.start)
        return (0, 0, 0, self.start)


@dataclass
class _Foreign:
    resource: dict[str, Any]
    spans: list[_Span] = field(default_factory=list)


def load(path: Path, run: Imported) -> int:
    """Bring the traces of `path` into `run`; how many model calls carried no messages. Raises TraceFault or OSError.

    A trace may be spread over many lines, so the file is held in memory until it has been read.
    """
    traces: dict[str, _Foreign] = {}
    for number, told in _documents(path):
        try:
            for span, resource in _read(told):
                traces.setdefault(span.trace, _Foreign(resource)).spans.append(span)
        except _WRONG as error:
            raise broken(path, number, f"no spans in OTLP/JSON ({type(error).__name__}: {error})") from error
    mine = [trace for trace in traces.values() if any(span.operation for span in trace.spans)]
    if not mine:
        raise TraceFault(f"{path}: no span in it tells a gen_ai.operation.name. Cure: export GenAI spans")
    made: list[Trajectory] = []
    silent = 0
    for trace in mine:
        try:
            trajectory, without = _trajectory(trace)
        except _WRONG as error:
            raise _unusable(path, trace, "makes no trajectory", error) from error
        silent += without
        made.append(trajectory)
    if silent and not any(trajectory.all_calls for trajectory in made):
        raise TraceFault(
            f"{path}: {silent} model calls, and none with its messages. Cure: record content (instar export --content; "
            "others: OTEL_INSTRUMENTATION_GENAI_CAPTURE_MESSAGE_CONTENT)"
        )
    try:
        plan = _plan(mine[0], made)
        reach = check_plan(plan)
    except _WRONG as error:
        raise _unusable(path, mine[0], "tells no run", error) from error
    for trace, trajectory in zip(mine, made, strict=True):
        try:
            check_trajectory(trajectory, reach)
        except ValueError as error:
            raise _unusable(path, trace, "makes no trajectory", error) from error
    run.event("plan", plan, at=min(trajectory.started for trajectory in made))
    for trajectory in made:
        run.put(trajectory)
    return silent


def _unusable(path: Path, trace: _Foreign, what: str, error: Exception) -> TraceFault:
    why = first_of(error) if isinstance(error, ValidationError) else f"{type(error).__name__}: {error}"
    return TraceFault(
        f"{path}: trace {trace.spans[0].trace} {what} ({why}). Nothing was imported. "
        "Cure: mend that trace, or leave it out"
    )


def _documents(path: Path) -> Iterator[tuple[int, dict[str, Any]]]:
    """The objects of a file: one a line, or one over many lines."""
    lines = numbered(path)
    number, text = next(lines, (1, ""))
    try:
        whole = isinstance(json.loads(text), dict)
    except RecursionError as error:
        raise broken(path, number, f"not JSON that can be read ({error})") from error
    except ValueError:  # then it is one document, or broken
        yield number, parsed(path, number, text + "".join(more for _, more in lines))
        return
    if whole:
        yield number, parsed(path, number, text)
    for number, text in lines:
        yield number, parsed(path, number, text)


def _read(told: dict[str, Any]) -> Iterator[tuple[_Span, dict[str, Any]]]:
    for batch in _either(told, "resourceSpans", "resource_spans"):
        resource = _attributes(batch.get("resource", {}).get("attributes", []))
        for scope in _either(batch, "scopeSpans", "scope_spans", []):
            for span in scope.get("spans", []):
                yield _one(span), resource


def _one(span: dict[str, Any]) -> _Span:
    told = _attributes(span.get("attributes", []))
    for event in span.get("events", []):  # where instrumentations put messages that they keep out of attributes
        more = _attributes(event.get("attributes", []))
        told = {key: value for key, value in more.items() if key.startswith("gen_ai.")} | told
    status = span.get("status", {})
    failed = status.get("code") in (2, "STATUS_CODE_ERROR")
    error = str(status.get("message") or told.get("error.type") or "it failed") if failed else None
    start, end = (int(_either(span, f"{name}TimeUnixNano", f"{name}_time_unix_nano")) for name in ("start", "end"))
    parent = _either(span, "parentSpanId", "parent_span_id", "")
    return _Span(str(_either(span, "traceId", "trace_id")), str(parent), start, end, told, error)


def _either(told: dict[str, Any], name: str, other: str, default: Any = None) -> Any:
    """What JSON or a protobuf library calls it; without a default it must be there."""
    if default is None and name not in told and other not in told:
        raise KeyError(name)
    return told.get(name, told.get(other, default))


def _attributes(listed: list[dict[str, Any]]) -> dict[str, Any]:
    return {str(one["key"]): _value(one.get("value", {})) for one in listed}


def _value(told: dict[str, Any]) -> Any:
    readers: dict[str, Callable[[Any], Any]] = {
        "stringValue": str, "boolValue": bool, "intValue": int, "doubleValue": float, "bytesValue": str,
        "arrayValue": lambda value: [_value(part) for part in value.get("values", [])],
        "kvlistValue": lambda value: _attributes(value.get("values", [])),
    }  # fmt: skip
    for kind, read in readers.items():
        if kind in told:
            return read(told[kind])
    if told:
        raise ValueError(f"no value of a known kind: {', '.join(told)}")
    return None


def _trajectory(trace: _Foreign) -> tuple[Trajectory, int]:
    """The trajectory of a trace, and how many of its calls carried no messages."""
    spans = sorted(trace.spans, key=lambda span: span.order)
    agents = sorted((span for span in spans if span.operation == "invoke_agent"), key=lambda span: span.start)
    root = next((span for span in agents if not span.parent), agents[0] if agents else None)
    told: dict[str, Any] = dict(root.told) if root is not None else {}
    steps = [span for span in spans if span.operation in (*_CHATS, "execute_tool")]
    start, end = min(span.start for span in spans), max(span.end for span in spans)
    turns, unfinished, silent = _turns(steps, told.get("instar.turns"))
    first = next((span for span in (*agents, *steps)), None)
    model = str(told.get("instar.model") or _model(first.told if first is not None else {}))
    conversation = str(told.get("gen_ai.conversation.id") or trace.spans[0].trace)
    ours = "instar.status" in told
    failed = root is not None and root.error is not None
    status = told["instar.status"] if ours else "gap" if failed else "done"
    score = told.get("instar.score") if ours else told.get("gen_ai.evaluation.score.value")
    return Trajectory(
        id=conversation if ours else f"run/agent/{trace.spans[0].trace}/0",
        task=str(told.get("instar.task") or trace.spans[0].trace), split=str(told.get("instar.split") or "foreign"),
        goal=str(told.get("instar.goal") or _goal(turns, unfinished)), episode=int(told.get("instar.episode", 0)),
        seed=int(told.get("instar.seed", 0)),
        harness=str(told.get("gen_ai.agent.version") or told.get("gen_ai.agent.name") or "foreign"), model=model,
        turns=tuple(turns), unfinished=tuple(unfinished), final=str(told.get("instar.final", "")),
        score=None if score is None or status == "gap" else float(score), status=status,
        fault=told.get("instar.fault", ""),
        reason=str(told.get("instar.reason") or (root.error if root is not None and failed else "") or ""),
        arm=str(told.get("instar.arm", "agent")), started=start / 10**9, seconds=(end - start) / 10**9,
    ), silent  # fmt: skip


def _turns(steps: list[_Span], known: Any) -> tuple[list[Turn], list[Call], int]:
    """Turns, the calls after the last one, and how many calls carried no messages."""
    turns: list[Turn] = []
    calls: list[Call] = []
    silent = 0
    seen = ""
    for index, span in enumerate(steps):
        if span.operation == "execute_tool":
            turns.append(_acted(span, tuple(calls), seen))
            seen, calls = _text(span.told.get("gen_ai.tool.call.result", "")), []
            continue
        call = _call(span)
        if call is None:
            silent += 1
            continue
        calls.append(call)
        following = steps[index + 1] if index + 1 < len(steps) else None
        if known is None and (following is None or following.operation != "execute_tool"):  # it acted by speaking
            turns.append(Turn(observation=seen, action=_said(call), calls=tuple(calls)))
            seen, calls = "", []
    return turns, calls, silent


def _acted(span: _Span, calls: tuple[Call, ...], seen: str) -> Turn:
    told = span.told
    action = _text(told.get("gen_ai.tool.call.arguments", ""))
    if "instar.turn" not in told and (name := told.get("gen_ai.tool.name")):
        action = json.dumps({"name": name, "arguments": _loaded(action)}, ensure_ascii=False)
    return Turn(
        observation=str(told.get("instar.observation", seen)), action=action,
        situation=str(told.get("instar.situation", "")), move=str(told.get("instar.move", "")),
        retrieved=tuple(map(str, told.get("instar.retrieved", ()))), calls=calls, reward=told.get("instar.reward"),
        feedback=str(told.get("instar.feedback", "")), invalid=bool(told.get("instar.invalid", False)),
    )  # fmt: skip


def _call(span: _Span) -> Call | None:
    """The model call that a span tells of; None where its messages were not recorded."""
    told = span.told
    asked, answers = (_loaded(told.get(f"gen_ai.{side}.messages")) for side in ("input", "output"))
    if not isinstance(asked, list) or not isinstance(answers, list):
        return None
    system = _loaded(told.get("gen_ai.system_instructions"))
    before = [{"role": "system", "parts": system}] if isinstance(system, list) and system else []
    messages = tuple(message for one in (*before, *asked) for message in _messages(one))
    answer = next((message for one in answers for message in _messages(one)), Message(role="assistant", content=""))
    reasons = told.get("gen_ai.response.finish_reasons") or [one.get("finish_reason") for one in answers]
    prompt = messages[0].content if span.operation == "text_completion" and len(messages) == 1 else None
    dollars, seconds = told.get("instar.dollars"), told.get("instar.seconds")
    return Call(
        messages=messages if prompt is None else None, prompt=prompt,
        tools=tuple(_loaded(told.get("gen_ai.tool.definitions")) or ()), output=answer.content,
        digest=str(told.get("instar.digest", "")), tool_calls=answer.tool_calls,
        usage=Usage(
            prompt_tokens=int(told.get("gen_ai.usage.input_tokens", 0)),
            output_tokens=int(told.get("gen_ai.usage.output_tokens", 0)),
            cached_tokens=int(told.get("gen_ai.usage.cache_read.input_tokens", 0)), dollars=dollars,
            seconds=(span.end - span.start) / 10**9 if seconds is None else seconds,
        ),
        finish_reason=str(reasons[0]) if reasons and reasons[0] else "stop", mode=told.get("instar.mode"),
        cached=bool(told.get("instar.cached", False)), faults=tuple(told.get("instar.faults", ())),
    )  # fmt: skip


def _messages(told: dict[str, Any]) -> Iterator[Message]:
    """Our messages of one of theirs: each answer of a tool is a message of its own."""
    texts: list[str] = []
    calls: list[ToolCall] = []
    for part in told.get("parts", ()):
        match part.get("type"):
            case "text":
                texts.append(str(part.get("content", "")))
            case "tool_call":
                arguments = part.get("arguments")
                text = arguments if isinstance(arguments, str) else json.dumps(arguments or {})
                calls.append(ToolCall(id=str(part.get("id") or ""), name=str(part["name"]), arguments=text))
            case "tool_call_response":
                result = part.get("response", part.get("result"))
                yield Message(role="tool", content=_text(result), tool_call_id=str(part.get("id") or ""))
    role = _ROLES.get(str(told.get("role")), "user")
    if texts or calls or not told.get("parts"):
        yield Message.model_validate({"role": role, "content": "\n".join(texts), "tool_calls": tuple(calls)})


def _loaded(value: Any) -> Any:
    """A value that may have been written as JSON text."""
    if not isinstance(value, str):
        return value
    try:
        return json.loads(value)
    except (ValueError, RecursionError):
        return value


def _text(value: Any) -> str:
    return value if isinstance(value, str) else "" if value is None else json.dumps(value, ensure_ascii=False)


def _said(call: Call) -> str:
    made = [{"name": one.name, "arguments": _loaded(one.arguments)} for one in call.tool_calls]
    return call.output if not made else json.dumps(made[0] if len(made) == 1 else made, ensure_ascii=False)


def _goal(turns: list[Turn], unfinished: list[Call]) -> str:
    """What the first call was asked last: the nearest that a foreign trace has to a goal."""
    first = next(iter([call for turn in turns for call in turn.calls] or unfinished), None)
    asked = [message for message in (first.messages or () if first is not None else ()) if message.role == "user"]
    return asked[0].content[:2000] if asked else ""


def _model(told: dict[str, Any]) -> str:
    provider = told.get("gen_ai.provider.name", told.get("gen_ai.system"))
    name = told.get("gen_ai.request.model", told.get("gen_ai.response.model", "unknown"))
    return f"{provider}/{name}" if provider else str(name)


def _plan(trace: _Foreign, made: list[Trajectory]) -> dict[str, Any]:
    """A plan as far as spans tell one: what a report and a comparison need."""
    told = {key.removeprefix("instar."): value for key, value in trace.resource.items() if key.startswith("instar.")}
    service = str(trace.resource.get("service.name", "foreign"))
    facts = _loaded(told.get("benchmark")) or {"name": service, "reward_range": [0.0, 1.0]}
    return {
        "command": told.get("command", "run"), "harness": told.get("harness", made[0].harness),
        "name": told.get("name", made[0].harness), "env": told.get("env", service), "world": "", "benchmark": facts,
        "tasks": {}, "model": told.get("model", made[0].model), "seed": int(told.get("seed", 0)),
        "split": told.get("split", made[0].split), "recipe": told.get("recipe"), "settings": {}, "proposer": None,
        "options": {}, "files": {}, "memory": None, "episodes": 1, "budget": None,
        "instar": str(trace.resource.get("service.version", "")), "imported": "otlp",
    }  # fmt: skip
