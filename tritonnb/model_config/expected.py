"""Parts of error messages about configuration fields: the expected type, the actual value, and a suggestion."""

from __future__ import annotations

import reprlib
from collections.abc import Iterable

from google.protobuf.descriptor import FieldDescriptor

from tritonnb.core.json_types import JsonValue
from tritonnb.core.suggestions import similar_name
from tritonnb.model_config.fields import is_map
from tritonnb.model_config.json_text import JsonObject, ParsedJson

_INTEGERS = {
    FieldDescriptor.CPPTYPE_INT32: "an integer from -2**31 to 2**31 - 1",
    FieldDescriptor.CPPTYPE_UINT32: "an integer from 0 to 2**32 - 1",
    FieldDescriptor.CPPTYPE_INT64: "an integer from -2**63 to 2**63 - 1",
    FieldDescriptor.CPPTYPE_UINT64: "an integer from 0 to 2**64 - 1",
}
_SCALARS = {
    **_INTEGERS,
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
    return _SCALARS[field.cpp_type]


def hint_for(field: FieldDescriptor, value: ParsedJson) -> str:
    """A hint for a value of the wrong type, as the end of a message; empty if there is none."""
    if field.message_type is not None:
        return "give {} for its defaults" if value is True else ""
    if field.enum_type is not None and isinstance(value, str):
        similar = similar_constant(value, field.enum_type.values_by_name)
        return f"did you mean '{similar}'?" if similar else ""
    return ""


def similar_constant(word: str, constants: Iterable[str]) -> str:
    """The enum constant that a word abbreviates (``FP32``: ``TYPE_FP32``) or misspells; empty if there is none.

    Examples
    --------
    >>> similar_constant("gpu", ["KIND_CPU", "KIND_GPU"])
    'KIND_GPU'
    """
    known = list(constants)
    whole = [constant for constant in known if constant.endswith(f"_{word.upper()}")]
    return whole[0] if whole else similar_name(word.upper(), known)


def shown_value(value: ParsedJson) -> str:
    """The ``repr`` of a JSON value as Python objects, shortened."""
    return _SHORT.repr(_plain(value))


def _plain(value: ParsedJson) -> JsonValue:
    if isinstance(value, JsonObject):
        return {name: _plain(member) for name, member in value.members}
    return [_plain(element) for element in value] if isinstance(value, list) else value


_SHORT = reprlib.Repr()
_SHORT.maxstring = _SHORT.maxother = 60
