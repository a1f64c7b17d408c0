"""One inference over gRPC, unary or on a stream: read the request, submit it, write the response, cancel it."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping

from tritonclient.grpc import service_pb2 as pb

from tritonnb.core.errors import TritonError, UnsupportedError
from tritonnb.core.messages import InferRequest, InferResponse, discard_response
from tritonnb.endpoints.grpc.infer_request import read_request, wants_empty_final
from tritonnb.endpoints.grpc.infer_response import common_response_parts, response_message
from tritonnb.endpoints.grpc.plain_request import PlainRequest
from tritonnb.endpoints.protocols import InferenceEngine, InferenceModel
from tritonnb.endpoints.request_rules import check_forwarded, version_number
from tritonnb.endpoints.tensors import ResponseFormat
from tritonnb.engine.shared_memory import SharedMemory
from tritonnb.telemetry.tracing import Trace

logger = logging.getLogger(__name__)
#: Called with each response of an inference.
OnResponse = Callable[["Inference", InferResponse], None]


class Inference:
    """A request in progress; made by `submit`.

    Attributes
    ----------
    message : inference.ModelInferRequest or PlainRequest
        What the client sent.
    ordered : bool
        On a stream, responses are sent in the order of the requests.
    wants_empty_final : bool
        The client wants an empty final response.
    done : bool
        The final response has arrived.
    """

    request: InferRequest

    def __init__(
        self, served: InferenceModel, message: pb.ModelInferRequest | PlainRequest, on_response: OnResponse
    ) -> None:
        self.message = message
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
        message: pb.ModelInferRequest | PlainRequest,
        on_response: OnResponse,
        *,
        streaming: bool,
        metadata: Mapping[str, str],
        headers: dict[str, str] | None = None,
    ) -> Inference:
        """Read a request and submit it to its model.

        Parameters
        ----------
        engine : Engine
        message : inference.ModelInferRequest or PlainRequest
        on_response : callable
            ``on_response(inference, response)`` is called on the loop, once for each response.
        streaming : bool
            Whether any number of responses is allowed.
        metadata : mapping of str to str
            Of the call; may contain the client's trace context.
        headers : dict of str to str, optional
            Forwarded as request parameters.

        Raises
        ------
        TritonError
            If the request is refused at once.
        """
        served = engine.table.get(message.model_name, version_number(message.model_version))
        self = cls(served, message, on_response)
        try:
            self._read(engine.shared_memory, streaming, headers)
        except TritonError as error:
            served.report_refusal(error)
            raise
        self._trace = engine.tracer.sample(served.name, metadata) if engine.tracer.active else None
        try:
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

    def _read(self, shared_memory: SharedMemory, streaming: bool, headers: Mapping[str, str] | None) -> None:
        served, message = self._served, self.message
        if served.decoupled and not streaming:
            raise UnsupportedError("ModelInfer RPC doesn't support models with decoupled transaction policy")
        if isinstance(message, PlainRequest):
            read = message.to_infer_request(served.spec, served.version, self._responded)
        else:
            self.wants_empty_final = streaming and wants_empty_final(message)
            read = read_request(message, served.spec, served.version, shared_memory, self._responded)
        self.request, self._response_format = read
        if headers:
            try:
                self.request.parameters.update(check_forwarded(headers))
            except TritonError:
                self._release()
                raise

    def response_parts(self, response: InferResponse) -> list[bytes | memoryview]:
        """Serialize the ``ModelInferResponse`` of a response, in parts of which none is a copy of a large tensor.

        Raises
        ------
        TritonError
            If the response is an error, or cannot be written.
        """
        if self._trace is None:
            common = common_response_parts(self._served, self.request, response, self._response_format)
            if common is not None:
                return common
        return [self.response_message(response).SerializeToString()]

    def response_message(self, response: InferResponse) -> pb.ModelInferResponse:
        """Make the ``ModelInferResponse`` of a response.

        Raises
        ------
        TritonError
            If the response is an error, or cannot be written in the requested format.
        """
        if self._trace is not None:
            self._trace.stamp("GRPC_SEND_START", time.monotonic_ns())
        if response.error is not None:
            raise response.error.fresh()
        return response_message(self._served, self.request, response, self._response_format)

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
