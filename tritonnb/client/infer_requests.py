"""Inference requests with binary tensors, as they are sent to a server of the v2 protocol."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from tritonnb.core.json_types import Json
from tritonnb.core.messages import Tensor

if TYPE_CHECKING:
    from tritonclient.grpc.service_pb2 import ModelInferRequest

#: The header with the length of the JSON in a body.
HEADER_LENGTH = "Inference-Header-Content-Length"


def http_body(tensors: Iterable[Tensor], parameters: Mapping[str, Any], **members: Any) -> tuple[int, bytes]:
    """Return the length of the JSON in the body of an inference request with binary tensors, and the body.

    Parameters
    ----------
    tensors : iterable of Tensor
    parameters : mapping
    **members
        More members of the JSON.
    """
    encoded = list(map(_encode, tensors))
    head = {
        "inputs": [{**fields, "parameters": {"binary_data_size": len(content)}} for fields, content in encoded],
        "parameters": {**parameters, "binary_data_output": True},
        **members,
    }
    text = json.dumps(head, separators=(",", ":")).encode()
    return len(text), b"".join([text, *(content for _, content in encoded)])


def grpc_message(
    name: str, version: int, tensors: Iterable[Tensor], parameters: Mapping[str, Any]
) -> ModelInferRequest:
    """Return the message of an inference request.

    Parameters
    ----------
    name : str
    version : int
        -1 lets the server choose.
    tensors : iterable of Tensor
    parameters : mapping
    """
    from tritonnb.core.protobuf import service_pb2

    message = service_pb2.ModelInferRequest(model_name=name, model_version="" if version == -1 else str(version))
    for fields, content in map(_encode, tensors):
        message.inputs.add(**fields)
        message.raw_input_contents.append(content)
    for parameter, value in parameters.items():
        kind = {bool: "bool_param", str: "string_param", float: "double_param"}.get(type(value), "int64_param")
        setattr(message.parameters[parameter], "uint64_param" if parameter == "priority" else kind, value)
    return message


def _encode(tensor: Tensor) -> tuple[Json, bytes]:
    """Return the name, datatype and shape of an input, and its bytes."""
    array = np.ascontiguousarray(tensor.array)
    fields = {"name": tensor.name, "datatype": tensor.datatype.name, "shape": list(array.shape)}
    return fields, tensor.datatype.encode(array)
