"""Requests that were read before: a client usually sends the same request again, with other tensor contents.

Once such a request has been read and checked, everything except the tensors is known, and the tensors are views at
known offsets of the new message. HTTP and gRPC find a known request in different ways; what they store is the same.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from tritonnb.core.messages import InferRequest, Respond, Tensor
from tritonnb.endpoints.tensors import ResponseFormat
from tritonnb.model_config.schema import ModelSpec

#: The longest head of a request that is stored, in bytes, and the number of heads that an endpoint stores.
LONGEST_HEAD = 4096
MAX_HEADS = 1024


@dataclass(frozen=True, slots=True)
class RequestTemplate:
    """An accepted request without its tensors.

    Attributes
    ----------
    spec : ModelSpec
        Of the model as it was loaded when the request was accepted.
    request : InferRequest
    response_format : ResponseFormat
    length : int
        Bytes of the whole message.
    inputs : tuple of tuple
        Name, datatype, NumPy dtype, number of elements, offset in the message, and shape of each input.
    """

    spec: ModelSpec
    request: InferRequest
    response_format: ResponseFormat
    length: int
    inputs: tuple[tuple[Any, ...], ...]

    def fill(self, message: bytes | bytearray, respond: Respond) -> InferRequest:
        """The request with the tensors of another message; they are views of it."""
        inputs = {
            name: Tensor(name, datatype, np.frombuffer(message, dtype, count, offset).reshape(shape))
            for name, datatype, dtype, count, offset, shape in self.inputs
        }
        return self.request.clone(inputs, respond)


def is_repeatable(spec: ModelSpec, request: InferRequest, response_format: ResponseFormat) -> bool:
    """Whether a request may come again with nothing but other tensor contents.

    A request ID usually changes, a region may be unregistered, and the contents of a shape tensor decide which requests
    may share a batch. BYTES tensors vary in size. An input without contents may be in shared memory.
    """
    if request.id or any(output.region is not None for output in response_format.outputs.values()):
        return False
    if any(tensor.shape_tensor for tensor in spec.inputs.values()):
        return False
    return all(tensor.datatype.itemsize and tensor.array.size for tensor in request.inputs.values())
