"""Spans of Triton's trace mode ``opentelemetry``, received over OTLP or read from files.

A request is a span with the attribute ``triton.model_name``; its execution is a span ``compute`` below it. Spans of one
request may come in different messages, so `SpanCollector` keeps those whose counterpart is missing. This project's
server describes the batch in attributes of the span ``compute`` (`tritonnb.telemetry.spans`).

The descriptors of the messages are made here, so that no OpenTelemetry package is needed: protobuf skips all other
fields. Names and numbers are those of *opentelemetry/proto/trace/v1/trace.proto* and
*collector/trace/v1/trace_service.proto*.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from google.protobuf.message import DecodeError

from tritonnb.core.errors import InvalidArgumentError
from tritonnb.core.json_types import Json
from tritonnb.lab.traces.traced_request import ReportedBatch, TracedRequest, is_time
from tritonnb.telemetry.trace_entry import BATCH_SENT

_PACKAGE = "tritonnb.otlp"
#: Fields by message: name, number, type (a scalar, or another message), whether repeated.
_MESSAGES: dict[str, list[tuple[str, int, str, bool]]] = {
    "AnyValue": [("string_value", 1, "string", False), ("int_value", 3, "int64", False)],
    "KeyValue": [("key", 1, "string", False), ("value", 2, "AnyValue", False)],
    "Event": [("time_unix_nano", 1, "fixed64", False), ("name", 2, "string", False)],
    "Span": [
        ("trace_id", 1, "bytes", False),
        ("span_id", 2, "bytes", False),
        ("parent_span_id", 4, "bytes", False),
        ("name", 5, "string", False),
        ("attributes", 9, "KeyValue", True),
        ("events", 11, "Event", True),
    ],
    "ScopeSpans": [("spans", 2, "Span", True)],
    "ResourceSpans": [("scope_spans", 2, "ScopeSpans", True)],
    "ExportTraceServiceRequest": [("resource_spans", 1, "ResourceSpans", True)],
}


def _message_class() -> Any:
    file = descriptor_pb2.FileDescriptorProto(name="tritonnb/otlp.proto", package=_PACKAGE, syntax="proto3")
    for name, fields in _MESSAGES.items():
        message = file.message_type.add(name=name)
        for field, number, kind, repeated in fields:
            label = "LABEL_REPEATED" if repeated else "LABEL_OPTIONAL"
            if kind in _MESSAGES:
                message.field.add(
                    name=field, number=number, label=label, type="TYPE_MESSAGE", type_name=f".{_PACKAGE}.{kind}"
                )
            else:
                message.field.add(name=field, number=number, label=label, type=f"TYPE_{kind.upper()}")
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return message_factory.GetMessageClass(pool.FindMessageTypeByName(f"{_PACKAGE}.ExportTraceServiceRequest"))


#: The body of ``POST /v1/traces``.
ExportTraceServiceRequest: Any = _message_class()


#: Spans that wait for their counterpart: some are lost when a server shuts down, so that they are limited.
_MAX_WAITING = 10_000


@dataclass(slots=True)
class Span:
    """One span.

    Attributes
    ----------
    id, parent_id : str or bytes
        Of the span; hexadecimal in JSON.
    name : str
    attributes : dict of str to (str or int)
    events : list of (name, ns)
    """

    id: str | bytes
    parent_id: str | bytes
    name: str
    attributes: Json
    events: list[tuple[str, int]]


def spans_of_protobuf(content: bytes) -> Iterator[Span]:
    """Decode the body of ``POST /v1/traces`` in protobuf.

    Raises
    ------
    InvalidArgumentError
        If it is not an OTLP trace message.
    """
    try:
        message = ExportTraceServiceRequest.FromString(content)
    except DecodeError:
        raise InvalidArgumentError(
            "expected traces, which are a list or OTLP messages in JSON, or an OTLP trace message in protobuf, got "
            "other content"
        ) from None
    for resource in message.resource_spans:
        for scope in resource.scope_spans:
            for span in scope.spans:
                attributes = {
                    attribute.key: attribute.value.string_value or attribute.value.int_value
                    for attribute in span.attributes
                }
                events = [(event.name, event.time_unix_nano) for event in span.events]
                yield Span(span.span_id, span.parent_span_id, span.name, attributes, events)


def spans_of_json(content: str | bytes) -> Iterator[Span]:
    """Decode the body of ``POST /v1/traces`` in JSON.

    Raises
    ------
    InvalidArgumentError
        If it is not an OTLP trace message.

    Examples
    --------
    >>> text = '{"resourceSpans": [{"scopeSpans": [{"spans": [{"spanId": "1f", "name": "compute"}]}]}]}'
    >>> [span.name for span in spans_of_json(text)]
    ['compute']
    """
    try:
        message = json.loads(content)
        if not (isinstance(message, dict) and "resourceSpans" in message):
            raise InvalidArgumentError("expected an OTLP trace message in JSON, got JSON without 'resourceSpans'")
        for resource in message["resourceSpans"]:
            for scope in resource.get("scopeSpans", ()):
                for span in scope.get("spans", ()):
                    yield _json_span(span)
    except (ValueError, TypeError, LookupError, ArithmeticError, AttributeError, RecursionError) as error:
        raise InvalidArgumentError(f"expected an OTLP trace message in JSON, got an error: {error!r}") from None


def _json_span(span: Json) -> Span:
    attributes = {item["key"]: next(iter(item.get("value", {}).values()), "") for item in span.get("attributes", ())}
    events = [(str(event["name"]), int(event["timeUnixNano"])) for event in span.get("events", ())]
    return Span(str(span["spanId"]), str(span.get("parentSpanId", "")), str(span.get("name", "")), attributes, events)


class SpanCollector:
    """A collector that combines spans into requests.

    Parameters
    ----------
    on_request : callable
        ``on_request(request)`` is called with each request whose spans are complete.
    """

    def __init__(self, on_request: Callable[[TracedRequest], None]) -> None:
        self._on_request = on_request
        #: Requests without their ``compute`` span, and such spans without their request, by the id of the span of the
        #: request.
        self._requests: dict[str | bytes, TracedRequest] = {}
        self._executions: dict[str | bytes, Span] = {}

    def add(self, span: Span) -> None:
        """Add a span; spans of other programs are ignored.

        Raises
        ------
        InvalidArgumentError
            If the span has a time or an attribute with a value that cannot be read.
        """
        for name, time_ns in span.events:
            if not is_time(time_ns):
                raise InvalidArgumentError(f"span '{span.name}': expected a time of 63 bits of '{name}', got {time_ns}")
        if "triton.model_name" in span.attributes:
            self._add_request(span)
        elif span.name == "compute" and span.parent_id:
            request = self._requests.pop(span.parent_id, None)
            if request is None:
                _put(self._executions, span.parent_id, span)
            else:
                self._complete(request, span)

    def flush(self) -> None:
        """Report the requests that have no ``compute`` span: they were not executed, or the span was lost."""
        waiting, self._requests = self._requests, {}
        for request in waiting.values():
            self._on_request(request)

    def _add_request(self, span: Span) -> None:
        attributes = span.attributes
        request = TracedRequest(
            _number(attributes, "triton.trace_id", 0) or str(span.id),
            _number(attributes, "triton.trace_parent_id", 0),
            str(attributes["triton.model_name"]),
            _number(attributes, "triton.model_version", -1),
            str(attributes.get("triton.request_id", "")),
            is_span=True,
        )
        for name, time_ns in span.events:
            request.add_stamp(name, time_ns)
        execution = self._executions.pop(span.id, None)
        if execution is None:
            _put(self._requests, span.id, request)
        else:
            self._complete(request, execution)

    def _complete(self, request: TracedRequest, execution: Span) -> None:
        for name, time_ns in execution.events:
            request.add_stamp(name, time_ns)
        request.batch = ReportedBatch.from_attributes(execution.attributes)
        if request.batch is not None:
            request.add_stamp(BATCH_SENT, request.batch.sent_ns)
        self._on_request(request)


def _number(attributes: Mapping[str, Any], name: str, default: int) -> int:
    """Return the value of an attribute that is an integer, or the digits of one."""
    value = attributes.get(name, default)
    try:
        number = int(value)
    except (ValueError, TypeError, OverflowError):
        number = 2**63
    if not -(2**63) <= number < 2**63:
        raise InvalidArgumentError(f"attribute '{name}' of a span: expected an integer of 64 bits, got {value!r:.80}")
    return number


def _put(waiting: dict[Any, Any], key: object, value: object) -> None:
    waiting[key] = value
    if len(waiting) > _MAX_WAITING:
        del waiting[next(iter(waiting))]
