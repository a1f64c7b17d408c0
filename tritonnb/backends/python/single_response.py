"""The response senders of a model that is not decoupled.

Such a model returns the response to a request from ``execute``, or returns None and sends it with the request's
response sender, during ``execute`` or later. The first response is sent to the client; the final flag only closes the
sender. If the model drops a sender without having sent a response, the client gets an error.
"""

from __future__ import annotations

import threading
from collections.abc import Callable

from tritonnb.backends.execution import Execution, ResponseSender
from tritonnb.core.errors import InternalError
from tritonnb.core.messages import InferResponse


class SingleResponseSender(ResponseSender):
    """Sends the only response of a request; can be used from any thread.

    Parameters
    ----------
    execution : Execution
        The batch that contains the request.
    index : int
        Index of the request in the batch.
    configure : callable
        Applied to the response before it is sent.
    """

    __slots__ = ("_configure", "_execution", "_index", "_lock", "_response")

    def __init__(self, execution: Execution, index: int, configure: Callable[[InferResponse], InferResponse]) -> None:
        self._execution = execution
        self._index = index
        self._configure = configure
        self._response = execution.responses[index]  # if `execute` has returned it
        self._lock = threading.Lock()
        self.closed = self._response is not None

    def send(self, response: InferResponse) -> None:
        """Send the response, the final flag, or both.

        Raises
        ------
        InternalError
            If there already is a response, the sender is closed, or the final flag is sent before a response.
        """
        with self._lock:
            self._check(response)
            self.closed = response.final
            if response.empty:
                return
            self._response = response
        response.final = True
        self._execution.sender(self._index).send(self._configure(response))

    def record_returned(self, response: InferResponse) -> None:
        """Record that ``execute`` has returned the response.

        Raises
        ------
        InternalError
            As for `send`.
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
