"""``pb_utils.InferenceRequest``: a request that a model receives, or creates itself.

A model sends a request that it has created to another model of the server with ``exec`` or ``async_exec`` (business
logic scripting). It goes through that model's scheduler like any other request.
"""

from __future__ import annotations

import json
import operator
import os
from collections.abc import Callable, Sequence
from typing import ClassVar, Literal, SupportsIndex, overload

from tritonnb.backends.python.calls import ResponseIterator
from tritonnb.backends.python.declared_outputs import DeclaredInputs
from tritonnb.backends.python.error import TritonModelException
from tritonnb.backends.python.instance_binding import InstanceBinding, current_binding
from tritonnb.backends.python.response import InferenceResponse, InferenceResponseSender, Send, check_types
from tritonnb.backends.python.tensor import Tensor, decode_text, to_core_tensor
from tritonnb.core.messages import InferRequest, ParameterValue, discard_response

TRITONSERVER_REQUEST_FLAG_SEQUENCE_START = 1
TRITONSERVER_REQUEST_FLAG_SEQUENCE_END = 2
TRITONSERVER_REQUEST_RELEASE_ALL = 1
TRITONSERVER_REQUEST_RELEASE_RESCHEDULE = 2
TRITONSERVER_MEMORY_CPU = 0
TRITONSERVER_MEMORY_GPU = 1


class PreferredMemory:
    """The preferred memory for the outputs of another model; ignored here, since they are always in CPU memory.

    Parameters
    ----------
    memory_type : int
        ``TRITONSERVER_MEMORY_CPU`` or ``TRITONSERVER_MEMORY_GPU``.
    memory_type_id : int
    """

    def __init__(self, memory_type: int = TRITONSERVER_MEMORY_CPU, memory_type_id: int = 0) -> None:
        if memory_type not in (TRITONSERVER_MEMORY_CPU, TRITONSERVER_MEMORY_GPU):
            raise TypeError(
                "PreferredMemory: expected memory_type to be TRITONSERVER_MEMORY_CPU or TRITONSERVER_MEMORY_GPU, "
                f"got {memory_type!r}"
            )
        self.memory_type = memory_type
        self.memory_type_id = memory_type_id


class InferenceTrace:
    """The trace of a request, which a model can pass on to the requests that it creates."""

    def __init__(self, cause: InferRequest) -> None:
        self.cause = cause

    def get_context(self) -> str | None:
        """Return the OpenTelemetry context; always None here."""
        return None


