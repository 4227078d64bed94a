"""A run as OpenTelemetry spans in a file: the conventions' names, the same ids each time, and back again."""

import json
from pathlib import Path
from typing import Any

import pytest
import runs

from evolve.export import export, import_run
from evolve.report import read_report
from evolve.traces.trace import TraceFault
from harness.journal import timeless
from harness.trajectory import Trajectory

WELL_KNOWN = {"chat", "text_completion", "invoke_agent", "execute_tool"}


def spans(path: Path) -> list[dict[str, Any]]:
    """All spans of a file, with attributes as a plain mapping."""
    found = []
    for line in path.read_text().splitlines():
        for batch in json.loads(line)["resourceSpans"]:
            for scope in batch["scopeSpans"]:
                found += [span | {"told": plain(span["attributes"])} for span in scope["spans"]]
    return found


def plain(attributes: list[dict[str, Any]]) -> dict[str, Any]:
    return {one["key"]: next(iter(one["value"].values())) for one in attributes}


def sent(tmp_path: Path, *trajectories: Trajectory, content: bool = False, name: str = "a") -> list[dict[str, Any]]:
    run = tmp_path / f"run-{name}"
    if not run.exists():
        runs.written(run, trajectories)
    export(run, "otlp", tmp_path / f"{name}.jsonl", content=content)
    return spans(tmp_path / f"{name}.jsonl")


def test_a_trajectory_is_one_trace_an_agent_its_calls_and_its_actions(tmp_path: Path) -> None:
    root, *parts = sent(tmp_path, runs.talk())
    assert [span["name"] for span in (root, *parts)] == [
        "invoke_agent agent", "chat tiny", "execute_tool act", "chat tiny", "execute_tool go", "chat tiny",
        "execute_tool act", "chat tiny",
    ]  # fmt: skip
    assert len({span["traceId"] for span in (root, *parts)}) == 1
    assert {span["parentSpanId"] for span in parts} == {root["spanId"]}
    assert "parentSpanId" not in root
    assert len({span["spanId"] for span in (root, *parts)}) == len(parts) + 1
    assert all(len(span["traceId"]) == 32 and len(span["spanId"]) == 16 for span in parts)
    chat, act = parts[0]["told"], parts[1]["told"]
    assert chat["gen_ai.operation.name"] == "chat"
    assert (chat["gen_ai.provider.name"], chat["gen_ai.request.model"]) == ("openai", "tiny")
    assert (chat["gen_ai.usage.input_tokens"], chat["gen_ai.usage.output_tokens"]) == ("3", "1")
    assert chat["gen_ai.response.finish_reasons"] == {"values": [{"stringValue": "tool_calls"}]}
    assert (chat["server.address"], chat["server.port"]) == ("127.0.0.1", "8000")
    assert (act["gen_ai.tool.name"], act["gen_ai.tool.call.id"]) == ("act", "c1")
    assert {span["told"]["gen_ai.conversation.id"] for span in (root, *parts)} == {runs.talk().id}
    assert root["told"]["gen_ai.usage.input_tokens"] == "12"
    assert (root["told"]["instar.score"], root["told"]["instar.seed"]) == (0.5, str(2**62))


def test_parts_lie_one_after_the_other_within_the_whole(tmp_path: Path) -> None:
    root, *parts = sent(tmp_path, runs.talk())
    at = [int(span[f"{end}TimeUnixNano"]) for span in (root, *parts) for end in ("start", "end")]
    start, end = at[:2]
    assert (start, end) == (1_700_000_000_250_000_000, 1_700_000_002_750_000_000)
    assert [start, *at[2:], end] == sorted([start, *at[2:], end])
    assert int(parts[0]["endTimeUnixNano"]) - int(parts[0]["startTimeUnixNano"]) == 250_000_000
    assert parts[2]["startTimeUnixNano"] == parts[2]["endTimeUnixNano"]  # its answer came from the record


def test_a_second_export_says_exactly_the_same(tmp_path: Path) -> None:
    first = sent(tmp_path, runs.talk(), runs.trajectory("t1"))
    assert sent(tmp_path) == first
    export(tmp_path / "run-a", "jsonl", tmp_path / "run.jsonl")
    import_run(tmp_path / "run.jsonl", tmp_path / "run-b")
    there = sent(tmp_path, name="b")
    assert [(s["traceId"], s["spanId"], s["told"]) for s in there] == [
        (s["traceId"], s["spanId"], s["told"]) for s in first
    ]


