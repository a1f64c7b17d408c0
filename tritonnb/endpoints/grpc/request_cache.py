"""Inference messages that were read before: they differ only in their raw contents, which protobuf writes last."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from tritonclient.grpc import service_pb2 as pb

from tritonnb.core.messages import InferRequest, Respond, discard_response
from tritonnb.endpoints.bounded_cache import BoundedCache
from tritonnb.endpoints.grpc.infer_response import LENGTH_DELIMITED, encode_varint
from tritonnb.endpoints.models import InferenceModel, Models
from tritonnb.endpoints.request_cache import LONGEST_HEAD, MAX_HEADS, RequestTemplate, is_repeatable
from tritonnb.endpoints.requests import version_number
from tritonnb.endpoints.tensors import ResponseFormat

_RAW_INPUT = pb.ModelInferRequest.DESCRIPTOR.fields_by_name["raw_input_contents"].number << 3 | LENGTH_DELIMITED


@dataclass(frozen=True, slots=True)
class _Entry:
    """A known message.

    Attributes
    ----------
    template : RequestTemplate
    prefixes : tuple of (offset, bytes)
        The tag and the length before each input's contents.
    """

    template: RequestTemplate
    prefixes: tuple[tuple[int, bytes], ...]


class GrpcRequestCache:
    """The known requests to one endpoint.

    Parameters
    ----------
    models : Models
    limit : int, optional
        The number of heads that are stored.
    """

    def __init__(self, models: Models, limit: int = MAX_HEADS) -> None:
        self._models = models
        self._entries: BoundedCache[bytes, _Entry] = BoundedCache(limit)

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
        if entry is None:
            return None
        template = entry.template
        if len(message) != template.length:
            return None
        for offset, prefix in entry.prefixes:
            if not message.startswith(prefix, offset):
                return None
        served = self._models.get(template.request.model_name, template.request.model_version)
        if served.spec is not template.spec:
            return None
        return served, template.fill(message, respond), template.response_format

    def store(
        self,
        message: bytes | bytearray,
        parsed: pb.ModelInferRequest,
        served: InferenceModel,
        request: InferRequest,
        response_format: ResponseFormat,
    ) -> None:
        """Remember the head of a request that was accepted, if all its inputs are raw.

        Parameters
        ----------
        message : bytes
        parsed : inference.ModelInferRequest
            The same message.
        served : InferenceModel
            The model whose checks the request has passed.
        request : InferRequest
        response_format : ResponseFormat
        """
        length = _head_length(message)
        if length > LONGEST_HEAD or not is_repeatable(served.spec, request, response_format):
            return
        if any(tensor.parameters for tensor in parsed.inputs):
            return  # an input is in shared memory
        head = bytes(message[:length])
        if not self._entries.admits(head):
            return
        offset = length
        prefixes: list[tuple[int, bytes]] = []
        inputs: list[tuple[Any, ...]] = []
        for name, tensor in request.inputs.items():
            datatype, array = tensor.datatype, tensor.array
            prefix = bytes([_RAW_INPUT]) + encode_varint(array.nbytes)
            if not message.startswith(prefix, offset):
                return  # the contents are typed
            prefixes.append((offset, prefix))
            offset += len(prefix)
            inputs.append((name, datatype, datatype.numpy, array.size, offset, array.shape))
            offset += array.nbytes
        if offset != len(message):
            return
        repeated = request.clone({}, discard_response)
        repeated.model_version = version_number(parsed.model_version)
        template = RequestTemplate(served.spec, repeated, response_format, len(message), tuple(inputs))
        self._entries.store(head, _Entry(template, tuple(prefixes)))


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
