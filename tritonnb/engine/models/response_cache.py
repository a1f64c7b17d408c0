"""The response cache (``response_cache { enable: true }``).

When the cache is full, the least recently used responses are evicted. The key contains everything that a response can
depend on: the number of the load of the model, the inputs with their datatypes and shapes, the requested outputs, and
the request parameters. Only successful responses are stored.
"""

from __future__ import annotations

import hashlib
import logging
import time
from collections import OrderedDict

import numpy as np
import numpy.typing as npt

from tritonnb.core.messages import InferRequest, InferResponse

logger = logging.getLogger(__name__)

Key = bytes


class ResponseCache:
    """Responses by key; used on the server's event loop.

    Parameters
    ----------
    size : int
        The maximum size in bytes.

    Attributes
    ----------
    hits, misses, evictions : int
    lookup_ns, insertion_ns : int
        The time that was spent, in ns.
    used : int
        The size of the stored responses in bytes.
    """

    def __init__(self, size: int) -> None:
        self.size = size
        self.used = 0
        self.hits = self.misses = self.evictions = 0
        self.lookup_ns = self.insertion_ns = 0
        self._responses: OrderedDict[Key, tuple[InferResponse, int]] = OrderedDict()

    def __len__(self) -> int:
        """Return the number of stored responses."""
        return len(self._responses)

    def look_up(self, key: Key) -> InferResponse | None:
        """Return a copy of a stored response; None if there is none."""
        began = time.monotonic_ns()
        entry = self._responses.get(key)
        if entry is None:
            self.misses += 1
        else:
            self.hits += 1
            # The dict is in the order of use, so its first entry is evicted first.
            self._responses.move_to_end(key)
        response = None if entry is None else entry[0].copy()
        self.lookup_ns += time.monotonic_ns() - began
        return response

    def insert(self, key: Key, response: InferResponse) -> bool:
        """Store a response unless it is too large; return False if the key is already in the cache."""
        if key in self._responses:
            return False
        size = _packed_size(response)
        # Asked before anything is evicted: on Triton, a response that is too large empties the cache first.
        if size > self.size:
            logger.error(
                "Failed to insert key [%s] into response cache: its %d bytes exceed the size of the cache",
                key.hex(),
                size,
            )
            return True
        began = time.monotonic_ns()
        while self.used + size > self.size:
            _, (_, evicted_size) = self._responses.popitem(last=False)
            self.used -= evicted_size
            self.evictions += 1
        self._responses[key] = (response.copy(), size)
        self.used += size
        self.insertion_ns += time.monotonic_ns() - began
        return True


def key_of(model: int, request: InferRequest) -> Key:
    """Return a digest of everything that a response can depend on.

    Parameters
    ----------
    model : int
        The number of the load: a version that is loaded again has different responses.
    request : InferRequest
        Already validated, so that its tensors are decoded.
    """
    digest = hashlib.blake2b(digest_size=20)
    outputs = None if request.requested_outputs is None else sorted(request.requested_outputs)
    digest.update(repr((model, outputs, sorted(request.parameters.items()))).encode())
    for name in sorted(request.inputs):
        tensor = request.inputs[name]
        # Triton's key has the bytes alone: two requests with equal bytes and other shapes share a response there.
        digest.update(repr((name, tensor.datatype.name, tensor.shape)).encode())
        digest.update(tensor.datatype.encode(tensor.array))
    return digest.digest()


def _packed_size(response: InferResponse) -> int:
    """Return the size of a response as Triton packs it: numbers, and for each output name, datatype, shape and data."""
    return 4 + sum(
        28 + len(output.name) + len(output.datatype.name) + 8 * len(output.shape) + _size(output.array)
        for output in response.outputs
    )


def _size(array: npt.NDArray[np.generic]) -> int:
    if array.dtype.kind == "O":
        return sum(len(element) + 4 for element in array.ravel().tolist())
    return int(array.nbytes)
