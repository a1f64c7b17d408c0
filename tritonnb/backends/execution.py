"""The execution of a batch: its requests, their responses, its timestamps, and its failures."""

from __future__ import annotations

import itertools
import logging
import time
import traceback
from collections.abc import Callable

from tritonnb.core.datatypes import parts_of
from tritonnb.core.errors import InternalError, TritonError, strip_traceback
from tritonnb.core.events import ExecutedRequest
from tritonnb.core.failures import frames_to_notes, location_suffix
from tritonnb.core.messages import Caller, InferRequest, InferResponse, ParameterValue, Tensor
from tritonnb.core.parameters import find_parameter_error, plain_parameter
from tritonnb.core.texts import encodable, find_text_error, printable, shown

Deliver = Callable[[InferRequest, InferResponse], None]


def accepted(request: InferRequest, response: InferResponse) -> InferResponse:
    """Return a response of a model, or an error in its place, if it has something that no endpoint could write.

    Every response of every backend passes here, on the instance's thread and in the process of the model: an endpoint
    that finds it out later has no author to tell, and other requests to answer.
    """
    if response.error is not None:
        response.error.message = printable(response.error.message)
        return response
    problem = ""
    if response.parameters:
        problem = next(filter(None, [find_parameter_error(*item) for item in response.parameters.items()]), "")
        if not problem:
            response.parameters = {encodable(name): plain_parameter(v) for name, v in response.parameters.items()}
    for output in response.outputs:
        if not output.name.isascii():
            problem = problem or find_text_error("name of an output", output.name)
        if output.datatype.variable_size and not problem:
            # Only objects can be of any type; every other dtype has been checked when the array was made.
            for part in parts_of(output.array):
                wrong = [element for element in part.tolist() if type(element) is not bytes][:1]
                if wrong:
                    problem = f"output {shown(output.name)}: expected elements of type bytes, got {shown(wrong[0])}"
                    break
    if not problem:
        return response
    # `final` is kept, so that a decoupled model whose third response is wrong can go on.
    return InferResponse(error=InternalError(f"model '{request.model_name}': {problem}"), final=response.final)


class ResponseSender:
    """The sender of a request's responses, any number if the model is decoupled; can be used from any thread.

    Attributes
    ----------
    closed : bool
        Whether the final response was sent.

    Examples
    --------
    >>> sender = ResponseSender(InferRequest("stream", {}, print), lambda request, response: print(response.final))
    >>> sender.send(InferResponse(final=False))
    False
    >>> sender.send(InferResponse())
    True
    """

    __slots__ = ("_deliver", "_request", "closed")

    def __init__(self, request: InferRequest, deliver: Deliver) -> None:
        self._request = request
        self._deliver = deliver
        self.closed = False

    def send(self, response: InferResponse) -> None:
        """Send one response.

        Raises
        ------
        InternalError
            If the final response was already sent.
        """
        if self.closed:
            raise InternalError("Unable to send response. Response sender has been closed.")
        self.closed = response.final
        # A copy, since a model may use the memory of its arrays again as soon as `send` returns.
        response = accepted(self._request, response.copy())
        if self._request.step is not None and not response.final:
            # `max_inflight_requests` of an ensemble holds back the sender here; Triton blocks it for up to 300 s.
            self._request.step.throttle()
        self._deliver(self._request, response)


