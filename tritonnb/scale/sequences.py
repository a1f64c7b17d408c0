"""The sequence of each request.

It is read without reading the tensors of the request. Invalid requests have no sequence here: a replica refuses
them with Triton's text.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from tritonnb.core.errors import TritonError
from tritonnb.core.protobuf import service_pb2 as pb
from tritonnb.endpoints.compression import decompress
from tritonnb.endpoints.http import json_reader
from tritonnb.endpoints.http.request_reader import header_length

_ID, _START, _END = "sequence_id", "sequence_start", "sequence_end"
_MARK = b'"sequence_id"'


class SequenceKey(NamedTuple):
    """A sequence: correlation IDs of different models are independent; 1 and ``"1"`` are different IDs."""

    model: str
    id: int | str

    @property
    def text(self) -> str:
        """The key on the hash ring."""
        return f"{self.model}/{self.id!r}"


class SequenceRequest(NamedTuple):
    """The sequence of a request."""

    key: SequenceKey
    start: bool
    end: bool


def http_sequence(model: str, body: bytes, header: Callable[[str], str | None], limit: int) -> SequenceRequest | None:
    """Return the sequence of a request to ``infer``; None if it has none.

    Only a body that names a ``sequence_id`` is parsed, and of that only the JSON part.

    Parameters
    ----------
    model : str
    body : bytes
    header : callable
        Returns the value of a header, or None.
    limit : int
        Bytes of a decompressed body that are read.

    Examples
    --------
    >>> body = b'{"parameters":{"sequence_id":7,"sequence_start":true},"inputs":[]}'
    >>> http_sequence("m", body, {}.get, 1000)
    SequenceRequest(key=SequenceKey(model='m', id=7), start=True, end=False)
    """
    try:
        plain = decompress(body, header("Content-Encoding"), limit)
        plain = bytes(plain[: header_length(header("Inference-Header-Content-Length"), plain)])
        document = json_reader.parse(plain, tensors=True) if _MARK in plain else None
    except TritonError:
        return None
    parameters = document.get("parameters") if isinstance(document, dict) else None
    if not isinstance(parameters, dict):
        return None
    return _request(model, parameters.get(_ID), parameters.get(_START), parameters.get(_END))


def grpc_sequence(message: pb.ModelInferRequest) -> SequenceRequest | None:
    """Return the sequence of a ``ModelInferRequest``; None if it has none.

    Examples
    --------
    >>> message = pb.ModelInferRequest(model_name="m")
    >>> message.parameters["sequence_id"].string_param = "a"
    >>> grpc_sequence(message)
    SequenceRequest(key=SequenceKey(model='m', id='a'), start=False, end=False)
    """
    parameters = message.parameters
    if _ID not in parameters:
        return None
    choice = parameters[_ID].WhichOneof("parameter_choice")
    value = getattr(parameters[_ID], choice) if choice in ("int64_param", "string_param") else None
    start, end = (parameters[name].bool_param if name in parameters else False for name in (_START, _END))
    return _request(message.model_name, value, start, end)


def _request(model: str, value: object, start: object, end: object) -> SequenceRequest | None:
    if isinstance(value, bool) or not isinstance(value, int | str) or not value:  # 0 and "" mean: without a sequence
        return None
    id = value % 2**64 if isinstance(value, int) else value  # gRPC has no unsigned parameter
    return SequenceRequest(SequenceKey(model, id), start is True, end is True)
