"""Inference messages that were read before: they differ only in their raw contents, which protobuf writes last."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from tritonclient.grpc import service_pb2 as pb

from tritonnb.core.messages import InferRequest, Respond, discard_response
from tritonnb.endpoints.grpc.infer_response import LENGTH_DELIMITED, encode_varint
from tritonnb.endpoints.models import InferenceEngine, InferenceModel
from tritonnb.endpoints.request_cache import LONGEST_HEAD, RequestTemplate, is_repeatable, store_bounded
from tritonnb.endpoints.tensors import ResponseFormat
from tritonnb.model_config.schema import ModelSpec

_MAX_ENTRIES = 256
_RAW_INPUT = pb.ModelInferRequest.DESCRIPTOR.fields_by_name["raw_input_contents"].number << 3 | LENGTH_DELIMITED


@dataclass(frozen=True, slots=True)
class _Entry:
    """A known message.

    Attributes
    ----------
    spec : ModelSpec
        Of the model as it was loaded when the message was read.
    template : RequestTemplate
    prefixes : tuple of (offset, bytes)
        The tag and the length before each input's contents.
    """

    spec: ModelSpec
    template: RequestTemplate
    prefixes: tuple[tuple[int, bytes], ...]


class GrpcRequestCache:
    """The known requests to one endpoint."""

    def __init__(self, engine: InferenceEngine) -> None:
        self._models = engine.table
        self._entries: dict[bytes, _Entry] = {}

    def find(
        self, message: bytes | bytearray, respond: Respond
    ) -> tuple[InferenceModel, InferRequest, ResponseFormat] | None:
        """The request of a message; None if its head is not known.

        Raises
        ------
        TritonError
            If the model is no longer served.
        """
        entry = self._entries.get(bytes(message[: _head_length(message)]))
        if entry is None or len(message) != entry.template.length:
            return None
        for offset, prefix in entry.prefixes:
            if not message.startswith(prefix, offset):
                return None
        request = entry.template.request
        served = self._models.get(request.model_name, request.model_version)
        if served.spec is not entry.spec:
            return None
        return served, entry.template.fill(message, respond), entry.template.response_format

    def store(
        self,
        message: bytes | bytearray,
        version: int,
        served: InferenceModel,
        request: InferRequest,
        response_format: ResponseFormat,
    ) -> None:
        """Remember the head of a request that was accepted, if all its inputs are raw.

        Parameters
        ----------
        message : bytes
        version : int
            The version that the client named, -1 for none.
        served : InferenceModel
            The model that accepted the request.
        request : InferRequest
        response_format : ResponseFormat
        """
        length = _head_length(message)
        if length > LONGEST_HEAD or not is_repeatable(served.spec, request, response_format):
            return
        offset = length
        prefixes: list[tuple[int, bytes]] = []
        inputs: list[tuple[Any, ...]] = []
        for name, tensor in request.inputs.items():
            datatype, array = tensor.datatype, tensor.array
            if not datatype.itemsize:
                return
            prefix = bytes([_RAW_INPUT]) + encode_varint(array.nbytes)
            if not message.startswith(prefix, offset):
                return  # the contents are typed, or in shared memory
            prefixes.append((offset, prefix))
            offset += len(prefix)
            inputs.append((name, datatype, datatype.numpy, array.size, offset, array.shape))
            offset += array.nbytes
        if offset != len(message):
            return
        repeated = request.clone({}, discard_response)
        repeated.model_version = version
        template = RequestTemplate(repeated, response_format, len(message), tuple(inputs))
        entry = _Entry(served.spec, template, tuple(prefixes))
        store_bounded(self._entries, bytes(message[:length]), entry, _MAX_ENTRIES)


def _head_length(message: bytes | bytearray) -> int:
    """Where the raw contents begin; the whole length if the fields are not in the usual order."""
    offset, end = 0, len(message)
    while offset < end - 1:
        tag = message[offset]
        if tag == _RAW_INPUT:
            return offset
        if tag & 7 != LENGTH_DELIMITED:
            return end
        size, offset = message[offset + 1], offset + 2
        if size & 0x80:
            size &= 0x7F
            shift = 7
            while offset < end:
                byte = message[offset]
                offset += 1
                size |= (byte & 0x7F) << shift
                if byte < 0x80:
                    break
                shift += 7
        offset += size
    return end
