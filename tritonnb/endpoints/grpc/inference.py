"""One inference over gRPC, unary or on a stream: read, submitted, answered, cancelled."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping
from typing import Any

from tritonnb.core.errors import InternalError, TritonError, UnsupportedError
from tritonnb.core.messages import InferRequest, InferResponse, discard_response
from tritonnb.endpoints.grpc.infer_request import read_request, wants_empty_final
from tritonnb.endpoints.grpc.infer_response import response_message
from tritonnb.endpoints.grpc.request_cache import MessageTemplates, response_bytes
from tritonnb.endpoints.tensors import ResponseFormat
from tritonnb.endpoints.versions import version_number
from tritonnb.runtime.engine import Engine
from tritonnb.runtime.models.served_base import Served
from tritonnb.telemetry.tracing import Trace

logger = logging.getLogger(__name__)

Take = Callable[["Inference", InferResponse], None]


class Inference:
    """A request on its way; made by `begin` or `repeat`.

    Attributes
    ----------
    given : inference.ModelInferRequest or None
        What the client sent; None if that was known before.
    ordered : bool
        On a stream, the answer keeps its place among those of the other requests.
    wants_empty_final : bool
        The client wants to hear of the end.
    done : bool
        The final response is there.
    """

    request: InferRequest

    def __init__(self, served: Served, take: Take) -> None:
        self.given: Any = None
        self.ordered = not served.decoupled
        self.wants_empty_final = False
        self.done = False
        self._served = served
        self._take = take
        self._answer: ResponseFormat
        self._trace: Trace | None = None

    @classmethod
    def begin(
        cls,
        engine: Engine,
        given: Any,
        take: Take,
        *,
        streaming: bool,
        metadata: Mapping[str, str],
        headers: dict[str, str] | None = None,
    ) -> Inference:
        """Read a request and give it to its model.

        Parameters
        ----------
        engine : Engine
        given : inference.ModelInferRequest
        take : callable
            ``take(inference, response)`` is called on the loop, once for each response.
        streaming : bool
            Whether the answer may be any number of responses.
        metadata : mapping of str to str
            May bring the client's trace context.
        headers : dict of str to str, optional
            Forwarded as request parameters.

        Raises
        ------
        TritonError
            If the request is refused at once.
        """
        served = engine.model(given.model_name, version_number(given.model_version))
        if served.decoupled and not streaming:
            raise UnsupportedError("ModelInfer RPC doesn't support models with decoupled transaction policy")
        self = cls(served, take)
        self.given = given
        self.wants_empty_final = streaming and wants_empty_final(given)
        self.request, self._answer = read_request(
            given, served.spec, served.version, engine.shared_memory, self._responded
        )
        if headers:
            self.request.parameters.update(headers)
        self._trace = engine.tracer.sample(served.name, metadata) if engine.tracer.active else None
        try:
            if self._trace is None:
                served.submit(self.request)
            else:
                self._submit_traced(self._trace)
        except TritonError:
            self._release()
            raise
        return self

    @classmethod
    def repeat(cls, templates: MessageTemplates, message: bytes | bytearray, take: Take) -> Inference | None:
        """Give a request to its model without reading it anew; None if it is not known.

        Raises
        ------
        TritonError
            If the request is refused at once.
        """
        self: Inference | None = None

        def respond(request: InferRequest, response: InferResponse) -> None:
            assert self is not None
            self._responded(request, response)

        made = templates.make(message, respond)
        if made is None:
            return None
        served, request, answer = made
        self = cls(served, take)
        self.request, self._answer = request, answer
        try:
            served.submit(request)
        except TritonError:
            self._release()
            raise
        return self

    def learn(self, templates: MessageTemplates, message: bytes | bytearray) -> None:
        """Remember a request that was accepted."""
        if self.ordered:
            version = version_number(self.given.model_version)
            templates.learn(message, version, self._served, self.request, self._answer)

    def response_bytes(self, response: InferResponse) -> bytes:
        """The ``ModelInferResponse`` of a response, as bytes.

        Raises
        ------
        TritonError
            If the response is an error, or cannot be written.
        """
        if self._trace is None:
            found = response_bytes(self._served, self.request, response, self._answer)
            if found is not None:
                return found
        serialized: bytes = self.message(response).SerializeToString()
        return serialized

    def _submit_traced(self, trace: Trace) -> None:
        now = time.monotonic_ns()
        trace.stamp("GRPC_WAITREAD_START", now)
        trace.stamp("GRPC_WAITREAD_END", now)
        try:
            trace.submit(self._served, self.request)
        except TritonError:
            trace.finish()
            raise

    def message(self, response: InferResponse) -> Any:
        """The ``ModelInferResponse`` of a response.

        Raises
        ------
        TritonError
            The error that it is, or why it cannot be written the way the client wants it.
        """
        if self._trace is not None:
            self._trace.stamp("GRPC_SEND_START", time.monotonic_ns())
        try:
            if response.error is not None:
                raise response.error.fresh()
            return response_message(self._served, self.request, response, self._answer)
        except TritonError:
            raise
        except Exception as error:
            logger.error("an inference response could not be written", exc_info=error)
            raise InternalError(f"{type(error).__name__}: {error}") from error

    def sent(self, final: bool) -> None:
        """A response has been handed to the transport."""
        if self._trace is not None:
            self._trace.stamp("GRPC_SEND_END", time.monotonic_ns())
            if final:
                self._trace.finish()
                self._trace = None

    def cancel(self) -> None:
        """The client went away."""
        logger.debug("Cancellation notification received for ModelInfer of '%s'", self._served.name)
        self._served.cancel(self.request)

    def _responded(self, request: InferRequest, response: InferResponse) -> None:
        if self._trace is not None:
            self._trace.responded(response, time.monotonic_ns())
        self.done = response.final
        if response.final:
            self._release()
        self._take(self, response)

    def _release(self) -> None:
        """Leave no circle behind: tensors can be large, and are to go with their request."""
        self.request.respond = discard_response
