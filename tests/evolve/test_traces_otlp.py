"""Spans arrive at a real collector over HTTP, once each; a key goes into a header and nowhere else."""

import json
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import runs

from evolve.export import export
from evolve.traces import otlp
from evolve.traces.trace import TraceFault

KEY = "k-3f81c0ffee"
needs_otel = pytest.mark.skipif(
    find_spec("opentelemetry") is None or find_spec("opentelemetry.exporter") is None,
    reason="the extra otel is not installed: make test-traces",
)


@dataclass
class Collector:
    """What a collector was sent: its URL, the headers of each request, and the spans by (trace, span)."""

    url: str
    status: int = 200
    paths: list[str] = field(default_factory=list)
    headers: list[dict[str, str]] = field(default_factory=list)
    spans: dict[tuple[bytes, bytes], Any] = field(default_factory=dict)
    resources: list[dict[str, Any]] = field(default_factory=list)
    arrived: int = 0


@contextmanager
def collecting(status: int = 200) -> Iterator[Collector]:
    from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            here.paths.append(self.path)
            here.headers.append(dict(self.headers))
            if here.status == 200:
                request = ExportTraceServiceRequest.FromString(body)
                for batch in request.resource_spans:
                    here.resources.append({one.key: one.value for one in batch.resource.attributes})
                    for scope in batch.scope_spans:
                        for span in scope.spans:
                            here.spans[span.trace_id, span.span_id] = span
                            here.arrived += 1
            self.send_response(here.status)
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    here = Collector(f"http://127.0.0.1:{server.server_address[1]}", status)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    try:
        yield here
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def told(span: Any) -> dict[str, Any]:
    """A span's attributes as plain values."""
    return {one.key: getattr(one.value, one.value.WhichOneof("value")) for one in span.attributes}


@pytest.fixture
def run(tmp_path: Path) -> Path:
    return runs.written(tmp_path / "run", [runs.talk(), runs.gap("t1", fault="provider"), runs.trajectory("t2")])


@needs_otel
def test_every_span_arrives_with_its_ids_times_and_names(run: Path) -> None:
    with collecting() as here:
        found = export(run, "otlp", endpoint=here.url)
    assert (found.trajectories, found.spans, here.arrived) == (3, 12, 12)
    assert found.where == f"{here.url}/v1/traces"
    assert set(here.paths) == {"/v1/traces"}
    roots = [span for span in here.spans.values() if not span.parent_span_id]
    assert sorted(span.name for span in roots) == ["invoke_agent agent"] * 3
    for span in here.spans.values():
        assert (len(span.trace_id), len(span.span_id)) == (16, 8)
        assert span.end_time_unix_nano >= span.start_time_unix_nano > 0
        if span.parent_span_id:
            assert (span.trace_id, span.parent_span_id) in here.spans
    talk = next(span for span in roots if told(span)["instar.task"] == "t0")
    assert talk.start_time_unix_nano == 1_700_000_000_250_000_000
    assert told(talk)["instar.score"] == 0.5
    kinds = {told(span)["gen_ai.operation.name"]: span.kind for span in here.spans.values()}
    assert kinds == {"invoke_agent": 1, "chat": 3, "execute_tool": 1}
    gap = next(span for span in roots if told(span)["instar.task"] == "t1")
    assert (gap.status.code, gap.status.message) == (2, "model: the server is gone")
    assert here.resources[0]["service.name"].string_value == "instar"


