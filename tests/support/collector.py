"""Collector: receives OTLP over HTTP as an OpenTelemetry collector does, and keeps what came."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest


@dataclass(frozen=True)
class Span:
    """One received span."""

    name: str
    stage: str
    trace_id: str
    span_id: str
    parent_id: str
    began_ns: int
    ended_ns: int
    attributes: dict[str, Any]


@dataclass
class Collector:
    """What came."""

    endpoint: str = ""
    bodies: list[bytes] = field(default_factory=list)
    answers: threading.Event = field(default_factory=threading.Event)
    """while it is clear, it takes nothing and answers nobody"""

    def spans(self) -> list[Span]:
        return [
            Span(
                span.name,
                _attributes(resource.resource.attributes)["chattts.stage"],
                span.trace_id.hex(),
                span.span_id.hex(),
                span.parent_span_id.hex(),
                span.start_time_unix_nano,
                span.end_time_unix_nano,
                _attributes(span.attributes),
            )
            for body in list(self.bodies)
            for resource in ExportTraceServiceRequest.FromString(body).resource_spans
            for scope in resource.scope_spans
            for span in scope.spans
        ]

    def trace_of(self, request_id: str) -> list[Span]:
        """Every span of that request's trace that has come so far."""
        spans = self.spans()
        ids = {span.trace_id for span in spans if span.attributes.get("request") == request_id}
        return [span for span in spans if span.trace_id in ids]


@contextmanager
def collecting() -> Iterator[Collector]:
    """A collector on a free port of the loopback."""
    collector = Collector()
    collector.answers.set()

    class Receiver(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            assert self.headers["Content-Type"] == "application/x-protobuf"
            collector.answers.wait()
            collector.bodies.append(self.rfile.read(int(self.headers["Content-Length"])))
            self.send_response(200)
            self.send_header("Content-Type", "application/x-protobuf")
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, format: str, *args: object) -> None:
            """Quiet."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Receiver) as server:
        collector.endpoint = f"http://127.0.0.1:{server.server_port}/v1/traces"
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield collector
        server.shutdown()


def _attributes(pairs: Any) -> dict[str, Any]:
    return {pair.key: getattr(pair.value, pair.value.WhichOneof("value") or "string_value") for pair in pairs}
