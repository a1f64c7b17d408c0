"""Tensor contents in JSON: the ``data`` of an input, and the numbers and strings of a response.

Reading follows Triton's server, with its order of checks and its texts: ``data`` may be flat or nested in any way,
integers wrap around, and types are strict. Writing follows RapidJSON's writer: shortest digits, fixed notation between
1e-6 and 1e21.
"""

from __future__ import annotations

import re
from array import array
from collections.abc import Mapping
from typing import Any, NamedTuple

import msgspec
import numpy as np
import numpy.typing as npt

from tritonnb.core.datatypes import FP32, INVALID, DataType, JsonForm
from tritonnb.core.errors import InternalError, InvalidArgumentError
from tritonnb.core.messages import Tensor, UndecodedTensor
from tritonnb.core.shapes import element_count
from tritonnb.endpoints.http import json_fields
from tritonnb.endpoints.http.json_arrays import Block, LongArray, encoded_texts, flat_blocks
from tritonnb.endpoints.tensors import MAX_ARRAY_DIMS


class _Form(NamedTuple):
    """A form of elements in JSON: the dtype in which they are read before they are converted, and their types.

    ``expected`` and ``accessed_as`` are the names of what is expected and of the elements' type in Triton's error.
    """

    dtype: type[np.generic]
    types: set[type]
    bounds: tuple[int, int] | None
    expected: str
    accessed_as: str


_FORMS: Mapping[JsonForm, _Form] = {
    "boolean": _Form(np.bool_, {bool}, None, "boolean", "boolean"),
    "number": _Form(np.float64, {int, float}, None, "number", "double"),
    "unsigned": _Form(np.uint64, {int}, (0, 2**64), "unsigned-integer", "unsigned-integer"),
    "signed": _Form(np.int64, {int}, (-(2**63), 2**63), "signed-integer", "signed-integer"),
}
#: Elements that are written in one call: a call in C holds Python's lock, and thus the event loop, even on another
#: thread.
_PART = 1 << 15
_UNABLE_TO_PARSE = "Unable to parse 'data': "
_ESCAPED = re.compile(rb'["\\\x00-\x1f]')
_ESCAPES = {
    byte: b"\\u%04X" % byte for byte in range(0x20)
} | {ord('"'): b'\\"', ord("\\"): b"\\\\", 8: b"\\b", 9: b"\\t", 10: b"\\n", 12: b"\\f", 13: b"\\r"}  # fmt: skip


def read_data(data: list[Any] | LongArray, datatype: DataType, count: int) -> npt.NDArray[Any]:
    """Read the elements of a JSON array into a flat NumPy array.

    Parameters
    ----------
    data : list or LongArray
    datatype : DataType
        Its elements are JSON booleans or numbers.
    count : int
        The number of elements of the shape.

    Raises
    ------
    InternalError
        If an element has another type, or the number of elements is not ``count``.
    """
    arrays: list[npt.NDArray[Any]] = []
    length = 0
    for block in flat_blocks(data, _UNABLE_TO_PARSE):
        # Triton reads until the shape is full and never sees the type of what comes after.
        if length < count:
            arrays.append(_converted(block, datatype, count - length))
        length += block.length
    if length > count:
        raise InternalError(f"{_UNABLE_TO_PARSE}Shape does not match true shape of 'data' field")
    if length < count:
        raise InternalError("Failed to parse 'data' field: shape does not match true shape")
    return arrays[0] if len(arrays) == 1 else np.concatenate(arrays)


def _converted(block: Block, datatype: DataType, count: int) -> npt.NDArray[Any]:
    """Check and convert the first elements of a block: ``count``, or all if it has fewer."""
    form, types, values = _FORMS[datatype.json], set(block.types), block.values
    if block.length > count:
        values = values[:count]
        types = {kind for kind, place in block.types.items() if place < count}
    if not types <= form.types or (form.bounds is not None and not _within(values, *form.bounds)):
        raise InternalError(f"{_UNABLE_TO_PARSE}attempt to access JSON non-{form.expected} as {form.accessed_as}")
    # 1e39 as FP32 becomes infinity without a complaint, as on Triton, and integers wrap around.
    if datatype is FP32 and isinstance(values, list):
        return np.frombuffer(array("f", values), datatype.numpy)  # C's conversion, which does not complain
    with np.errstate(over="ignore"):
        return datatype.from_values(np.array(values, form.dtype))


def _within(values: Any, low: int, high: int) -> bool:
    lowest, largest = (min, max) if isinstance(values, list) else (np.min, np.max)
    return not len(values) or bool(lowest(values) >= low and largest(values) < high)


def read_strings(data: list[Any] | LongArray) -> bytes:
    """Read the strings of a JSON array, and encode them as BYTES.

    Raises
    ------
    InternalError
        If an element is not a string.
    """
    parts: list[bytes] = []
    for types, _, values in flat_blocks(data, ""):
        if not types.keys() <= {str}:
            raise InternalError("Unable to parse JSON bytes array: attempt to access JSON non-string as string")
        parts.append(values if isinstance(values, bytes) else encoded_texts(list(values)))
    return parts[0] if len(parts) == 1 else b"".join(parts)


