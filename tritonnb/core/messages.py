"""Tensors, requests and responses: what endpoints, schedulers and backends exchange.

A request is built by an endpoint, checked against the model's configuration, queued in a scheduler, and read by an
instance thread; only one of them writes to it at a time.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Final, Protocol, cast

import numpy as np
import numpy.typing as npt

from tritonnb.core.datatypes import DataType
from tritonnb.core.errors import TritonError, strip_traceback
from tritonnb.core.ownership import writeable_copy
from tritonnb.core.schedulable import Schedulable

logger = logging.getLogger(__name__)

#: Maximum length of a string correlation ID, in bytes of UTF-8.
MAX_CORRELATION_ID_BYTES: Final = 128

_ARRAY: Final = np.ndarray

ParameterValue = str | int | bool | float
#: The model that made a call, its version, and the serial of the request that it executed.
Caller = tuple[str, int, int]


class Tensor:
    """A named, typed array.

    Attributes
    ----------
    name : str
    datatype : DataType
    array : numpy.ndarray
        dtype ``datatype.numpy``; the batch dimension is part of the shape.

    Examples
    --------
    >>> from tritonnb import FP32
    >>> Tensor("X", FP32, np.zeros((2, 4), np.float32))
    Tensor('X', FP32, [2, 4])
    """

    __slots__ = ("array", "datatype", "name")

    def __init__(self, name: str, datatype: DataType, array: npt.NDArray[np.generic]) -> None:
        self.name = name
        self.datatype = datatype
        self.array = array

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of the array, batch dimension included."""
        return self.array.shape

    def copy(self) -> Tensor:
        """Return a tensor with a copy of the array."""
        array = self.array
        # Nearly all arrays are of this type, and the function is interpreted.
        copy = array.copy() if type(array) is _ARRAY else writeable_copy(array)
        return Tensor(self.name, self.datatype, copy)

    def __repr__(self) -> str:
        return f"Tensor({self.name!r}, {self.datatype.name}, {list(self.array.shape)})"


class ExpectedTensor:
    """What each tensor of a name is compared with: in a compiled class, since that of a configuration is not.

    Attributes
    ----------
    datatype : DataType
    dims : tuple of int
        Without the batch dimension; -1 for any size.
    is_reshaped : bool
        Whether the backend sees another shape.
    """

    __slots__ = ("datatype", "dims", "is_reshaped")

    def __init__(self, datatype: DataType, dims: tuple[int, ...], is_reshaped: bool) -> None:
        self.datatype = datatype
        self.dims = dims
        self.is_reshaped = is_reshaped


class UndecodedTensor:
    """An input as received, whose bytes have not been checked against its shape and datatype.

    Validation of the request replaces it by a `Tensor`, or raises an error.

    Attributes
    ----------
    name : str
    datatype : DataType
    shape : tuple of int
        As the client sent it, batch dimension included.
    raw : bytes or memoryview
        The wire form of the elements.
    """

    __slots__ = ("datatype", "name", "raw", "shape")

    def __init__(self, name: str, datatype: DataType, shape: tuple[int, ...], raw: bytes | memoryview) -> None:
        self.name = name
        self.datatype = datatype
        self.shape = shape
        self.raw = raw


class InferResponse:
    """One response to a request; a decoupled model may send any number of them.

    Attributes
    ----------
    outputs : list of Tensor
        In the order in which the model returned them.
    error : TritonError or None
        An error response has no outputs. The error has no traceback.
    final : bool
        No further response follows.
    empty : bool
        A decoupled model sent no response but only the flag ``TRITONSERVER_RESPONSE_COMPLETE_FINAL``.
    parameters : dict
        Response parameters, by name.

    Examples
    --------
    >>> from tritonnb import FP32
    >>> InferResponse([Tensor("Y", FP32, np.zeros((2, 4), np.float32))])
    InferResponse(outputs=[Tensor('Y', FP32, [2, 4])], final=True)
    """

    __slots__ = ("empty", "error", "final", "outputs", "parameters")

    def __init__(
        self,
        outputs: list[Tensor] | None = None,
        error: TritonError | None = None,
        final: bool = True,
        parameters: dict[str, ParameterValue] | None = None,
        empty: bool = False,
    ) -> None:
        self.outputs = outputs if outputs is not None else []
        self.error = None if error is None else strip_traceback(error)
        self.final = final
        self.parameters = parameters
        self.empty = empty

    def copy(self) -> InferResponse:
        """Return a response with copies of the outputs and parameters."""
        copy = InferResponse(self.outputs, self.error, self.final, self.parameters, self.empty)
        copy.copy_contents()
        return copy

    def copy_contents(self) -> None:
        """Replace outputs and parameters, which the model may still use, by copies."""
        self.outputs = [output.copy() for output in self.outputs]
        if self.parameters:
            self.parameters = dict(self.parameters)

    def __repr__(self) -> str:
        content = f"error={self.error!r}" if self.error else f"outputs={self.outputs!r}"
        return f"InferResponse({content}, final={self.final})"


