"""The additional inputs of sequence requests: control tensors and implicit state.

The scheduler assigns requests to batch slots. This module adds the START, END, READY and CORRID tensors to the
requests, fills empty slots with null requests, and attaches the states of the slots (Triton's *Stateful Models*
document; ``sequence_batching`` in *model_config.proto*).
"""

from __future__ import annotations

import functools
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import numpy.typing as npt

from tritonnb.core.datatypes import BY_NUMBER, INVALID, DataType, decode_bytes, zeros
from tritonnb.core.errors import InvalidArgumentError
from tritonnb.core.messages import InferRequest, Tensor, discard_response
from tritonnb.core.ownership import read_only_view
from tritonnb.core.protobuf import model_config_pb2 as pb
from tritonnb.core.schedulable import SEQUENCE_END, SEQUENCE_START
from tritonnb.core.shapes import element_count
from tritonnb.model_config.model_files import model_file
from tritonnb.scheduling.decisions import Execute


def read_array(path: Path, datatype: DataType, shape: tuple[int, ...]) -> npt.NDArray[np.generic]:
    """Read the first elements of a file in the wire form of a datatype; the rest of the file is ignored.

    Raises
    ------
    InvalidArgumentError
        If there are too few strings. For other datatypes `check_data_files` checks the size of the file.
    """
    count = element_count(shape)
    if datatype.variable_size:
        elements = decode_bytes(path.read_bytes())[:count]
        if len(elements) < count:
            raise InvalidArgumentError(f"file '{path}' expected {count} elements, got {len(elements)}")
        return elements.reshape(shape)
    if not datatype.itemsize:
        return zeros(datatype, shape)  # unknown datatypes are reported elsewhere
    return np.frombuffer(path.read_bytes(), datatype.numpy, count=count).reshape(shape)


Control = pb.ModelSequenceBatching.Control


class States:
    """The implicit states of a batch slot, as a request reads and updates them (`SequenceStates`).

    Attributes
    ----------
    inputs : dict of str to Tensor
        State inputs by name, of shape ``[1, dims...]``, or ``dims`` if the model does not batch.
    """

    __slots__ = ("_by_output", "_scratch", "inputs")

    def __init__(self, inputs: dict[str, Tensor], by_output: dict[str, _State], scratch: bool) -> None:
        self.inputs = inputs
        self._by_output = by_output
        self._scratch = scratch

    def update(self, output_name: str, array: npt.NDArray[np.generic]) -> None:
        """Make an output of the model the next state of the slot.

        Raises
        ------
        InvalidArgumentError
            If no state of the model has this ``output_name``, or the size does not fit a common buffer.
        """
        state = self._by_output.get(output_name)
        if state is None:
            raise InvalidArgumentError(f"state '{output_name}' is not a valid state name.")
        if self._scratch:
            return
        tensor = self.inputs[state.input_name]
        # With a common buffer Triton keeps the shape and the datatype of the input, even if the size has changed: the
        # next execution of the model would read beyond its state, or a part of it.
        if state.same_buffer:
            if array.size != tensor.array.size:
                raise InvalidArgumentError(
                    f"state '{output_name}': expected the size of input '{state.input_name}', shape "
                    f"{list(tensor.array.shape)}, got shape {list(array.shape)}: `use_same_buffer_for_input_output` "
                    "keeps the shape",
                    hint="remove `use_same_buffer_for_input_output`, so that the state may change its shape",
                )
            array = array.reshape(tensor.array.shape)
        self.inputs[state.input_name] = Tensor(state.input_name, state.datatype, array)


class _State:
    """One ``state { }`` of the configuration, with the initial tensor of a new sequence."""

    __slots__ = ("datatype", "initial", "input_name", "output_name", "same_buffer")

    def __init__(self, config: pb.ModelConfig, batching: bool, directory: Path) -> None:
        self.input_name: str = config.input_name
        self.output_name: str = config.output_name
        self.datatype: DataType = BY_NUMBER.get(config.data_type, INVALID)  # Triton does not require a type
        # Triton has growable buffers on a GPU only; arrays may have any size.
        self.same_buffer = bool(config.use_same_buffer_for_input_output and not config.use_growable_memory)
        initial = config.initial_state[0] if config.initial_state else None
        dims = [1 if dim < 0 else dim for dim in (initial.dims if initial else config.dims)]
        shape = (1, *dims) if batching else tuple(dims)
        if initial is not None and initial.WhichOneof("state_data") == "data_file":
            array = read_array(model_file(directory / "initial_state", initial.data_file), self.datatype, shape)
        else:
            # Triton does not initialise a state without initial_state; here it is zero.
            array = zeros(self.datatype, shape)
        self.initial = Tensor(self.input_name, self.datatype, read_only_view(array))