def write_data(output: npt.NDArray[Any], datatype: DataType) -> bytes:
    """Write the elements of an output as JSON, without brackets.

    Raises
    ------
    InvalidArgumentError
        For FP16 and BF16.
    """
    form = datatype.json
    if output.size > _PART and form:
        flat = output.ravel()
        parts = [flat[start : start + _PART] for start in range(0, flat.size, _PART)]
        return b",".join([write_data(part, datatype) for part in parts])
    if not form:
        raise InvalidArgumentError(
            f"sending {datatype.name} data via JSON is not supported. Please use the binary data format for output"
        )
    if form == "string":
        return b",".join([write_string(element) for element in output.ravel()])
    if form == "boolean":
        # As bytes, because any byte but 0 is true: a model may leave a 2 in a boolean tensor.
        return b",".join([b"true" if element else b"false" for element in output.ravel().view(np.uint8).tolist()])
    if form == "number":
        values = datatype.to_values(output).ravel().tolist()
        text = _listed(values)
        # msgspec writes the same digits as RapidJSON, except for exponents, NaN and infinities (null).
        return ",".join(map(write_float, values)).encode() if ord("e") in text or ord("n") in text else text
    return _listed(output.ravel().tolist())


def write_string(value: bytes) -> bytes:
    """Write a string as JSON; bytes that are not UTF-8 stay unchanged."""
    if len(value) > _PART:
        parts = [write_string(value[start : start + _PART])[1:-1] for start in range(0, len(value), _PART)]
        return b'"' + b"".join(parts) + b'"'
    return b'"' + _ESCAPED.sub(lambda match: _ESCAPES[match.group()[0]], value) + b'"'


def write_float(value: float) -> str:
    """Write a float as RapidJSON does.

    Examples
    --------
    >>> [write_float(value) for value in (1e16, 1e-5, 1e21, 1e-7, 0.1, float("nan"))]
    ['10000000000000000.0', '0.00001', '1e21', '1e-7', '0.1', 'NaN']
    """
    # `repr` has the shortest digits that read back, as RapidJSON; only its notation of exponents differs (`1e+21`, and
    # from 1e16 on).
    text = repr(value)
    if "e" not in text:
        return text if text[-1] not in "nf" else _NOT_FINITE[text]
    mantissa, _, exponent = text.partition("e")
    power = int(exponent)
    if not -7 < power < 21:
        return f"{mantissa.removesuffix('.0')}e{power}"
    sign = "-" if mantissa[0] == "-" else ""
    digits = mantissa.lstrip("-").replace(".", "").rstrip("0") or "0"
    if power < 0:
        return f"{sign}0.{'0' * (-power - 1)}{digits}"
    return f"{sign}{digits.ljust(power + 1, '0')}.0"


def _listed(values: list[Any]) -> bytes:
    return msgspec.json.encode(values)[1:-1]


_NOT_FINITE = {"nan": "NaN", "inf": "Infinity", "-inf": "-Infinity"}


def tensor_from_json(
    name: str, datatype: DataType, shape: tuple[int, ...], data: object, max_size: int
) -> Tensor | UndecodedTensor:
    """Make an input with elements in JSON.

    Parameters
    ----------
    name : str
    datatype : DataType
    shape : tuple of int
        Batch dimension included.
    data : list or LongArray
        The elements, flat or nested.
    max_size : int
        The limit for the tensor, in bytes.

    Raises
    ------
    TritonError
        If the datatype, the shape or the data is invalid; with Triton's text.
    """
    count = element_count(shape) if shape else 0  # to Triton an empty shape has no elements
    if not count:
        return UndecodedTensor(name, datatype, shape, b"")
    elements: Any = data
    if type(data) not in (list, LongArray):
        elements = json_fields.read_field("data", json_fields.array, data)
    is_string = datatype.json == "string"
    strings = read_strings(elements) if is_string else b""
    size = len(strings) if is_string else count * datatype.itemsize
    if size > max_size:
        raise InvalidArgumentError(
            f"JSON input '{name}' has a byte_size ({size} bytes) that exceeds the maximum allowed value of "
            f"{max_size} bytes. Use --http-max-input-size to increase the limit."
        )
    if is_string:
        return UndecodedTensor(name, datatype, shape, strings)
    # So late, because Triton looks at the datatype only when it converts elements.
    if datatype is INVALID:
        raise InvalidArgumentError(f"invalid datatype for input {name}")
    if not datatype.json:
        raise InvalidArgumentError(
            f"receiving {datatype.name} data via JSON is not supported. Please use the binary data format "
            f"for input {name}"
        )
    values = read_data(elements, datatype, count)
    if len(shape) > MAX_ARRAY_DIMS:
        return UndecodedTensor(name, datatype, shape, values.tobytes())
    return Tensor(name, datatype, values.reshape(shape))
