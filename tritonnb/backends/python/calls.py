"""A request that one model sends to another, and the responses that come back."""

from __future__ import annotations

import asyncio
import threading
from collections import Counter
from collections.abc import Iterator, Sequence

from tritonnb.backends.python.instance_binding import Host
from tritonnb.backends.python.parameters import unsendable
from tritonnb.backends.python.response import InferenceResponse, from_core
from tritonnb.backends.python.tensor import Tensor, to_core_tensor
from tritonnb.core.errors import InvalidArgumentError, TritonError, UnsupportedError
from tritonnb.core.messages import MAX_CORRELATION_ID_BYTES, InferRequest, InferResponse, discard_response
from tritonnb.core.messages import Tensor as CoreTensor


class GivenInputs(dict[str, CoreTensor]):
    """The inputs of a request that a model makes; that two have one name is said when it is sent.

    Attributes
    ----------
    tensors : sequence of Tensor
        As the model gave them.
    twice : str or None
        A name that several of them have.
    """

    def __init__(self, tensors: Sequence[Tensor]) -> None:
        super().__init__((each.name(), to_core_tensor(each)) for each in tensors)
        self.tensors = tensors
        counts = Counter(each.name() for each in tensors)
        self.twice = next((name for name, count in counts.items() if count > 1), None)


class Call:
    """One request under way; its responses are awaited on the model's threads.

    Parameters
    ----------
    request : InferRequest
        As the model made it; a copy is sent, so that it can be sent again.
    host : Host
    decoupled : bool
        Any number of responses is welcome.
    cause : InferRequest, optional
        The request in whose trace this one is to be.
    """

    def __init__(self, request: InferRequest, host: Host, decoupled: bool, cause: InferRequest | None = None) -> None:
        self.responses: list[InferenceResponse] = []
        self.over = False
        self._model_name = request.model_name
        self._changed = threading.Condition()
        self._waiting: list[tuple[asyncio.AbstractEventLoop, asyncio.Future[InferenceResponse]]] = []
        self._request = InferRequest(
            request.model_name,
            {name: tensor.copy() for name, tensor in request.inputs.items()},
            self._responded,
            model_version=request.model_version,
            id=request.id,
            requested_outputs=request.requested_outputs,
            parameters=dict(request.parameters),
            timeout_us=request.timeout_us,
            correlation_id=request.correlation_id,
            flags=request.flags,
        )
        error = _fault(request)
        if error is not None:
            self._responded(self._request, InferResponse(error=error))
            return
        assert host.server is not None
        self._server = host.server
        self._server.infer(self._request, decoupled=decoupled, cause=cause)

    def wait(self, index: int) -> InferenceResponse:
        """Response number ``index``, when it is there.

        Raises
        ------
        IndexError
            If there is none.
        """
        with self._changed:
            self._changed.wait_for(lambda: self.over or len(self.responses) > index)
            return self.responses[index]

    def has_ended_before(self, index: int) -> bool:
        """Whether response number ``index`` will never come."""
        with self._changed:
            return self.over and len(self.responses) <= index

    async def arrival(self) -> InferenceResponse:
        """The first response, awaited on the event loop of whoever asks."""
        loop = asyncio.get_running_loop()
        with self._changed:
            if self.responses:
                return self.responses[0]
            future: asyncio.Future[InferenceResponse] = loop.create_future()
            self._waiting.append((loop, future))
        return await future

    def cancel(self) -> None:
        """Nobody waits for the responses any more."""
        if not self.over:
            self._server.cancel(self._request)

    def _responded(self, request: InferRequest, response: InferResponse) -> None:
        """On the server's loop."""
        found = from_core(response, self._message(request, response.error))
        if response.final:
            request.respond = discard_response  # no circle keeps its tensors
        with self._changed:
            self.responses.append(found)
            self.over = response.final
            self._changed.notify_all()
            waiting, self._waiting = self._waiting, []
        for loop, future in waiting:
            loop.call_soon_threadsafe(_settle, future, found)

    def _message(self, request: InferRequest, error: TritonError | None) -> str | None:
        """What was wrong with the request is told with the model's name; what the model said, as it said it."""
        if error is None or request.accepted_by is not None:
            return None
        return f"Model {self._model_name} - Error when running inference: {error.message}"


def _fault(request: InferRequest) -> TritonError | None:
    """What is wrong with a request before any model sees it."""
    correlation_id = request.correlation_id
    if isinstance(correlation_id, str) and len(correlation_id.encode()) > MAX_CORRELATION_ID_BYTES:
        return UnsupportedError(f"string correlation ID cannot be longer than {MAX_CORRELATION_ID_BYTES} characters")
    twice = request.inputs.twice if isinstance(request.inputs, GivenInputs) else None
    if twice is not None:
        return InvalidArgumentError(f"{request.id_prefix}input '{twice}' already exists in request")
    return unsendable(request.parameters)


class ResponseIterator:
    """The responses to a request, as they come; the last one may be empty.

    Iterating again goes on where it was left, and after the last response begins with the first.
    """

    def __init__(self, call: Call) -> None:
        self._call = call
        self._next = 0

    def __iter__(self) -> Iterator[InferenceResponse]:
        if self._call.has_ended_before(self._next):
            self._next = 0
        return self

    def __next__(self) -> InferenceResponse:
        try:
            response = self._call.wait(self._next)
        except IndexError:
            raise StopIteration from None
        self._next += 1
        return response

    def cancel(self) -> None:
        """Nobody waits for the responses any more."""
        self._call.cancel()


def _settle(future: asyncio.Future[InferenceResponse], response: InferenceResponse) -> None:
    if not future.done():
        future.set_result(response)
