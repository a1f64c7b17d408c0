"""The ONNX Runtime backend: ``backend: "onnxruntime"``.

Auto-completion follows Triton's ONNX Runtime backend, and so do the names and values of session, run and accelerator
options, which are passed on. Options that cannot be implemented here, and unknown options of an accelerator, are
errors.

Each instance has its own session. On CUDA, tensors are bound to the device (`OnnxInstance.bind`) unless one of them has
strings; on the CPU, the session takes and returns NumPy arrays.
"""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

import numpy as np
import onnxruntime as ort

from tritonnb.backends import model_checks
from tritonnb.backends.batching import Array, aligned
from tritonnb.backends.configured_tensors import ConfiguredTensors
from tritonnb.backends.contract import Backend, BackendModel, BackendModelInstance, InstanceSpec, ModelContext
from tritonnb.backends.devices import CPU, memory_growth
from tritonnb.backends.execution import Execution
from tritonnb.core.datatypes import BF16, DATATYPES, INVALID, as_bytes_array
from tritonnb.core.errors import InternalError, InvalidArgumentError, TritonError, UnsupportedError
from tritonnb.core.forks import fork_safe
from tritonnb.core.protobuf import model_config_pb2 as pb
from tritonnb.core.shapes import shape_text
from tritonnb.model_config.schema import TensorSpec

if TYPE_CHECKING:
    from tritonnb.backends.device_states import DeviceStates

MODEL_FILE = "model.onnx"
#: ONNX's number of the type.
_BFLOAT16 = 16
#: Sessions are created one at a time, so that the growth of the process's memory belongs to one session.
_measuring = fork_safe(threading.Lock())

#: The datatypes by the type that ONNX Runtime reports for a tensor, such as ``tensor(float)``.
_DATATYPES = {f"tensor({datatype.onnx})": datatype for datatype in DATATYPES if datatype.onnx}

#: ONNX Runtime's levels by ``optimization.graph.level``; by default all optimizations are enabled.
_GRAPH_LEVELS = {
    -1: ort.GraphOptimizationLevel.ORT_ENABLE_BASIC,
    1: ort.GraphOptimizationLevel.ORT_ENABLE_EXTENDED,
    2: ort.GraphOptimizationLevel.ORT_DISABLE_ALL,
}
_CUDA, _TENSORRT, _OPENVINO = "CUDAExecutionProvider", "TensorrtExecutionProvider", "OpenVINOExecutionProvider"
_ACCELERATORS = {"gpu": {"cuda": _CUDA, "tensorrt": _TENSORRT}, "cpu": {"openvino": _OPENVINO}}

#: Model parameters that Triton passes to the CUDA provider; ONNX Runtime takes names instead of the numbers.
_CUDA_PARAMETERS: Mapping[str, Mapping[str, str]] = {
    "gpu_mem_limit": {},
    "arena_extend_strategy": {"0": "kNextPowerOfTwo", "1": "kSameAsRequested"},
    "cudnn_conv_algo_search": {"0": "EXHAUSTIVE", "1": "HEURISTIC", "2": "DEFAULT"},
    "do_copy_in_default_stream": {},
}
_TENSORRT_PARAMETERS = {
    "max_workspace_size_bytes": "trt_max_workspace_size",
    "int8_calibration_table_name": "trt_int8_calibration_table_name",
    "int8_use_native_calibration_table": "trt_int8_use_native_calibration_table",
}
_PRECISIONS: Mapping[str, Mapping[str, str]] = {
    "FP32": {},
    "FP16": {"trt_fp16_enable": "1"},
    "BF16": {"trt_bf16_enable": "1"},
    "INT8": {"trt_int8_enable": "1"},
}


