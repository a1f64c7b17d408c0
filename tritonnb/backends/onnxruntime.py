"""The ONNX Runtime backend: ``backend: "onnxruntime"``.

Session options, execution accelerators and auto-completion follow Triton's ONNX Runtime backend.
Each instance has its own session. On CUDA, tensors are bound to the device (`BoundSession`) unless one of them has
strings; on the CPU, the session takes and returns NumPy arrays.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping

import numpy as np
import numpy.typing as npt
import onnxruntime as ort

from tritonnb.backends.batching import decode_strings, gather, publish_states, scatter
from tritonnb.backends.contract import (
    Backend,
    BackendModel,
    BackendModelInstance,
    InstanceSpec,
    MemoryPlace,
    ModelContext,
)
from tritonnb.backends.execution import Execution
from tritonnb.backends.memory import memory_in_use
from tritonnb.backends.model_checks import (
    ModelTensor,
    check_input_count,
    check_tensor,
    complete_config,
    find_model_file,
    find_tensor,
)
from tritonnb.backends.onnxruntime_binding import BoundSession
from tritonnb.backends.onnxruntime_options import check_settings, providers, run_options, session_options
from tritonnb.backends.ragged import BatchTensors
from tritonnb.core.datatypes import DATATYPES, INVALID, DataType, as_bytes_array
from tritonnb.core.errors import InternalError, InvalidArgumentError, TritonError, UnsupportedError
from tritonnb.core.protobuf import model_config_pb2 as pb
from tritonnb.core.shapes import shape_text
from tritonnb.model_config.schema import ModelSpec

MODEL_FILE = "model.onnx"
DEFAULT_MAX_BATCH_SIZE = 4
#: Sessions are created one at a time, so that the growth of the process's memory is that of one session.
_measuring = threading.Lock()

#: The datatypes by the type that ONNX Runtime reports for a tensor, such as ``tensor(float)``.
_DATATYPES = {f"tensor({datatype.onnx})": datatype for datatype in DATATYPES if datatype.onnx}


class OnnxRuntimeBackend(Backend):
    """Runs *model.onnx* files."""

    name = "onnxruntime"
    supports_batch_tensors = True

    def initialize(self, settings: Mapping[str, str]) -> None:
        """Check the settings."""
        check_settings(settings)

    def default_instance_count(self, kind: str) -> int:
        """Two on the CPU, as on Triton; otherwise one."""
        return 2 if kind == "KIND_CPU" else 1

    def auto_complete(self, context: ModelContext) -> pb.ModelConfig | None:
        """Add the tensors, and batching if the first dimension of every tensor is variable."""
        config = pb.ModelConfig()
        config.CopyFrom(context.config)
        if config.input and config.output:
            return config
        path = find_model_file(context, MODEL_FILE, in_directory=True)
        session = ort.InferenceSession(str(path), providers=["CPUExecutionProvider"])
        inputs, outputs = session.get_inputs(), session.get_outputs()
        # Only tensors that are missing are converted: the others may have types that Triton does not have.
        complete_config(
            config,
            [] if config.input else [_model_tensor(tensor) for tensor in inputs],
            [] if config.output else [_model_tensor(tensor) for tensor in outputs],
            batching=all(tensor.shape and not isinstance(tensor.shape[0], int) for tensor in (*inputs, *outputs)),
            default_max_batch_size=int(context.settings.get("default-max-batch-size", DEFAULT_MAX_BATCH_SIZE)),
        )
        return config

    def create_model(self, context: ModelContext) -> BackendModel:
        """Create a model."""
        return OnnxModel(context)


class OnnxModel(BackendModel):
    """One ONNX file."""

    parallel_instances = True

    def initialize(self) -> None:
        """Read the options, so that a wrong one fails the load before a session is created."""
        self.path = find_model_file(self.context, MODEL_FILE, in_directory=True)
        self.spec = ModelSpec.from_config(self.context.config)
        self.batch = BatchTensors(self.context.config)
        self.options = session_options(self.context)
        self.run_options = run_options(self.context)

    def create_instance(self, spec: InstanceSpec) -> BackendModelInstance:
        """Create an instance with its own session."""
        return OnnxInstance(self, spec)


class OnnxInstance(BackendModelInstance):
    """One session."""

    def __init__(self, model: OnnxModel, spec: InstanceSpec) -> None:
        self._model = model
        self._spec = spec
        self._batching = model.spec.max_batch_size > 0
        self._bound: BoundSession | None = None
        self._places: list[MemoryPlace] = [("CPU", 0)]
        self.thread_agnostic = spec.kind == "KIND_CPU"
        if spec.kind == "KIND_GPU":
            self._places.append(("GPU", spec.device_id))

    def initialize(self) -> None:
        """Create the session and check the configuration against it."""
        model, spec = self._model, self._spec
        provider_list = providers(model.context, spec)
        with _measuring:
            before = memory_in_use(self._places)
            try:
                self._session = ort.InferenceSession(str(model.path), model.options, providers=provider_list)
            except Exception as error:
                raise InternalError(f"onnx runtime error: {error}") from error
            after = memory_in_use(self._places)
            self._memory = {place: max(0, after[place] - before[place]) for place in self._places}
        _check_config(model, self._session)
        tensors = (*self._session.get_inputs(), *self._session.get_outputs())
        has_strings = any(_DATATYPES.get(tensor.type, INVALID).variable_size for tensor in tensors)
        if spec.kind == "KIND_GPU" and not has_strings:
            self.bind("cuda", spec.device_id)
        else:
            self._list_tensors({})

    def bind(self, device: str, device_id: int) -> None:
        """Run on a device from now on; states stay in its memory."""
        config = self._model.context.config
        self._bound = BoundSession(self._session, self._model.run_options, config, device, device_id)
        self._list_tensors(self._bound.states)

    def _list_tensors(self, bound_states: Mapping[str, str]) -> None:
        """List the tensors that pass through the CPU: all except the bound states."""
        self._datatypes = {tensor.name: _datatype(tensor) for tensor in self._session.get_inputs()}
        self._inputs = [name for name in self._datatypes if name not in bound_states.values()]
        produced = [tensor.name for tensor in self._session.get_outputs()]
        self._outputs = {name: spec for name, spec in self._model.spec.outputs.items() if name in produced}
        states = (state.output_name for state in self._model.context.config.sequence_batching.state)
        self._states = [name for name in states if name not in bound_states]
        self._fetched_names = list(dict.fromkeys((*self._outputs, *self._states)))

    def execute(self, execution: Execution) -> None:
        """Gather, run, scatter."""
        batch = self._model.batch
        feeds = batch.inputs(execution)
        for name in self._inputs:
            if name not in feeds and (array := gather(execution, name, name in batch.ragged)) is not None:
                feeds[name] = array
        for name, array in feeds.items():
            if self._datatypes[name].variable_size:
                feeds[name] = decode_strings(execution, name, array)
        execution.compute_started()
        try:
            results = (
                self._session.run(self._fetched_names, feeds, self._model.run_options)
                if self._bound is None
                else self._bound.run(execution, feeds, self._fetched_names)
            )
        except TritonError:
            raise
        except Exception as error:
            raise InternalError(f"onnx runtime error: {error}") from error
        execution.compute_ended()
        results_by_name = dict(zip(self._fetched_names, results, strict=True))
        if self._states:
            states = {name: _as_bytes(results_by_name[name]) for name in self._states}
            publish_states(execution, states, self._batching)
        outputs = {name: (spec, _as_bytes(results_by_name[name])) for name, spec in self._outputs.items()}
        scatter(execution, outputs, self._batching, batch.parts(execution))

    def memory_usage(self) -> Mapping[MemoryPlace, int]:
        """Growth of the process's memory, and of the GPU memory in use, when the session was created."""
        return self._memory

    def finalize(self) -> None:
        """Release the session."""
        self._bound = None
        del self._session


