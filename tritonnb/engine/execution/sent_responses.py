"""Responses on their way from the threads of a model to the event loop."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable

from tritonnb.core.errors import UnavailableError
from tritonnb.core.messages import InferRequest, InferResponse

#: Bytes and number of the responses that are on their way; a sender waits until the event loop has caught up.
_MOST_BYTES, _MOST = 8 << 20, 128
#: Seconds that a sender waits: too many responses are better than a deadlock.
_LONGEST_WAIT_S = 5.0


class SentResponses:
    """The responses that decoupled models have sent, and that the event loop has not received.

    A model can send faster than the event loop passes on. Without a limit, its responses would fill the memory, and
    delay everything else that the loop has to do. The sender waits for the loop, never for a client.

    Parameters
    ----------
    loop : asyncio.AbstractEventLoop
    receive : callable
        Called on the loop with each request and its response.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, receive: Callable[[InferRequest, InferResponse], None]) -> None:
        self._loop = loop
        self._receive = receive
        self._received = threading.Condition()
        self._bytes = self._count = 0

    def send(self, request: InferRequest, response: InferResponse) -> None:
        """Pass a response to the event loop; called on any thread.

        Raises
        ------
        UnavailableError
            If the loop is closed: the server has stopped.
        """
        size = sum(output.array.nbytes for output in response.outputs)
        # On the event loop's own thread, which may execute models, it would wait for itself.
        may_wait = asyncio._get_running_loop() is not self._loop
        with self._received:
            if may_wait and self._has_many():
                self._received.wait_for(lambda: not self._has_many(), _LONGEST_WAIT_S)
            self._bytes += size
            self._count += 1
        try:
            self._loop.call_soon_threadsafe(self._pass_on, size, request, response)
        except RuntimeError:
            raise UnavailableError(f"model '{request.model_name}': the server has stopped") from None

    def _has_many(self) -> bool:
        return (self._bytes > _MOST_BYTES or self._count >= _MOST) and not self._loop.is_closed()

    def _pass_on(self, size: int, request: InferRequest, response: InferResponse) -> None:
        with self._received:
            self._bytes -= size
            self._count -= 1
            if not self._has_many():
                self._received.notify_all()
        self._receive(request, response)
