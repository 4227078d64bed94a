"""Spans leave by OTLP: over HTTP through OpenTelemetry's own exporter, or into a file as OTLP/JSON.

A file is what the OTLP file exporter writes: JSON lines, each a whole batch (here: one trace). Headers for a server,
which may hold a key, come from the variable OTEL_EXPORTER_OTLP_HEADERS and from nowhere else, and no address with a
password or key in it is taken. What a server does not take is an error and not a warning.
"""

import json
import logging
import math
import os
from collections.abc import Sequence
from types import TracebackType
from typing import Any, Self
from urllib.parse import urlsplit, urlunsplit

import harness
from evolve.traces.spans import SCOPE, Span
from evolve.traces.trace import TraceFault
from harness.secrecy import mask, wrong_address

#: Where spans go if no endpoint is given, as everywhere in OpenTelemetry.
VARIABLES = ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "OTEL_EXPORTER_OTLP_ENDPOINT")
TOGETHER, ROOM = 512, 2_000_000  # spans, and characters of their texts, in one request
CURE = "Cure: pip install -e '.[otel]' in a checkout"


def as_json(spans: Sequence[Span], resource: dict[str, Any]) -> str:
    """One line of OTLP/JSON that holds `spans`."""
    scope = {"scope": {"name": SCOPE, "version": harness.__version__}, "spans": [_span(span) for span in spans]}
    batch = {"resource": {"attributes": _attributes(resource)}, "scopeSpans": [scope]}
    return json.dumps({"resourceSpans": [batch]}, allow_nan=False)


def _span(span: Span) -> dict[str, Any]:
    told: dict[str, Any] = {"traceId": span.trace, "spanId": span.id}
    if span.parent:
        told["parentSpanId"] = span.parent
    told |= {
        "name": span.name, "kind": span.kind, "startTimeUnixNano": str(span.start), "endTimeUnixNano": str(span.end),
        "attributes": _attributes(span.attributes),
    }  # fmt: skip
    if span.error is not None:
        told["status"] = {"code": 2, "message": span.error}
    return told


def _attributes(told: dict[str, Any]) -> list[dict[str, Any]]:
    return [{"key": key, "value": _value(value)} for key, value in told.items()]


def _value(value: Any) -> dict[str, Any]:
    match value:
        case bool():
            return {"boolValue": value}
        case int():
            return {"intValue": str(value)}
        case float():
            return {"doubleValue": value if math.isfinite(value) else str(value).replace("inf", "Infinity")}
        case list():
            return {"arrayValue": {"values": [_value(part) for part in value]}}
    return {"stringValue": str(value)}


def endpoint_of(given: str | None) -> str | None:
    """The address for spans: `given` with the standard path if it has none; None leaves it to the variables.

    Raises TraceFault where there is neither, and where an address holds a password or key.
    """
    if given is None:
        if any(os.environ.get(name) for name in VARIABLES):
            return None
        raise TraceFault(
            "to otlp, but where? Cure: --endpoint http://127.0.0.1:4318, --out FILE.jsonl, or the variable "
            "OTEL_EXPORTER_OTLP_ENDPOINT"
        )
    if wrong_address(given):
        raise TraceFault(
            "the endpoint is no address of a server, or holds a password or key. Cure: one such as "
            "http://127.0.0.1:4318; a key goes into OTEL_EXPORTER_OTLP_HEADERS"
        )
    parts = urlsplit(given)
    return urlunsplit(parts._replace(path="/v1/traces")) if parts.path in ("", "/") else given


class Sender:
    """Sends spans to a server, a few hundred in a request. Raises TraceFault when the server does not take them."""

    def __init__(self, endpoint: str | None, resource: dict[str, Any]) -> None:
        self._words = _Words()
        self._address = endpoint_of(endpoint)
        try:
            from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
            from opentelemetry.sdk.resources import Resource
            from opentelemetry.sdk.util.instrumentation import InstrumentationScope
        except ImportError as error:
            raise TraceFault(f"sending spans needs OpenTelemetry ({error}). {CURE}") from None
        self._exporter: Any = OTLPSpanExporter(endpoint=self._address)
        self.address = _shown(self._address or next(os.environ[name] for name in VARIABLES if os.environ.get(name)))
        self._resource = Resource(resource)
        self._scope = InstrumentationScope(SCOPE, harness.__version__)
        self._waiting: list[Any] = []
        self._room = ROOM
        self.sent = 0

    def __enter__(self) -> Self:
        self._words.listen()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            if kind is None:
                self.flush()
        finally:
            self._words.leave()
            self._exporter.shutdown()

    def send(self, spans: Sequence[Span]) -> None:
        """Send `spans` now or with the next ones."""
        for span in spans:
            size = sum(len(value) for value in span.attributes.values() if isinstance(value, str))
            if self._waiting and (len(self._waiting) >= TOGETHER or size > self._room):
                self.flush()
            self._waiting.append(self._readable(span))
            self._room -= size

    def flush(self) -> None:
        """Send what is waiting."""
        from opentelemetry.sdk.trace.export import SpanExportResult

        if not self._waiting:
            return
        self._words.said.clear()
        if self._exporter.export(self._waiting) is not SpanExportResult.SUCCESS:
            said = "; ".join(dict.fromkeys((*self._words.said[:1], *self._words.said[-1:])))
            raise TraceFault(
                f"{self.address} did not take the spans: {mask(said) or 'no reason given'}. "
                "Cure: see that a collector listens there, then export again; what arrived already stays one"
            )
        self.sent += len(self._waiting)
        self._waiting.clear()
        self._room = ROOM

    def _readable(self, span: Span) -> Any:
        from opentelemetry.sdk.trace import ReadableSpan
        from opentelemetry.trace import SpanContext, SpanKind, Status, StatusCode, TraceFlags

        def context(id: str) -> SpanContext:
            return SpanContext(int(span.trace, 16), int(id, 16), False, TraceFlags(TraceFlags.SAMPLED))

        return ReadableSpan(
            span.name, context=context(span.id), parent=context(span.parent) if span.parent else None,
            resource=self._resource, attributes=span.attributes, kind=SpanKind(span.kind - 1),
            status=Status(StatusCode.ERROR, span.error) if span.error is not None else Status(StatusCode.UNSET),
            start_time=span.start, end_time=span.end, instrumentation_scope=self._scope,
        )  # fmt: skip


def _shown(address: str) -> str:
    """An address that may be printed: one from a variable may hold a password or key."""
    parts = urlsplit(address)
    return mask(urlunsplit(parts._replace(netloc=parts.netloc.rpartition("@")[2], query="")))


class _Words(logging.Handler):
    """Keeps what the exporter logs, so that it can be told as an error of ours, and is not told twice."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.said: list[str] = []
        self._logger = logging.getLogger("opentelemetry.exporter")
        self._propagated = self._logger.propagate

    def emit(self, record: logging.LogRecord) -> None:
        self.said.append(record.getMessage()[:300])

    def listen(self) -> None:
        self._logger.addHandler(self)
        self._logger.propagate = False

    def leave(self) -> None:
        self._logger.removeHandler(self)
        self._logger.propagate = self._propagated