@needs_otel
def test_the_wire_and_the_file_say_the_same_and_sending_again_adds_nothing(run: Path, tmp_path: Path) -> None:
    from google.protobuf.json_format import ParseDict
    from opentelemetry.proto.trace.v1.trace_pb2 import TracesData
    from test_traces_spans import spans

    with collecting() as here:
        export(run, "otlp", endpoint=here.url, content=True)
        first = dict(here.spans)
        export(run, "otlp", endpoint=here.url, content=True)
    assert (len(here.spans), here.arrived) == (len(first), 2 * len(first))
    assert here.spans == first
    export(run, "otlp", tmp_path / "spans.jsonl", content=True)
    assert {(bytes.fromhex(s["traceId"]), bytes.fromhex(s["spanId"])) for s in spans(tmp_path / "spans.jsonl")} == set(
        first
    )
    for line in (tmp_path / "spans.jsonl").read_text().splitlines():
        document = json.loads(line)
        for batch in document["resourceSpans"]:
            for scope in batch["scopeSpans"]:
                for span in scope["spans"]:
                    wired = first[bytes.fromhex(span["traceId"]), bytes.fromhex(span["spanId"])]
                    for key in (
                        "traceId",
                        "spanId",
                        "parentSpanId",
                    ):  # OTLP/JSON has these in hex, unlike protobuf's JSON
                        span.pop(key, None)
                    read = ParseDict({"resourceSpans": [{"scopeSpans": [{"spans": [span]}]}]}, TracesData())
                    read = read.resource_spans[0].scope_spans[0].spans[0]
                    for name in ("name", "kind", "start_time_unix_nano", "end_time_unix_nano", "status", "attributes"):
                        assert getattr(read, name) == getattr(wired, name), name


@needs_otel
def test_many_spans_go_in_several_requests(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = runs.written(tmp_path / "run", [runs.trajectory(f"t{i}") for i in range(10)])
    monkeypatch.setattr(otlp, "TOGETHER", 7)
    with collecting() as here:
        assert export(run, "otlp", endpoint=here.url).spans == 30
    assert (len(here.paths), here.arrived, len(here.spans)) == (5, 30, 30)
    monkeypatch.setattr(otlp, "ROOM", 1)  # spans with much text go one by one
    with collecting() as here:
        export(run, "otlp", endpoint=here.url, content=True)
    assert (len(here.paths), here.arrived) == (30, 30)


@needs_otel
def test_a_key_comes_from_the_standard_variable_and_shows_nowhere_else(
    run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_HEADERS", f"api-key={KEY}")
    with collecting() as here:
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", here.url)
        found = export(run, "otlp")
        assert {header["api-key"] for header in here.headers} == {KEY}
        assert KEY not in str([told(span) for span in here.spans.values()]) + str(found)
        here.status = 400
        with pytest.raises(TraceFault) as refused:
            export(run, "otlp")
    assert KEY not in str(refused.value)
    assert KEY.encode() not in (run / "journal.db").read_bytes()


@needs_otel
@pytest.mark.parametrize("status", [400, 401])
def test_what_a_collector_refuses_is_an_error_that_names_it(run: Path, status: int) -> None:
    with (
        collecting(status) as here,
        pytest.raises(TraceFault, match=rf"{here.url}/v1/traces did not take .*{status}.* Cure"),
    ):
        export(run, "otlp", endpoint=here.url)


@needs_otel
def test_texts_that_utf8_cannot_hold_are_sent_all_the_same(attacked: Path) -> None:
    with collecting() as here:
        found = export(attacked, "otlp", endpoint=here.url, content=True)
    assert found.spans == here.arrived > 0


@pytest.mark.parametrize(
    "endpoint",
    ["http://user:pw@127.0.0.1:4318", "http://127.0.0.1:4318/v1/traces?api_key=x", "ftp://127.0.0.1", "here"],
)
def test_an_address_with_a_key_or_of_no_server_is_refused_and_not_repeated(endpoint: str) -> None:
    with pytest.raises(TraceFault, match="OTEL_EXPORTER_OTLP_HEADERS") as refused:
        otlp.endpoint_of(endpoint)
    assert endpoint not in str(refused.value)


def test_an_address_without_a_path_gets_the_standard_one(monkeypatch: pytest.MonkeyPatch) -> None:
    assert otlp.endpoint_of("http://127.0.0.1:4318") == "http://127.0.0.1:4318/v1/traces"
    assert otlp.endpoint_of("https://host/otlp/v1/traces") == "https://host/otlp/v1/traces"
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "http://elsewhere/x")
    assert otlp.endpoint_of(None) is None


def test_without_the_extra_the_error_says_how_to_get_it(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "opentelemetry.exporter.otlp.proto.http.trace_exporter", None)
    with pytest.raises(TraceFault, match=r"Cure: pip install -e '\.\[otel\]' in a checkout"):
        export(run, "otlp", endpoint="http://127.0.0.1:1")
