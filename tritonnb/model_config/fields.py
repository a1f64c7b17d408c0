"""The messages and fields of the configuration schema."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TypeAlias

from google.protobuf.descriptor import Descriptor, FieldDescriptor
from google.protobuf.message import Message

from tritonnb.core.protobuf import model_config_pb2 as pb

#: The value of a field that is not a message, or of an element of it.
Scalar: TypeAlias = bool | int | float | str
Element: TypeAlias = Message | Scalar


def fields_of(message: str) -> list[str]:
    """Field names of a message of the schema, such as ``inference.ModelConfig``; empty for an unknown one."""
    known = MESSAGES.get(message)
    return list(known.fields_by_name) if known is not None else []


def is_map(field: FieldDescriptor) -> bool:
    """Whether a field, by its descriptor, is a map, which in protobuf is a repeated message of keys and values."""
    return bool(field.message_type and field.message_type.GetOptions().map_entry)


def _messages(within: Descriptor) -> Iterator[Descriptor]:
    yield within
    for nested in within.nested_types:
        yield from _messages(nested)


#: All messages of the schema by full name.
MESSAGES = {
    message.full_name: message for top in pb.DESCRIPTOR.message_types_by_name.values() for message in _messages(top)
}
