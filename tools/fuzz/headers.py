"""The JSON of inference requests: a plain one is read by another reader, which must make the same of it."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager

from tools.fuzz.targets import Try
from tools.fuzz.unexpected import require
from tritonnb.core.errors import TritonError
from tritonnb.core.messages import Tensor, UndecodedTensor, discard_response
from tritonnb.endpoints.http.infer_request import read_request
from tritonnb.model_config.parse import parse_text
from tritonnb.model_config.schema import ModelSpec
from tritonnb.runtime.shared_memory import SharedMemory

_CONFIG = (
    'name: "m" max_batch_size: 4 input { name: "A" data_type: TYPE_FP32 dims: [ -1 ] } '
    'input { name: "B" data_type: TYPE_STRING dims: [ -1 ] } output { name: "C" data_type: TYPE_FP32 dims: [ -1 ] }'
)
_SPEC = ModelSpec.from_config(parse_text(_CONFIG).config)
#: The contents of binary inputs.
_TAIL = bytes(range(16))
_LIMIT = 1 << 20
_OFFSET = re.compile(r"(?<=failed to parse the request JSON buffer: ).*")


@contextmanager
def plain_headers() -> Iterator[Try]:
    """A header, with 16 bytes behind it."""
    yield compare


def compare(header: bytes) -> None:
    """Read a header with both readers.

    A NUL ends a document. Only the strict reader knows that, so it reads a header with one behind it. The offset of an
    error may be that of the NUL.
    """
    if not header or b"\0" in header:
        return
    usual, strict = _outcome(header), _outcome(header + b"\0")
    require(usual == strict, f"the usual reader: {usual}, the strict one: {strict}")


def _outcome(header: bytes) -> str:
    """Return the request that is read, or its error, as text."""
    body = header + _TAIL
    try:
        request, response_format = read_request(_SPEC, 1, body, len(header), _LIMIT, SharedMemory(), discard_response)
    except TritonError as error:
        return _OFFSET.sub("", repr(error))
    inputs = [_contents(name, tensor) for name, tensor in request.unchecked_inputs.items()]
    fields = ("id", "parameters", "priority", "timeout_us", "correlation_id", "flags", "requested_outputs")
    return repr((inputs, {field: getattr(request, field) for field in fields}, response_format))


def _contents(name: str, tensor: Tensor | UndecodedTensor) -> tuple[object, ...]:
    contents = tensor.array.tobytes() if isinstance(tensor, Tensor) else bytes(tensor.raw)
    return name, tensor.name, tensor.datatype.name, tensor.shape, contents
