"""The ONNX Runtime backend: ``backend: "onnxruntime"``.

Session options, execution accelerators and auto-completion follow Triton's ONNX Runtime backend.
Each instance has a session of its own. On CUDA its tensors are bound to the device (`BoundSession`) unless
some are strings; on the CPU arrays go in and out as they are.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy.typing as npt
import onnxruntime as ort

from tritonnb.backends.batching import decode_strings, gather, publish_states, scatter
from tritonnb.backends.contract import (
    Backend,
    BackendModel,
    BackendModelInstance,
    Execution,
    InstanceSpec,
    MemoryPlace,
    ModelContext,
)
from tritonnb.backends.memory import memory_in_use
from tritonnb.backends.onnxruntime_binding import BoundSession
from tritonnb.backends.onnxruntime_options import check_settings, providers, run_options, session_options
from tritonnb.backends.ragged import BatchTensors
from tritonnb.core.datatypes import BY_NUMBER, BYTES, DataType, as_bytes_array
from tritonnb.core.errors import InternalError, InvalidArgumentError, NotFoundError, TritonError, UnsupportedError
from tritonnb.core.messages import shape_text
from tritonnb.core.protobuf import model_config_pb2 as pb
from tritonnb.model_config.schema import ModelSpec, TensorSpec

DEFAULT_MAX_BATCH_SIZE = 4
#: Sessions are made one after the other, so that what the process grows by is the session's.
_measuring = threading.Lock()

_TYPES = {
    "tensor(bool)": "TYPE_BOOL",
    "tensor(uint8)": "TYPE_UINT8",
    "tensor(uint16)": "TYPE_UINT16",
    "tensor(uint32)": "TYPE_UINT32",
    "tensor(uint64)": "TYPE_UINT64",
    "tensor(int8)": "TYPE_INT8",
    "tensor(int16)": "TYPE_INT16",
    "tensor(int32)": "TYPE_INT32",
    "tensor(int64)": "TYPE_INT64",
    "tensor(float16)": "TYPE_FP16",
    "tensor(float)": "TYPE_FP32",
    "tensor(double)": "TYPE_FP64",
    "tensor(string)": "TYPE_STRING",
    "tensor(bfloat16)": "TYPE_BF16",
}


class OnnxRuntimeBackend(Backend):
    """Runs *model.onnx* files."""

    name = "onnxruntime"
    supports_batch_tensors = True

    def initialize(self, settings: Mapping[str, str]) -> None:
        """Check the settings."""
        check_settings(settings)

    def default_instance_count(self, kind: str) -> int:
        """Two on the CPU, as Triton's."""
        return 2 if kind == "KIND_CPU" else 1

    def auto_complete(self, context: ModelContext) -> Any:
        """Fill in the tensors, and batching if every tensor has a variable first dimension."""
        config = pb.ModelConfig()
        config.CopyFrom(context.config)
        if config.input and config.output:
            return config
        session = ort.InferenceSession(str(_model_path(context)), providers=["CPUExecutionProvider"])
        tensors = (*session.get_inputs(), *session.get_outputs())
        batching = all(each.shape and not isinstance(each.shape[0], int) for each in tensors)
        if config.max_batch_size > 0 and not batching:
            raise InvalidArgumentError(
                f"autofill failed for model '{config.name}': model does not support batching while non-zero "
                "max_batch_size is specified"
            )
        if batching and not config.max_batch_size:
            default = int(context.settings.get("default-max-batch-size", DEFAULT_MAX_BATCH_SIZE))
            config.max_batch_size = max(default, 0)
            if config.max_batch_size > 1 and config.WhichOneof("scheduling_choice") is None:
                config.dynamic_batching.SetInParent()
        if not config.input:
            _complete(config.input, session.get_inputs(), config.max_batch_size > 0)
        if not config.output:
            _complete(config.output, session.get_outputs(), config.max_batch_size > 0)
        return config

    def create_model(self, context: ModelContext) -> BackendModel:
        """A model."""
        return OnnxModel(context)