class Execution:
    """The execution of one batch on one instance.

    Attributes
    ----------
    requests : list of InferRequest
        The requests of the batch, including null requests (`InferRequest.is_null`), whose responses are discarded.
    size : int
        Number of rows of all requests together.
    number : int
        Number of the batch in the server's event stream.
    responses : list of InferResponse or None
        One for each request, set by `respond`, `fail` and `answer`.
    reported : dict of int to bool
        By index of the request, whether it was successful, where the backend says so itself: otherwise a request with
        an error response has failed.
    rescheduled : set of int
        Indices of the requests that `reschedule` was called for: they are executed again instead of answered.
    senders : dict of int to ResponseSender
        The response senders that `sender` has created, by index of the request.
    exec_start_ns, compute_start_ns, compute_end_ns, exec_end_ns : int
        Timestamps of the monotonic clock in ns. In the statistics extension, ``compute_input`` is the time between
        the first two, ``compute_infer`` between the middle two, ``compute_output`` between the last two. A backend
        that measures the execution itself sets all of them in ``execute``.

    Examples
    --------
    >>> execution = Execution([InferRequest("double", {}, print)], size=1, deliver=print)
    >>> execution.respond(0, [])
    >>> execution.responses
    [InferResponse(outputs=[], final=True)]
    """

    __slots__ = (
        "_deliver",
        "compute_end_ns",
        "compute_start_ns",
        "exec_end_ns",
        "exec_start_ns",
        "number",
        "reported",
        "requests",
        "rescheduled",
        "responses",
        "senders",
        "size",
    )

    def __init__(self, requests: list[InferRequest], size: int, deliver: Deliver, number: int = 0) -> None:
        self.requests = requests
        self.size = size
        self.number = number
        self.responses: list[InferResponse | None] = [None] * len(requests)
        self.reported: dict[int, bool] = {}
        self.rescheduled: set[int] = set()
        self.senders: dict[int, ResponseSender] = {}
        self.exec_start_ns = self.compute_start_ns = self.compute_end_ns = self.exec_end_ns = 0
        self._deliver = deliver

    def caller(self) -> Caller | None:
        """Return what the calls of the model belong to: model, version, and the first request that a client sent."""
        # Without a warm-up request or a null request, which have no serial.
        for request in self.requests:
            if request.serial:
                return request.model_name, request.model_version, request.serial
        return None

    def compute_started(self) -> None:
        """Record the time: the inputs are gathered, and the model begins to run."""
        self.compute_start_ns = time.monotonic_ns()

    def compute_ended(self) -> None:
        """Record the time: the model has run, and the outputs are about to be scattered."""
        self.compute_end_ns = time.monotonic_ns()

    def respond(self, index: int, outputs: list[Tensor], parameters: dict[str, ParameterValue] | None = None) -> None:
        """Set the response to a request of the batch.

        Parameters
        ----------
        index : int
            Index of the request in `requests`.
        outputs : list of Tensor
            Copied. Outputs that the request did not ask for are left out.
        parameters : dict, optional
            Response parameters.

        Raises
        ------
        InternalError
            If the request already has a response.
        """
        requested = self.requests[index].requested_outputs
        if requested is not None:
            # A backend may compute all outputs anyway, so it need not look at what was asked for.
            outputs = [output for output in outputs if output.name in requested]
        self.answer(index, InferResponse(outputs, parameters=parameters))

    def fail(self, index: int, error: TritonError) -> None:
        """Set an error as the response to request ``index`` of the batch."""
        self.answer(index, InferResponse(error=error))

    def reschedule(self, index: int) -> None:
        """Execute request ``index`` again instead of responding to it (iterative sequences).

        ``TRITONSERVER_REQUEST_RELEASE_RESCHEDULE`` of the backend API.
        """
        self.rescheduled.add(index)

    def sender(self, index: int) -> ResponseSender:
        """Return the response sender of request ``index``, which may send responses after ``execute`` has returned."""
        if index not in self.senders:
            self.senders[index] = ResponseSender(self.requests[index], self._deliver)
        return self.senders[index]

    def answer(self, index: int, response: InferResponse) -> None:
        """Set the response to request ``index`` of the batch; its contents are copied.

        The object belongs to the request from now on: no other request may get the same one.

        Raises
        ------
        InternalError
            If the request already has a response.
        """
        if self.responses[index] is not None:
            raise InternalError(f"request {index} of the batch: expected one response, got a second one")
        # The array of a batch is divided into views: without a copy, one slow client would keep the outputs of the
        # whole batch in memory.
        response.copy_contents()
        self.responses[index] = accepted(self.requests[index], response)


