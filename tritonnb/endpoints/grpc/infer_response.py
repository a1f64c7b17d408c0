"""A gRPC inference response: from an `InferResponse` to a ``ModelInferResponse``.

Contents are always raw, one entry for each output in the order of the model; the entry of an output in shared memory
is empty. The common response is written without protobuf: its head and the descriptions of its outputs are the same
each time, and the raw contents follow.
"""

from __future__ import annotations

import functools
from typing import Final

from tritonnb.core.messages import InferRequest, InferResponse, ParameterValue
from tritonnb.core.protobuf import service_pb2 as pb
from tritonnb.endpoints.protocols import ResponseModel
from tritonnb.endpoints.tensors import DEFAULT, ResponseFormat, classified, contents, fill_region

#: Protobuf's wire type of fields with a length (strings, bytes, messages).
LENGTH_DELIMITED: Final = 2
_FIELDS = pb.ModelInferResponse.DESCRIPTOR.fields_by_name
_RAW_OUTPUT_TAG, _ID_TAG = (
    bytes([_FIELDS[name].number << 3 | LENGTH_DELIMITED]) for name in ("raw_output_contents", "id")
)


def response_message(
    served: ResponseModel, request: InferRequest, response: InferResponse, response_format: ResponseFormat
) -> pb.ModelInferResponse:
    """Make the message that answers a request.

    Parameters
    ----------
    served : ResponseModel
    request : InferRequest
    response : InferResponse
        Not an error.
    response_format : ResponseFormat

    Returns
    -------
    inference.ModelInferResponse

    Raises
    ------
    TritonError
        If an output cannot be written in the requested format.
    """
    outputs: list[pb.ModelInferResponse.InferOutputTensor] = []
    raw: list[bytes] = []
    for tensor in response.outputs:
        output_format = response_format.outputs.get(tensor.name, DEFAULT)
        if output_format.classification:
            tensor = classified(served, tensor, output_format.classification)
        output = pb.ModelInferResponse.InferOutputTensor(
            name=tensor.name, datatype=tensor.datatype.name, shape=tensor.array.shape
        )
        if output_format.region is None:
            raw.append(bytes(contents(tensor)))
        else:
            fill_region(served, tensor, output_format.region)
            # An empty entry keeps the others in their places: clients find contents by the index of the output.
            raw.append(b"")
        outputs.append(output)
    message = pb.ModelInferResponse(
        model_name=served.name,
        model_version=str(served.version),
        id=request.id,
        outputs=outputs,
        raw_output_contents=raw,
    )
    for name, value in (response.parameters or {}).items():
        _set_parameter(message.parameters[name], value)
    return message


def common_response_parts(
    served: ResponseModel, request: InferRequest, response: InferResponse, response_format: ResponseFormat
) -> list[bytes | memoryview] | None:
    """Serialize a ``ModelInferResponse`` without protobuf.

    Returns
    -------
    list of bytes or memoryview, or None
        The parts of the message; None if the response is an error or has parameters, classes, or outputs in shared
        memory.
    """
    if response.parameters or response.error is not None:
        return None
    # The quick writer only knows what most responses have; whatever else there is, the slow one has to say it.
    if any(output.classification or output.region is not None for output in response_format.outputs.values()):
        return None
    # Protobuf allows fields in any order and messages to be concatenated, which is why cached pieces can be put
    # together.
    parts: list[bytes | memoryview] = [_identity(served.name, served.version)]
    if request.id:
        encoded = request.id.encode()
        parts += (_ID_TAG, encode_varint(len(encoded)), encoded)
    parts.append(_descriptions(tuple([(out.name, out.datatype.name, out.array.shape) for out in response.outputs])))
    for tensor in response.outputs:
        content = contents(tensor)
        parts += (_RAW_OUTPUT_TAG, encode_varint(len(content)), content)
    return parts


@functools.lru_cache(maxsize=1024)
def _identity(model_name: str, version: int) -> bytes:
    encoded: bytes = pb.ModelInferResponse(model_name=model_name, model_version=str(version)).SerializeToString()
    return encoded


# A model whose shapes vary with each response would fill this cache, hence the bound; a miss costs what protobuf costs.
@functools.lru_cache(maxsize=4096)
def _descriptions(outputs: tuple[tuple[str, str, tuple[int, ...]], ...]) -> bytes:
    tensors = [
        pb.ModelInferResponse.InferOutputTensor(name=name, datatype=datatype, shape=shape)
        for name, datatype, shape in outputs
    ]
    encoded: bytes = pb.ModelInferResponse(outputs=tensors).SerializeToString()
    return encoded


@functools.lru_cache(maxsize=1024)
def encode_varint(value: int) -> bytes:
    """Encode a number as protobuf encodes lengths: seven bits in each byte, the lowest first.

    Examples
    --------
    >>> encode_varint(300).hex()
    'ac02'
    """
    encoded = bytearray()
    while value >= 0x80:
        encoded.append(value & 0x7F | 0x80)
        value >>= 7
    encoded.append(value)
    return bytes(encoded)


def _set_parameter(parameter: pb.InferParameter, value: ParameterValue) -> None:
    # First, because a bool is an int in Python.
    if isinstance(value, bool):
        parameter.bool_param = value
    elif isinstance(value, int):
        parameter.int64_param = value
    elif isinstance(value, float):
        parameter.double_param = value
    else:
        parameter.string_param = value