Respond = Callable[["InferRequest", InferResponse], None]


class EnsembleStepRequest(Protocol):
    """Reports of a model on a request that an ensemble sent for one of its steps."""

    def executed(self, start_ns: int, compute_start_ns: int, compute_end_ns: int, end_ns: int) -> None:
        """Called on the event loop with the times of the execution that included the request."""

    def throttle(self) -> None:
        """Block a decoupled model that is about to respond while later steps cannot keep up; called on its thread."""


class SequenceStates(Protocol):
    """The implicit states of a sequence, as one of its requests reads and updates them.

    Attributes
    ----------
    inputs : dict of str to Tensor
        State inputs by name.
    """

    inputs: dict[str, Tensor]

    def update(self, output_name: str, array: npt.NDArray[np.generic]) -> None:
        """Make an output of the model the next state."""


class RequestHandler(Protocol):
    """The receiver of requests: the driver of a served model."""

    def cancel(self, request: InferRequest) -> None:
        """Set ``cancelled`` of a request that it accepted, and remove it from the queue."""


class RequestTrace(Protocol):
    """The trace of one request."""

    def submit(self, accept: Callable[[InferRequest], None], request: InferRequest) -> None:
        """Call ``accept(request)``, and record the request and its responses."""

    def child(self, request: InferRequest) -> RequestTrace | None:
        """Return the trace of a request that the traced one causes; None if this trace is complete."""


