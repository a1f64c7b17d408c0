"""One inference over gRPC, unary or on a stream: read the request, submit it, write the response, cancel it."""

from __future__ import annotations

import asyncio
import functools
import logging
import time
from collections.abc import Callable, Mapping
from typing import Any

from tritonnb.core.errors import UnsupportedError
from tritonnb.core.messages import InferRequest, InferResponse
from tritonnb.core.protobuf import service_pb2 as pb
from tritonnb.endpoints.grpc.infer_request import count_elements, read_request, wants_empty_final
from tritonnb.endpoints.grpc.infer_response import common_response_parts, response_message
from tritonnb.endpoints.grpc.plain_request import PlainRequest
from tritonnb.endpoints.long_work import LONG, LongWork
from tritonnb.endpoints.protocols import InferenceEngine, InferenceModel
from tritonnb.endpoints.request_rules import check_forwarded, log_failed, version_number
from tritonnb.endpoints.tensors import ResponseFormat, encoded, response_size
from tritonnb.engine.shared_memory import SharedMemory
from tritonnb.engine.submission import Submission
from tritonnb.model_config.schema import ModelSpec
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
    submission : Submission
    ordered : bool
        On a stream, responses are sent in the order of the requests.
    wants_empty_final : bool
        The client wants an empty final response.
    reading : asyncio.Future or None
        Done when another thread has parsed the message of a long request, or has read the request, which is then
        submitted or refused.
    """

    request: InferRequest
    _served: InferenceModel

    def __init__(
        self, message: pb.ModelInferRequest | PlainRequest, on_response: OnResponse, long_work: LongWork
    ) -> None:
        self.message = message
        self.submission = Submission(self._responded)
        self.ordered = True
        self.wants_empty_final = False
        self.reading: asyncio.Future[Any] | None = None
        self._on_response = on_response
        self._long_work = long_work
        self._encoding = 0  # responses that are encoded on another thread, or wait for one that is
        self._response_format = ResponseFormat()
        self._trace: Trace | None = None

    @classmethod
    def submit(
        cls,
        engine: InferenceEngine,
        message: pb.ModelInferRequest | PlainRequest,
        on_response: OnResponse,
        *,
        long_work: LongWork,
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
            ``on_response(inference, response)`` is called on the loop, once for each response; a refused request has
            one, with the error.
        long_work : LongWork
            Of the endpoint.
        streaming : bool
            Whether any number of responses is allowed.
        metadata : mapping of str to str
            Of the call; may contain the client's trace context.
        headers : dict of str to str, optional
            Forwarded as request parameters.
        """
        self = cls(message, on_response, long_work)
        self._submit(engine, streaming, metadata, headers)
        return self

    @classmethod
    def submit_parsed(
        cls,
        engine: InferenceEngine,
        parsing: asyncio.Future[pb.ModelInferRequest],
        on_response: OnResponse,
        *,
        long_work: LongWork,
        metadata: Mapping[str, str],
        headers: dict[str, str] | None = None,
    ) -> Inference:
        """Submit a request with one response, as `submit`, when its message has been parsed."""
        self = cls(pb.ModelInferRequest(), on_response, long_work)
        self.reading = parsing

        def submit(parsed: asyncio.Future[pb.ModelInferRequest]) -> None:
            if parsed.cancelled():
                return
            self.reading = None
            error = parsed.exception()
            if error is None:
                self.message = parsed.result()
                self._submit(engine, False, metadata, headers)
            else:
                assert isinstance(error, Exception)
                self.submission.refuse(error, None)

        parsing.add_done_callback(submit)
        return self

    def _submit(
        self, engine: InferenceEngine, streaming: bool, metadata: Mapping[str, str], headers: dict[str, str] | None
    ) -> None:
        message = self.message
        served: InferenceModel | None = None
        try:
            version = message.model_version
            served = engine.table.get(message.model_name, version_number(version) if version else -1)
            self._served = served
            if _takes_long(served.spec, message):
                read = functools.partial(self._read_and_check, engine.shared_memory, streaming, headers)
                reading = asyncio.ensure_future(self._long_work.run(read))
                reading.add_done_callback(functools.partial(self._start, engine, metadata))
                self.reading = reading
                return
            self._read(engine.shared_memory, streaming, headers)
        except Exception as error:
            # A refusal is a response like any other, so the stream can put it in its place in the order.
            self.submission.refuse(error, served)
            return
        self._start(engine, metadata)

    def _start(
        self, engine: InferenceEngine, metadata: Mapping[str, str], reading: asyncio.Future[None] | None = None
    ) -> None:
        """Submit the request, unless it was refused while it was read."""
        served = self._served
        if reading is not None:
            if reading.cancelled():
                return
            error = reading.exception()
            if error is not None:
                assert isinstance(error, Exception)
                self.submission.refuse(error, served)
                return
        # Triton orders responses of other models in its front end as well; decoupled models may overtake each other.
        self.ordered = not served.decoupled
        if engine.tracer.active:
            self._trace = engine.tracer.sample(served.name, metadata)
            if self._trace is not None:
                # Our readers do not wait for a message, so both stamps of Triton's WAITREAD are the same moment.
                now = time.monotonic_ns()
                self._trace.stamp("GRPC_WAITREAD_START", now)
                self._trace.stamp("GRPC_WAITREAD_END", now)
        self.submission.submit(served, self.request, self._trace)

    def _read(self, shared_memory: SharedMemory, streaming: bool, headers: Mapping[str, str] | None) -> None:
        served, message = self._served, self.message
        if served.decoupled and not streaming:
            raise UnsupportedError("ModelInfer RPC doesn't support models with decoupled transaction policy")
        if isinstance(message, PlainRequest):
            read = message.to_infer_request(served.spec, served.version)
        else:
            self.wants_empty_final = streaming and wants_empty_final(message)
            read = read_request(message, served.spec, served.version, shared_memory)
        self.request, self._response_format = read
        if headers:
            self.request.parameters.update(check_forwarded(headers))

    def _read_and_check(self, shared_memory: SharedMemory, streaming: bool, headers: Mapping[str, str] | None) -> None:
        self._read(shared_memory, streaming, headers)
        # Here, and not when the request is submitted, since the check decodes strings.
        self._served.check(self.request)

    @property
    def done(self) -> bool:
        """Whether the last response has been passed on."""
        return self.submission.done and not self._encoding

    def response_parts(self, response: InferResponse) -> list[bytes | memoryview]:
        """Serialize the ``ModelInferResponse`` of a response, in parts; no part is a copy of a large tensor.

        Raises
        ------
        TritonError
            If the response is an error, or cannot be written.
        """
        # A traced response takes the slow path, since its stamps belong between the steps that the quick one joins.
        if self._trace is None and response.error is None:
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
            # A copy, since an exception that is raised again extends its traceback, which keeps frames and their
            # tensors alive.
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
        logger.debug("Cancellation notification received for ModelInfer of '%s'", self.message.model_name)
        if self.reading is not None:
            self.reading.cancel()
        self.submission.cancel()

    def _responded(self, response: InferResponse) -> None:
        if self.submission.refusal is not None:
            log_failed(self.message.id, self.submission.refusal)
            # Refusals keep the order even for a decoupled model: they are known before the next request is read.
            self.ordered = True
            if self._trace is not None:
                self._trace.finish()
                self._trace = None
        if self._encoding or response_size(response, is_copied=True) > LONG:
            self._encode_aside(response)
        else:
            self._on_response(self, response)

    def _encode_aside(self, response: InferResponse) -> None:
        """Encode the strings of a long response on another thread; long work is done in order."""
        self._encoding += 1
        work = asyncio.ensure_future(self._long_work.run(functools.partial(encoded, response)))
        work.add_done_callback(functools.partial(self._encoded, response))

    def _encoded(self, response: InferResponse, work: asyncio.Future[InferResponse]) -> None:
        self._encoding -= 1
        if not work.cancelled():
            # Whoever writes an output that cannot be encoded reports the error.
            self._on_response(self, response if work.exception() else work.result())


def _takes_long(spec: ModelSpec, message: pb.ModelInferRequest | PlainRequest) -> bool:
    """Return whether it takes long to read a message: typed contents and strings are read element by element."""
    if isinstance(message, PlainRequest):
        return message.size > LONG and _has_strings(spec)
    if message.raw_input_contents:
        return _has_strings(spec) and message.ByteSize() > LONG
    return count_elements(message) > LONG // 8


def _has_strings(spec: ModelSpec) -> bool:
    return any(tensor.datatype.variable_size for tensor in spec.inputs.values())