class FailureLog:
    """A log of the places where an instance failed, once for each, so that not every batch is logged.

    Parameters
    ----------
    name : str
        Name of the instance.
    logger : logging.Logger
    """

    def __init__(self, name: str, logger: logging.Logger) -> None:
        self._name = name
        self._logger = logger
        self._places: set[tuple[object, ...]] = set()

    def convert(self, error: BaseException, execution: Execution) -> TritonError:
        """Return the error for the requests of the batch; an exception that is not a `TritonError` is logged."""
        if isinstance(error, TritonError):
            error.message = printable(error.message)  # a function can raise one with any text
            return strip_traceback(error)
        # The lines of the traceback and not the text, which often contains values of the request and would log each
        # batch.
        place = type(error), *(line for _, line in traceback.walk_tb(error.__traceback__))
        if place in self._places:
            text = printable(error)
            self._logger.debug("instance '%s' failed again: %s: %s", self._name, type(error).__name__, text)
        else:
            self._places.add(place)
            self._logger.error("instance '%s' failed", self._name, exc_info=error)
        model = next(request.model_name for request in execution.requests if not request.is_null)
        text = f"model '{model}': {type(error).__name__}: {printable(error)}{location_suffix(error)}"
        return InternalError(printable(text), model_error=frames_to_notes(error))


#: The numbers of the executions of all models.
batch_numbers = itertools.count(1)


def complete_responses(
    model: str, instance: str, execution: Execution, raised: TritonError | None, decoupled: bool, errors_fail: bool
) -> list[str]:
    """Complete an executed batch: every request gets a response or is executed again, and no time is missing.

    Parameters
    ----------
    model, instance : str
        Names for the error message.
    execution : Execution
        Requests without a response get an error.
    raised : TritonError or None
        The error that ``execute`` of the backend raised.
    decoupled : bool
        ``model_transaction_policy { decoupled: true }``.
    errors_fail : bool
        Whether the statistics count a response with an error as a failure.

    Returns
    -------
    list of str
        The failure reason of each request in the statistics; empty for a success.
    """
    failures: list[str] = []
    # Without compute times, the whole execution counts as compute time.
    execution.compute_start_ns = execution.compute_start_ns or execution.exec_start_ns
    execution.compute_end_ns = execution.compute_end_ns or execution.exec_end_ns
    if raised is not None:
        # An exception ends iterative sequences as well: nobody knows which of the requests it concerns.
        execution.rescheduled.clear()
    for index, response in enumerate(execution.responses):
        sender = execution.senders.get(index)
        if index in execution.rescheduled or (raised is None and response is None and (decoupled or sender)):
            # It is executed again, or its sender passes on the responses.
            failures.append("" if execution.reported.get(index, True) else "BACKEND")
            continue
        # Triton's Python backend counts an error response as a success of the model, surprisingly; the others do not.
        failed = response is None or (response.error is not None and errors_fail)
        if raised is None and response is not None:
            failed = not execution.reported.get(index, not failed)
        if response is None and not (sender is not None and sender.closed):
            error = raised or InternalError(f"model '{model}', instance '{instance}': no response to the request")
            if decoupled:
                execution.sender(index).send(InferResponse(error=error))
            else:
                execution.responses[index] = InferResponse(error=error)
        failures.append("BACKEND" if failed else "")
    return failures


def executed_requests(execution: Execution, failures: list[str]) -> tuple[ExecutedRequest, ...]:
    """Return the requests of an executed batch for its `BatchExecuted`."""
    requests: list[ExecutedRequest] = []
    for index, request in enumerate(execution.requests):
        if not request.is_null:
            row = request.serial, request.batch_size, request.received_ns, request.queued_ns, failures[index]
            requests.append(row)
    return tuple(requests)
