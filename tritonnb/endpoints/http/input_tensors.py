"""Input tensors whose elements are JSON; the order of the checks and their texts are those of Triton's server."""

from __future__ import annotations

import math

from tritonnb.core.datatypes import INVALID, DataType
from tritonnb.core.errors import InvalidArgumentError
from tritonnb.core.messages import Tensor, UndecodedTensor
from tritonnb.endpoints.http import json_fields
from tritonnb.endpoints.http.tensor_data import read_data, read_strings


def tensor_from_json(
    name: str, datatype: DataType, shape: tuple[int, ...], data: object, max_size: int
) -> Tensor | UndecodedTensor:
    """Make an input whose elements are JSON.

    Parameters
    ----------
    name : str
    datatype : DataType
    shape : tuple of int
        Batch dimension included.
    data : list
        The elements, flat or nested.
    max_size : int
        The limit for the tensor, in bytes.

    Raises
    ------
    TritonError
        If the datatype, the shape or the data is invalid; with Triton's text.
    """
    count = math.prod(shape) if shape else 0  # to Triton an empty shape has no elements
    if not count:
        return UndecodedTensor(name, datatype, shape, b"")
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
    if datatype is INVALID:
        raise InvalidArgumentError(f"invalid datatype for input {name}")
    if not datatype.json:
        raise InvalidArgumentError(
            f"receiving {datatype.name} data via JSON is not supported. Please use the binary data format "
            f"for input {name}"
        )
    return Tensor(name, datatype, read_data(elements, datatype, count).reshape(shape))
