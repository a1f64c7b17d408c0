"""Inference requests over HTTP: from a body to a request that the model has accepted.

The JSON of binary requests is cached: if it was read before, only the bytes after it differ, and the tensors are views
of them at known offsets.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from tritonnb.core.errors import InvalidArgumentError
from tritonnb.core.messages import InferRequest, Tensor
from tritonnb.core.strtol import leading_number
from tritonnb.endpoints.caches import LONGEST_HEAD, MAX_HEADS, BoundedCache
from tritonnb.endpoints.http.infer_request import read_request
from tritonnb.endpoints.long_work import LONG
from tritonnb.endpoints.protocols import InferenceModel
from tritonnb.endpoints.tensors import ResponseFormat
from tritonnb.engine.shared_memory import SharedMemory
from tritonnb.model_config.schema import ModelSpec

_ID: Final = b'{"id":'


def header_length(value: str | None, body: bytes | bytearray | memoryview) -> int:
    """Return the length of the JSON in a body; 0 for a raw binary request.

    Parameters
    ----------
    value : str or None
        ``Inference-Header-Content-Length``; its leading digits count.
    body : bytes, bytearray or memoryview

    Raises
    ------
    InvalidArgumentError
        If it is not a number, or the length is negative or exceeds the length of the body.
    """
    if value is None:
        return len(body)
    # The common case first. Leading digits count, as for C's `strtol`, so `12.5` is 12.
    length: int | None = plain_number(value)
    if length == -1:
        length = leading_number(value)
    if length is None:
        raise InvalidArgumentError(f"Unable to parse Inference-Header-Content-Length, got: {value}")
    if not -(2**31) <= length < 2**31:
        raise InvalidArgumentError(
            "Unable to parse Inference-Header-Content-Length, value is out of range [ -2147483648, 2147483647 ], got: "
            f"{value}"
        )
    if not 0 <= length <= len(body):
        raise InvalidArgumentError(f"inference header size should be in range (0, {len(body)}), got: {value}")
    return length


def plain_number(value: str) -> int:
    """Return the number that a text of digits is; -1 for any other text, and for a long one."""
    return int(value) if len(value) < 20 and value.isdecimal() else -1


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

    def fill(self, message: bytes | bytearray | memoryview) -> InferRequest:
        """Return the request with the tensors of another message, as views of it."""
        inputs = {
            name: Tensor(name, datatype, np.frombuffer(message, dtype, count, offset).reshape(shape))
            for name, datatype, dtype, count, offset, shape in self.inputs
        }
        return self.request.clone(inputs)


def takes_long(spec: ModelSpec, body: bytes | bytearray | memoryview, length: int) -> bool:
    """Return whether it takes long to read a body: JSON and strings are read element by element."""
    return len(body) > LONG and (length > LONG or any(tensor.datatype.variable_size for tensor in spec.inputs.values()))


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


class RequestReader:
    """A reader of requests that remembers the JSON of binary ones.

    Parameters
    ----------
    shared_memory : SharedMemory
        Of the engine.
    max_input_size : int
        ``--http-max-input-size``, in bytes.
    limit : int, optional
        The number of JSON headers that are stored.
    """

    def __init__(self, shared_memory: SharedMemory, max_input_size: int, limit: int = MAX_HEADS) -> None:
        self._shared_memory = shared_memory
        self._max_input_size = max_input_size
        #: By model, version, and JSON.
        self._templates: BoundedCache[tuple[str, int, bytes], RequestTemplate] = BoundedCache(limit)
        self._known = self._templates.values

    def read(
        self, served: InferenceModel, body: bytes | bytearray | memoryview, length: int, raw: bytes | None = None
    ) -> tuple[InferRequest, ResponseFormat]:
        """Read and check a request; its first ``length`` bytes are JSON: ``raw``, if the caller has them.

        Raises
        ------
        TritonError
            If the request is invalid; with Triton's text.
        """
        if raw is None:
            raw = body if type(body) is bytes and length == len(body) else bytes(body[:length])
        # A request with an ID is never stored, and clients write it first: its JSON need not be hashed.
        begins_with_id = raw.startswith(_ID)
        if not begins_with_id:
            cached = self.find(served, body, raw)
            if cached is not None:
                return cached
        request, response_format = read_request(
            served.spec, served.version, body, length, self._max_input_size, self._shared_memory, raw
        )
        served.check(request)
        if not (begins_with_id or request.id):
            self.store(served, body, raw, request, response_format)
        return request, response_format

    def read_long(
        self, served: InferenceModel, body: bytes | bytearray | memoryview, length: int
    ) -> tuple[InferRequest, ResponseFormat]:
        """Read and check a long request, which is not stored; called on a worker thread."""
        request, response_format = read_request(
            served.spec, served.version, body, length, self._max_input_size, self._shared_memory
        )
        served.check(request)
        return request, response_format

    def find(
        self, served: InferenceModel, body: bytes | bytearray | memoryview, raw: bytes
    ) -> tuple[InferRequest, ResponseFormat] | None:
        """Return the request of a body that begins with the JSON ``raw``; None if that JSON is not known."""
        template = self._known.get((served.name, served.version, raw))
        # By identity: a model that is loaded again has a new spec, even if its configuration is equal, and its checks
        # must run again.
        if template is None or template.spec is not served.spec or len(body) != template.length:
            return None
        return template.fill(body), template.response_format

    def store(
        self,
        served: InferenceModel,
        body: bytes | bytearray | memoryview,
        raw: bytes,
        request: InferRequest,
        response_format: ResponseFormat,
    ) -> None:
        """Remember the JSON of a request that was accepted, if all its inputs are binary."""
        length = len(raw)
        if not 0 < length <= LONGEST_HEAD or length == len(body):
            return
        if not is_repeatable(served.spec, request, response_format):
            return
        key = served.name, served.version, raw
        if not self._templates.admits(key):
            return
        offset = length
        inputs: list[tuple[Any, ...]] = []
        for name, tensor in request.inputs.items():
            datatype, array = tensor.datatype, tensor.array
            inputs.append((name, datatype, datatype.numpy, array.size, offset, array.shape))
            offset += array.nbytes
        if offset != len(body):
            return  # some input is in JSON or in shared memory
        repeated = request.clone({})
        self._templates.store(key, RequestTemplate(served.spec, repeated, response_format, len(body), tuple(inputs)))
