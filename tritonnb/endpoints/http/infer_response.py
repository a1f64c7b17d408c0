"""An HTTP inference response: from an `InferResponse` to the bytes that are sent."""

from __future__ import annotations

import functools

from tritonnb.core.datatypes import DataType
from tritonnb.core.messages import InferRequest, InferResponse, ParameterValue, Tensor
from tritonnb.endpoints.http.tensor_data import write_data, write_float, write_string
from tritonnb.endpoints.tensors import OutputFormat, ResponseFormat, ResponseModel, classified, contents, fill_region

_BINARY = OutputFormat(binary=True)
_JSON = OutputFormat()


def write_response(
    served: ResponseModel, request: InferRequest, response: InferResponse, answer: ResponseFormat
) -> tuple[list[bytes | memoryview], int]:
    """The body of an answer in parts, and how many bytes of it are JSON (0 if there is nothing else).

    Members stand in Triton's order: ``id``, ``model_name``, ``model_version``, ``parameters``, ``outputs``;
    outputs in the order in which the model gave them, binary contents in the order of the outputs.

    Raises
    ------
    TritonError
        If an output cannot be written the way the client wants it.
    """
    if answer.only_bytes and not request.id and not response.parameters:
        return _only_bytes(served, response.outputs)
    default = _BINARY if answer.binary else _JSON
    tail: list[bytes | memoryview] = []
    outputs: list[bytes] = []
    for tensor in response.outputs:
        wanted = answer.outputs.get(tensor.name, default)
        if wanted.classification:
            tensor = classified(served, tensor, wanted.classification)
        if wanted.region is not None:
            fill_region(served, tensor, wanted.region)
            outputs.append(_described(tensor.name, tensor.datatype, tensor.array.shape)[:-1] + b"}")
            continue
        outputs.append(_write_output(tensor, wanted.binary, tail))
    head: list[bytes | memoryview] = [b"{"]
    if request.id:
        head += (b'"id":', write_string(request.id.encode("utf-8", "surrogateescape")), b",")
    head += (_identity(served.name, served.version), b'"outputs":[', b",".join(outputs), b"]}")
    if response.parameters:
        head.insert(-3, b'"parameters":' + _write_parameters(response.parameters) + b",")
    length = sum(map(len, head)) if any(map(len, tail)) else 0
    return head + tail, length


def _only_bytes(served: ResponseModel, outputs: list[Tensor]) -> tuple[list[bytes | memoryview], int]:
    tail = [contents(each) for each in outputs]
    described = [
        (each.name, each.datatype, each.array.shape, len(content)) for each, content in zip(outputs, tail, strict=True)
    ]
    head = _head_of_bytes(served.name, served.version, tuple(described))
    return [head, *tail], len(head) if any(map(len, tail)) else 0


@functools.lru_cache(maxsize=4096)
def _head_of_bytes(name: str, version: int, described: tuple[tuple[str, DataType, tuple[int, ...], int], ...]) -> bytes:
    outputs = [_described_bytes(*each) for each in described]
    return b'{%s"outputs":[%s]}' % (_identity(name, version), b",".join(outputs))


def write_parameter(value: ParameterValue) -> bytes:
    """A response parameter as JSON."""
    if isinstance(value, str):
        return write_string(value.encode("utf-8", "surrogateescape"))
    if isinstance(value, float):
        return write_float(value).encode()
    if isinstance(value, bool):
        return b"true" if value else b"false"
    return b"%d" % value


def _write_parameters(parameters: dict[str, ParameterValue]) -> bytes:
    members = [write_string(name.encode()) + b":" + write_parameter(value) for name, value in parameters.items()]
    return b"{" + b",".join(members) + b"}"


@functools.lru_cache(maxsize=1024)
def _identity(name: str, version: int) -> bytes:
    return b'"model_name":%s,"model_version":"%d",' % (write_string(name.encode()), version)


@functools.lru_cache(maxsize=4096)
def _described(name: str, datatype: DataType, shape: tuple[int, ...]) -> bytes:
    """An output's constant part: most answers of a model have the same few shapes."""
    listed = ",".join(map(str, shape))
    quoted = write_string(name.encode()).decode()
    return f'{{"name":{quoted},"datatype":"{datatype.name}","shape":[{listed}],'.encode()


def _write_output(tensor: Tensor, binary: bool, tail: list[bytes | memoryview]) -> bytes:
    if not binary:
        described = _described(tensor.name, tensor.datatype, tensor.array.shape)
        return b'%s"data":[%s]}' % (described, write_data(tensor.array, tensor.datatype))
    content = contents(tensor)
    tail.append(content)
    return _described_bytes(tensor.name, tensor.datatype, tensor.array.shape, len(content))


def _described_bytes(name: str, datatype: DataType, shape: tuple[int, ...], size: int) -> bytes:
    return b'%s"parameters":{"binary_data_size":%d}}' % (_described(name, datatype, shape), size)
