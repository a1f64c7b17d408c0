"""Traces as OpenTelemetry spans, as a collector receives them."""

from __future__ import annotations

import http.server
import queue
import threading
from collections.abc import Iterator
from typing import Any

import pytest

pytest.importorskip("opentelemetry.exporter.otlp.proto.http", reason="the extra opentelemetry is not installed")

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from tritonnb.telemetry.spans import SpanExporter


class Collector(http.server.BaseHTTPRequestHandler):
    """Keeps what it is sent."""

    server: Any

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        self.server.received.put((self.path, ExportTraceServiceRequest.FromString(body)))
        self.send_response(200)
        self.end_headers()

    def log_message(self, *ignored: Any) -> None:
        """Say nothing."""


@pytest.fixture
def collector() -> Iterator[Any]:
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Collector) as server:
        server.received = queue.Queue()
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield server
        server.shutdown()


def stamps(*names: str) -> list[dict[str, Any]]:
    return [{"name": name, "ns": number} for number, name in enumerate(names)]


ENSEMBLE = [
    {"id": 1, "timestamps": stamps("HTTP_RECV_START", "HTTP_RECV_END")},
    {"id": 1, "model_name": "e", "model_version": 2, "request_id": "r"},
    {"id": 1, "timestamps": stamps("REQUEST_START", "QUEUE_START", "INFER_RESPONSE_COMPLETE", "REQUEST_END")},
    {"id": 1, "timestamps": stamps("HTTP_SEND_START", "HTTP_SEND_END")},
    {"id": 2, "model_name": "m", "model_version": 1, "parent_id": 1},
    {"id": 2, "timestamps": stamps("REQUEST_START", "QUEUE_START", "COMPUTE_START", "COMPUTE_END", "REQUEST_END")},
]


def test_a_trace_is_a_tree_of_spans(collector: Any) -> None:
    settings = [("url", f"127.0.0.1:{collector.server_port}/v1/traces"), ("resource", "a=b"), ("resource", "c=d=e")]
    exporter = SpanExporter(settings)
    exporter.export(ENSEMBLE, None)
    exporter.close()
    path, received = collector.received.get(timeout=30)
    assert path == "/v1/traces"
    (resource,) = received.resource_spans
    attributes = {each.key: each.value.string_value for each in resource.resource.attributes}
    assert attributes.items() >= {"service.name": "triton-inference-server", "a": "b", "c": "d=e"}.items()
    spans = {each.name: each for each in resource.scope_spans[0].spans}
    names = {each.span_id: each.name for each in spans.values()} | {b"": ""}
    assert {name: names[each.parent_span_id] for name, each in spans.items()} == {
        "InferRequest": "", "e": "InferRequest", "m": "e", "compute": "m",
    }  # fmt: skip
    assert {name: [event.name for event in each.events] for name, each in spans.items()} == {
        "InferRequest": [
            "HTTP_RECV_START", "HTTP_RECV_END", "INFER_RESPONSE_COMPLETE", "HTTP_SEND_START", "HTTP_SEND_END",
        ],
        "e": ["REQUEST_START", "QUEUE_START", "REQUEST_END"],
        "m": ["REQUEST_START", "QUEUE_START", "REQUEST_END"],
        "compute": ["COMPUTE_START", "COMPUTE_END"],
    }  # fmt: skip
    assert {each.key for each in spans["e"].attributes} == {
        "triton.model_name", "triton.model_version", "triton.trace_id", "triton.trace_parent_id", "triton.request_id",
    }  # fmt: skip


def test_a_request_belongs_to_the_trace_of_its_client(collector: Any) -> None:
    exporter = SpanExporter([("url", f"http://127.0.0.1:{collector.server_port}/v1/traces")])
    headers = {"traceparent": "00-0af7651916cd43dd8448eb211c12666c-b7ad6b7169242424-01"}
    exporter.export(ENSEMBLE, exporter.context(headers))
    exporter.close()
    _, received = collector.received.get(timeout=30)
    root = next(each for each in received.resource_spans[0].scope_spans[0].spans if each.name == "InferRequest")
    assert (root.trace_id.hex(), root.parent_span_id.hex()) == ("0af7651916cd43dd8448eb211c12666c", "b7ad6b7169242424")


@pytest.mark.parametrize("headers", [{}, {"traceparent": "nonsense"}])
def test_what_is_no_context_does_not_count(headers: dict[str, str]) -> None:
    exporter = SpanExporter([])
    assert exporter.context(headers) is None
    exporter.close()


def test_settings_that_would_lose_every_span_are_bent(collector: Any) -> None:
    url = f"http://127.0.0.1:{collector.server_port}/v1/traces"
    exporter = SpanExporter([("url", url), ("bsp_max_queue_size", "4"), ("bsp_schedule_delay", "0")])
    exporter.export(ENSEMBLE, None)
    exporter.close()
    assert collector.received.get(timeout=30)