class InferenceRequest:
    """A request to a model.

    Parameters
    ----------
    request_id : str, optional
    correlation_id : int or str, optional
    inputs : sequence of Tensor
    requested_output_names : sequence of str
        An empty sequence requests all outputs.
    model_name : str
    model_version : int, optional
        The newest by default.
    flags : int, optional
        ``TRITONSERVER_REQUEST_FLAG_SEQUENCE_START`` and ``TRITONSERVER_REQUEST_FLAG_SEQUENCE_END``.
    timeout : int, optional
        In microseconds.
    preferred_memory : PreferredMemory, optional
    trace : InferenceTrace, optional
    parameters : dict, optional
        Strings, integers, booleans.
    """

    _binding: ClassVar[InstanceBinding | None] = None

    __slots__ = (
        *("_cause", "_declared", "_index", "_inputs", "_new_send", "_outputs"),
        *("_request", "_tensors", "release_flags"),
    )

    def __init__(
        self,
        request_id: str | bytes = "",
        correlation_id: int | str = 0,
        *,
        inputs: Sequence[Tensor],
        requested_output_names: Sequence[str | bytes],
        model_name: str | bytes,
        model_version: int = -1,
        flags: int = 0,
        timeout: int = 0,
        preferred_memory: PreferredMemory | None = None,
        trace: InferenceTrace | None = None,
        parameters: dict[str, ParameterValue] | None = None,
    ) -> None:
        if isinstance(requested_output_names, str | bytes):
            raise TypeError("InferenceRequest: expected requested_output_names to be a sequence of str, got str")
        if not all(isinstance(tensor, Tensor | None) for tensor in inputs):
            raise TypeError("InferenceRequest: expected inputs to be a sequence of pb_utils.Tensor objects")
        if not isinstance(preferred_memory, PreferredMemory | None):
            raise TypeError(
                f"InferenceRequest: expected a pb_utils.PreferredMemory, got {type(preferred_memory).__name__}"
            )
        if not isinstance(trace, InferenceTrace | None):
            raise TypeError(
                f"InferenceRequest: expected trace from InferenceRequest.trace(), got {type(trace).__name__}"
            )
        check_types(parameters)
        _check_correlation_id(correlation_id)
        # None is what `get_input_tensor_by_name` returns for a missing input, so this is the likely mistake.
        if any(tensor is None for tensor in inputs):
            raise TritonModelException(
                f"Input tensor for request with id '{decode_text(request_id)}' and model name "
                f"'{decode_text(model_name)}' should not be empty."
            )
        # Sorted, as on Triton, where the names are a `std::set`.
        self._outputs = tuple(sorted(set(map(decode_text, requested_output_names))))
        if "" in self._outputs:
            raise TritonModelException(
                f"Requested output name for request with id '{decode_text(request_id)}' and model name "
                f"'{decode_text(model_name)}' should not be empty."
            )
        self._request = InferRequest(
            decode_text(model_name),
            {tensor.name(): to_core_tensor(tensor) for tensor in inputs},
            discard_response,
            model_version=_integer("model_version", model_version, range(-(2**63), 2**63)),
            id=decode_text(request_id),
            requested_outputs=self._outputs or None,
            parameters=dict(parameters or {}),
            timeout_us=_integer("timeout", timeout, range(2**64)),
            correlation_id=correlation_id,
            flags=_integer("flags", flags, _FLAGS),
        )
        self._inputs: tuple[Tensor, ...] | None = tuple(inputs)
        self._tensors = {tensor.name(): tensor for tensor in inputs}
        self._cause = None if trace is None else trace.cause
        self._declared: DeclaredInputs | None = None
        self._new_send: Callable[[int], Send] | None = None
        self._index = 0
        self.release_flags = TRITONSERVER_REQUEST_RELEASE_ALL

    @classmethod
    def received(
        cls,
        request: InferRequest,
        outputs: tuple[str, ...],
        new_send: Callable[[int], Send],
        index: int = 0,
        declared: DeclaredInputs | None = None,
    ) -> InferenceRequest:
        """Return a request that the model receives; ``outputs`` are the requested outputs, ``declared`` its inputs.

        ``new_send(index)`` returns the function that sends its responses.
        """
        # Without `__init__`, whose checks are for models: the server's requests have passed the validation.
        received = cls.__new__(cls)
        received._request = request
        received._inputs = None
        received._tensors = {}
        received._outputs = outputs
        received._new_send = new_send
        received._index = index
        received._cause = None
        received._declared = declared
        received.release_flags = TRITONSERVER_REQUEST_RELEASE_ALL
        return received

    # --- sending to another model -------------------------------------------------------------

    @overload
    def exec(self, decoupled: Literal[False] = False) -> InferenceResponse: ...
    @overload
    def exec(self, decoupled: Literal[True]) -> ResponseIterator: ...
    def exec(self, decoupled: bool = False) -> InferenceResponse | ResponseIterator:
        """Send the request and wait for the response.

        Parameters
        ----------
        decoupled : bool, optional
            Return an iterator over any number of responses, as soon as the first was received.
        """
        responses = self._call(decoupled)
        first = responses._wait(0)
        return responses if decoupled else first

    async def async_exec(self, decoupled: bool = False) -> InferenceResponse | ResponseIterator:
        """Like `exec`, for ``async def execute``: other requests can be sent before the response is received."""
        responses = self._call(decoupled)
        first = await responses._wait_async()
        return responses if decoupled else first

    def _call(self, decoupled: bool) -> ResponseIterator:
        binding = self._binding or current_binding()
        if binding is None:
            raise TritonModelException("BLS: expected the request to come from a model that a server runs")
        if binding.server is None or not binding.executing:
            raise TritonModelException("BLS is only supported during the 'execute' function.")
        if binding.process != os.getpid():  # a forked process has no server
            raise TritonModelException("BLS: expected the request to come from the server's process, got a forked one")
        return ResponseIterator(
            self._request, self._inputs or (), binding.server, decoupled, self._cause, binding.caller
        )

    # --- contents -----------------------------------------------------------------------------

    def inputs(self) -> list[Tensor]:
        """Return the inputs, including the controls and states of the sequence batcher."""
        if self._inputs is not None:
            return list(self._inputs)
        states = () if self._request.states is None else self._request.states.inputs
        tensors = map(self.input, (*self._request.inputs, *states))
        return [tensor for tensor in tensors if tensor is not None]

    def input(self, name: str) -> Tensor | None:
        """Return an input, or None. Repeated calls return the same object, including changes by the model."""
        # The same object each time, because a model may change an input in place and read it again.
        known = self._tensors.get(name)
        if known is not None:
            return known
        request = self._request
        tensor = request.inputs.get(name)
        if tensor is None and request.states is not None:
            tensor = request.states.inputs.get(name)
        if tensor is None:
            if self._declared is not None:
                self._declared.report(name, request.inputs)
            return None
        received = self._tensors[name] = Tensor.received(tensor, request.read_only_inputs)
        return received

    def requested_output_names(self) -> set[str]:
        """Return the names of the requested outputs."""
        return set(self._outputs)

    def request_id(self) -> str:
        """Return the client's request ID, or ""; as on Triton raises UnicodeDecodeError if it is not UTF-8."""
        return _check_utf8(self._request.id)

    def correlation_id(self) -> int | str:
        """Return the correlation ID of the request's sequence, or 0; raises UnicodeDecodeError if it is not UTF-8."""
        correlation_id = self._request.correlation_id
        return _check_utf8(correlation_id) if isinstance(correlation_id, str) else correlation_id

    def flags(self) -> int:
        """Return the flags of the request (``TRITONSERVER_REQUEST_FLAG_*``)."""
        return self._request.flags

    def set_flags(self, flags: int) -> None:
        """Set the flags (``TRITONSERVER_REQUEST_FLAG_*``) of a request that the model creates."""
        self._request.flags = _integer("flags", flags, _FLAGS)

    def timeout(self) -> int:
        """Return the request's timeout, in microseconds."""
        return self._request.timeout_us

    def priority(self) -> int:
        """Return the request's priority."""
        return self._request.priority

    def parameters(self) -> str:
        """Return the request parameters as JSON."""
        return _check_utf8(json.dumps(self._request.parameters, ensure_ascii=False, separators=(",", ":")))

    def model_name(self) -> str:
        """Return the name of the model that the request is for."""
        return self._request.model_name

    def trace(self) -> InferenceTrace:
        """Return the request's trace, to pass on."""
        return InferenceTrace(self._request)

    # --- requests that the model receives -----------------------------------------------------

    def is_cancelled(self) -> bool:
        """Return whether the client has cancelled the request or disconnected."""
        return self._request.cancelled

    def set_release_flags(self, flags: int) -> None:
        """Set the release flags; with ``TRITONSERVER_REQUEST_RELEASE_RESCHEDULE`` the request is executed again."""
        self.release_flags = flags

    def get_response_sender(self) -> InferenceResponseSender:
        """Return the request's response sender. A model that is not decoupled sends one response, or returns it."""
        if self._new_send is None:
            raise TritonModelException(
                "Unable to send response. Response sender has no reference to the decoupled state of the model."
            )
        return InferenceResponseSender(self._new_send(self._index), self._request, self._outputs)


