"""A request on its way: its submission to a model, its responses, its cancellation, and its refusal.

Every door of the server (HTTP, generate, OpenAI, gRPC, calls in this process, calls by models, the load generator, the
steps of ensembles) creates a `Submission` for each request, and differs only in what it does with the responses.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections import deque
from collections.abc import Callable
from typing import Final, Protocol

from tritonnb.core.errors import InternalError, TritonError, UnavailableError
from tritonnb.core.messages import InferRequest, InferResponse, RequestTrace, discard_response
from tritonnb.engine.execution.instance import Instance, instance_that_waits
from tritonnb.engine.execution.loop import STOPPED

logger = logging.getLogger(__name__)

#: Called on the server's event loop with each response, a refusal included.
OnResponse = Callable[[InferResponse], None]


class Receiver(Protocol):
    """A model that requests are submitted to: `ServedModel`."""

    def submit(self, request: InferRequest, trace: RequestTrace | None = None, /) -> None:
        """Accept a request, or raise `TritonError`."""

    def report_refusal(self, error: TritonError, /) -> None:
        """Emit the event of a request that is refused before it is offered to the scheduler."""


def as_triton_error(error: Exception) -> TritonError:
    """Return the error for the client; an unexpected exception, a defect of this server, is logged."""
    if isinstance(error, TritonError):
        return error
    logger.error("a request failed unexpectedly", exc_info=error)
    # INTERNAL, since the client can do nothing about it.
    return InternalError(f"{type(error).__name__}: {error}")


def _ignore(response: InferResponse) -> None:
    pass


# A function is looked up by its name each time, these are not.
_IGNORE: Final = _ignore
_DISCARD: Final = discard_response


class Submission:
    """One request, from the door that received it to its final response; used on the server's event loop.

    Parameters
    ----------
    on_response : callable
        Called with each response of the model, or with the error of a refusal. If it raises, it is called
        once more, with an error in place of the response.

    Attributes
    ----------
    request : InferRequest or None
        From `submit` to the final response.
    refusal : TritonError or None
        Why no model accepted the request; set before ``on_response`` is called with it.
    done : bool
        The final response has arrived.

    Examples
    --------
    >>> from tritonnb.core.errors import NotFoundError
    >>> submission = Submission(print)
    >>> submission.refuse(NotFoundError("Request for unknown model: 'm' is not found"))
    InferResponse(error=NotFoundError("Request for unknown model: 'm' is not found"), final=True)
    >>> submission.done
    True
    """

    __slots__ = ("_on_response", "done", "refusal", "request")

    def __init__(self, on_response: OnResponse) -> None:
        self._on_response = on_response
        self.request: InferRequest | None = None
        self.refusal: TritonError | None = None
        self.done = False

    def submit(self, served: Receiver, request: InferRequest, trace: RequestTrace | None = None) -> None:
        """Submit a request to a model; nothing is raised, every outcome is a response.

        Parameters
        ----------
        served : ServedModel
        request : InferRequest
        trace : RequestTrace, optional
            Records the request and its responses.
        """
        self.request = request
        request.respond = self._receive
        try:
            served.submit(request, trace)
        except TritonError as error:
            # It was set before the driver refused the request; a later `cancel` must not reach a driver that never had
            # it.
            request.accepted_by = None
            # The scheduler has emitted the event of a request that it does not accept, once that was validated.
            self.refuse(error, None if request.checked else served)
        except Exception as error:  # the model may have accepted it, and may answer it later: that is logged
            request.answer(InferResponse(error=as_triton_error(error)))

    def refuse(self, error: Exception, served: Receiver | None = None) -> None:
        """Respond with an error: the request cannot be read, or is not accepted.

        Parameters
        ----------
        error : Exception
        served : ServedModel, optional
            The model that was named, which reports the refusal; None if it is not known, or has reported it.
        """
        self.refusal = refusal = as_triton_error(error)
        if served is not None:
            served.report_refusal(refusal)
        response = InferResponse(error=refusal)
        if self.request is None:
            self._pass_on(response)
        else:
            self.request.answer(response)  # whoever observes the request sees its end

    def cancel(self) -> None:
        """Cancel the request if it is not complete."""
        if self.request is not None:
            self.request.cancel()

    def _receive(self, request: InferRequest, response: InferResponse) -> None:
        if response.final:
            request.respond = _DISCARD  # breaks the reference cycle, so that tensors are freed at once
        self._pass_on(response)

    def _pass_on(self, response: InferResponse) -> None:
        on_response = self._on_response
        if response.final:
            self.done = True
            # A defect elsewhere may answer twice, and the door must not see the second answer.
            self._on_response = _IGNORE
        try:
            on_response(response)
        except TritonError as error:  # such as of an output that the format of the response cannot express
            self._pass_on_failure(on_response, error, response.final)
        except BaseException as error:  # even SystemExit, which would end the server's event loop
            logger.error("a request failed unexpectedly", exc_info=error)
            # Plain ASCII, since the text of the response may be the cause.
            text = f"{type(error).__name__}: {error}".encode("ascii", "backslashreplace").decode()
            self._pass_on_failure(on_response, InternalError(text), response.final)
        if response.final:
            self.request = None

    def _pass_on_failure(self, on_response: OnResponse, error: TritonError, final: bool) -> None:
        """Answer with the error of a writer in place of its response."""
        try:
            on_response(InferResponse(error=error, final=final))
        except BaseException:
            logger.exception("%r: passing on %r failed", self.request, error)


class _Handover:
    """A submission by another thread."""

    __slots__ = ("caller", "request", "start", "submission")

    def __init__(self, submission: Submission, request: InferRequest, start: Start, caller: Instance | None) -> None:
        self.submission = submission
        self.request = request
        self.start = start
        self.caller = caller


#: ``start(submission, request, caller)`` submits a request on the event loop; the caller is the instance that waits.
Start = Callable[[Submission, InferRequest, Instance | None], None]


class Submitter:
    """A submitter of requests from other threads to the event loop of a server, many with one wake-up.

    Attributes
    ----------
    loop : asyncio.AbstractEventLoop
        The event loop; set when the engine starts.
    """

    loop: asyncio.AbstractEventLoop

    def __init__(self) -> None:
        self._pending: deque[_Handover] = deque()
        self._is_wake_scheduled = False
        self._stopped_text = STOPPED

    def submit(self, submission: Submission, request: InferRequest, start: Start) -> None:
        """Submit a request; every outcome is a response, even if the server has been stopped.

        Raises
        ------
        UnsupportedError
            If a model calls another model while the event loop executes it.
        """
        # The instance is asked for here, on the thread that is going to wait: the event loop does not know it.
        instance = instance_that_waits()
        if instance is not None and request.caller is None:
            request.caller = instance.caller()
        self._pending.append(_Handover(submission, request, start, instance))
        # `_submit_pending` lowers the flag before it empties the queue, so a request that finds it raised is
        # in time to be taken.
        if not self._is_wake_scheduled:
            try:
                self._is_wake_scheduled = True
                self._wake()
            except BaseException:  # an interrupt: threads that found the flag raised rely on this one
                self._wake()
                raise

    def cancel(self, submission: Submission) -> None:
        """Cancel a request; called on any thread."""
        with contextlib.suppress(RuntimeError):  # the server has been stopped, and has answered it
            self.loop.call_soon_threadsafe(submission.cancel)

    def abandon(self, closed_loop: asyncio.AbstractEventLoop, stopped_text: str) -> None:
        """Refuse later requests, and leave pending requests to the parent: this is a forked child."""
        self.loop, self._stopped_text = closed_loop, stopped_text
        self._pending.clear()
        self._is_wake_scheduled = False  # otherwise the next request would wait for a wake-up of the parent's loop

    def close(self, stopped_text: str) -> None:
        """Refuse the requests that the closed loop has not taken, and all later requests, with a text."""
        self._stopped_text = stopped_text
        self._refuse_pending()

    def _wake(self) -> None:
        try:
            self.loop.call_soon_threadsafe(self._submit_pending)
        except RuntimeError:  # the loop is closed
            self._refuse_pending()

    def _refuse_pending(self) -> None:
        """Refuse the requests of all threads; called on any thread."""
        self._is_wake_scheduled = False
        with contextlib.suppress(IndexError):  # another thread took the last one
            while True:
                self._pending.popleft().submission.refuse(UnavailableError(self._stopped_text))

    def _submit_pending(self) -> None:
        self._is_wake_scheduled = False
        pending = self._pending
        while pending:
            handover = pending.popleft()
            try:
                handover.start(handover.submission, handover.request, handover.caller)
            except Exception as error:  # such as of a model that is not ready
                handover.submission.refuse(error)
