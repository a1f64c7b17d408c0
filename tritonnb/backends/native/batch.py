"""A batch in a native backend: its requests and responses in the shim, and which responses are still to come."""

from __future__ import annotations

import ctypes
import functools
import itertools
import math
import threading
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from tritonnb.backends.batching import Array, with_configured_shape
from tritonnb.backends.execution import Execution
from tritonnb.backends.native import library
from tritonnb.core.datatypes import BY_NUMBER, decode_bytes, encode_bytes
from tritonnb.core.errors import InternalError, TritonError
from tritonnb.core.messages import InferRequest, InferResponse, ParameterValue, Tensor
from tritonnb.core.shapes import shape_text
from tritonnb.model_config.schema import ModelSpec

#: The number of shapes and names that are converted once.
_CACHE = 1024

#: Numbers that identify the requests of a process in events.
_tokens = itertools.count(1)


@dataclass(slots=True)
class _Pending:
    """A request that the backend has not released, or whose final response it has not sent."""

    index: int
    memory: list[object]
    answered: bool = False
    released: bool = False


class NativeBatch:
    """The requests of an execution, until they are released and answered.

    The instance's thread collects the results of an execution; later events come from the thread of the model's events.

    Parameters
    ----------
    execution : Execution
    spec : ModelSpec
    batches : dict of int to NativeBatch
        The batches of the model's requests, by token; this one adds and removes its own.
    decoupled : bool
    """

    def __init__(self, execution: Execution, spec: ModelSpec, batches: dict[int, NativeBatch], decoupled: bool) -> None:
        self._execution = execution
        self._decoupled = decoupled
        self._spec = spec
        self._batches = batches
        self._library = library.load_shim()
        self._pending: dict[int, _Pending] = {}
        self._lock = threading.Lock()

    def add(self, model: int, index: int) -> int:
        """Describe a request to the shim; return its handle."""
        request, token = self._execution.requests[index], next(_tokens)
        # A token and not the address of the object: C++ may use an address again while an event about the old request
        # waits.
        handle, memory = write_request(model, self._spec, request, token)
        self._pending[token] = _Pending(index, memory)
        self._batches[token] = self
        request.on_cancel = functools.partial(self._library.tnb_cancel, token)
        # It may have been cancelled before there was anybody to tell.
        if request.cancelled:
            request.on_cancel()
        return handle

    def collect(self, handles: list[int], failed: bool) -> None:
        """Answer the requests to which the backend has responded."""
        outcome = library.Outcome()
        with self._lock:
            for (token, pending), handle in zip([*self._pending.items()], handles, strict=True):
                self._library.tnb_request_collect(handle, failed, ctypes.byref(outcome))
                pending.released = bool(outcome.released)
                # The final response of a decoupled model is an event, which may not have been handled yet.
                pending.answered |= failed or bool(outcome.rescheduled if self._decoupled else not outcome.pending)
                try:
                    self._apply(pending.index, outcome, failed)
                except TritonError as error:  # a state or an output that is not valid
                    if self._execution.responses[pending.index] is None:
                        self._execution.fail(pending.index, error)
                # After everything was read: from here on, the handle must not be used.
                self._library.tnb_request_finish(handle)
                self._forget_if_done(token, pending)

    def handle(self, event: library.Event) -> None:
        """Pass on an event of the backend after the execution."""
        with self._lock:
            pending = self._pending.get(event.token)
            # The request may be done already, because events wait in a queue.
            if pending is None:
                return
            response = self._response(event, self._execution.requests[pending.index])
            if response is None:
                pending.released = True
            else:
                pending.answered |= response.final
                sender = self._execution.sender(pending.index)
            self._forget_if_done(event.token, pending)
        # Outside of the lock, because sending may wait: a step of an ensemble is throttled until later steps are done.
        if response is not None and not sender.closed:
            sender.send(response)

    def _response(self, event: library.Event, request: InferRequest) -> InferResponse | None:
        """Return the response that an event brings; None if the backend has released the request."""
        if event.kind == library.RESPONSE:
            return read_response(self._spec, event.response, request, bool(event.flags))
        if event.kind == library.FLAGS:
            return InferResponse(empty=True)
        if event.kind == library.ABANDONED:
            # Triton never answers such a request; the client would wait forever.
            text = f"model '{request.model_name}': the backend released the request without a final response"
            return InferResponse(error=InternalError(text))
        return None

    def _apply(self, index: int, outcome: library.Outcome, failed: bool) -> None:
        """Pass on the outcome of a request in the execution."""
        execution = self._execution
        request = execution.requests[index]
        if outcome.reported >= 0:
            execution.reported[index] = bool(outcome.reported)
        if outcome.rescheduled and not failed:
            execution.reschedule(index)
        try:
            if request.states is not None and not failed:
                for number in range(outcome.state_count):
                    state = read_tensor(outcome.states[number], f"model '{request.model_name}': state")
                    # A copy, since the memory belongs to the shim and is freed with the request.
                    request.states.update(state.name, state.array.copy())
            if outcome.response is not None:
                execution.answer(index, read_response(self._spec, outcome.response, request, final=True))
            elif outcome.pending:
                execution.sender(index)  # sends the response later
        finally:
            if outcome.response is not None:
                self._library.tnb_response_free(outcome.response)

    def _forget_if_done(self, token: int, pending: _Pending) -> None:
        # In either order: backends may release a request before its last response and after it.
        if pending.released and pending.answered:
            del self._pending[token]
            del self._batches[token]
            self._execution.requests[pending.index].on_cancel = None


