"""What travels through the house: tensors, requests, responses.

A request is built by an endpoint, checked against the model's configuration, waits in a
scheduler, and is read by an instance thread; it is never written by two of them at once.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from tritonnb.core.datatypes import DataType
from tritonnb.core.errors import TritonError, strip_traceback
from tritonnb.core.ownership import read_only_view, writeable_copy

# TRITONSERVER_RequestFlag in tritonserver.h
SEQUENCE_START = 1
SEQUENCE_END = 2

#: Of a string, in bytes.
MAX_CORRELATION_ID_BYTES = 128

ParameterValue = str | int | bool | float


class Tensor:
    """A named, typed array.

    Attributes
    ----------
    name : str
    datatype : DataType
    array : numpy.ndarray
        Of ``datatype.numpy``, in the tensor's own shape, batch dimension included.
    """

    __slots__ = ("array", "datatype", "name")

    def __init__(self, name: str, datatype: DataType, array: npt.NDArray[Any]) -> None:
        self.name = name
        self.datatype = datatype
        self.array = array

    @property
    def shape(self) -> tuple[int, ...]:
        """Batch dimension included."""
        return self.array.shape

    def copy(self) -> Tensor:
        """The same contents in memory of its own."""
        return Tensor(self.name, self.datatype, writeable_copy(self.array))

    def __repr__(self) -> str:
        return f"Tensor({self.name!r}, {self.datatype.name}, {list(self.array.shape)})"


class UndecodedTensor:
    """An input as it came over the wire, whose bytes are not known to fit its shape and datatype.

    Checking a request turns it into a `Tensor`, or says what is wrong with it.
    """

    __slots__ = ("datatype", "name", "raw", "shape")

    def __init__(self, name: str, datatype: DataType, shape: tuple[int, ...], raw: bytes | memoryview) -> None:
        self.name = name
        self.datatype = datatype
        self.shape = shape
        self.raw = raw


class InferResponse:
    """One answer to a request; a decoupled model may give several.

    Attributes
    ----------
    outputs : list of Tensor
        In the order in which the model gave them.
    error : TritonError or None
        An error response has no outputs. It does not say where it was raised.
    final : bool
        No further response follows. A final response without outputs of a decoupled model is a
        bare ``TRITONSERVER_RESPONSE_COMPLETE_FINAL`` flag: see `empty`.
    empty : bool
        The model sent no response here, only the flag.
    parameters : dict
        Response parameters, by name.
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
        """The same response, with contents of its own."""
        copy = InferResponse(self.outputs, self.error, self.final, self.parameters, self.empty)
        copy.copy_contents()
        return copy

    def copy_contents(self) -> None:
        """Replace outputs and parameters, which a model may still use, by copies."""
        self.outputs = [each.copy() for each in self.outputs]
        if self.parameters:
            self.parameters = dict(self.parameters)

    def __repr__(self) -> str:
        what = f"error={self.error!r}" if self.error else f"outputs={self.outputs!r}"
        return f"InferResponse({what}, final={self.final})"


Respond = Callable[["InferRequest", InferResponse], None]


class EnsembleStepRequest(Protocol):
    """What a model must tell the ensemble that one of its requests belongs to."""

    def executed(self, start_ns: int, compute_start_ns: int, compute_end_ns: int, end_ns: int) -> None:
        """The request was part of an execution with these times; called on the server's loop."""

    def throttle(self) -> None:
        """A decoupled model is about to respond: wait while later steps cannot keep up. Called on its thread."""


class Submit(Protocol):
    """What takes requests: a served model."""

    def submit(self, request: InferRequest) -> None:
        """Take a request."""


class RequestTrace(Protocol):
    """Follows a request that is traced."""

    def submit_below(self, served: Submit, request: InferRequest) -> None:
        """Give a request that the traced one leads to, to its model, and trace it, too."""


