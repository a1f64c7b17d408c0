"""The fields of a configuration: which there are, and setting them as keyword arguments and dicts give them."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

from google.protobuf import json_format
from google.protobuf.descriptor import Descriptor
from google.protobuf.message import Message
from tritonclient.grpc import model_config_pb2 as pb

from tritonnb.core.errors import InvalidArgumentError
from tritonnb.core.similar import did_you_mean

_UNKNOWN = re.compile(r'Message type "(?P<message>[^"]+)" has no field named "(?P<field>[^"]+)"')


def set_fields(message: Message, fields: Mapping[str, Any]) -> None:
    """Set fields of a message, as JSON would have them.

    Raises
    ------
    InvalidArgumentError
        If there is no such field, or a value does not fit.
    """
    try:
        json_format.ParseDict(dict(fields), message)
    except json_format.ParseError as error:
        text = str(error).splitlines()[0]  # those below list every field there is, in the case that Triton does not use
        if found := _UNKNOWN.search(text):
            text = found[0] + did_you_mean(found["field"], fields_of(found["message"]))
        raise InvalidArgumentError(text) from None


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
