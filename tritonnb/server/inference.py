"""In-process inference with NumPy arrays, without a socket.

Calls may come from any thread or event loop; the server's event loop handles their requests like all others.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import logging
import weakref
from collections import deque
from collections.abc import Callable
from queue import SimpleQueue

import numpy as np
import numpy.typing as npt

from tritonnb.client.array_requests import Outputs
from tritonnb.core.errors import InternalError, TritonError, UnavailableError
from tritonnb.core.messages import InferRequest, InferResponse, Tensor
from tritonnb.core.ownership import ensure_writeable
from tritonnb.engine.engine import Engine
from tritonnb.engine.execution.instance import Instance, instance_that_waits
from tritonnb.engine.execution.loop import BackgroundLoop, wait
from tritonnb.engine.models.bls import register_wait

logger = logging.getLogger(__name__)


class Submitter:
    """A submitter of requests from other threads to the engine's event loop, many with one wake-up."""

    def __init__(self, engine: Engine, background: BackgroundLoop) -> None:
        self._engine = engine
        self._background = background
        self._loop = background.loop
        #: Requests, and the instances whose models wait for their responses.
        self._pending: deque[tuple[InferRequest, Instance | None]] = deque()
        self._is_wake_scheduled = False
        background.on_closed = self._refuse_pending

    def submit(self, request: InferRequest) -> None:
        """Submit a request; every outcome, including a refusal, is passed to ``request.respond``.

        Raises
        ------
        UnsupportedError
            If a model calls another one while the event loop executes it.
        """
        self._pending.append((request, instance_that_waits()))
        # `_submit_pending` lowers the flag before it empties the queue, so a request that finds it raised is
        # in time to be taken.
        if not self._is_wake_scheduled:
            try:
                self._is_wake_scheduled = True
                self._wake()
            except BaseException:  # an interrupt: threads that found the flag raised rely on this one
                self._wake()
                raise

    def _wake(self) -> None:
        try:
            self._loop.call_soon_threadsafe(self._submit_pending)
        except RuntimeError:  # the loop is closed
            self._refuse_pending()

    def _refuse_pending(self) -> None:
        """Answer the requests that the closed loop has not taken, of all threads; called on any thread."""
        self._is_wake_scheduled = False
        with contextlib.suppress(IndexError):  # another thread took the last one
            while True:
                request, _ = self._pending.popleft()
                request.answer(InferResponse(error=UnavailableError(self._background.stopped_text)))

    def abandon(self) -> None:
        """Accept no more requests: this is a forked child."""
        self._loop = self._background.loop  # a closed one
        self._pending.clear()
        self._is_wake_scheduled = False  # otherwise the next request would wait for a wake-up of the parent's loop
        _wakers.clear()  # for the same reason

    def cancel(self, request: InferRequest) -> None:
        """Cancel a request; called on any thread."""
        with contextlib.suppress(RuntimeError):  # the server has been stopped, and answered it
            self._loop.call_soon_threadsafe(request.cancel)

    def _submit_pending(self) -> None:
        self._is_wake_scheduled = False
        pending = self._pending
        while pending:
            self._submit_now(*pending.popleft())

    def _submit_now(self, request: InferRequest, caller: Instance | None) -> None:
        try:
            served = self._engine.model(request.model_name, request.model_version)
            if caller is not None:
                register_wait(request, served, caller)
            served.submit(request)
        except TritonError as error:
            request.answer(InferResponse(error=error))
        except Exception as error:  # any error: the caller waits for a response
            logger.exception("submitting a request to model '%s' failed", request.model_name)
            request.answer(InferResponse(error=InternalError(f"{type(error).__name__}: {error}")))


class Waker:
    """A notifier of a caller's event loop about its completed requests, many with one wake-up."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = weakref.ref(loop)
        self._finished: deque[asyncio.Future[None]] = deque()
        self._is_wake_scheduled = False

    def wake(self, future: asyncio.Future[None]) -> None:
        """Set the result of a future; called on any thread."""
        self._finished.append(future)
        if not self._is_wake_scheduled:
            self._is_wake_scheduled = True
            loop = self._loop()
            if loop is not None:
                with contextlib.suppress(RuntimeError):  # the caller's loop is closed; then no task waits
                    loop.call_soon_threadsafe(self._finish)

    def _finish(self) -> None:
        self._is_wake_scheduled = False
        while self._finished:
            future = self._finished.popleft()
            if not future.done():
                future.set_result(None)


_wakers: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, Waker] = weakref.WeakKeyDictionary()


class Collector:
    """A collector of the responses to one request.

    ``done`` is called once, with the final response, on the event loop.
    """

    __slots__ = ("_done", "_errors", "_responses")

    def __init__(self, done: Callable[[], None]) -> None:
        self._responses: list[InferResponse] = []
        self._errors: list[TritonError] = []
        self._done = done

    def respond(self, request: InferRequest, response: InferResponse) -> None:
        """Receive a response."""
        if response.error is not None:
            self._errors.append(response.error)
        elif not response.empty:
            self._responses.append(response)
        if response.final:
            self._done()

    def outputs(self) -> list[Outputs]:
        """Return the outputs of the model, one dict for each response.

        Raises
        ------
        TritonError
            The first error among the responses.
        """
        if self._errors:
            raise self._errors[0].fresh()  # other requests of the batch may have the same error
        return [{output.name: _to_numpy(output) for output in response.outputs} for response in self._responses]


def infer(submitter: Submitter, request: InferRequest) -> list[Outputs]:
    """Run a request and wait for it in this thread; an interrupt cancels it."""
    finished: SimpleQueue[None] = SimpleQueue()
    collector = Collector(functools.partial(finished.put, None))
    request.respond = collector.respond
    try:
        submitter.submit(request)
        wait(finished)
    except BaseException:  # such as KeyboardInterrupt, which the handler of a signal raises
        submitter.cancel(request)
        raise
    return collector.outputs()


async def infer_async(submitter: Submitter, request: InferRequest) -> list[Outputs]:
    """Run a request and wait for it in the caller's event loop; cancelling the task cancels it."""
    loop = asyncio.get_running_loop()
    future: asyncio.Future[None] = loop.create_future()
    waker = _wakers.get(loop)
    if waker is None:
        waker = _wakers[loop] = Waker(loop)
    collector = Collector(functools.partial(waker.wake, future))
    request.respond = collector.respond
    submitter.submit(request)
    try:
        await future
    except asyncio.CancelledError:
        submitter.cancel(request)
        raise
    return collector.outputs()


def _to_numpy(tensor: Tensor) -> npt.NDArray[np.generic]:
    datatype = tensor.datatype
    return datatype.to_values(tensor.array) if datatype.bit_pattern else ensure_writeable(tensor.array)