class OnnxModel(BackendModel):
    """One ONNX file."""

    parallel_instances = True

    def initialize(self) -> None:
        """Read the options, so that a mistake fails the load before any session is made."""
        self.path = _model_path(self.context)
        self.spec = ModelSpec.from_config(self.context.config)
        self.batch = BatchTensors(self.context.config)
        self.options = session_options(self.context)
        self.run_options = run_options(self.context)

    def create_instance(self, spec: InstanceSpec) -> BackendModelInstance:
        """An instance with a session of its own."""
        return OnnxInstance(self, spec)


class OnnxInstance(BackendModelInstance):
    """One session."""

    def __init__(self, model: OnnxModel, spec: InstanceSpec) -> None:
        self._model = model
        self._spec = spec
        self._batching = model.spec.max_batch_size > 0
        self._bound: BoundSession | None = None
        self._places: list[MemoryPlace] = [("CPU", 0)]
        if spec.kind == "KIND_GPU":
            self._places.append(("GPU", spec.device_id))

    def initialize(self) -> None:
        """Create the session and check that the configuration fits it."""
        model, spec = self._model, self._spec
        chosen = providers(model.context, spec)
        with _measuring:
            before = memory_in_use(self._places)
            try:
                self._session = ort.InferenceSession(str(model.path), model.options, providers=chosen)
            except Exception as error:
                raise InternalError(f"onnx runtime error: {error}") from error
            after = memory_in_use(self._places)
            self._taken = {place: max(0, after[place] - before[place]) for place in self._places}
        _check_against(model, self._session, self._batching)
        tensors = (*self._session.get_inputs(), *self._session.get_outputs())
        if spec.kind == "KIND_GPU" and all(each.type != "tensor(string)" for each in tensors):
            self.bind("cuda", spec.device_id)
        else:
            self._list_tensors({})

    def bind(self, device: str, device_id: int) -> None:
        """Run on this device from now on, where states stay."""
        config = self._model.context.config
        self._bound = BoundSession(self._session, self._model.run_options, config, device, device_id)
        self._list_tensors(self._bound.states)

    def _list_tensors(self, bound_states: Mapping[str, str]) -> None:
        """What goes in and out by way of the CPU: all but these states."""
        inputs = {each.name: each for each in self._session.get_inputs()}
        self._inputs = [name for name in inputs if name not in bound_states.values()]
        self._dtypes = {name: _datatype(each) for name, each in inputs.items()}
        produced = [each.name for each in self._session.get_outputs()]
        self._outputs = {name: spec for name, spec in self._model.spec.outputs.items() if name in produced}
        states = (each.output_name for each in self._model.context.config.sequence_batching.state)
        self._states = [name for name in states if name not in bound_states]
        self._fetched = list(dict.fromkeys((*self._outputs, *self._states)))

    def execute(self, execution: Execution) -> None:
        """Gather, run, scatter."""
        batch = self._model.batch
        feeds = batch.inputs(execution)
        for name in self._inputs:
            if name not in feeds and (array := gather(execution, name, name in batch.ragged)) is not None:
                feeds[name] = array
        for name, array in feeds.items():
            if self._dtypes[name] is BYTES:
                feeds[name] = decode_strings(execution, name, array)
        execution.compute_started()
        try:
            results = (
                self._session.run(self._fetched, feeds, self._model.run_options)
                if self._bound is None
                else self._bound.run(execution, feeds, self._fetched)
            )
        except TritonError:
            raise
        except Exception as error:
            raise InternalError(f"onnx runtime error: {error}") from error
        execution.compute_ended()
        by_name = dict(zip(self._fetched, results, strict=True))
        if self._states:
            states = {name: _as_bytes(by_name[name]) for name in self._states}
            publish_states(execution, states, self._batching)
        outputs = {name: (spec, _as_bytes(by_name[name])) for name, spec in self._outputs.items()}
        scatter(execution, outputs, self._batching, batch.parts(execution))

    def memory_usage(self) -> Mapping[MemoryPlace, int]:
        """What the process, and the GPU's use, grew by when the session was made."""
        return self._taken

    def finalize(self) -> None:
        """Free the session."""
        self._bound = None
        del self._session


def _model_path(context: ModelContext) -> Path:
    path = context.version_directory / (context.config.default_model_filename or "model.onnx")
    if path.is_dir():
        path = path / "model.onnx"
    if not path.is_file():
        raise NotFoundError(f"unable to find '{path}' for model '{context.name}'")
    return path


