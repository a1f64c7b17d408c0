"""Traces as OpenTelemetry spans, as a collector receives them."""

from __future__ import annotations

import http.server
import json
import queue
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("opentelemetry.exporter.otlp.proto.http", reason="the extra opentelemetry is not installed")

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from tests.endpoints.replay import send
from tritonnb.server.server import Server
from tritonnb.telemetry.spans import SpanExporter
from tritonnb.telemetry.trace_entry import Stamp, TraceEntry
from tritonnb.telemetry.trace_settings import OPENTELEMETRY, TraceOptions

MODELS = Path(__file__).parents[1] / "models"


class Collector(http.server.BaseHTTPRequestHandler):
    """A handler that keeps the requests of its server."""

    server: Any

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        self.server.received.put((self.path, ExportTraceServiceRequest.FromString(body)))
        self.send_response(200)
        self.end_headers()

    def log_message(self, *ignored: Any) -> None:
        """Say nothing."""


class CollectorServer(http.server.ThreadingHTTPServer):
    """A server, with the paths and the decoded bodies of its requests."""

    def __init__(self, address: tuple[str, int], handler: type[Collector]) -> None:
        super().__init__(address, handler)
        self.received: queue.Queue[tuple[str, ExportTraceServiceRequest]] = queue.Queue()


@pytest.fixture
def collector() -> Iterator[CollectorServer]:
    with CollectorServer(("127.0.0.1", 0), Collector) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield server
        server.shutdown()


def stamps(*names: str) -> list[Stamp]:
    return [{"name": name, "ns": number} for number, name in enumerate(names)]


ENSEMBLE: list[TraceEntry] = [
    {"id": 1, "timestamps": stamps("HTTP_RECV_START", "HTTP_RECV_END")},
    {"id": 1, "model_name": "e", "model_version": 2, "request_id": "r"},
    {"id": 1, "timestamps": stamps("REQUEST_START", "QUEUE_START", "INFER_RESPONSE_COMPLETE", "REQUEST_END")},
    {"id": 1, "timestamps": stamps("HTTP_SEND_START", "HTTP_SEND_END")},
    {"id": 2, "model_name": "m", "model_version": 1, "parent_id": 1},
    {"id": 2, "timestamps": stamps("REQUEST_START", "QUEUE_START", "COMPUTE_START", "COMPUTE_END", "REQUEST_END")},
]


def test_trace_is_a_tree_of_spans(collector: Any) -> None:
    settings = [("url", f"127.0.0.1:{collector.server_port}/v1/traces"), ("resource", "a=b"), ("resource", "c=d=e")]
    exporter = SpanExporter(settings)
    exporter.export(ENSEMBLE, None)
    exporter.close()
    path, received = collector.received.get(timeout=30)
    assert path == "/v1/traces"
    (resource,) = received.resource_spans
    attributes = {attribute.key: attribute.value.string_value for attribute in resource.resource.attributes}
    assert attributes.items() >= {"service.name": "triton-inference-server", "a": "b", "c": "d=e"}.items()
    spans = {span.name: span for span in resource.scope_spans[0].spans}
    names = {span.span_id: span.name for span in spans.values()} | {b"": ""}
    assert {name: names[span.parent_span_id] for name, span in spans.items()} == {
        "InferRequest": "", "e": "InferRequest", "m": "e", "compute": "m",
    }  # fmt: skip
    assert {name: [event.name for event in span.events] for name, span in spans.items()} == {
        "InferRequest": [
            "HTTP_RECV_START", "HTTP_RECV_END", "INFER_RESPONSE_COMPLETE", "HTTP_SEND_START", "HTTP_SEND_END",
        ],
        "e": ["REQUEST_START", "QUEUE_START", "REQUEST_END"],
        "m": ["REQUEST_START", "QUEUE_START", "REQUEST_END"],
        "compute": ["COMPUTE_START", "COMPUTE_END"],
    }  # fmt: skip
    assert {attribute.key for attribute in spans["e"].attributes} == {
        "triton.model_name", "triton.model_version", "triton.trace_id", "triton.trace_parent_id", "triton.request_id",
    }  # fmt: skip


def test_request_belongs_to_the_trace_of_its_client(collector: Any) -> None:
    exporter = SpanExporter([("url", f"http://127.0.0.1:{collector.server_port}/v1/traces")])
    headers = {"traceparent": "00-0af7651916cd43dd8448eb211c12666c-b7ad6b7169242424-01"}
    exporter.export(ENSEMBLE, exporter.context(headers))
    exporter.close()
    _, received = collector.received.get(timeout=30)
    root = next(span for span in received.resource_spans[0].scope_spans[0].spans if span.name == "InferRequest")
    assert (root.trace_id.hex(), root.parent_span_id.hex()) == ("0af7651916cd43dd8448eb211c12666c", "b7ad6b7169242424")


@pytest.mark.parametrize("headers", [{}, {"traceparent": "nonsense"}])
def test_invalid_trace_context_is_ignored(headers: dict[str, str]) -> None:
    exporter = SpanExporter([])
    assert exporter.context(headers) is None
    exporter.close()


def test_settings_that_would_lose_every_span_are_adjusted(collector: Any) -> None:
    url = f"http://127.0.0.1:{collector.server_port}/v1/traces"
    exporter = SpanExporter([("url", url), ("bsp_max_queue_size", "4"), ("bsp_schedule_delay", "0")])
    exporter.export(ENSEMBLE, None)
    exporter.close()
    assert collector.received.get(timeout=30)


def test_compute_span_describes_the_batch(collector: Any) -> None:
    trace = TraceOptions(
        levels=frozenset({"TIMESTAMPS"}),
        rate=1,
        mode=OPENTELEMETRY,
        exporting=(("url", f"127.0.0.1:{collector.server_port}/v1/traces"),),
    )
    inputs = [{"name": name, "datatype": "INT32", "shape": [3, 4], "data": [0] * 12} for name in ("INPUT0", "INPUT1")]
    request = {"method": "POST", "path": "/v2/models/addsub/infer", "body_text": json.dumps({"inputs": inputs})}
    with Server(MODELS, port=0, model_control_mode="explicit", load_models=["addsub"], trace=trace) as server:
        assert send(server.port, request)[0] == 200
        (batch,) = server.recent().batches
    _, received = collector.received.get(timeout=30)
    (compute,) = [span for span in received.resource_spans[0].scope_spans[0].spans if span.name == "compute"]
    attributes = {attribute.key: attribute.value for attribute in compute.attributes}
    assert attributes["tritonnb.batch.id"].int_value == batch.number
    assert attributes["tritonnb.batch.size"].int_value == 3
    assert attributes["tritonnb.batch.instance"].string_value == batch.instance
    assert attributes["tritonnb.batch.rule"].string_value == "no_delay"
    assert json.loads(attributes["tritonnb.batch.facts"].string_value)["rows"] == 3
    assert [attributes[f"tritonnb.batch.{name}"].int_value for name in ("index", "request_size")] == [0, 3]
    assert 0 < attributes["tritonnb.batch.wait_ns"].int_value < 30e9
    assert 0 <= compute.events[0].time_unix_nano - attributes["tritonnb.batch.sent_ns"].int_value < 30e9
    assert len(attributes) == 9
