"""A configuration as Triton shows it: every default written out, in the order of the schema.

Answers ``GET /v2/models/NAME/config`` and is what Python models get in ``initialize``.
"""

from __future__ import annotations

import json
import math
from typing import Any

import numpy as np
from google.protobuf.descriptor import FieldDescriptor

from tritonnb.model_config.fields import is_map

_INT64 = (FieldDescriptor.CPPTYPE_INT64, FieldDescriptor.CPPTYPE_UINT64)
#: 64-bit integers that Triton leaves as protobuf's JSON mapping writes them: as strings.
_STRINGS = {
    "inference.ModelSequenceBatching.InitialState.dims",
    "inference.ModelInstanceGroup.SecondaryDevice.device_id",
    "inference.ModelOptimizationPolicy.Cuda.GraphSpec.Shape.dim",
    "inference.ModelOptimizationPolicy.Cuda.GraphSpec.LowerBound.Shape.dim",
}


def config_to_json(config: Any) -> str:
    """The configuration as compact JSON."""
    return json.dumps(config_to_dict(config), separators=(",", ":"), ensure_ascii=False)


def config_to_dict(config: Any) -> dict[str, Any]:
    """The configuration as a dict.

    Scalars, lists and maps are always there, messages and members of a oneof only when set.
    """
    # Triton writes what is set of a oneof of scalars behind the other fields.
    fields = sorted(config.DESCRIPTOR.fields, key=lambda each: bool(each.containing_oneof and not each.message_type))
    return {
        field.name: _value(getattr(config, field.name), field)
        for field in fields
        if not field.has_presence or config.HasField(field.name)
    }


def _value(value: Any, field: Any) -> Any:
    if not field.is_repeated:
        return _single(value, field)
    if is_map(field):
        of = field.message_type.fields_by_name["value"]
        return {str(key): _single(value[key], of) for key in sorted(value)}
    return [_single(each, field) for each in value]


def _single(value: Any, field: Any) -> Any:
    if field.message_type is not None:
        return config_to_dict(value)
    if field.enum_type is not None:
        known = field.enum_type.values_by_number.get(value)
        return value if known is None else known.name
    if isinstance(value, float):
        return _float(value, field.cpp_type == FieldDescriptor.CPPTYPE_FLOAT)
    if field.cpp_type in _INT64 and field.full_name in _STRINGS:
        return str(value)
    return value


def _float(value: float, single: bool) -> Any:
    if math.isnan(value):
        return "NaN"
    if math.isinf(value):
        return "Infinity" if value > 0 else "-Infinity"
    # As C++ prints it: few digits if they read back as the same number, else as many as it takes.
    few, enough, rounded = (6, 9, np.float32) if single else (15, 17, np.float64)
    text = f"{value:.{few}g}"
    if rounded(text) != value:
        text = f"{value:.{enough}g}"
    return float(text) if any(each in text for each in ".e") else int(text)