class OnnxRuntimeBackend(Backend):
    """The backend for *model.onnx* files."""

    name = "onnxruntime"
    supports_batch_tensors = True

    def initialize(self, settings: Mapping[str, str]) -> None:
        """Check the settings."""
        # Triton's process is its own; in a notebook, the pool would also serve sessions of the user.
        if settings.get("enable-global-threadpool", "0") not in ("0", "false"):
            raise UnsupportedError(
                "enable-global-threadpool is not supported, since it would affect all sessions of this process, "
                "including those outside the server; set intra_op_thread_count and inter_op_thread_count of the models "
                "instead"
            )

    def default_instance_count(self, kind: str) -> int:
        """Return 2 on the CPU, as on Triton, and otherwise 1."""
        return 2 if kind == "KIND_CPU" else 1

    def auto_complete(self, context: ModelContext) -> pb.ModelConfig | None:
        """Add the tensors, and batching if the first dimension of every tensor is variable."""
        config = context.config
        if config.input and config.output:
            return config
        path = model_checks.find_model_file(context, MODEL_FILE, in_directory=True)
        # On the CPU whatever the instances use: completion only reads names, types and shapes.
        session = ort.InferenceSession(str(path), providers=["CPUExecutionProvider"])
        inputs, outputs = session.get_inputs(), session.get_outputs()
        _check_are_tensors((*inputs, *outputs))
        model_checks.complete_config(
            config,
            map(_model_tensor, inputs),
            map(_model_tensor, outputs),
            batching=all(tensor.shape and not isinstance(tensor.shape[0], int) for tensor in (*inputs, *outputs)),
            default_max_batch_size=context.default_max_batch_size,
        )
        return config

    def create_model(self, context: ModelContext) -> BackendModel:
        """Create a model."""
        return OnnxModel(context)