def test_other_runs_episodes_and_tries_have_other_ids(tmp_path: Path) -> None:
    again = runs.trajectory(started=1_700_000_099.0)
    first = sent(tmp_path, runs.trajectory(), runs.trajectory(number=1), name="a")
    with_seed = runs.written(tmp_path / "run-b", [runs.trajectory()], runs.PLAN | {"seed": 8})
    assert with_seed.is_dir()
    other = sent(tmp_path, name="b") + sent(tmp_path, again, name="c")
    assert len({span["traceId"] for span in first + other}) == 4
    assert len({span["spanId"] for span in first + other}) == 3 * 4


def test_what_was_said_goes_out_only_if_it_is_asked_for(tmp_path: Path) -> None:
    words = ("leave the house", "You act.", "I go.", "a hall", "in a room", "good", "the east")
    sent(tmp_path, runs.talk())
    assert not [word for word in words if word in (tmp_path / "a.jsonl").read_text()]
    found = sent(tmp_path, content=True)
    assert all(word in (tmp_path / "a.jsonl").read_text() for word in words)
    asked = json.loads(found[3]["told"]["gen_ai.input.messages"])
    assert asked[2]["parts"] == [
        {"type": "text", "content": "I go."},
        {"type": "tool_call", "id": "c1", "name": "act", "arguments": {"action": "north"}},
    ]
    assert asked[3] == {"role": "tool", "parts": [{"type": "tool_call_response", "id": "c1", "response": "a hall"}]}


def test_a_gap_and_an_unusable_answer_are_errors_and_a_lost_game_is_none(tmp_path: Path) -> None:
    found = sent(tmp_path, runs.gap("t9", fault="provider"), runs.trajectory("t1", score=0.0), runs.talk())
    gap, lost, *_ = [span for span in found if span["name"].startswith("invoke")]
    assert gap["status"] == {"code": 2, "message": "model: the server is gone"}
    assert gap["told"]["error.type"] == "provider"
    assert "instar.score" not in gap["told"]
    assert "status" not in lost
    assert [span["told"]["error.type"] for span in found if "instar.invalid" in span["told"]] == ["invalid_action"]


def test_every_name_is_one_of_the_conventions_or_ours(tmp_path: Path) -> None:
    known = pytest.importorskip(
        "opentelemetry.semconv._incubating.attributes.gen_ai_attributes",
        reason="the extra otel is not installed: make test-traces",
    )
    names = {value for value in vars(known).values() if isinstance(value, str)}
    told = {key for span in sent(tmp_path, runs.talk(), runs.gap("t1"), content=True) for key in span["told"]}
    theirs = {key for key in told if key.startswith("gen_ai.")}
    assert theirs <= names
    assert len(theirs) >= 15
    assert all(key.startswith(("gen_ai.", "instar.", "error.type", "server.")) for key in told)
    operations = {one.value for one in known.GenAiOperationNameValues}
    assert operations >= WELL_KNOWN


@pytest.mark.parametrize("kind", ["played", "remembering"])
def test_spans_with_content_come_back_as_the_trajectories_they_were(
    request: pytest.FixtureRequest, kind: str, tmp_path: Path
) -> None:
    run: Path = request.getfixturevalue(kind)
    export(run, "otlp", tmp_path / "run.jsonl", content=True)
    import_run(tmp_path / "run.jsonl", tmp_path / "back")
    ours, theirs = runs.told(run), runs.told(tmp_path / "back")
    assert ours.keys() == theirs.keys()
    for id, one in ours.items():  # all but the sum of what broken tries had cost, and the clock's last digits
        was, came = (timeless(t.model_dump(mode="json", exclude={"lost"})) for t in (one, theirs[id]))
        assert came == was
        assert theirs[id].started == pytest.approx(one.started)
        assert theirs[id].seconds == pytest.approx(one.seconds, abs=1e-3)
    assert read_report(tmp_path / "back").spending.total.calls == read_report(run).spending.total.calls