# --- requests and responses -----------------------------------------------------------------------


@functools.lru_cache(_CACHE)
def _dims(shape: tuple[int, ...]) -> Any:
    return (ctypes.c_int64 * len(shape))(*shape)


# Names of tensors are the same for each request of a model, and ctypes needs bytes each time.
_encode = functools.lru_cache(_CACHE)(str.encode)


def write_request(model: int, spec: ModelSpec, request: InferRequest, token: int) -> tuple[int, list[object]]:
    """Describe a request to the shim.

    Parameters
    ----------
    model : int
        The handle of the model.
    spec : ModelSpec
        Its tensors.
    request : InferRequest
    token : int
        Identifies the request in events.

    Returns
    -------
    handle : int
    memory : list
        What the inputs are read from; it must be kept until the backend releases the request.
    """
    shim, correlation = library.load_shim(), request.correlation_id
    text = correlation.encode() if isinstance(correlation, str) and correlation else None
    number = correlation if isinstance(correlation, int) else 0
    handle: int = shim.tnb_request_new(
        model, token, request.id.encode(), number, text, request.flags, request.timeout_us
    )
    memory = [_add_input(handle, tensor) for tensor in request.inputs.values()]
    if request.states is not None:
        memory += [_add_input(handle, tensor) for tensor in request.states.inputs.values()]
    for name in spec.outputs if request.requested_outputs is None else request.requested_outputs:
        shim.tnb_request_add_output(handle, _encode(name))
    for name, value in request.parameters.items():
        _add_parameter(handle, name, value)
    return handle, memory


def _add_input(handle: int, tensor: Tensor) -> object:
    array, datatype = tensor.array, tensor.datatype
    memory: object
    if datatype.variable_size:
        memory = encoded = encode_bytes(array)
        address: Any = ctypes.cast(ctypes.c_char_p(encoded), ctypes.c_void_p)
        size = len(encoded)
    else:
        # The caller keeps this object alive: C++ only has the address.
        memory = contiguous = np.ascontiguousarray(array)
        address, size = contiguous.__array_interface__["data"][0], contiguous.nbytes
    shape = array.shape
    name = _encode(tensor.name)
    library.load_shim().tnb_request_add_input(handle, name, datatype.number, _dims(shape), len(shape), address, size)
    return memory


def _add_parameter(handle: int, name: str, value: ParameterValue) -> None:
    add, key = library.load_shim().tnb_request_add_parameter, name.encode()
    if isinstance(value, bool):
        add(handle, key, library.BOOL, int(value), 0.0, None)
    elif isinstance(value, int):
        add(handle, key, library.INT, value, 0.0, None)
    elif isinstance(value, float):
        add(handle, key, library.DOUBLE, 0, value, None)
    else:
        add(handle, key, library.STRING, 0, 0.0, value.encode())


def read_response(spec: ModelSpec, handle: int, request: InferRequest, final: bool) -> InferResponse:
    """Return a response of a model, whose arrays are valid until it is freed; an error if it is not valid."""
    view: library.NativeResponse = library.load_shim().tnb_response_view(handle).contents
    if view.error_code >= 0:
        message = view.error_message.decode(errors="replace")
        return InferResponse(error=TritonError(message, library.status_of(view.error_code)), final=final)
    try:
        outputs = [_read_output(spec, view.outputs[index]) for index in range(view.output_count)]
    except TritonError as error:
        return InferResponse(error=error, final=final)
    if request.requested_outputs is not None:
        outputs = [output for output in outputs if output.name in request.requested_outputs]
    parameters = dict(_parameter(view.parameters[index]) for index in range(view.parameter_count))
    return InferResponse(outputs, final=final, parameters=parameters or None)


def _read_output(spec: ModelSpec, native: library.NativeTensor) -> Tensor:
    tensor = read_tensor(native, f"model '{spec.name}': output")
    return with_configured_shape(tensor, spec.outputs.get(tensor.name), spec.max_batch_size > 0)


def read_tensor(native: library.NativeTensor, what: str) -> Tensor:
    """Return a tensor in the memory of the shim, which the array refers to.

    Raises
    ------
    InternalError
        If its size does not fit its shape and datatype.
    """
    name, datatype = native.name.decode(errors="replace"), BY_NUMBER.get(native.datatype)
    if datatype is None:
        raise InternalError(f"{what} '{name}': expected a datatype, got the number {native.datatype}")
    shape = tuple(native.shape[: native.dims_count])
    size: int = native.byte_size
    # `from_address` copies nothing and checks nothing; the size is what the shim says about its own buffer.
    raw: Any = (ctypes.c_char * size).from_address(native.data) if size else b""
    if datatype.variable_size:
        elements: Array = decode_bytes(bytes(raw))
        fits = len(elements) == math.prod(shape)
    else:
        fits = size == math.prod(shape) * datatype.itemsize
        elements = np.frombuffer(raw, datatype.numpy) if fits and size else np.empty(0, datatype.numpy)
    if not fits:
        got = f"{len(elements)} elements" if datatype.variable_size else f"{size} bytes"
        raise InternalError(f"{what} '{name}' expected shape {shape_text(shape)} of {datatype.name}, got {got}")
    return Tensor(name, datatype, elements.reshape(shape))


def _parameter(native: library.NativeParameter) -> tuple[str, ParameterValue]:
    values: Mapping[int, ParameterValue] = {
        library.INT: native.integer,
        library.BOOL: bool(native.boolean),
        library.DOUBLE: native.number,
    }
    return native.name.decode(), values.get(native.type, (native.text or b"").decode(errors="replace"))