class OnnxModel(BackendModel):
    """One ONNX file."""

    parallel_instances = True

    def initialize(self) -> None:
        """Read the options, so that a wrong option fails the load before a session is created."""
        self.path = model_checks.find_model_file(self.context, MODEL_FILE, in_directory=True)
        self.tensors = ConfiguredTensors(self.context.config)
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
        self._device: tuple[str, int] | None = None
        self._device_states: DeviceStates | None = None
        # A session on the CPU may be run by any thread, while CUDA has a current device for each thread.
        self.thread_agnostic = spec.kind == "KIND_CPU"

    def initialize(self) -> None:
        """Create the session and check the configuration against it."""
        model, spec = self._model, self._spec
        provider_list = providers(model.context, spec)
        places = [CPU, ("GPU", spec.device_id)] if spec.kind == "KIND_GPU" else [CPU]
        with _measuring, memory_growth(*places) as self.memory:
            try:
                self._session = ort.InferenceSession(str(model.path), model.options, providers=provider_list)
            except Exception as error:
                raise InternalError(f"onnx runtime error: {error}") from error
        _check_config(model, self._session)
        tensors = (*self._session.get_inputs(), *self._session.get_outputs())
        # A scalar is configured with dims [1]; ONNX Runtime refuses an array of one dimension for it.
        self._scalar_inputs = {node.name for node in _inputs(self._session).values() if not node.shape}
        self._bf16 = {tensor.name for tensor in tensors if tensor.type == "tensor(bfloat16)"}
        has_strings = any(_DATATYPES.get(tensor.type, INVALID).variable_size for tensor in tensors)
        if spec.kind == "KIND_GPU" and not (has_strings or self._bf16):
            self.bind("cuda", spec.device_id)
        else:
            self._list_tensors({})

    def bind(self, device: str, device_id: int) -> None:
        """Run through an I/O binding on a device from now on.

        Inputs are copied to the device and outputs back, once each. Implicit states stay on the device: PyTorch gathers
        and divides them, and the session reads them without a copy. Strings cannot be bound.

        Parameters
        ----------
        device : str
            ``"cuda"``, or another device type that has the same name in ONNX Runtime and PyTorch.
        device_id : int

        Raises
        ------
        UnsupportedError
            If the model has states and PyTorch is not installed.
        """
        config = self._model.context.config
        self._device = device, device_id
        if not config.sequence_batching.state:
            self._list_tensors({})
            return
        try:
            from tritonnb.backends.device_states import DeviceStates
        except ImportError as error:
            raise UnsupportedError(
                f"model '{config.name}': implicit state on the GPU requires PyTorch, which is not installed: "
                'pip install "tritonnb[gpu]"'
            ) from error
        self._device_states = DeviceStates(config, device, device_id)
        self._list_tensors(self._device_states.by_output)

    def _list_tensors(self, bound_states: Mapping[str, str]) -> None:
        """List the tensors that pass through the CPU: all except the bound states."""
        inputs = [node.name for node in self._session.get_inputs()]
        # Optional inputs are initializers that a request may override, which `get_inputs` does not list.
        optional = [tensor.name for tensor in self._model.context.config.input if tensor.optional]
        self._inputs = [name for name in dict.fromkeys([*inputs, *optional]) if name not in bound_states.values()]
        self._states = [name for name in self._model.tensors.states if name not in bound_states]
        self._fetched_names = list(dict.fromkeys((*self._model.tensors.spec.outputs, *self._states)))

    def execute(self, execution: Execution) -> None:
        """Gather, run, scatter."""
        gathered = self._model.tensors.gather(execution, self._inputs, optional=True, decode=True)
        feeds = {name: aligned(array) for name, array in gathered.items()}
        for name in self._scalar_inputs & feeds.keys():
            feeds[name] = feeds[name].reshape(())
        execution.compute_started()
        try:
            if self._device is None:
                # Without the interpreter lock, so that the instances of a model run in parallel.
                results = self._run_on_cpu(feeds)
            else:
                results = self._run_bound(execution, feeds, self._device)
        except TritonError:
            raise
        except Exception as error:
            raise InternalError(f"onnx runtime error: {error}") from error
        execution.compute_ended()
        produced = {name: _as_bytes(result) for name, result in zip(self._fetched_names, results, strict=True)}
        for name, tensor in self._model.tensors.spec.outputs.items():
            if produced[name].ndim == 0:  # clients receive a scalar in the configured dims, as on Triton
                produced[name] = produced[name].reshape(tensor.backend_dims)
        self._model.tensors.respond(execution, produced, self._states)

    def finalize(self) -> None:
        """Release the session."""
        self._device_states = None
        del self._session

    def _run_on_cpu(self, feeds: Mapping[str, Array]) -> list[Array]:
        if not self._bf16:
            return list(self._session.run(self._fetched_names, dict(feeds), self._model.run_options))
        # NumPy has no bfloat16: its bit patterns go in and out as values of ONNX Runtime.
        make = ort.OrtValue.ortvalue_from_numpy_with_onnx_type
        values = {
            name: make(array, _BFLOAT16) if name in self._bf16 else ort.OrtValue.ortvalue_from_numpy(array)
            for name, array in feeds.items()
        }
        results = self._session.run_with_ort_values(self._fetched_names, values, self._model.run_options)
        return [
            _bit_patterns(value) if name in self._bf16 else value.numpy()
            for name, value in zip(self._fetched_names, results, strict=True)
        ]

    def _run_bound(self, execution: Execution, feeds: Mapping[str, Array], device: tuple[str, int]) -> list[Array]:
        binding, states = self._session.io_binding(), self._device_states
        for name, array in feeds.items():
            value = ort.OrtValue.ortvalue_from_numpy(np.ascontiguousarray(array), *device)
            binding.bind_ortvalue_input(name, value)
        if states is not None:
            gathered = states.gather(execution)  # kept during the run, since the binding only has their addresses
            for name, tensor in gathered.items():
                dtype = states.inputs[name].numpy
                binding.bind_input(name, *device, dtype, tuple(tensor.shape), tensor.data_ptr())
        bound_states = {} if states is None else states.by_output
        names = list(dict.fromkeys((*self._fetched_names, *bound_states)))
        for name in names:
            binding.bind_output(name, *device)
        self._session.run_with_iobinding(binding, self._model.run_options)
        values = dict(zip(names, binding.get_outputs(), strict=True))
        if states is not None:
            states.publish(execution, {name: states.from_ort_value(values[name]) for name in bound_states})
        return [values[name].numpy() for name in self._fetched_names]


#: The names that Triton has for the types of values other than tensors, by the beginning of ONNX Runtime's type.
_OTHER_TYPES = {"seq": "ONNX_TYPE_SEQUENCE", "map": "ONNX_TYPE_MAP", "sparse_tensor": "ONNX_TYPE_SPARSETENSOR"}


