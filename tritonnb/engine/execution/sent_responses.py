"""Responses on their way from the threads of a model to the event loop."""

from __future__ import annotations

import asyncio
import threading
from collections import deque
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
        self._sizes: deque[int] = deque()  # bytes of each response on its way; its methods need no lock
        self._has_room = threading.Event()

    def send(self, request: InferRequest, response: InferResponse) -> None:
        """Pass a response to the event loop; called on any thread.

        Raises
        ------
        UnavailableError
            If the loop is closed: the server has stopped.
        """
        # On the event loop's own thread, which may execute models, it would wait for itself.
        if self._is_full() and asyncio._get_running_loop() is not self._loop:
            self._has_room.clear()
            if self._is_full():  # again, since the loop may have made room before `clear`
                self._has_room.wait(_LONGEST_WAIT_S)
        self._sizes.append(sum(output.array.nbytes for output in response.outputs))
        try:
            self._loop.call_soon_threadsafe(self._pass_on, request, response)
        except RuntimeError:
            raise UnavailableError(f"model '{request.model_name}': the server has stopped") from None

    def _is_full(self) -> bool:
        sizes = list(self._sizes)
        return (len(sizes) >= _MOST or sum(sizes) > _MOST_BYTES) and not self._loop.is_closed()

    def _pass_on(self, request: InferRequest, response: InferResponse) -> None:
        self._sizes.popleft()
        if not self._has_room.is_set() and not self._is_full():
            self._has_room.set()
        self._receive(request, response)
