"""A gRPC inference response: from an `InferResponse` to a ``ModelInferResponse``.

Contents are always raw, one entry for each output in the order of the model; that of an output in shared
memory is empty.
"""

from __future__ import annotations

from typing import Any

from tritonclient.grpc import service_pb2 as pb

from tritonnb.core.messages import InferRequest, InferResponse, ParameterValue
from tritonnb.endpoints.tensors import OutputFormat, ResponseFormat, classified, contents, fill_region
from tritonnb.runtime.models.served_base import Served

_PLAIN = OutputFormat()


def response_message(served: Served, request: InferRequest, response: InferResponse, answer: ResponseFormat) -> Any:
    """The message that answers a request.

    Parameters
    ----------
    served : Served
    request : InferRequest
    response : InferResponse
        No error.
    answer : ResponseFormat

    Returns
    -------
    inference.ModelInferResponse

    Raises
    ------
    TritonError
        If an output cannot be written the way the client wants it.
    """
    outputs: list[Any] = []
    raw: list[bytes] = []
    for tensor in response.outputs:
        wanted = answer.outputs.get(tensor.name, _PLAIN)
        if wanted.classification:
            tensor = classified(served, tensor, wanted.classification)
        output = pb.ModelInferResponse.InferOutputTensor(
            name=tensor.name, datatype=tensor.datatype.name, shape=tensor.array.shape
        )
        if wanted.region is None:
            raw.append(bytes(contents(tensor)))
        else:
            fill_region(served, tensor, wanted.region)
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


def _set_parameter(parameter: Any, value: ParameterValue) -> None:
    if isinstance(value, bool):
        parameter.bool_param = value
    elif isinstance(value, int):
        parameter.int64_param = value
    elif isinstance(value, float):
        parameter.double_param = value
    else:
        parameter.string_param = value