def _check_are_tensors(nodes: Iterable[ort.NodeArg]) -> None:
    """Check that all inputs and outputs of a model are tensors, whether the configuration has them or not."""
    for node in nodes:
        kind = node.type.partition("(")[0]
        if kind == "tensor":
            continue
        # skl2onnx adds a ZipMap operator to classifiers unless it is asked not to.
        is_zip_map = node.type.startswith("seq(map(")
        remedy = "convert the scikit-learn model with the option {'zipmap': False}" if is_zip_map else "return tensors"
        raise UnsupportedError(
            f"Unsupported ONNX Type '{_OTHER_TYPES.get(kind, 'ONNX_TYPE_UNKNOWN')}' for I/O '{node.name}', expected "
            f"'ONNX_TYPE_TENSOR'. Its type is {node.type}; {remedy}"
        )


def _inputs(session: ort.InferenceSession) -> dict[str, ort.NodeArg]:
    """Return the inputs by name, and the initializers that a request may override."""
    return {node.name: node for node in (*session.get_inputs(), *session.get_overridable_initializers())}


def _model_tensor(tensor: ort.NodeArg) -> model_checks.ModelTensor:
    """Return a tensor as ONNX Runtime describes it; dimensions that are unknown or only have a name are -1."""
    datatype = _DATATYPES.get(tensor.type)
    if datatype is None:
        raise UnsupportedError(f"tensor '{tensor.name}': expected a type that Triton has, got {tensor.type}")
    dims = tuple(dim if isinstance(dim, int) else -1 for dim in tensor.shape)
    return model_checks.ModelTensor(tensor.name, datatype, dims)


def _check_config(model: OnnxModel, session: ort.InferenceSession) -> None:
    """Check that the model has the configured tensors, with datatypes and dims that fit."""
    config = model.context.config

    def check(spec: TensorSpec, node: ort.NodeArg, kind: str) -> None:
        tensor = _model_tensor(node)
        is_optional = kind == "input" and spec.optional
        if is_optional and model.tensors.batching:
            # Requests of a batch that override an initializer and requests that do not would need separate executions.
            raise InvalidArgumentError(
                f"unable to load model '{config.name}', optional input '{tensor.name}' is not supported for models "
                "that support batching"
            )
        if kind == "output" or spec.name not in model.tensors.ragged:
            model_checks.check_tensor(config, spec, tensor, kind)
        # A ragged input is one vector without a batch dimension, whatever `max_batch_size` says.
        elif tensor.shape != (-1,):
            raise InvalidArgumentError(
                f"unable to load model '{config.name}', configuration expects model provides input with shape [-1] for "
                f"ragged input '{tensor.name}', model provides {shape_text(tensor.shape)}"
            )

    inputs = _inputs(session)
    outputs = {node.name: node for node in session.get_outputs()}
    _check_are_tensors((*inputs.values(), *outputs.values()))
    optional = sum(tensor.optional for tensor in config.input)
    model_checks.check_input_count(config.name, len(model.tensors.inputs) - optional, len(session.get_inputs()))
    model.tensors.check(inputs, outputs, check, has_other_inputs=True)


def _bit_patterns(value: ort.OrtValue) -> Array:
    """Return the bit patterns of a tensor on the CPU, whose elements NumPy does not have."""
    pattern = BF16.numpy
    raw = ctypes.string_at(value.data_ptr(), value.tensor_size_in_bytes())
    return np.frombuffer(raw, pattern).reshape(value.shape())


def _as_bytes(array: Array) -> Array:
    """Return an output whose strings, if it has any, are ``bytes``."""
    return as_bytes_array(array) if array.dtype.kind == "O" else array


# --- options --------------------------------------------------------------------------------------


