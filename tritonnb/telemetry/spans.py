"""Traces as OpenTelemetry spans, sent to a collector over OTLP/HTTP: Triton's trace mode ``opentelemetry``.

A trace is a span ``InferRequest`` with the events of the endpoint. Its children are one span for each model that ran,
named after the model, and each of those has a child ``compute``. A request with a W3C ``traceparent`` belongs to its
client's trace.

The span ``compute`` has attributes of the batch, which Triton does not have: ``tritonnb.batch.id``,
``tritonnb.batch.size`` (rows), ``tritonnb.batch.instance``, ``tritonnb.batch.sent_ns`` (when the scheduler sent it),
``tritonnb.batch.rule`` and ``tritonnb.batch.facts`` (why: the rule, and its values as JSON), ``tritonnb.batch.index``
and ``tritonnb.batch.request_size`` (position and rows of the request), and ``tritonnb.batch.wait_ns`` (how long the
request was in the queue).

Settings (``--trace-config opentelemetry,<setting>=<value>``): ``url``, ``resource`` (``<key>=<value>``, any number of
them), ``bsp_max_queue_size``, ``bsp_schedule_delay`` (milliseconds), ``bsp_max_export_batch_size``.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Any

from tritonnb.core.errors import UnsupportedError
from tritonnb.telemetry.trace_entry import TraceEntry

#: Default settings of the processor that sends spans in batches.
BATCHING = {"bsp_max_queue_size": "2048", "bsp_schedule_delay": "5000", "bsp_max_export_batch_size": "512"}

_URL = "http://localhost:4318/v1/traces"
_SERVICE = "triton-inference-server"
_TRACER = "triton-server"
_OF_MODEL = ("REQUEST_", "QUEUE_", "CACHE_", "COMPUTE_")
_OF_COMPUTE = "COMPUTE_"


class SpanExporter:
    """An exporter that creates spans and sends them on its own thread.

    Parameters
    ----------
    settings : sequence of (setting, value)

    Raises
    ------
    UnsupportedError
        If the OpenTelemetry SDK is not installed.
    """

    def __init__(self, settings: Sequence[tuple[str, str]]) -> None:
        try:
            from opentelemetry import trace
            from opentelemetry.context import Context
            from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
            from opentelemetry.sdk.resources import Resource
            from opentelemetry.sdk.trace import TracerProvider
            from opentelemetry.sdk.trace.export import BatchSpanProcessor
            from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator
        except ImportError as error:
            raise UnsupportedError(
                f"trace mode 'opentelemetry' needs a package that is missing ({error}): "
                'pip install "tritonnb[opentelemetry]"'
            ) from error
        self._api = trace
        chosen = {**BATCHING, **dict(settings)}
        queue_size, delay, batch_size = (int(chosen[field]) for field in BATCHING)
        url = chosen.get("url", _URL)
        resources = dict(value.split("=", 1) for name, value in settings if name == "resource")
        processor = BatchSpanProcessor(
            OTLPSpanExporter(endpoint=url if "://" in url else f"http://{url}"),
            max_queue_size=max(queue_size, 1),
            schedule_delay_millis=max(delay, 1),
            max_export_batch_size=max(min(batch_size, queue_size), 1),
        )
        self._provider = TracerProvider(
            resource=Resource.create({"service.name": _SERVICE, **resources}), shutdown_on_exit=False
        )
        self._provider.add_span_processor(processor)
        self._tracer = self._provider.get_tracer(_TRACER)
        self._propagator = TraceContextTextMapPropagator()
        self._no_context = Context()
        self._since_epoch = time.time_ns() - time.monotonic_ns()

    def context(self, headers: Mapping[str, str]) -> object | None:
        """Return the trace context in the headers of a request; None if there is none."""
        if "traceparent" not in headers:
            return None
        carrier = {name: headers[name] for name in ("traceparent", "tracestate") if name in headers}
        context = self._propagator.extract(carrier, self._no_context)
        return context if self._api.get_current_span(context).get_span_context().is_valid else None

    def export(self, entries: Sequence[TraceEntry], context: object | None) -> None:
        """Send one trace.

        Parameters
        ----------
        entries : sequence of mapping
            As in a trace file: those of the request, then those of its child traces.
        context : object or None
            As returned by `context`.
        """
        stamps: dict[int, list[tuple[str, int]]] = {}
        models: dict[int, Mapping[str, Any]] = {}
        batches: dict[int, Mapping[str, Any]] = {}
        for entry in entries:
            here = ((stamp["name"], stamp["ns"]) for stamp in entry.get("timestamps", ()))
            stamps.setdefault(entry["id"], []).extend(here)
            if "model_name" in entry:
                models[entry["id"]] = entry
            if "batch" in entry:
                batches[entry["id"]] = entry["batch"]
        root_id = entries[0]["id"] if entries else 0
        if not stamps.get(root_id):
            return
        every = [ns for stamp in stamps.values() for _, ns in stamp]
        outer = [stamp for stamp in stamps[root_id] if not stamp[0].startswith(_OF_MODEL)]
        root = self._start("InferRequest", min(every), self._no_context if context is None else context)
        spans = {0: root}
        for identifier, model in models.items():
            above = spans.get(model.get("parent_id", 0), root)
            spans[identifier] = self._model(model, stamps[identifier], batches.get(identifier, {}), above)
        self._end(root, outer, max(every))

    def close(self) -> None:
        """Send the spans that have not been sent."""
        self._provider.shutdown()

    def _model(
        self, model: Mapping[str, Any], stamps: list[tuple[str, int]], batch: Mapping[str, Any], above: Any
    ) -> Any:
        own = [stamp for stamp in stamps if stamp[0].startswith(_OF_MODEL) and not stamp[0].startswith(_OF_COMPUTE)]
        compute = [stamp for stamp in stamps if stamp[0].startswith(_OF_COMPUTE)]
        attributes = {
            "triton.model_name": model["model_name"],
            "triton.model_version": int(model["model_version"]),
            "triton.trace_id": model["id"],
            "triton.trace_parent_id": model.get("parent_id", 0),
        }
        if "request_id" in model:
            attributes["triton.request_id"] = model["request_id"]
        times = [ns for _, ns in own + compute]
        span = self._start(model["model_name"], min(times), self._api.set_span_in_context(above), attributes)
        if compute:
            of_batch = {f"tritonnb.batch.{name}": value for name, value in batch.items()}
            if batch:
                of_batch["tritonnb.batch.sent_ns"] = batch["sent_ns"] + self._since_epoch
            below = self._start("compute", compute[0][1], self._api.set_span_in_context(span), of_batch)
            self._end(below, compute, compute[-1][1])
        self._end(span, own, max(times))
        return span

    def _start(self, name: str, ns: int, context: Any, attributes: Mapping[str, str | int] | None = None) -> Any:
        return self._tracer.start_span(
            name,
            context,
            kind=self._api.SpanKind.SERVER,
            attributes=attributes,
            start_time=ns + self._since_epoch,
        )

    def _end(self, span: Any, stamps: Sequence[tuple[str, int]], ns: int) -> None:
        for name, at in stamps:
            span.add_event(name, timestamp=at + self._since_epoch)
        span.end(ns + self._since_epoch)
