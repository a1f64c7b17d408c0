"""Requests that were read before: a client usually sends the same request again, with other tensor contents.

Once such a request has been read and checked, everything except the tensors is known, and the tensors are views at
known offsets of the new message. HTTP and gRPC find a known request in different ways; what they store is the same.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np

from tritonnb.core.messages import InferRequest, Respond, Tensor
from tritonnb.endpoints.tensors import ResponseFormat
from tritonnb.model_config.schema import ModelSpec

K = TypeVar("K")
V = TypeVar("V")

#: The longest head of a request that is stored, in bytes.
LONGEST_HEAD = 4096


@dataclass(frozen=True, slots=True)
class RequestTemplate:
    """An accepted request without its tensors.

    Attributes
    ----------
    request : InferRequest
    response_format : ResponseFormat
    length : int
        Bytes of the whole message.
    inputs : tuple of tuple
        Name, datatype, NumPy dtype, number of elements, offset in the message, and shape of each input.
    """

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
    may share a batch.
    """
    if request.id or any(output.region is not None for output in response_format.outputs.values()):
        return False
    return not any(tensor.shape_tensor for tensor in spec.inputs.values())


def store_bounded(cache: dict[K, V], key: K, value: V, limit: int) -> None:
    """Store an entry in a cache of at most ``limit`` entries; a full cache is cleared first.

    Clearing is enough here: a server has few different heads, unless every one is different, and then no policy helps.

    Examples
    --------
    >>> cache = {"a": 1, "b": 2}
    >>> store_bounded(cache, "c", 3, limit=2)
    >>> cache
    {'c': 3}
    """
    if len(cache) >= limit:
        cache.clear()
    cache[key] = value
