"""The messages and fields of the configuration schema, and parts of error messages about them."""

from __future__ import annotations

import reprlib
from collections.abc import Iterable, Iterator
from typing import TypeAlias

from google.protobuf.descriptor import Descriptor, FieldDescriptor
from google.protobuf.message import Message

from tritonnb.core.json_types import JsonValue
from tritonnb.core.protobuf import model_config_pb2 as pb
from tritonnb.core.suggestions import similar_name
from tritonnb.model_config.json_text import JsonObject, ParsedJson

#: The value of a field that is not a message, or of an element of it.
Scalar: TypeAlias = bool | int | float | str
Element: TypeAlias = Message | Scalar


def fields_of(message: str) -> list[str]:
    """Return the field names of a message, such as ``inference.ModelConfig``; empty for an unknown message."""
    known = MESSAGES.get(message)
    return list(known.fields_by_name) if known is not None else []


def is_map(field: FieldDescriptor) -> bool:
    """Return whether a field is a map, which protobuf describes as a repeated message of keys and values."""
    return bool(field.message_type and field.message_type.GetOptions().map_entry)


def _messages(within: Descriptor) -> Iterator[Descriptor]:
    yield within
    for nested in within.nested_types:
        yield from _messages(nested)


#: All messages of the schema by full name.
MESSAGES = {
    message.full_name: message for top in pb.DESCRIPTOR.message_types_by_name.values() for message in _messages(top)
}


#: The types of integers: their bits, and whether they are signed.
INTEGER_BITS = {
    FieldDescriptor.CPPTYPE_INT32: (32, True),
    FieldDescriptor.CPPTYPE_INT64: (64, True),
    FieldDescriptor.CPPTYPE_UINT32: (32, False),
    FieldDescriptor.CPPTYPE_UINT64: (64, False),
}
_SCALARS = {
    FieldDescriptor.CPPTYPE_BOOL: "a bool",
    FieldDescriptor.CPPTYPE_STRING: "a string",
    FieldDescriptor.CPPTYPE_FLOAT: "a number",
    FieldDescriptor.CPPTYPE_DOUBLE: "a number",
}


def expected_value(field: FieldDescriptor) -> str:
    """Describe the type of a field, or of one element of it, from its descriptor.

    Examples
    --------
    >>> from tritonclient.grpc.model_config_pb2 import ModelConfig
    >>> expected_value(ModelConfig.DESCRIPTOR.fields_by_name["dynamic_batching"])
    'a dict of the fields of ModelDynamicBatching'
    """
    if is_map(field):
        return "a dict with a value for each key"
    if field.message_type is not None:
        return f"a dict of the fields of {field.message_type.name}"
    if field.enum_type is not None:
        return f"one of {', '.join(field.enum_type.values_by_name)}"
    if field.cpp_type in INTEGER_BITS:
        bits, signed = INTEGER_BITS[field.cpp_type]
        return f"an integer from {f'-2**{bits - 1}' if signed else 0} to 2**{bits - signed} - 1"
    return _SCALARS[field.cpp_type]


def hint_for(field: FieldDescriptor, value: ParsedJson) -> str:
    """Return a hint for a value of the wrong type, as the end of a message; empty if there is none."""
    if field.message_type is not None:
        return "give {} for its defaults" if value is True else ""
    if field.enum_type is not None and isinstance(value, str):
        similar = similar_constant(value, field.enum_type.values_by_name)
        return f"did you mean '{similar}'?" if similar else ""
    return ""


def similar_constant(word: str, constants: Iterable[str]) -> str:
    """Return the enum constant that a word abbreviates (``FP32``: ``TYPE_FP32``) or misspells; empty if there is none.

    Examples
    --------
    >>> similar_constant("gpu", ["KIND_CPU", "KIND_GPU"])
    'KIND_GPU'
    """
    known = list(constants)
    whole = [constant for constant in known if constant.endswith(f"_{word.upper()}")]
    return whole[0] if whole else similar_name(word.upper(), known)


def shown_value(value: ParsedJson) -> str:
    """Return the ``repr`` of a JSON value as Python objects, shortened."""
    return _SHORT.repr(_plain(value))


def _plain(value: ParsedJson) -> JsonValue:
    if isinstance(value, JsonObject):
        return {name: _plain(member) for name, member in value.members}
    return [_plain(element) for element in value] if isinstance(value, list) else value


_SHORT = reprlib.Repr()
_SHORT.maxstring = _SHORT.maxother = 60
