"""Inference on a remote model, with NumPy arrays in and out."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import numpy as np
import numpy.typing as npt

from tritonnb.client.address import ModelAddress
from tritonnb.client.options import grpc_errors
from tritonnb.core.datatypes import BY_NAME, BYTES, decode_bytes, encode_bytes
from tritonnb.core.errors import InvalidArgumentError
from tritonnb.core.json_types import Json
from tritonnb.core.messages import InferRequest
from tritonnb.core.sequence_flags import SEQUENCE_END, SEQUENCE_START

Outputs = dict[str, npt.NDArray[Any]]
_HEADER_LENGTH = "Inference-Header-Content-Length"


def infer(model: ModelAddress, request: InferRequest, timeout_s: float | None) -> Outputs:
    """Run one inference.

    Parameters
    ----------
    model : ModelAddress
    request : InferRequest
        With inputs of the model's datatypes.
    timeout_s : float or None
        Time limit in seconds; None for that of the connection.

    Returns
    -------
    dict of str to numpy.ndarray

    Raises
    ------
    TritonError
        If the server responds with an error, or not in time.
    """
    limit_s = model.access.timeout_s if timeout_s is None else timeout_s
    return (_over_grpc if model.protocol == "grpc" else _over_http)(model, request, limit_s)


def _parameters(request: InferRequest) -> Json:
    parameters: Json = dict(request.parameters)
    if request.correlation_id:
        parameters["sequence_id"] = request.correlation_id
        parameters["sequence_start"] = bool(request.flags & SEQUENCE_START)
        parameters["sequence_end"] = bool(request.flags & SEQUENCE_END)
    if request.priority:
        parameters["priority"] = request.priority
    if request.timeout_us:
        parameters["timeout"] = request.timeout_us
    return parameters


def _tensors(request: InferRequest) -> Iterator[tuple[Json, bytes]]:
    """Name, datatype and shape of each input, and its bytes."""
    for tensor in request.inputs.values():
        array = np.ascontiguousarray(tensor.array)
        content = encode_bytes(array) if tensor.datatype is BYTES else array.tobytes()
        yield {"name": tensor.name, "datatype": tensor.datatype.name, "shape": list(array.shape)}, content


def _over_http(model: ModelAddress, request: InferRequest, limit_s: float) -> Outputs:
    tensors = list(_tensors(request))
    head: Json = {
        "inputs": [{**fields, "parameters": {"binary_data_size": len(content)}} for fields, content in tensors],
        "parameters": {**_parameters(request), "binary_data_output": True},
    }
    if request.id:
        head["id"] = request.id
    if request.requested_outputs is not None:
        head["outputs"] = [{"name": name, "parameters": {"binary_data": True}} for name in request.requested_outputs]
    text = json.dumps(head).encode()
    body = b"".join([text, *(content for _, content in tensors)])
    url = f"{model.server.url}{model.path.removeprefix(model.prefix)}/infer"
    content, headers = model.access.fetch(url, body, {_HEADER_LENGTH: str(len(text))}, limit_s)
    length = int(headers.get(_HEADER_LENGTH, len(content)))
    outputs: Outputs = {}
    at = length
    for output in json.loads(content[:length])["outputs"]:
        size = output.get("parameters", {}).get("binary_data_size")
        data = output["data"] if size is None else content[at : at + size]
        at += size or 0
        outputs[output["name"]] = _array(output["datatype"], output["shape"], data)
    return outputs


def _over_grpc(model: ModelAddress, request: InferRequest, limit_s: float) -> Outputs:
    from tritonclient.grpc import service_pb2, service_pb2_grpc

    version = "" if model.version == -1 else str(model.version)
    message = service_pb2.ModelInferRequest(model_name=model.name, model_version=version, id=request.id)
    for fields, content in _tensors(request):
        message.inputs.add(**fields)
        message.raw_input_contents.append(content)
    for name in request.requested_outputs or ():
        message.outputs.add(name=name)
    for name, value in _parameters(request).items():
        kind = {bool: "bool_param", str: "string_param", float: "double_param"}.get(type(value), "int64_param")
        setattr(message.parameters[name], "uint64_param" if name == "priority" else kind, value)
    with model.access.channel(model.scheme, model.authority) as channel, grpc_errors(model.url, limit_s):
        stub = service_pb2_grpc.GRPCInferenceServiceStub(channel)
        response = stub.ModelInfer(message, timeout=limit_s, metadata=model.access.metadata)
    return {
        output.name: _array(output.datatype, list(output.shape), content)
        for output, content in zip(response.outputs, response.raw_output_contents, strict=True)
    }


def _array(datatype_name: str, shape: list[int], data: Any) -> npt.NDArray[Any]:
    """The tensor in the binary or in the JSON form."""
    datatype = BY_NAME.get(datatype_name)
    if datatype is None:
        raise InvalidArgumentError(f"response expected a datatype of the v2 protocol, got '{datatype_name}'")
    if isinstance(data, list):
        strings = [item.encode() if isinstance(item, str) else item for item in data]
        return np.array(strings, datatype.numpy).reshape(shape)
    if datatype is BYTES:
        return decode_bytes(data).reshape(shape)
    return np.frombuffer(data, datatype.numpy).reshape(shape).copy()
