"""The response senders of a model that is not decoupled.

Such a model returns a response from ``execute``, or returns None for it and sends it by the request's response
sender, then or later. The first response is the answer; the final flag only ends the sending.
When a model lets go of a sender by which nothing came, an error is the answer: nothing can come any more.
"""

from __future__ import annotations

import threading
from collections.abc import Callable

from tritonnb.backends.contract import Execution, ResponseSender
from tritonnb.core.errors import InternalError
from tritonnb.core.messages import InferResponse


class SingleResponseSender(ResponseSender):
    """Sends the one response of a request; may be used from any thread.

    Parameters
    ----------
    execution : Execution
        The batch that the request came in.
    index : int
        Its number there.
    configure : callable
        What the server does to a response first.
    """

    __slots__ = ("_configure", "_execution", "_index", "_lock", "_response")

    def __init__(self, execution: Execution, index: int, configure: Callable[[InferResponse], InferResponse]) -> None:
        self._execution = execution
        self._index = index
        self._configure = configure
        self._response = execution.responses[index]  # returned by `execute` before
        self._lock = threading.Lock()
        self.closed = self._response is not None

    def send(self, response: InferResponse) -> None:
        """Send the response, the final flag, or both.

        Raises
        ------
        InternalError
            If there was a response, or the sender is closed, or the final flag comes alone.
        """
        with self._lock:
            self._check(response)
            self.closed = response.final
            if response.empty:
                return
            self._response = response
        response.final = True
        self._execution.sender(self._index).send(self._configure(response))

    def returned(self, response: InferResponse) -> None:
        """``execute`` has returned the response.

        Raises
        ------
        InternalError
            As `send`.
        """
        with self._lock:
            self._check(response)
            self._response, self.closed = response, True

    def __del__(self) -> None:
        if self._response is None and not self.closed:
            self.send(InferResponse(error=InternalError("the model dropped the response sender without a response")))

    def _check(self, response: InferResponse) -> None:
        if not response.empty and self._response is not None:
            raise InternalError("Unable to send response. Non-decoupled model cannot send more than one response.")
        if response.empty and self._response is None:
            raise InternalError(
                "Unable to send response. Non-decoupled model cannot send complete final before sending a response."
            )
        if self.closed:
            raise InternalError("Unable to send response. Response sender has been closed.")