def _complete(target: Any, tensors: list[Any], batching: bool) -> None:
    for each in tensors:
        shape = _shape(each)
        tensor = target.add(name=each.name, data_type=pb.DataType.Value(_type_name(each)))
        dims = shape[1:] if batching else shape
        tensor.dims.extend(dims or [1])
        if not dims and batching:
            tensor.reshape.SetInParent()


def _type_name(tensor: Any) -> str:
    name = _TYPES.get(tensor.type)
    if name is None:
        raise UnsupportedError(f"tensor '{tensor.name}' has the type {tensor.type}, which no Triton datatype carries")
    return name


def _datatype(tensor: Any) -> DataType:
    return BY_NUMBER[pb.DataType.Value(_type_name(tensor))]


def _shape(tensor: Any) -> list[int]:
    """The shape that a model gives its tensor; what it leaves open, or has a name for, is -1."""
    return [dim if isinstance(dim, int) else -1 for dim in tensor.shape]


# --- checks -------------------------------------------------------------------------------------


def _check_against(model: OnnxModel, session: ort.InferenceSession, batching: bool) -> None:
    """The configured tensors must be the model's, with types and dims that fit."""
    config = model.context.config
    states = config.sequence_batching.state
    controls = [each.name for each in config.sequence_batching.control_input]
    inputs = {each.name: each for each in session.get_inputs()}
    outputs = {each.name: each for each in session.get_outputs()}
    configured = {*model.spec.inputs, *model.batch.input_names, *controls, *(each.input_name for each in states)}
    if len(configured) != len(inputs):
        raise InvalidArgumentError(
            f"unable to load model '{config.name}', configuration expects {len(configured)} inputs, model "
            f"provides {len(inputs)}"
        )
    for name in configured:
        _find(name, inputs, "input")
    for name in (*model.spec.outputs, *(each.output_name for each in states)):
        _find(name, outputs, "output")
    for name, spec in model.spec.inputs.items():
        if name in model.batch.ragged:
            _check_ragged(name, inputs[name], config)
        else:
            _check_tensor(spec, inputs[name], "input", config, batching)
    for name, spec in model.spec.outputs.items():
        if name not in model.batch.shaped_like:
            _check_tensor(spec, outputs[name], "output", config, batching)


def _check_ragged(name: str, tensor: Any, config: Any) -> None:
    shape = _shape(tensor)
    if shape != [-1]:
        raise InvalidArgumentError(
            f"unable to load model '{config.name}', configuration expects model provides input with shape [-1] for "
            f"ragged input '{name}', model provides {shape_text(shape)}"
        )


def _find(name: str, tensors: Mapping[str, Any], kind: str) -> None:
    if name not in tensors:
        allowed = ", ".join(sorted(tensors))
        raise InvalidArgumentError(f"unexpected inference {kind} '{name}', allowed {kind}s are: {allowed}")


def _check_tensor(spec: TensorSpec, tensor: Any, kind: str, config: Any, batching: bool) -> None:
    datatype = _datatype(tensor)
    if datatype is not spec.datatype:
        raise InvalidArgumentError(
            f"unable to load model '{config.name}', configuration expects datatype {spec.datatype.config_name} for "
            f"{kind} '{spec.name}', model provides {datatype.config_name}"
        )
    shape = _shape(tensor)
    dims = list(spec.backend_dims)
    expected = [-1, *dims] if batching else dims
    fits = len(shape) == len(expected) and all(
        theirs in (-1, mine) for mine, theirs in zip(expected, shape, strict=True)
    )
    is_scalar = not batching and not shape and math.prod(dims) == 1
    if not (fits or is_scalar):
        batch = "an initial batch dimension because max_batch_size > 0 followed by the explicit tensor shape, making "
        raise InvalidArgumentError(
            f"model '{config.name}', tensor '{spec.name}': the model expects {len(shape)} dimensions (shape "
            f"{shape_text(shape)}) but the model configuration specifies {len(expected)} dimensions "
            f"({f'{batch}complete ' if batching else ''}shape {shape_text(expected)})"
        )


def _as_bytes(array: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Other arrays than those of strings are left alone."""
    return as_bytes_array(array) if array.dtype.kind == "O" else array