class SequenceInputs:
    """The controls and states of the requests of a sequence batch; used on the server's event loop.

    The instance thread writes the states of a slot during an execution. They are not read here at that time, since a
    scheduler has at most one request of a slot in flight.
    """

    def __init__(self, config: pb.ModelConfig, directory: Path) -> None:
        batching = config.max_batch_size > 0
        self._controls = _Controls(config.sequence_batching, (1, 1) if batching else (1,))
        self._iterative = config.sequence_batching.iterative_sequence
        self._states = [_State(state, batching, directory) for state in config.sequence_batching.state]
        self._by_output = {state.output_name: state for state in self._states}
        self._slots: dict[tuple[int, int], States] = {}

    def prepare(self, decision: Execute) -> list[InferRequest]:
        """Return the requests of a batch with their controls and states, including null requests.

        The inputs and states of a null request are zeros with the shapes of the first real request
        (``DirectSequenceBatch::BatcherThread``): the scheduler compares the inputs of a batch, and not the states.
        """
        real: list[InferRequest] = []
        for position, request in enumerate(decision.requests):
            if request is not None:
                self._attach(request, decision.instance, decision.slots[position] if decision.slots else 0)
                real.append(request)
        if len(real) == len(decision.requests):
            return real
        padding = self._controls.padded(real[0].inputs)
        return [self._null_request(real[0], padding) if request is None else request for request in decision.requests]

    def attach_scratch_states(self, request: InferRequest) -> None:
        """Attach states that are discarded afterwards to a request that does not belong to a sequence."""
        if self._states:
            request.states = self._initial_states(scratch=True)

    def _initial_states(self, scratch: bool) -> States:
        return States({state.input_name: state.initial for state in self._states}, self._by_output, scratch)

    def _attach(self, request: InferRequest, instance: int, slot: int) -> None:
        """Attach the control tensors and the states of its slot to a request."""
        # An iterative request is executed again with the same inputs, which the model must not have changed.
        inputs = read_only_tensors(request.inputs) if self._iterative else request.inputs
        request.inputs = {**inputs, **self._controls.tensors(request)}
        if self._states:
            key = (instance, slot)
            # START discards the old state; END frees nothing, on Triton as here.
            if key not in self._slots or request.flags & SEQUENCE_START:
                self._slots[key] = self._initial_states(scratch=False)
            request.states = self._slots[key]

    def _null_request(self, reference: InferRequest, inputs: dict[str, Tensor]) -> InferRequest:
        null = InferRequest(
            reference.model_name, inputs, discard_response, model_version=reference.model_version, requested_outputs=()
        )
        null.is_null = True
        if reference.states is not None:
            null.states = States(_zeros_like(reference.states.inputs), self._by_output, scratch=True)
        return null


class _Controls:
    """The control tensors of a model, which are read-only and created once for each value."""

    def __init__(self, config: pb.ModelConfig, shape: tuple[int, ...]) -> None:
        self._shape = shape
        self._flags: list[tuple[int, Tensor, Tensor]] = []
        self._correlation: tuple[str, DataType] | None = None
        for tensor in config.control_input:
            for control in tensor.control:
                if control.kind == Control.CONTROL_SEQUENCE_CORRID:
                    self._correlation = (tensor.name, BY_NUMBER[control.data_type])
                elif control.kind in _FLAG:  # Triton ignores unknown numbers
                    false, true = self._values(tensor.name, control)
                    self._flags.append((_FLAG[control.kind], false, true))
        self._by_flags = functools.lru_cache(self._flag_tensors)
        # Bounded, since correlation IDs are chosen by clients.
        self._by_id = functools.lru_cache(maxsize=1024)(self._id_tensor)

    def tensors(self, request: InferRequest) -> dict[str, Tensor]:
        """Return the control tensors of one request."""
        # READY does not correspond to a request flag: it is true for every real request.
        return {**self._by_flags(request.flags & _ANY | _READY), **self._by_id(request.correlation_id)}

    def padded(self, inputs: dict[str, Tensor]) -> dict[str, Tensor]:
        """Return the inputs of a null request next to a request with these inputs, which may include controls."""
        return {**_zeros_like(inputs), **self._by_flags(0), **self._by_id("")}

    def _flag_tensors(self, flags: int) -> dict[str, Tensor]:
        return {false.name: true if flags & flag else false for flag, false, true in self._flags}

    def _id_tensor(self, value: int | str) -> dict[str, Tensor]:
        if self._correlation is None:
            return {}
        name, datatype = self._correlation
        if datatype.variable_size:
            array = np.full(self._shape, str(value or "").encode("utf-8", "surrogateescape"), dtype=object)
        else:
            # Triton passes the bytes of a string ID here, or terminates (oldest strategy).
            number = 0 if isinstance(value, str) else value
            # As on Triton, 32-bit types use the low four bytes, and signed types reinterpret them.
            raw = number.to_bytes(8, "little")[: datatype.itemsize]
            array = np.frombuffer(raw, datatype.numpy).reshape(self._shape)
        array.flags.writeable = False
        return {name: Tensor(name, datatype, array)}

    def _values(self, name: str, control: pb.ModelSequenceBatching.Control) -> Iterator[Tensor]:
        for field, type_name in _FALSE_TRUE.items():
            for value in getattr(control, field):
                datatype = BY_NUMBER[pb.DataType.Value(type_name)]
                array = np.full(self._shape, value, datatype.numpy)
                array.flags.writeable = False
                yield Tensor(name, datatype, array)


_READY = 1 << 30
_ANY = SEQUENCE_START | SEQUENCE_END
_FLAG = {
    Control.CONTROL_SEQUENCE_START: SEQUENCE_START,
    Control.CONTROL_SEQUENCE_END: SEQUENCE_END,
    Control.CONTROL_SEQUENCE_READY: _READY,
}
_FALSE_TRUE = {
    "int32_false_true": "TYPE_INT32",
    "fp32_false_true": "TYPE_FP32",
    "bool_false_true": "TYPE_BOOL",
}


def read_only_tensors(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """Return read-only views of tensors that several requests or executions share."""
    return {name: Tensor(name, tensor.datatype, read_only_view(tensor.array)) for name, tensor in tensors.items()}


def _zeros_like(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """Return zeros of the same shapes, which null requests share."""
    return read_only_tensors(
        {name: Tensor(name, tensor.datatype, zeros(tensor.datatype, tensor.shape)) for name, tensor in tensors.items()}
    )
