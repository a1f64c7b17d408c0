"""One inference over gRPC, unary or on a stream: read the request, submit it, write the response, cancel it.

Messages that were read before are known: they differ only in their raw contents, which protobuf writes last.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from tritonclient.grpc import service_pb2 as pb

from tritonnb.core.errors import InternalError, TritonError, UnsupportedError
from tritonnb.core.messages import InferRequest, InferResponse, Respond, discard_response
from tritonnb.endpoints.caches import LONGEST_HEAD, MAX_HEADS, BoundedCache, RequestTemplate, is_repeatable
from tritonnb.endpoints.grpc.infer_request import read_request, wants_empty_final
from tritonnb.endpoints.grpc.infer_response import (
    LENGTH_DELIMITED,
    common_response_bytes,
    encode_varint,
    response_message,
)
from tritonnb.endpoints.protocols import InferenceEngine, InferenceModel, Models
from tritonnb.endpoints.request_rules import check_forwarded, version_number
from tritonnb.endpoints.tensors import ResponseFormat
from tritonnb.telemetry.tracing import Trace

_RAW_INPUT = pb.ModelInferRequest.DESCRIPTOR.fields_by_name["raw_input_contents"].number << 3 | LENGTH_DELIMITED

logger = logging.getLogger(__name__)
#: Called with each response of an inference.
OnResponse = Callable[["Inference", InferResponse], None]


@dataclass(frozen=True, slots=True)
class _KnownMessage:
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
        self._entries: BoundedCache[bytes, _KnownMessage] = BoundedCache(limit)

    def find(
        self, message: bytes | bytearray, respond: Respond
    ) -> tuple[InferenceModel, InferRequest, ResponseFormat] | None:
        """Return the request of a message; None if its head is not known.

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
        self._entries.store(head, _KnownMessage(template, tuple(prefixes)))


def _head_length(message: bytes | bytearray) -> int:
    """Return the offset of the raw contents; the whole length if the fields are not in the usual order."""
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


class Inference:
    """A request in progress; made by `begin` or `submit_cached`.

    Attributes
    ----------
    message : inference.ModelInferRequest or None
        What the client sent; None if the request was in the cache.
    ordered : bool
        On a stream, responses are sent in the order of the requests.
    wants_empty_final : bool
        The client wants an empty final response.
    done : bool
        The final response has arrived.
    """

    request: InferRequest

    def __init__(self, served: InferenceModel, on_response: OnResponse) -> None:
        self.message: pb.ModelInferRequest | None = None
        self.ordered = not served.decoupled
        self.wants_empty_final = False
        self.done = False
        self._served = served
        self._on_response = on_response
        self._response_format = ResponseFormat()
        self._trace: Trace | None = None

    @classmethod
    def submit(
        cls,
        engine: InferenceEngine,
        message: pb.ModelInferRequest,
        on_response: OnResponse,
        *,
        streaming: bool,
        metadata: Mapping[str, str],
        headers: dict[str, str] | None = None,
        cache: GrpcRequestCache | None = None,
        serialized: bytes | bytearray = b"",
    ) -> Inference:
        """Read a request and submit it to its model.

        Parameters
        ----------
        engine : Engine
        message : inference.ModelInferRequest
        on_response : callable
            ``on_response(inference, response)`` is called on the loop, once for each response.
        streaming : bool
            Whether any number of responses is allowed.
        metadata : mapping of str to str
            Of the call; may contain the client's trace context.
        headers : dict of str to str, optional
            Forwarded as request parameters.
        cache : GrpcRequestCache, optional
            Where the request is stored if it passes the checks of its model.
        serialized : bytes
            The message as the client sent it, for the cache.

        Raises
        ------
        TritonError
            If the request is refused at once.
        """
        served = engine.table.get(message.model_name, version_number(message.model_version))
        if served.decoupled and not streaming:
            raise UnsupportedError("ModelInfer RPC doesn't support models with decoupled transaction policy")
        self = cls(served, on_response)
        self.message = message
        self.wants_empty_final = streaming and wants_empty_final(message)
        self.request, self._response_format = read_request(
            message, served.spec, served.version, engine.shared_memory, self._responded
        )
        self._trace = engine.tracer.sample(served.name, metadata) if engine.tracer.active else None
        try:
            if cache is not None:  # before the model gets the request, since it may change it
                served.check(self.request)
                cache.store(serialized, message, served, self.request, self._response_format)
            if headers:
                self.request.parameters.update(check_forwarded(headers))
            if self._trace is not None:
                now = time.monotonic_ns()
                self._trace.stamp("GRPC_WAITREAD_START", now)
                self._trace.stamp("GRPC_WAITREAD_END", now)
            served.submit(self.request, self._trace)
        except TritonError:
            if self._trace is not None:
                self._trace.finish()
            self._release()
            raise
        return self

    @classmethod
    def submit_cached(
        cls, cache: GrpcRequestCache, serialized: bytes | bytearray, on_response: OnResponse
    ) -> Inference | None:
        """Submit a request that was read before to its model; None if it is not in the cache.

        Raises
        ------
        TritonError
            If the request is refused at once.
        """
        self: Inference | None = None

        def respond(request: InferRequest, response: InferResponse) -> None:
            assert self is not None
            self._responded(request, response)

        cached = cache.find(serialized, respond)
        if cached is None:
            return None
        served, request, response_format = cached
        self = cls(served, on_response)
        self.request, self._response_format = request, response_format
        try:
            served.submit(request)
        except TritonError:
            self._release()
            raise
        return self

    def response_bytes(self, response: InferResponse) -> bytes:
        """Serialize the ``ModelInferResponse`` of a response.

        Raises
        ------
        TritonError
            If the response is an error, or cannot be written.
        """
        if self._trace is None:
            common = common_response_bytes(self._served, self.request, response, self._response_format)
            if common is not None:
                return common
        serialized: bytes = self.response_message(response).SerializeToString()
        return serialized

    def response_message(self, response: InferResponse) -> pb.ModelInferResponse:
        """Make the ``ModelInferResponse`` of a response.

        Raises
        ------
        TritonError
            If the response is an error, or cannot be written in the requested format.
        """
        if self._trace is not None:
            self._trace.stamp("GRPC_SEND_START", time.monotonic_ns())
        try:
            if response.error is not None:
                raise response.error.fresh()
            return response_message(self._served, self.request, response, self._response_format)
        except TritonError:
            raise
        except Exception as error:
            logger.error("an inference response could not be written", exc_info=error)
            raise InternalError(f"{type(error).__name__}: {error}") from error

    def sent(self, final: bool) -> None:
        """Record that a response was passed to the transport."""
        if self._trace is not None:
            self._trace.stamp("GRPC_SEND_END", time.monotonic_ns())
            if final:
                self._trace.finish()
                self._trace = None

    def cancel(self) -> None:
        """Cancel the request: the client has ended the call."""
        logger.debug("Cancellation notification received for ModelInfer of '%s'", self._served.name)
        self.request.cancel()

    def _responded(self, request: InferRequest, response: InferResponse) -> None:
        self.done = response.final
        if response.final:
            self._release()
        self._on_response(self, response)

    def _release(self) -> None:
        """Break the reference cycle with the request, so that large tensors are freed with it."""
        self.request.respond = discard_response
