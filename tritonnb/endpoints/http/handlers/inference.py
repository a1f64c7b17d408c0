"""Inferences in a handler: their requests, responses and traces, and the end of both when the client disconnects."""

from __future__ import annotations

import asyncio
import functools
import time
from collections.abc import AsyncIterator, Callable

from tritonnb.core.errors import TritonError
from tritonnb.core.messages import InferRequest, InferResponse
from tritonnb.endpoints.back_pressure import StreamingCalls, UnreadResponses
from tritonnb.endpoints.http.handlers.metadata import Handler
from tritonnb.endpoints.long_work import LONG
from tritonnb.engine.models.served_model import ServedModel
from tritonnb.engine.submission import Submission
from tritonnb.telemetry.tracing import Trace


class PendingRequests:
    """The inference requests of one client in flight.

    Parameters
    ----------
    served : ServedModel
    make : callable
        Makes the requests.
    calls : StreamingCalls
        Of the endpoint.

    Attributes
    ----------
    requests : list of InferRequest
    """

    def __init__(self, served: ServedModel, make: Callable[[], list[InferRequest]], calls: StreamingCalls) -> None:
        self._served = served
        try:
            self.requests = make()
        except TritonError as error:
            # Nobody waits for this response, since the handler raises the error; the submission only reports the
            # refusal.
            Submission(lambda response: None).refuse(error, served)
            raise
        self._submissions = [Submission(functools.partial(self._responded, n)) for n in range(len(self.requests))]
        self._responses: asyncio.Queue[tuple[int, InferResponse]] = asyncio.Queue()
        self._unread = UnreadResponses("generate_stream", calls, self._give_up)
        self._has_given_up = False
        #: The requests that the handler still waits for.
        self._awaited = set(range(len(self.requests)))

    def submit(self, trace: Callable[[], Trace | None]) -> None:
        """Send the requests to the model.

        Parameters
        ----------
        trace : callable
            Returns the trace of a request; None if it is not traced.

        Raises
        ------
        TritonError
            If a request is rejected; the others are cancelled.
        """
        for submission, request in zip(self._submissions, self.requests, strict=True):
            submission.submit(self._served, request, trace())
            # All or nothing: a client that asked for several choices has no use for some of them.
            if submission.refusal is not None:
                self.cancel()
                raise submission.refusal.fresh()  # its traceback would keep the request, which keeps the refusal

    def cancel(self) -> None:
        """Cancel the requests that are not complete."""
        self._unread.close()
        for submission in self._submissions:
            submission.cancel()

    def abandon(self, index: int) -> None:
        """Cancel a request, and ignore its further responses: its client has all that it asked for."""
        self._awaited.discard(index)
        self._submissions[index].cancel()

    async def responses(self) -> AsyncIterator[tuple[int, InferResponse]]:
        """Yield each response with the index of its request, until all requests are complete or abandoned."""
        while self._awaited:
            index, response = await self._responses.get()
            # Counted as read when it is taken from the queue; what the socket then holds is the business of the
            # connection.
            self._unread.remove(_size(response))
            if index in self._awaited:
                if response.final:
                    self._awaited.discard(index)
                yield index, response
        self._unread.close()

    async def successes(self) -> AsyncIterator[tuple[int, InferResponse]]:
        """Yield the same responses.

        Raises
        ------
        TritonError
            If a request fails; the others are cancelled.
        """
        async for index, response in self.responses():
            if response.error is not None:
                self.cancel()
                raise response.error.fresh()
            yield index, response

    def _responded(self, index: int, response: InferResponse) -> None:
        if index not in self._awaited or self._has_given_up:
            return
        self._unread.add(_size(response))
        if self._has_given_up:
            return
        # A model may go on after it was cancelled: nobody counts, and nobody reads, what it sends before the end.
        if response.final or not self._unread.is_over:
            self._responses.put_nowait((index, response))

    def _give_up(self, error: TritonError) -> None:
        """End the requests with an error, since too many responses are unread."""
        self._has_given_up = True
        while not self._responses.empty():
            self._responses.get_nowait()
        # One error for each request, because `responses` counts final responses by request.
        for awaited in self._awaited:
            self._responses.put_nowait((awaited, InferResponse(error=error)))
        self.cancel()


def _size(response: InferResponse) -> int:
    """Return about how many bytes the outputs of a response take."""
    size = 0
    for tensor in response.outputs:
        size += tensor.array.nbytes
        if tensor.datatype.variable_size and tensor.array.size:
            # The mean of the first: to look at each of millions would take as long as to write them.
            first = tensor.array.ravel()[:LONG]
            size += sum(map(len, first.tolist())) * tensor.array.size // first.size
    return size


class InferenceHandler(Handler):
    """The base class of handlers that run a model; requests of a disconnected client are cancelled."""

    _pending: PendingRequests | None = None
    _is_disconnected = False
    _traces: tuple[Trace, ...] = ()

    def trace(self, model: str) -> Trace | None:
        """Return the trace of a request to a model, which ends with the response; None if it is not traced."""
        tracer = self.engine.tracer
        trace = tracer.sample(model, self.request.headers) if tracer.active else None
        if trace is not None:
            self._traces += (trace,)
        return trace

    @property
    def streaming_calls(self) -> StreamingCalls:
        """The streaming calls of the endpoint."""
        calls: StreamingCalls = self.settings["streaming_calls"]
        return calls

    def submit(self, pending: PendingRequests, trace: Callable[[], Trace | None]) -> None:
        """Send requests to their model."""
        self._pending = pending
        pending.submit(trace)
        # Tornado may report the end of the connection before there was anything to cancel.
        if self._is_disconnected:
            pending.cancel()

    def on_connection_close(self) -> None:
        """Cancel the requests of a client that has disconnected (Tornado's interface)."""
        self._is_disconnected = True
        if self._pending is not None:
            self._pending.cancel()

    def on_finish(self) -> None:
        """Called when the response is complete (Tornado's interface)."""
        if self._pending is not None:
            self._pending.cancel()  # if this handler has failed, nobody waits for the rest
        self._pending = None  # its requests refer to this handler
        for trace in self._traces:
            trace.stamp("HTTP_SEND_END", time.monotonic_ns())
            trace.finish()