def session_options(context: ModelContext) -> ort.SessionOptions:
    """Return the options of a model's sessions.

    Raises
    ------
    InvalidArgumentError
        If an option has an invalid value.
    """
    options = ort.SessionOptions()
    # Errors only: ONNX Runtime writes to the standard error output of the process, which is the user's.
    options.log_severity_level = 3
    level = context.config.optimization.graph.level
    options.graph_optimization_level = _GRAPH_LEVELS.get(level, ort.GraphOptimizationLevel.ORT_ENABLE_ALL)
    options.intra_op_num_threads = model_checks.integer_parameter(context, "intra_op_thread_count", 0)
    options.inter_op_num_threads = model_checks.integer_parameter(context, "inter_op_thread_count", 0)
    if model_checks.integer_parameter(context, "execution_mode", 0):
        options.execution_mode = ort.ExecutionMode.ORT_PARALLEL
    options.enable_cpu_mem_arena = bool(model_checks.integer_parameter(context, "enable_mem_arena", 1))
    options.enable_mem_pattern = bool(model_checks.integer_parameter(context, "enable_mem_pattern", 1))
    for name, value in context.parameters.items():
        # Passed on unchecked, as on Triton: ONNX Runtime knows the keys of its version.
        if name.startswith("session."):
            options.add_session_config_entry(name, value)
    return options


def run_options(context: ModelContext) -> ort.RunOptions:
    """Return the options of every run of a model's sessions."""
    options = ort.RunOptions()
    shrinkage = context.parameters.get("memory.enable_memory_arena_shrinkage")
    if shrinkage is not None:
        options.add_run_config_entry("memory.enable_memory_arena_shrinkage", shrinkage)
    return options


def providers(context: ModelContext, spec: InstanceSpec) -> list[str | tuple[str, dict[str, str]]]:
    """Return the execution providers of an instance with their options, in order of preference.

    Raises
    ------
    InvalidArgumentError
        If an accelerator or a parameter of an accelerator is unknown.
    UnsupportedError
        If the installed ONNX Runtime does not have the provider.
    """
    config, on_gpu = context.config, spec.kind == "KIND_GPU"
    accelerators = config.optimization.execution_accelerators
    providers_with_options: list[tuple[str, dict[str, str]]] = []
    requested = accelerators.gpu_execution_accelerator if on_gpu else accelerators.cpu_execution_accelerator
    for accelerator in requested:
        provider = _ACCELERATORS["gpu" if on_gpu else "cpu"].get(accelerator.name)
        if provider is None:
            raise InvalidArgumentError(f"unknown Execution Accelerator '{accelerator.name}' is requested")
        providers_with_options.append((provider, _options(provider, dict(accelerator.parameters))))
    # Also behind TensorRT, which does not implement every operator.
    if on_gpu and _CUDA not in [name for name, _ in providers_with_options]:
        parameters = {name: value for name, value in context.parameters.items() if name in _CUDA_PARAMETERS}
        providers_with_options.append((_CUDA, _options(_CUDA, parameters)))
    available = ort.get_available_providers()
    for name, options in providers_with_options:
        # ONNX Runtime itself only warns and then runs on the CPU, which nobody would notice but by the latency.
        if name not in available:
            raise UnsupportedError(
                f"model '{config.name}': expected an onnxruntime with {name}, got {', '.join(available)}: "
                'pip install "tritonnb[gpu]"'
            )
        if on_gpu:
            options["device_id"] = str(spec.device_id)
    # The CPU is always the last choice, because no other provider implements all operators.
    return [*providers_with_options, "CPUExecutionProvider"]


def _options(provider: str, parameters: Mapping[str, str]) -> dict[str, str]:
    if provider == _CUDA:
        return {name: _CUDA_PARAMETERS.get(name, {}).get(value, value) for name, value in parameters.items()}
    if provider == _TENSORRT:
        return _tensorrt_options(parameters)
    return dict(parameters)


def _tensorrt_options(parameters: Mapping[str, str]) -> dict[str, str]:
    options: dict[str, str] = {}
    for name, value in parameters.items():
        if name == "precision_mode":
            if value not in _PRECISIONS:
                raise InvalidArgumentError(f"unsupported precision mode '{value}' is requested")
            options.update(_PRECISIONS[value])
        elif name in _TENSORRT_PARAMETERS:
            options[_TENSORRT_PARAMETERS[name]] = value
        elif name.startswith("trt_"):
            options[name] = value
        else:
            raise InvalidArgumentError(f"unknown parameter '{name}' is provided for TensorRT Execution Accelerator")
    return options