def test_function_calls_and_cut_off_turns_come_back_too(tmp_path: Path) -> None:
    sent(tmp_path, runs.talk(), runs.gap("t1", fault="provider"), content=True)
    import_run(tmp_path / "a.jsonl", tmp_path / "back")
    assert runs.told(tmp_path / "back") == {one.id: one for one in (runs.talk(), runs.gap("t1", fault="provider"))}


FOREIGN = {
    "resourceSpans": [
        {
            "resource": {"attributes": [{"key": "service.name", "value": {"stringValue": "shop"}}]},
            "scopeSpans": [{"scope": {"name": "theirs"}, "spans": []}],
        }
    ]
}


def foreign(tmp_path: Path, *told: dict[str, Any], indent: int | None = None) -> Path:
    """A file of spans as another instrumentation writes them, one second each, in one trace unless they say another."""

    def value(one: Any) -> dict[str, Any]:
        if isinstance(one, dict):
            return {"kvlistValue": {"values": [{"key": k, "value": value(v)} for k, v in one.items()]}}
        if isinstance(one, list):
            return {"arrayValue": {"values": [value(part) for part in one]}}
        return {"intValue": str(one)} if isinstance(one, int) else {"stringValue": one}

    document = json.loads(json.dumps(FOREIGN))
    listed = document["resourceSpans"][0]["scopeSpans"][0]["spans"]
    for number, one in enumerate(told):
        rest = {key: one[key] for key in ("status", "events", "parentSpanId", "traceId") if key in one}
        attributes = [{"key": key, "value": value(part)} for key, part in one.items() if key not in rest]
        at = {"startTimeUnixNano": str((number + 1) * 10**9), "endTimeUnixNano": str((number + 2) * 10**9)}
        listed.append(
            {"traceId": "ab" * 16, "spanId": f"{number:016x}", "name": "x", "attributes": attributes} | at | rest
        )
    path = tmp_path / "theirs.json"
    path.write_text(json.dumps(document, indent=indent))
    return path


USER = [{"role": "user", "parts": [{"type": "text", "content": "Weather in Paris?"}]}]
ASKS = {"type": "tool_call", "id": "call_1", "name": "get_weather", "arguments": {"location": "Paris"}}
AGENT = {
    "gen_ai.operation.name": "invoke_agent", "gen_ai.agent.name": "Helper", "gen_ai.provider.name": "openai",
    "gen_ai.request.model": "gpt-4", "gen_ai.conversation.id": "conv_1",
}  # fmt: skip
FIRST = {
    "gen_ai.operation.name": "chat", "gen_ai.request.model": "gpt-4", "gen_ai.provider.name": "openai",
    "gen_ai.usage.input_tokens": 12, "gen_ai.usage.output_tokens": 8, "gen_ai.input.messages": USER,
    "gen_ai.system_instructions": json.dumps([{"type": "text", "content": "Be kind."}]),
    "gen_ai.output.messages": json.dumps([{"role": "assistant", "parts": [ASKS], "finish_reason": "tool_call"}]),
    "parentSpanId": "0" * 16,
}  # fmt: skip
TOOL = {
    "gen_ai.operation.name": "execute_tool", "gen_ai.tool.name": "get_weather", "gen_ai.tool.call.id": "call_1",
    "gen_ai.tool.call.arguments": '{"location": "Paris"}', "gen_ai.tool.call.result": "rainy", "parentSpanId": "0" * 16,
}  # fmt: skip
LAST = {
    "gen_ai.operation.name": "chat", "gen_ai.request.model": "gpt-4", "parentSpanId": "0" * 16,
    "events": [{
        "name": "gen_ai.client.inference.operation.details",
        "attributes": [
            {"key": "gen_ai.input.messages", "value": {"stringValue": json.dumps([
                *USER, {"role": "assistant", "parts": [ASKS]},
                {"role": "tool", "parts": [{"type": "tool_call_response", "id": "call_1", "result": "rainy"}]},
            ])}},
            {"key": "gen_ai.output.messages", "value": {"stringValue": json.dumps([
                {"role": "assistant", "parts": [{"type": "text", "content": "It rains."}], "finish_reason": "stop"},
            ])}},
        ],
    }],
}  # fmt: skip


