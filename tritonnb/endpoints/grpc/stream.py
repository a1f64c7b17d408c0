"""``ModelStreamInfer``: any number of requests and responses on one stream.

Responses of models that are not decoupled are sent in the order of the requests; responses of decoupled models are
sent as they arrive. An error concerns its request only, unless the client has set the metadata
``triton_grpc_error``: then it ends the stream.

Requests are begun in turns, and while there is room for them. A stream whose client does not read ends with an error.
"""

from __future__ import annotations

import asyncio
import itertools
import time
from collections import OrderedDict
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from typing import TypeAlias

from tritonnb.core.errors import InvalidArgumentError, TritonError, UnavailableError, strip_traceback
from tritonnb.core.messages import InferResponse
from tritonnb.core.protobuf import service_pb2 as pb
from tritonnb.endpoints.back_pressure import StreamingCalls, Turns, UnreadResponses
from tritonnb.endpoints.grpc.inference import Inference, OnResponse
from tritonnb.engine.submission import as_triton_error

_FINAL = "triton_final_response"
#: The number of requests that have no complete response yet, and of responses that are not sent.
_MAX_PENDING = 4096
#: A response, or the error that ends the stream.
_Message: TypeAlias = pb.ModelStreamInferResponse | TritonError


class InferStream:
    """One stream.

    Parameters
    ----------
    requests : async iterator of inference.ModelInferRequest
    submit : callable
        ``submit(request, on_response)`` is `Inference.submit` for a request of the stream.
    ends_on_error : bool
        Whether the first error of a model ends the stream.
    turns : Turns
    calls : StreamingCalls
        Of the endpoint.
    """

    def __init__(
        self,
        requests: AsyncIterator[pb.ModelInferRequest],
        submit: Callable[[pb.ModelInferRequest, OnResponse], Inference],
        ends_on_error: bool,
        turns: Turns,
        calls: StreamingCalls,
    ) -> None:
        self._requests = requests
        self._submit = submit
        self._ends_on_error = ends_on_error
        self._turns = turns
        self._unread = UnreadResponses("ModelStreamInfer", calls, self._give_up)
        self._has_room = asyncio.Event()
        # Without a limit, although the client may not read: a model must never wait for a client. `UnreadResponses`
        # bounds it instead.
        self._outgoing: asyncio.Queue[_Message | None] = asyncio.Queue()
        # The requests whose responses keep their order, by number; the value is the message, None until it arrives.
        self._in_order: OrderedDict[int, _Message | None] = OrderedDict()
        self._numbers = itertools.count()
        self._unanswered: set[Inference] = set()
        self._all_read = False
        self._stopping = False

    async def responses(self) -> AsyncGenerator[pb.ModelStreamInferResponse, None]:
        """Yield the messages to send; ends after the response to the last request.

        Raises
        ------
        TritonError
            The error that ends the stream.
        """
        # A task for the requests: a client may wait for a response before it sends the next request.
        reading = asyncio.get_running_loop().create_task(self._read())
        try:
            while (message := await self._outgoing.get()) is not None:
                if isinstance(message, TritonError):
                    raise message.fresh()
                self._unread.remove(message.ByteSize())
                self._update_room()
                yield message
        finally:
            reading.cancel()
            self._unread.close()
            for inference in list(self._unanswered):
                inference.cancel()

    def finish(self) -> None:
        """End the stream after the responses to accepted requests, with an error: the server is stopping."""
        self._stopping = True
        self._end_if_done()

    async def _read(self) -> None:
        try:
            end = 0.0
            async for request in self._requests:
                await self._begin(request)
                if self._unread.is_over:
                    return
                if self._pending >= _MAX_PENDING:
                    self._has_room.clear()
                    await self._has_room.wait()
                # Without this pause, a client that had sent 267,000 requests and read nothing took 1 GB, and another
                # client waited 61 s.
                if time.monotonic() > end:
                    await self._turns.take()
                    end = time.monotonic() + self._turns.seconds
        except InvalidArgumentError as error:  # a message of too many fields
            self._put(strip_traceback(error))
        finally:
            self._all_read = True
            self._end_if_done()

    @property
    def _pending(self) -> int:
        # The larger of the two and not their sum, because most requests are in both.
        return max(len(self._unanswered), len(self._in_order)) + self._outgoing.qsize()

    def _update_room(self) -> None:
        if self._pending < _MAX_PENDING:
            self._has_room.set()

    def _put(self, message: _Message | None) -> None:
        """Pass on a message, unless the client leaves too many unread."""
        if self._unread.is_over:
            return
        if isinstance(message, pb.ModelStreamInferResponse):
            self._unread.add(message.ByteSize())
        if not self._unread.is_over:
            self._outgoing.put_nowait(message)

    def _give_up(self, error: TritonError) -> None:
        """End the stream with an error."""
        # What the client did not read is dropped, so that its memory is free now and not when the client notices.
        while not self._outgoing.empty():
            self._outgoing.get_nowait()
        self._outgoing.put_nowait(error)
        for inference in list(self._unanswered):
            inference.cancel()

    async def _begin(self, request: pb.ModelInferRequest) -> None:
        number = next(self._numbers)
        self._in_order[number] = None  # the response may arrive before `inference.ordered` is known

        def on_response(inference: Inference, response: InferResponse) -> None:
            self._on_response(number, inference, response)

        inference = self._submit(request, on_response)
        if inference.reading is not None:
            # The next request may belong to the same sequence, and must not overtake this one.
            try:
                await asyncio.wait([inference.reading])
            except asyncio.CancelledError:
                inference.cancel()
                raise
        # A refusal arrives during `_submit`: adding the request now would leave it unanswered forever.
        if not inference.done:
            self._unanswered.add(inference)
        if not inference.ordered:
            self._in_order.pop(number, None)

    def _on_response(self, number: int, inference: Inference, response: InferResponse) -> None:
        message = self._message(inference, response)
        # Removed and added again, since a decoupled model may send any number of responses before the final one.
        self._unanswered.discard(inference)
        if not response.final:
            self._unanswered.add(inference)
        # A model that is not decoupled has exactly one response, so its place in the order is known when it is asked.
        if inference.ordered:
            self._send_in_order(number, message)
        else:
            self._in_order.pop(number, None)
            if message is not None:
                self._put(message)
            self._end_if_done()
        inference.sent(response.final)

    def _message(self, inference: Inference, response: InferResponse) -> _Message | None:
        """Make the message for a response: None for none, an error that ends the stream."""
        request = inference.message
        refusal = inference.submission.refusal
        if refusal is not None:
            message = pb.ModelStreamInferResponse(error_message=refusal.message)
            # Only the ID, without the names of the model and without parameters: so Triton reports an error that it
            # finds before the execution.
            message.infer_response.id = request.id
            return message
        # A decoupled model that ends with a bare final flag sends nothing more by default, as on Triton; the request
        # parameter asks for the message.
        if response.empty:
            if not inference.wants_empty_final:
                return None
            message = pb.ModelStreamInferResponse()
            _identify(message.infer_response, request)
        else:
            try:
                message = pb.ModelStreamInferResponse(infer_response=inference.response_message(response))
            except Exception as raised:
                error = strip_traceback(as_triton_error(raised))  # else it would refer to this frame
                if self._ends_on_error:
                    return error
                message = pb.ModelStreamInferResponse(error_message=error.message)
                _identify(message.infer_response, request)
        # Every message of a stream has the parameter, also from models that are not decoupled; unary responses never
        # have it.
        message.infer_response.parameters[_FINAL].bool_param = response.final
        return message

    def _send_in_order(self, number: int, message: _Message | None) -> None:
        self._in_order[number] = message
        # None is a request without a response so far: everything behind it waits.
        while next(iter(self._in_order.values()), None) is not None:
            self._put(self._in_order.popitem(last=False)[1])
        self._end_if_done()

    def _end_if_done(self) -> None:
        self._update_room()
        # Both sets, because a response may wait for its turn although its request is complete.
        if self._unanswered or self._in_order:
            return
        if self._all_read:
            self._put(None)
        elif self._stopping:
            self._put(UnavailableError("Server is stopping"))


def _identify(response: pb.ModelInferResponse, request: pb.ModelInferRequest) -> None:
    """Name the request that a response without outputs belongs to."""
    response.model_name = request.model_name
    response.model_version = request.model_version
    response.id = request.id
