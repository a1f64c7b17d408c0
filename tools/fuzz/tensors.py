"""BYTES tensors in binary form."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from tools.fuzz.targets import Try
from tools.fuzz.unexpected import require
from tritonnb.core.datatypes import BYTES, decode_bytes, encode_bytes, split_bytes
from tritonnb.core.errors import TritonError
from tritonnb.core.messages import InferRequest, InferResponse
from tritonnb.endpoints.tensors import binary_tensor, check_overflow
from tritonnb.engine.models.validation import RequestValidator
from tritonnb.model_config.parse import parse_text
from tritonnb.model_config.schema import ModelSpec

_CONFIG = 'name: "m" max_batch_size: 4 input { name: "X" data_type: TYPE_STRING dims: [ -1 ] }'


@contextmanager
def strings() -> Iterator[Try]:
    """Read an input: the first two bytes are its shape, the third a limit, the rest its contents."""
    spec = ModelSpec.from_config(parse_text(_CONFIG).config)
    validator = RequestValidator(spec)

    def respond(request: InferRequest, response: InferResponse) -> None:
        raise AssertionError("the request is not sent to a model")

    def run(data: bytes) -> None:
        shape, limit, raw = tuple(data[:2]), data[2] if len(data) > 2 else 0, data[3:]
        elements, end = split_bytes(raw, limit)
        require(len(elements) <= limit, "more elements than the limit")
        require(end >= 4 * len(elements), "an element without a length")
        try:
            decoded = decode_bytes(memoryview(raw))
            require(encode_bytes(decoded) == raw, "encoding the elements again gives other bytes")
        except TritonError:
            pass
        request = InferRequest("m", {}, respond)
        try:
            check_overflow("X", BYTES, shape)
            request.unchecked_inputs["X"] = binary_tensor("X", BYTES, shape, raw, 0, len(raw))
            validator.check(request)
        except TritonError:
            return
        got = request.inputs["X"].array.shape
        expected = (max(1, shape[0]), *shape[1:])  # to Triton a batch of 0 rows has one row
        require(got == expected, f"expected the shape {expected}, got {got}")

    yield run
