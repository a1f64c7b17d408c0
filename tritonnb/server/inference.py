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
from tritonnb.core.errors import TritonError
from tritonnb.core.messages import InferRequest, InferResponse, Tensor
from tritonnb.core.ownership import ensure_writeable
from tritonnb.engine.engine import Engine
from tritonnb.engine.execution.loop import wait_interruptibly
from tritonnb.engine.submission import Submission

logger = logging.getLogger(__name__)


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


def forget_wakers() -> None:
    """Forget the notifiers: in a forked child they would wait for a wake-up of the parent's loop."""
    _wakers.clear()


class Collector:
    """A collector of the responses to one request.

    ``done`` is called once, with the final response, on the event loop.
    """

    __slots__ = ("_done", "_errors", "_responses")

    def __init__(self, done: Callable[[], None]) -> None:
        self._responses: list[InferResponse] = []
        self._errors: list[TritonError] = []
        self._done = done

    def receive(self, response: InferResponse) -> None:
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


def infer(engine: Engine, request: InferRequest) -> list[Outputs]:
    """Run a request and wait for it in this thread; an interrupt cancels it."""
    finished: SimpleQueue[None] = SimpleQueue()
    collector = Collector(functools.partial(finished.put, None))
    submission = Submission(collector.receive)
    try:
        engine.submitter.submit(submission, request, engine.submit)
        wait_interruptibly(finished)
    except BaseException:  # such as KeyboardInterrupt, which the handler of a signal raises
        engine.submitter.cancel(submission)
        raise
    return collector.outputs()


async def infer_async(engine: Engine, request: InferRequest) -> list[Outputs]:
    """Run a request and wait for it in the caller's event loop; cancelling the task cancels it."""
    loop = asyncio.get_running_loop()
    future: asyncio.Future[None] = loop.create_future()
    waker = _wakers.get(loop)
    if waker is None:
        waker = _wakers[loop] = Waker(loop)
    collector = Collector(functools.partial(waker.wake, future))
    submission = Submission(collector.receive)
    engine.submitter.submit(submission, request, engine.submit)
    try:
        await future
    except asyncio.CancelledError:
        engine.submitter.cancel(submission)
        raise
    return collector.outputs()


def _to_numpy(tensor: Tensor) -> npt.NDArray[np.generic]:
    datatype = tensor.datatype
    return datatype.to_values(tensor.array) if datatype.bit_pattern else ensure_writeable(tensor.array)