def _model_tensor(tensor: ort.NodeArg) -> ModelTensor:
    """A tensor as ONNX Runtime describes it (``NodeArg``)."""
    return ModelTensor(tensor.name, _datatype(tensor), _shape(tensor))


def _datatype(tensor: ort.NodeArg) -> DataType:
    datatype = _DATATYPES.get(tensor.type)
    if datatype is None:
        raise UnsupportedError(f"tensor '{tensor.name}': expected a type that Triton has, got {tensor.type}")
    return datatype


def _shape(tensor: ort.NodeArg) -> tuple[int, ...]:
    """The declared shape; dimensions that are unknown or only have a name are -1."""
    return tuple(dim if isinstance(dim, int) else -1 for dim in tensor.shape)


def _check_config(model: OnnxModel, session: ort.InferenceSession) -> None:
    """Check that the configured tensors are those of the model, with datatypes and dims that fit."""
    config, spec = model.context.config, model.spec
    sequences = config.sequence_batching
    inputs = {tensor.name: tensor for tensor in session.get_inputs()}
    outputs = {tensor.name: tensor for tensor in session.get_outputs()}
    controls = [control.name for control in sequences.control_input]
    configured = {*spec.inputs, *model.batch.input_names, *controls, *(state.input_name for state in sequences.state)}
    check_input_count(config.name, len(configured), len(inputs))
    for name in configured:
        find_tensor(name, inputs, "input")
    for name in (*spec.outputs, *(state.output_name for state in sequences.state)):
        find_tensor(name, outputs, "output")
    for name, tensor in spec.inputs.items():
        if name in model.batch.ragged:
            _check_ragged(config, inputs[name])
        else:
            check_tensor(config, tensor, _model_tensor(inputs[name]), "input")
    for name, tensor in spec.outputs.items():
        if name not in model.batch.shaped_like:
            check_tensor(config, tensor, _model_tensor(outputs[name]), "output")


def _check_ragged(config: pb.ModelConfig, tensor: ort.NodeArg) -> None:
    shape = _shape(tensor)
    if shape != (-1,):
        raise InvalidArgumentError(
            f"unable to load model '{config.name}', configuration expects model provides input with shape [-1] for "
            f"ragged input '{tensor.name}', model provides {shape_text(shape)}"
        )


def _as_bytes(array: npt.NDArray[np.generic]) -> npt.NDArray[np.generic]:
    """An output whose strings, if it has any, are ``bytes``."""
    return as_bytes_array(array) if array.dtype.kind == "O" else array