_FLAGS = range(2**32)


def _check_correlation_id(correlation_id: object) -> None:
    if correlation_id is None:
        raise TypeError("InferenceRequest: expected correlation_id to be int or str, got None")
    if not isinstance(correlation_id, (int, str)):
        raise TritonModelException("Correlation ID must be integer or string")
    if isinstance(correlation_id, str):
        decode_text(correlation_id)
    if isinstance(correlation_id, int) and correlation_id not in range(2**64):
        raise RuntimeError(f"{correlation_id} is not an unsigned 64-bit integer")


def _integer(name: str, value: SupportsIndex, allowed: range) -> int:
    """Convert an integer of any type, such as a NumPy scalar."""
    # `operator.index` accepts NumPy's integers and refuses floats, as pybind11 does on Triton.
    number = int(operator.index(value)) if isinstance(value, SupportsIndex) else None
    if number is None or number not in allowed:
        raise TypeError(
            f"InferenceRequest: expected {name} to be an integer from {allowed.start} to {allowed.stop - 1}, "
            f"got {value!r}"
        )
    return number


def _check_utf8(text: str) -> str:
    """Return the text itself if it is UTF-8: over HTTP, other bytes were decoded to surrogate escapes."""
    return text if text.isascii() else text.encode("utf-8", "surrogateescape").decode()
