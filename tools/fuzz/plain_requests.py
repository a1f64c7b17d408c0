"""Plain inference requests are read by other readers than the rest, which must make the same of them."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager

from google.protobuf.message import DecodeError
from tritonclient.grpc import service_pb2 as pb

from tools.fuzz.targets import Try
from tools.fuzz.unexpected import require
from tritonnb.core.errors import TritonError
from tritonnb.core.messages import InferRequest, Tensor, UndecodedTensor
from tritonnb.endpoints.grpc import infer_request as grpc_request
from tritonnb.endpoints.grpc.plain_request import read_plain
from tritonnb.endpoints.http.infer_request import read_request
from tritonnb.endpoints.tensors import ResponseFormat
from tritonnb.engine.shared_memory import SharedMemory
from tritonnb.model_config.parse import parse_text
from tritonnb.model_config.schema import ModelSpec

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
    """Read a header that is followed by 16 bytes."""
    yield compare


@contextmanager
def plain_messages() -> Iterator[Try]:
    """Read a serialized ``ModelInferRequest``."""
    yield compare_message


def compare_message(message: bytes) -> None:
    """Read a message with both readers, if the one for plain messages reads it."""
    plain = read_plain(message)
    if plain is None:
        return
    quick = _described(*plain.to_infer_request(_SPEC, 1))
    try:
        parsed = pb.ModelInferRequest.FromString(message)
        read = grpc_request.read_request(parsed, _SPEC, 1, SharedMemory())
    except (DecodeError, TritonError) as error:
        raise AssertionError(f"expected an error: {error!r}, got {quick}") from error
    strict = _described(*read)
    require(quick == strict, f"the quick reader: {quick}, protobuf: {strict}")
    names = (plain.model_name, plain.model_version) == (parsed.model_name, parsed.model_version)
    require(names, f"{message!r}: the model or its version differs")


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
        request, response_format = read_request(_SPEC, 1, body, len(header), _LIMIT, SharedMemory())
    except TritonError as error:
        return _OFFSET.sub("", repr(error))
    return _described(request, response_format)


def _described(request: InferRequest, response_format: ResponseFormat) -> str:
    inputs = [_contents(name, tensor) for name, tensor in request.unchecked_inputs.items()]
    fields = ("id", "parameters", "priority", "timeout_us", "correlation_id", "flags", "requested_outputs")
    return repr((inputs, {field: getattr(request, field) for field in fields}, response_format))


def _contents(name: str, tensor: Tensor | UndecodedTensor) -> tuple[object, ...]:
    contents = tensor.array.tobytes() if isinstance(tensor, Tensor) else bytes(tensor.raw)
    return name, tensor.name, tensor.datatype.name, tensor.shape, contents
