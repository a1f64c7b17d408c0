"""A batch in a native backend: which requests it has, and which responses are still to come."""

from __future__ import annotations

import ctypes
import functools
import itertools
import threading
from dataclasses import dataclass

from tritonnb.backends.execution import Execution
from tritonnb.backends.native import library
from tritonnb.backends.native.tensors import read_response, read_tensor, write_request
from tritonnb.core.errors import InternalError, TritonError
from tritonnb.core.messages import InferResponse
from tritonnb.model_config.schema import ModelSpec

#: Numbers that identify the requests of a process in events.
_tokens = itertools.count(1)


@dataclass(slots=True)
class _Pending:
    """A request that the backend has not released, or whose final response it has not sent."""

    index: int
    memory: list[object]
    answered: bool = False
    released: bool = False


class NativeBatch:
    """The requests of an execution, until they are released and answered.

    The instance's thread collects the results of an execution; later events come from the thread of the model's events.

    Parameters
    ----------
    execution : Execution
    spec : ModelSpec
    batches : dict of int to NativeBatch
        The batches of the model's requests, by token; this one adds and removes its own.
    decoupled : bool
    """

    def __init__(self, execution: Execution, spec: ModelSpec, batches: dict[int, NativeBatch], decoupled: bool) -> None:
        self._execution = execution
        self._decoupled = decoupled
        self._spec = spec
        self._batches = batches
        self._library = library.load_shim()
        self._pending: dict[int, _Pending] = {}
        self._lock = threading.Lock()

    def add(self, model: int, index: int) -> int:
        """Describe a request to the shim; return its handle."""
        request, token = self._execution.requests[index], next(_tokens)
        handle, memory = write_request(model, self._spec, request, token)
        self._pending[token] = _Pending(index, memory)
        self._batches[token] = self
        request.on_cancel = functools.partial(self._library.tnb_cancel, token)
        if request.cancelled:
            request.on_cancel()
        return handle

    def collect(self, handles: list[int], failed: bool) -> None:
        """Answer the requests to which the backend has responded."""
        outcome = library.Outcome()
        with self._lock:
            for (token, pending), handle in zip([*self._pending.items()], handles, strict=True):
                self._library.tnb_request_collect(handle, failed, ctypes.byref(outcome))
                pending.released = bool(outcome.released)
                # The final response of a decoupled model is an event, which may not have been handled yet.
                pending.answered |= failed or bool(outcome.rescheduled if self._decoupled else not outcome.pending)
                try:
                    self._apply(pending.index, outcome, failed)
                except TritonError as error:  # a state or an output that is not valid
                    if self._execution.responses[pending.index] is None:
                        self._execution.fail(pending.index, error)
                self._library.tnb_request_finish(handle)
                self._forget_if_done(token, pending)

    def handle(self, event: library.Event) -> None:
        """Pass on an event of the backend after the execution."""
        with self._lock:
            pending = self._pending.get(event.token)
            if pending is None:
                return
            response = self._response(event, pending)
            if event.kind == library.RELEASED:
                pending.released = True
            sender = None if response is None else self._execution.sender(pending.index)
            if response is not None and response.final:
                pending.answered = True
            self._forget_if_done(event.token, pending)
        if response is not None and sender is not None and not sender.closed:
            sender.send(response)
        if event.kind == library.RESPONSE:
            self._library.tnb_response_free(event.response)

    def _response(self, event: library.Event, pending: _Pending) -> InferResponse | None:
        if event.kind == library.RESPONSE:
            request = self._execution.requests[pending.index]
            return read_response(self._spec, event.response, request, bool(event.flags))
        if event.kind == library.FLAGS:
            return InferResponse(empty=True)
        if event.kind == library.ABANDONED:
            request = self._execution.requests[pending.index]
            text = f"model '{request.model_name}': the backend released the request without a final response"
            return InferResponse(error=InternalError(text))
        return None

    def _apply(self, index: int, outcome: library.Outcome, failed: bool) -> None:
        """Pass on the outcome of a request in the execution."""
        execution = self._execution
        request = execution.requests[index]
        if outcome.reported >= 0:
            execution.reported[index] = bool(outcome.reported)
        if outcome.rescheduled and not failed:
            execution.reschedule(index)
        if request.states is not None and not failed:
            for number in range(outcome.state_count):
                state = read_tensor(outcome.states[number], f"model '{request.model_name}': state")
                request.states.update(state.name, state.array.copy())
        if outcome.response is not None:
            execution.answer(index, read_response(self._spec, outcome.response, request, final=True))
            self._library.tnb_response_free(outcome.response)
        elif outcome.pending:
            execution.sender(index)  # sends the response later

    def _forget_if_done(self, token: int, pending: _Pending) -> None:
        if pending.released and pending.answered:
            del self._pending[token]
            del self._batches[token]
            self._execution.requests[pending.index].on_cancel = None