class InferRequest:
    """One inference request.

    Attributes
    ----------
    model_name : str
    model_version : int
        -1 for the newest that is ready; the version that took it once it is accepted.
    id : str
        Client's own, may be empty.
    inputs : dict of str to Tensor
        In the order in which the client gave them; until it is checked, some may be undecoded.
    requested_outputs : tuple of str or None
        None asks for all.
    parameters : dict
        Custom request parameters (parameters extension).
    priority, timeout_us : int
        As the client gave them; 0 for none. The timeout is in microseconds.
    correlation_id : int or str
        0 or "" for none.
    flags : int
        `SEQUENCE_START` | `SEQUENCE_END`.
    respond : callable
        ``respond(request, response)``, called on the server's loop, once for each response.
    batch_size : int
        ``max(1, batch dimension)``; set when the request is accepted.
    batch_key : hashable
        Requests with equal keys may share a batch; set when the request is accepted.
    received_ns, queued_ns : int
        Monotonic clock at reception and at acceptance by the scheduler.
    serial : int
        Number of the request in the server's event stream.
    cancelled : bool
        The client went away; queued work should be dropped, running work may ask.
    is_null : bool
        A padding row of the sequence batcher's direct strategy: no client waits for it.
    checked : bool
        It fits its model's configuration.
    read_only_inputs : bool
        Models get the inputs as they are, also those that are read-only (``copy=False``).
    accepted_by : object or None
        The served model whose scheduler has the request; it knows how to cancel it.
    states : object or None
        Implicit state handed to the backend (sequence models).
    step : EnsembleStepRequest or None
        What sent the request, if it is the request of a step of an ensemble.
    trace : RequestTrace or None
        What follows the request, if it is traced.
    """

    __slots__ = (
        "accepted_by",
        "batch_key",
        "batch_size",
        "cancelled",
        "checked",
        "correlation_id",
        "flags",
        "id",
        "inputs",
        "is_null",
        "model_name",
        "model_version",
        "parameters",
        "priority",
        "queued_ns",
        "read_only_inputs",
        "received_ns",
        "requested_outputs",
        "respond",
        "serial",
        "states",
        "step",
        "timeout_us",
        "trace",
    )

    def __init__(
        self,
        model_name: str,
        inputs: dict[str, Tensor],
        respond: Respond,
        *,
        model_version: int = -1,
        id: str = "",
        requested_outputs: tuple[str, ...] | None = None,
        parameters: dict[str, ParameterValue] | None = None,
        priority: int = 0,
        timeout_us: int = 0,
        correlation_id: int | str = 0,
        flags: int = 0,
        received_ns: int = 0,
    ) -> None:
        self.model_name = model_name
        self.inputs = inputs
        self.respond = respond
        self.model_version = model_version
        self.id = id
        self.requested_outputs = requested_outputs
        self.parameters = parameters if parameters is not None else {}
        self.priority = priority
        self.timeout_us = timeout_us
        self.correlation_id = correlation_id
        self.flags = flags
        self.received_ns = received_ns
        self.queued_ns = 0
        self.batch_size = 1
        self.batch_key: Hashable = None
        self.serial = 0
        self.cancelled = False
        self.is_null = False
        self.checked = False
        self.read_only_inputs = False
        self.accepted_by: Any = None
        self.states: Any = None
        self.step: EnsembleStepRequest | None = None
        self.trace: RequestTrace | None = None

    def clone(self, inputs: dict[str, Tensor], respond: Respond) -> InferRequest:
        """A new request like this one, which was checked, with other contents of the same shapes."""
        copy = InferRequest(
            self.model_name,
            inputs,
            respond,
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

    @property
    def id_prefix(self) -> str:
        """What Triton puts before many of its error texts."""
        return f"[request id: {self.id or '<id_unknown>'}] "

    def __repr__(self) -> str:
        return f"InferRequest({self.model_name!r}, serial={self.serial}, inputs={list(self.inputs)})"


def discard_response(request: InferRequest, response: InferResponse) -> None:
    """A ``respond`` for requests that nobody waits for."""


def read_only_tensors(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """Tensors that several requests or executions read, and no model may write to."""
    return {name: Tensor(name, each.datatype, read_only_view(each.array)) for name, each in tensors.items()}


def shape_text(shape: Sequence[int]) -> str:
    """A shape as Triton writes it: ``[-1,3]``."""
    return f"[{','.join(map(str, shape))}]"


def zeros(datatype: DataType, shape: tuple[int, ...]) -> npt.NDArray[Any]:
    """An array of zeros; of empty strings for BYTES."""
    if datatype.itemsize:
        return np.zeros(shape, datatype.numpy)
    return np.full(shape, b"", dtype=object)
