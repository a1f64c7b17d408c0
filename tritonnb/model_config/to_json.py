"""A configuration as Triton's JSON: every default written out, in the order of the schema.

This is the response to ``GET /v2/models/NAME/config``, and what Python models get in ``initialize``.
"""

from __future__ import annotations

import json
import math
import struct

from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import Message

from tritonnb.core.json_types import JsonDict, JsonValue
from tritonnb.core.protobuf import model_config_pb2 as pb
from tritonnb.model_config.fields import Element, is_map

#: 64-bit integers that Triton writes as strings, like protobuf's JSON mapping.
_STRINGS = {
    "inference.ModelSequenceBatching.InitialState.dims",
    "inference.ModelInstanceGroup.SecondaryDevice.device_id",
    "inference.ModelOptimizationPolicy.Cuda.GraphSpec.Shape.dim",
    "inference.ModelOptimizationPolicy.Cuda.GraphSpec.LowerBound.Shape.dim",
}


def config_to_json(config: pb.ModelConfig) -> str:
    """Return the configuration as compact JSON."""
    return json.dumps(message_to_dict(config), separators=(",", ":"), ensure_ascii=False)


def message_to_dict(message: Message, *, unset: bool = False) -> JsonDict:
    """Return a message as the dict that Triton writes as JSON, with numbers of 64 bits as numbers.

    Scalars, lists and maps are always present, messages and members of a oneof only if they are set.

    Parameters
    ----------
    message : Message
    unset : bool, optional
        Whether messages that are not set are also present, with the defaults of their fields.
    """
    # Triton writes scalar members of a oneof after the other fields.
    fields = sorted(
        message.DESCRIPTOR.fields, key=lambda field: bool(field.containing_oneof and not field.message_type)
    )
    return {
        field.name: _value(message, field, unset)
        for field in fields
        if unset or not field.has_presence or message.HasField(field.name)
    }


def _value(message: Message, field: FieldDescriptor, unset: bool) -> JsonValue:
    value = getattr(message, field.name)
    if not field.is_repeated:
        return _single(value, field, unset)
    if is_map(field):
        of = field.message_type.fields_by_name["value"]
        return {str(key): _single(value[key], of, unset) for key in sorted(value)}
    return [_single(element, field, unset) for element in value]


def _single(value: Element, field: FieldDescriptor, unset: bool) -> JsonValue:
    if field.message_type is not None:
        return message_to_dict(value, unset=unset)
    if field.enum_type is not None:
        known = field.enum_type.values_by_number.get(value)
        return value if known is None else known.name
    if isinstance(value, float):
        return _float(value, field.cpp_type == FieldDescriptor.CPPTYPE_FLOAT)
    if field.full_name in _STRINGS:
        return str(value)
    return value


def _float(value: float, single: bool) -> str | int | float:
    if math.isnan(value):
        return "NaN"
    if math.isinf(value):
        return "Infinity" if value > 0 else "-Infinity"
    # As C++ prints it: few digits if they parse as the same number, else as many as needed.
    few, enough, form = (6, 9, "f") if single else (15, 17, "d")
    text = f"{value:.{few}g}"
    if struct.unpack(form, struct.pack(form, float(text))) != (value,):
        text = f"{value:.{enough}g}"
    return float(text) if any(character in text for character in ".e") else int(text)
