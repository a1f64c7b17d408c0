"""Caches of requests: a client usually sends the same one again, with other tensor contents.

Once such a request has been read and checked, everything except the tensors is known, and the tensors are views at
known offsets of the new message. HTTP and gRPC find a known request in different ways; what they store is the same.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Generic, TypeVar

import numpy as np

from tritonnb.core.messages import InferRequest, Respond, Tensor
from tritonnb.endpoints.tensors import ResponseFormat
from tritonnb.model_config.schema import ModelSpec

K = TypeVar("K")
V = TypeVar("V")

#: The longest head of a request that is stored, in bytes, and the number of heads that an endpoint stores.
LONGEST_HEAD = 4096
MAX_HEADS = 1024


class BoundedCache(Generic[K, V]):
    """At most ``limit`` values by key; the oldest one is dropped first.

    A key is admitted when it is seen for the second time. A client whose keys never repeat, such as heads with a trace
    ID, thus drops nothing that other clients repeat.

    Parameters
    ----------
    limit : int
        0 to store nothing.

    Examples
    --------
    >>> cache = BoundedCache[str, int](limit=2)
    >>> for key in ("a", "b", "b"):
    ...     if cache.admits(key):
    ...         cache.store(key, 1)
    >>> cache.get("a"), cache.get("b")
    (None, 1)
    """

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._values: dict[K, V] = {}
        self._seen: set[int] = set()  # hashes of keys

    def get(self, key: K) -> V | None:
        """Return the value of a key; None if it is not stored."""
        return self._values.get(key)

    def admits(self, key: K) -> bool:
        """Return whether the value of a key is to be stored; False when the key is seen for the first time."""
        if not self._limit:
            return False
        seen, number = self._seen, hash(key)
        if number in seen:
            return True
        if len(seen) >= self._limit:
            seen.clear()
        seen.add(number)
        return False

    def store(self, key: K, value: V) -> None:
        """Store the value of a key that is admitted."""
        values = self._values
        values.pop(key, None)
        if len(values) >= self._limit:
            del values[next(iter(values))]
        values[key] = value

    def clear(self) -> None:
        """Remove all values."""
        self._values.clear()


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

    def fill(self, message: bytes | bytearray | memoryview, respond: Respond) -> InferRequest:
        """The request with the tensors of another message; they are views of it."""
        inputs = {
            name: Tensor(name, datatype, np.frombuffer(message, dtype, count, offset).reshape(shape))
            for name, datatype, dtype, count, offset, shape in self.inputs
        }
        return self.request.clone(inputs, respond)


def is_repeatable(spec: ModelSpec, request: InferRequest, response_format: ResponseFormat) -> bool:
    """Return whether a request may come again with nothing but other tensor contents.

    A request ID usually changes, a region may be unregistered, and the contents of a shape tensor decide which requests
    may share a batch. BYTES tensors vary in size. An input without contents may be in shared memory.
    """
    if request.id or any(output.region is not None for output in response_format.outputs.values()):
        return False
    if any(tensor.shape_tensor for tensor in spec.inputs.values()):
        return False
    return all(tensor.datatype.itemsize and tensor.array.size for tensor in request.inputs.values())
