"""A request that one model sends to another (business logic scripting), and its responses."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Sequence
from concurrent.futures import Future
from typing import Self

from tritonnb.backends.contract import ServerCalls
from tritonnb.backends.python.response import InferenceResponse, find_parameter_error, from_core_response
from tritonnb.backends.python.tensor import Tensor
from tritonnb.core.errors import InvalidArgumentError, TritonError, UnsupportedError
from tritonnb.core.messages import MAX_CORRELATION_ID_BYTES, InferRequest, InferResponse, discard_response


class BlsCall:
    """A request in progress: an iterator over its responses as they arrive, of which the last one may be empty.

    A second iteration continues where the first one stopped; after the last response it starts from the first.

    Parameters
    ----------
    request : InferRequest
        The request that the model created. A copy is sent, so that the model can send it again.
    inputs : sequence of Tensor
        Its inputs, as the model passed them: duplicate names are an error, as on Triton.
    server : ServerCalls
    decoupled : bool
        Whether the model accepts any number of responses.
    cause : InferRequest, optional
        The request whose trace includes this one.
    """

    def __init__(
        self,
        request: InferRequest,
        inputs: Sequence[Tensor],
        server: ServerCalls,
        decoupled: bool,
        cause: InferRequest | None,
    ) -> None:
        self._responses: list[InferenceResponse] = []
        self._finished = False
        self._next = 0
        self._server = server
        self._condition = threading.Condition()
        self._waiter: Future[InferenceResponse] | None = None
        self._request = InferRequest(
            request.model_name,
            {name: tensor.copy() for name, tensor in request.inputs.items()},
            self._receive,
            model_version=request.model_version,
            id=request.id,
            requested_outputs=request.requested_outputs,
            parameters=dict(request.parameters),
            timeout_us=request.timeout_us,
            correlation_id=request.correlation_id,
            flags=request.flags,
        )
        error = _find_error(request, inputs)
        if error is not None:
            self._receive(self._request, InferResponse(error=error))
            return
        server.infer(self._request, decoupled=decoupled, cause=cause)

    def wait(self, index: int) -> InferenceResponse:
        """Wait for response ``index``, counted from 0.

        Raises
        ------
        IndexError
            If the request ended with fewer responses.
        """
        with self._condition:
            self._condition.wait_for(lambda: self._finished or len(self._responses) > index)
            return self._responses[index]

    async def wait_async(self) -> InferenceResponse:
        """Wait for the first response on the event loop of the caller."""
        with self._condition:
            if self._responses:
                return self._responses[0]
            waiter = self._waiter = Future()
        return await asyncio.wrap_future(waiter)

    def __iter__(self) -> Self:
        with self._condition:
            if self._finished and len(self._responses) <= self._next:
                self._next = 0
        return self

    def __next__(self) -> InferenceResponse:
        try:
            response = self.wait(self._next)
        except IndexError:
            raise StopIteration from None
        self._next += 1
        return response

    def cancel(self) -> None:
        """Cancel the request: its responses are no longer needed."""
        if not self._finished:
            self._server.cancel(self._request)

    def _receive(self, request: InferRequest, response: InferResponse) -> None:
        """Store a response; called on the server's event loop."""
        message = None
        if response.error is not None and request.accepted_by is None:  # otherwise it is the model's own error
            message = f"Model {self._request.model_name} - Error when running inference: {response.error.message}"
        received = from_core_response(response, message)
        if response.final:
            request.respond = discard_response  # so that no reference cycle keeps its tensors
        with self._condition:
            self._responses.append(received)
            self._finished = response.final
            self._condition.notify_all()
            waiter, self._waiter = self._waiter, None
        if waiter is not None and waiter.set_running_or_notify_cancel():
            waiter.set_result(received)


def _find_error(request: InferRequest, inputs: Sequence[Tensor]) -> TritonError | None:
    """Return the error in a request that is found before it is sent to a model, if there is one."""
    correlation_id = request.correlation_id
    if isinstance(correlation_id, str) and len(correlation_id.encode()) > MAX_CORRELATION_ID_BYTES:
        return UnsupportedError(f"string correlation ID cannot be longer than {MAX_CORRELATION_ID_BYTES} characters")
    names = [tensor.name() for tensor in inputs]
    duplicate = next((name for name in names if names.count(name) > 1), None)
    if duplicate is not None:
        return InvalidArgumentError(f"{request.id_prefix}input '{duplicate}' already exists in request")
    return find_parameter_error(request.parameters)