class InferRequest(Schedulable):
    """One inference request.

    It has the attributes of `Schedulable`, and these.

    Attributes
    ----------
    model_name : str
    model_version : int
        -1 for the newest version that is ready; replaced by the actual version when the request is accepted.
    inputs : dict of str to Tensor
        In the order in which the client sent them. Until `checked` is true some may be `UndecodedTensor`: see
        `unchecked_inputs`.
    requested_outputs : tuple of str or None
        None for all outputs.
    parameters : dict
        Custom request parameters (parameters extension).
    respond : callable
        ``respond(request, response)``, called on the server's loop by `answer`, once for each response; set by
        `tritonnb.engine.submission.Submission`.
    answered : bool
        The final response was passed on.
    on_cancel : callable or None
        Called by `cancel`, on the server's event loop; set by a backend that cannot check ``cancelled``.
    is_null : bool
        A padding row of the sequence batcher's direct strategy, without a client.
    checked : bool
        The request has been validated against the model's configuration.
    read_only_inputs : bool
        Models get the inputs without a copy, including read-only arrays (``copy=False``).
    accepted_by : RequestHandler or None
        The driver of the served model that accepted the request.
    caller : tuple of (str, int, int), or None
        The model that sent the request while it executed another request, its version, and the serial of the latter;
        of a batch, the first request. None if no model sent it.
    states : SequenceStates or None
        Implicit state that the backend reads and updates (sequence models).
    step : EnsembleStepRequest or None
        The ensemble step that sent the request, if one did.
    trace : RequestTrace or None
        The trace of the request, if it is traced.

    Examples
    --------
    >>> from tritonnb import FP32
    >>> InferRequest("m", {"X": Tensor("X", FP32, np.zeros((2, 4), np.float32))}, discard_response)
    InferRequest('m', serial=0, inputs=['X'])
    """

    __slots__ = (
        "_observers",
        "accepted_by",
        "answered",
        "caller",
        "checked",
        "inputs",
        "is_null",
        "model_name",
        "model_version",
        "on_cancel",
        "parameters",
        "read_only_inputs",
        "requested_outputs",
        "respond",
        "states",
        "step",
        "trace",
    )

    def __init__(
        self,
        model_name: str,
        inputs: dict[str, Tensor],
        respond: Respond | None = None,
        *,
        model_version: int = -1,
        id: str = "",
        requested_outputs: tuple[str, ...] | None = None,
        parameters: dict[str, ParameterValue] | None = None,
        priority: int = 0,
        timeout_us: int = 0,
        correlation_id: int | str = 0,
        flags: int = 0,
    ) -> None:
        super().__init__(
            id,
            priority=priority,
            timeout_us=timeout_us,
            correlation_id=correlation_id,
            flags=flags,
        )
        self.model_name = model_name
        self.inputs = inputs
        self.respond = discard_response if respond is None else respond
        self.model_version = model_version
        self.requested_outputs = requested_outputs
        self.parameters = parameters if parameters is not None else {}
        self.on_cancel: Callable[[], object] | None = None
        self.is_null = False
        self.checked = False
        self.answered = False
        self._observers: list[Respond] | None = None
        self.read_only_inputs = False
        self.accepted_by: RequestHandler | None = None
        self.caller: Caller | None = None
        self.states: SequenceStates | None = None
        self.step: EnsembleStepRequest | None = None
        self.trace: RequestTrace | None = None

    def clone(self, inputs: dict[str, Tensor]) -> InferRequest:
        """Return a checked request that differs in its inputs, which have the same shapes."""
        copy = InferRequest(
            self.model_name,
            inputs,
            model_version=self.model_version,
            requested_outputs=self.requested_outputs,
            parameters=dict(self.parameters),
            priority=self.priority,
            timeout_us=self.timeout_us,
            correlation_id=self.correlation_id,
            flags=self.flags,
        )
        copy.batch_size = self.batch_size
        copy.batch_key = self.batch_key
        copy.checked = True
        return copy

    def answer(self, response: InferResponse) -> None:
        """Pass a response to ``respond``; after the final one, a response is an error of the server, and is logged.

        An exception of ``respond``, or of an observer, is logged: the callers of this method go on with other requests.
        """
        if self.answered:
            logger.error("%r: expected no response after the final one, got %r", self, response, stack_info=True)
            return
        self.answered = response.final
        if self._observers is not None:
            self._show_observers(response)
        try:
            self.respond(self, response)
        except BaseException:  # even SystemExit, which would end the server's event loop
            logger.exception("%r: passing on %r failed", self, response)

    def _show_observers(self, response: InferResponse) -> None:
        observers = self._observers or []
        if response.final:
            self._observers = None  # they may refer to the request
        for observer in reversed(observers):
            try:
                observer(self, response)
            except BaseException:  # whoever waits for the response gets it all the same
                logger.exception("%r: an observer of its responses failed", self)

    def observe_responses(self, observer: Respond) -> None:
        """Call ``observer(request, response)`` on the server's loop before each response is passed on.

        This is the only way to observe the responses to a request that other code has created. The observer that was
        added last is called first. In the order in which they are added:

        1. the cycle check of BLS calls (`tritonnb.engine.models.bls.register_wait`): the caller no longer waits,
        2. tracing (`tritonnb.telemetry.tracing.Trace.submit`): output tensors and time stamps,
        3. the response cache (`tritonnb.engine.models.served_model.ServedModel`): the response is inserted.
        """
        if self._observers is None:
            self._observers = []
        self._observers.append(observer)

    def cancel(self) -> None:
        """Remove the request from the queue, or notify the running model; called on the server's event loop."""
        if self.accepted_by is None:
            self.cancelled = True
        else:
            self.accepted_by.cancel(self)
        if self.on_cancel is not None:
            self.on_cancel()

    def child_trace(self, request: InferRequest) -> RequestTrace | None:
        """Return the trace of a request that this one causes (an ensemble's step, a BLS call); None if not traced."""
        return None if self.trace is None else self.trace.child(request)

    @property
    def unchecked_inputs(self) -> dict[str, Tensor | UndecodedTensor]:
        """The inputs of a request that has not been checked: the same dict, with the type that it has until then."""
        return cast("dict[str, Tensor | UndecodedTensor]", self.inputs)

    def __repr__(self) -> str:
        return f"InferRequest({self.model_name!r}, serial={self.serial}, inputs={list(self.inputs)})"


def discard_response(request: InferRequest, response: InferResponse) -> None:
    """Ignore a response, as a ``respond`` callback."""
