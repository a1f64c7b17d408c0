"""The response cache: responses to requests that were answered before (``response_cache { enable: true }``).

Least recently used answers go first when the cache is full. The key is made of everything that an answer can
depend on: the model as it is loaded now, its inputs with their datatypes and shapes, the outputs
that are requested, and the request parameters. Only successful answers are kept.
"""

from __future__ import annotations

import hashlib
import logging
import time
from collections import OrderedDict
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from tritonnb.core.messages import InferRequest, InferResponse

logger = logging.getLogger(__name__)

Key = bytes


@dataclass(slots=True)
class CacheCounts:
    """What the cache has done so far; durations in ns."""

    hits: int = 0
    misses: int = 0
    evictions: int = 0
    lookup_ns: int = 0
    insertion_ns: int = 0


class ResponseCache:
    """Answers by key, in so many bytes; used on the server's loop.

    Parameters
    ----------
    size : int
        In bytes.

    Attributes
    ----------
    counts : CacheCounts
    used : int
        Bytes of what is kept.
    """

    def __init__(self, size: int) -> None:
        self.size = size
        self.used = 0
        self.counts = CacheCounts()
        self._answers: OrderedDict[Key, tuple[InferResponse, int]] = OrderedDict()

    def __len__(self) -> int:
        """How many answers are kept."""
        return len(self._answers)

    def look_up(self, key: Key) -> InferResponse | None:
        """The answer to a request; whoever gets it may keep it and write to it."""
        began = time.monotonic_ns()
        entry = self._answers.get(key)
        if entry is None:
            self.counts.misses += 1
        else:
            self.counts.hits += 1
            self._answers.move_to_end(key)
        answer = None if entry is None else entry[0].copy()
        self.counts.lookup_ns += time.monotonic_ns() - began
        return answer

    def insert(self, key: Key, response: InferResponse) -> bool:
        """Keep an answer, unless it is too large; False if it was there already."""
        if key in self._answers:
            return False
        size = _packed_size(response)
        if size > self.size:
            logger.error(
                "Failed to insert key [%s] into response cache: %d bytes are more than it may hold", key.hex(), size
            )
            return True
        began = time.monotonic_ns()
        while self.used + size > self.size:
            _, (_, freed) = self._answers.popitem(last=False)
            self.used -= freed
            self.counts.evictions += 1
        self._answers[key] = (response.copy(), size)
        self.used += size
        self.counts.insertion_ns += time.monotonic_ns() - began
        return True


def key_of(model: int, request: InferRequest) -> Key:
    """What an answer can depend on, as a digest.

    Parameters
    ----------
    model : int
        Number of the load: a version that is loaded again has other responses.
    request : InferRequest
        Checked, so that its tensors are decoded.
    """
    digest = hashlib.blake2b(digest_size=20)
    outputs = None if request.requested_outputs is None else sorted(request.requested_outputs)
    digest.update(repr((model, outputs, sorted(request.parameters.items()))).encode())
    for name in sorted(request.inputs):
        tensor = request.inputs[name]
        digest.update(repr((name, tensor.datatype.name, tensor.shape)).encode())
        digest.update(tensor.datatype.encode(tensor.array))
    return digest.digest()


def _packed_size(response: InferResponse) -> int:
    """Bytes of an answer as Triton packs it: numbers, and for each output name, datatype, shape and data."""
    return 4 + sum(
        28 + len(each.name) + len(each.datatype.name) + 8 * len(each.shape) + _size(each.array)
        for each in response.outputs
    )


def _size(array: npt.NDArray[np.generic]) -> int:
    if array.dtype.kind == "O":
        return sum(len(element) + 4 for element in array.ravel().tolist())
    return int(array.nbytes)
