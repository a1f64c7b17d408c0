"""The part of OTLP's trace messages that spans of Triton use, as protobuf classes.

The descriptors are made here, so that no OpenTelemetry package is needed: protobuf skips all other fields. Names and
numbers are those of *opentelemetry/proto/trace/v1/trace.proto* and *collector/trace/v1/trace_service.proto*.
"""

from __future__ import annotations

from typing import Any

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

_PACKAGE = "tritonnb.otlp"
_TYPES = {
    "string": descriptor_pb2.FieldDescriptorProto.TYPE_STRING,
    "bytes": descriptor_pb2.FieldDescriptorProto.TYPE_BYTES,
    "int64": descriptor_pb2.FieldDescriptorProto.TYPE_INT64,
    "fixed64": descriptor_pb2.FieldDescriptorProto.TYPE_FIXED64,
}
#: Fields by message: name, number, type, whether repeated. A type that is not in `_TYPES` is another message.
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
            declared = message.field.add(name=field, number=number)
            declared.label = getattr(descriptor_pb2.FieldDescriptorProto, label)
            if kind in _TYPES:
                declared.type = _TYPES[kind]
            else:
                declared.type = descriptor_pb2.FieldDescriptorProto.TYPE_MESSAGE
                declared.type_name = f".{_PACKAGE}.{kind}"
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return message_factory.GetMessageClass(pool.FindMessageTypeByName(f"{_PACKAGE}.ExportTraceServiceRequest"))


#: The body of ``POST /v1/traces``.
ExportTraceServiceRequest: Any = _message_class()
