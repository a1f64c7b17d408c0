"""An HTTP inference response: from an `InferResponse` to the bytes that are sent."""

from __future__ import annotations

import functools
import re
from typing import Final

import msgspec

from tritonnb.core.datatypes import FP32, FP64, DataType
from tritonnb.core.messages import InferRequest, InferResponse, ParameterValue, Tensor
from tritonnb.endpoints.http.tensor_data import write_data, write_float, write_string
from tritonnb.endpoints.protocols import ResponseModel
from tritonnb.endpoints.tensors import BINARY, DEFAULT, ResponseFormat, classified, contents, fill_region

#: Finds a character that JSON escapes, or that is not ASCII.
_SPECIAL: Final = re.compile(r"[^ !#-\[\]-~]").search
_encode: Final = msgspec.json.encode
#: Elements that are written in one call.
_FEW: Final = 4096


def write_response(
    served: ResponseModel, request: InferRequest, response: InferResponse, response_format: ResponseFormat
) -> tuple[list[bytes | memoryview], int]:
    """Write the body of a response.

    The members have Triton's order: ``id``, ``model_name``, ``model_version``, ``parameters``, ``outputs``. The outputs
    have the model's order, and so do their binary contents.

    Returns
    -------
    body : list of bytes or memoryview
        The parts, to be joined.
    json_length : int
        Bytes of the JSON part; 0 without another part.

    Raises
    ------
    TritonError
        If an output cannot be written in the requested format.
    """
    beginning = _beginning(request.id) + _identity(served.name, served.version)
    if response.parameters:
        beginning += b'"parameters":%s,' % _write_parameters(response.parameters)
    if response_format.only_bytes:
        return _only_bytes(beginning, response.outputs)
    default = BINARY if response_format.binary else DEFAULT
    tail: list[bytes | memoryview] = []
    outputs: list[bytes] = []
    for tensor in response.outputs:
        output_format = response_format.outputs.get(tensor.name, default)
        if output_format.classification:
            tensor = classified(served, tensor, output_format.classification)
        if output_format.region is not None:
            fill_region(served, tensor, output_format.region)
            # Neither data nor a size: the client knows where it asked for the output.
            outputs.append(_describe(tensor.name, tensor.datatype, tensor.array.shape)[:-1] + b"}")
            continue
        outputs.append(_write_output(tensor, output_format.binary, tail))
    head: bytes = b'%s"outputs":[%s]}' % (beginning, b",".join(outputs))
    # If all binary outputs are empty, the response is plain JSON without a length header, surprisingly also on Triton.
    return [head, *tail], len(head) if any(map(len, tail)) else 0


def _beginning(request_id: str) -> bytes:
    if not request_id:
        return b"{"
    if request_id.isalnum() and request_id.isascii():  # in a third of the time
        return b'{"id":"' + request_id.encode() + b'",'
    return b'{"id":%s,' % _quoted(request_id)


def _quoted(text: str) -> bytes:
    if _SPECIAL(text) is None:
        return b'"' + text.encode() + b'"'
    return write_string(text.encode("utf-8", "surrogateescape"))


def _only_bytes(beginning: bytes, outputs: list[Tensor]) -> tuple[list[bytes | memoryview], int]:
    body: list[bytes | memoryview] = [b""]
    descriptions: list[tuple[str, DataType, tuple[int, ...], int]] = []
    size = 0
    for tensor in outputs:
        content = contents(tensor)
        length = len(content)
        size += length
        body.append(content)
        descriptions.append((tensor.name, tensor.datatype, tensor.array.shape, length))
    head = body[0] = beginning + _members_of_bytes(tuple(descriptions))
    return body, len(head) if size else 0


@functools.lru_cache(maxsize=4096)
def _members_of_bytes(descriptions: tuple[tuple[str, DataType, tuple[int, ...], int], ...]) -> bytes:
    outputs = [_describe_bytes(*description) for description in descriptions]
    return b'"outputs":[%s]}' % b",".join(outputs)


def write_parameter(value: ParameterValue) -> bytes:
    """Write a response parameter as JSON."""
    if isinstance(value, str):
        return _quoted(value)
    if isinstance(value, float):
        return write_float(value).encode()
    if isinstance(value, bool):
        return b"true" if value else b"false"
    return b"%d" % value


def _write_parameters(parameters: dict[str, ParameterValue]) -> bytes:
    members = [_quoted(name) + b":" + write_parameter(value) for name, value in parameters.items()]
    return b"{" + b",".join(members) + b"}"


@functools.lru_cache(maxsize=1024)
def _identity(name: str, version: int) -> bytes:
    return b'"model_name":%s,"model_version":"%d",' % (write_string(name.encode()), version)


@functools.lru_cache(maxsize=4096)
def _describe(name: str, datatype: DataType, shape: tuple[int, ...]) -> bytes:
    """Return the beginning of an output; cached, because most responses of a model have the same few shapes."""
    dims = ",".join(map(str, shape))
    quoted = write_string(name.encode()).decode()
    return f'{{"name":{quoted},"datatype":"{datatype.name}","shape":[{dims}],'.encode()


def _write_output(tensor: Tensor, binary: bool, tail: list[bytes | memoryview]) -> bytes:
    if not binary:
        description = _describe(tensor.name, tensor.datatype, tensor.array.shape)
        return b'%s"data":[%s]}' % (description, _write_data(tensor))
    content = contents(tensor)
    tail.append(content)
    return _describe_bytes(tensor.name, tensor.datatype, tensor.array.shape, len(content))


def _write_data(tensor: Tensor) -> bytes:
    datatype, array = tensor.datatype, tensor.array
    if (datatype is FP32 or datatype is FP64) and array.size <= _FEW:
        text: bytes = _encode(array.ravel().tolist())
        # msgspec has the digits of RapidJSON, but other exponents, and null for NaN and infinities.
        if ord("e") not in text and ord("n") not in text:
            return text[1:-1]
    return write_data(array, datatype)


def _describe_bytes(name: str, datatype: DataType, shape: tuple[int, ...], size: int) -> bytes:
    return b'%s"parameters":{"binary_data_size":%d}}' % (_describe(name, datatype, shape), size)