@pytest.mark.parametrize("indent", [None, 2], ids=["a line", "a document"])
def test_the_spans_of_others_come_in_as_far_as_they_carry_messages(indent: int | None, tmp_path: Path) -> None:
    unknown = {"http.request.method": "POST"}
    path = foreign(tmp_path, AGENT, unknown, FIRST, TOOL, LAST, indent=indent)
    found = import_run(path, tmp_path / "back")
    assert (found.trajectories, found.silent_calls) == (1, 0)
    (one,) = runs.told(tmp_path / "back").values()
    assert (one.model, one.harness, one.status, one.score) == ("openai/gpt-4", "Helper", "done", None)
    assert one.goal == "Weather in Paris?"
    first, last = one.turns
    assert json.loads(first.action) == {"name": "get_weather", "arguments": {"location": "Paris"}}
    assert (last.observation, last.action) == ("rainy", "It rains.")
    call = first.calls[0]
    assert [(m.role, m.content) for m in call.messages or ()] == [("system", "Be kind."), ("user", "Weather in Paris?")]
    assert [(c.id, c.name, json.loads(c.arguments)) for c in call.tool_calls] == [
        ("call_1", "get_weather", {"location": "Paris"})
    ]
    assert (call.usage.prompt_tokens, call.usage.output_tokens, call.usage.dollars) == (12, 8, None)
    assert [m.role for m in last.calls[0].messages or ()] == ["user", "assistant", "tool"]
    assert read_report(tmp_path / "back").facts.name == "shop"
    assert export(tmp_path / "back", "rows", tmp_path / "rows.jsonl").text_rows == 2


def test_calls_without_messages_are_left_out_and_counted(tmp_path: Path) -> None:
    silent = {key: value for key, value in FIRST.items() if "messages" not in key}
    found = import_run(foreign(tmp_path, AGENT, silent, FIRST, TOOL), tmp_path / "back")
    assert (found.trajectories, found.silent_calls) == (1, 1)
    with pytest.raises(
        TraceFault, match=r"theirs\.json: 1 model calls, and none with its messages\. Cure: record content"
    ):
        import_run(foreign(tmp_path, AGENT, silent), tmp_path / "other")
    assert not (tmp_path / "other").exists()


def test_an_agent_that_ended_in_an_error_is_a_gap_and_traces_are_kept_apart(tmp_path: Path) -> None:
    broken = {"status": {"code": 2, "message": "boom"}}
    other = {"traceId": "cd" * 16}
    path = foreign(tmp_path, AGENT | broken, FIRST, TOOL, AGENT | other, FIRST | other, TOOL | other)
    import_run(path, tmp_path / "back")
    found = runs.told(tmp_path / "back")
    assert sorted((one.task[:2], one.status, one.reason, len(one.turns)) for one in found.values()) == [
        ("ab", "gap", "boom", 1), ("cd", "done", "", 1),
    ]  # fmt: skip


def test_a_line_that_holds_no_spans_is_named(tmp_path: Path) -> None:
    sent(tmp_path, runs.talk(), runs.trajectory("t1"), content=True)
    first, second = (tmp_path / "a.jsonl").read_text().splitlines()
    for wrong in (
        '{"resourceSpans": [{"scopeSpans": [{"spans": [{"name": "x"}]}]}]}',
        second[:90],
        second.replace("intValue", "wrong"),
    ):
        (tmp_path / "bad.jsonl").write_text(f"{first}\n{wrong}\n")
        with pytest.raises(TraceFault, match=r"bad\.jsonl, line 2: .*Nothing was imported\. Cure: "):
            import_run(tmp_path / "bad.jsonl", tmp_path / "back")
        assert not (tmp_path / "back").exists()


def test_a_trace_that_makes_no_trajectory_is_named(tmp_path: Path) -> None:
    for wrong in (
        {"gen_ai.output.messages": json.dumps([{"role": "assistant", "parts": [{"type": "tool_call"}]}])},
        {"gen_ai.input.messages": json.dumps(["words"])},
        {"gen_ai.usage.input_tokens": "many"},
    ):
        with pytest.raises(TraceFault, match=rf"theirs\.json: trace {'ab' * 16} makes no trajectory \(.*Cure: "):
            import_run(foreign(tmp_path, AGENT, FIRST | wrong), tmp_path / "back")
        assert not (tmp_path / "back").exists()
