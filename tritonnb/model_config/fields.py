"""The fields of a configuration: which there are."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from google.protobuf.descriptor import Descriptor

from tritonnb.core.protobuf import model_config_pb2 as pb


def fields_of(message: str) -> list[str]:
    """Names of the fields of a message of the model configuration, such as ``inference.ModelConfig``."""
    known = MESSAGES.get(message)
    return list(known.fields_by_name) if known is not None else []


def is_map(field: Any) -> bool:
    """Whether a field (its descriptor) is a map: to protobuf a repeated message of keys and values."""
    return bool(field.message_type and field.message_type.GetOptions().map_entry)


def _messages(within: Descriptor) -> Iterator[Descriptor]:
    yield within
    for each in within.nested_types:
        yield from _messages(each)


#: Every message of the model configuration, by its full name.
MESSAGES = {
    message.full_name: message for top in pb.DESCRIPTOR.message_types_by_name.values() for message in _messages(top)
}
