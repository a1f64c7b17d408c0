"""The TensorRT backend: ``backend: "tensorrt"``, serialized engines (*model.plan*) on NVIDIA GPUs.

Written against the documented Python API of TensorRT 10. **Not tried on a GPU**: the tests run it with doubles of
TensorRT and CUDA. It has one optimization profile for each instance, the first profile or the profile that ``profile``
of the instance group names; no CUDA graphs; and no tensors with a shape that depends on values.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
import tensorrt as trt
from cuda.bindings import runtime

from tritonnb.backends.batching import Array
from tritonnb.backends.configured_tensors import ConfiguredTensors
from tritonnb.backends.contract import Backend, BackendModel, BackendModelInstance, InstanceSpec, ModelContext
from tritonnb.backends.devices import memory_growth
from tritonnb.backends.execution import Execution
from tritonnb.backends.model_checks import ModelTensor, check_datatype, complete_config, find_model_file, shape_error
from tritonnb.core.datatypes import BY_NAME, DataType
from tritonnb.core.errors import InternalError, InvalidArgumentError, UnsupportedError
from tritonnb.core.protobuf import model_config_pb2 as pb
from tritonnb.core.shapes import shape_text
from tritonnb.model_config.schema import TensorSpec

MODEL_FILE = "model.plan"

#: By the name in ``tensorrt.DataType``; Triton has no datatype for the others.
_DATATYPES = {
    "FLOAT": "FP32",
    "HALF": "FP16",
    "BF16": "BF16",
    "INT8": "INT8",
    "UINT8": "UINT8",
    "INT32": "INT32",
    "INT64": "INT64",
    "BOOL": "BOOL",
}
Shape = tuple[int, ...]


class EngineLog(trt.ILogger):  # type: ignore[misc]
    """The errors of TensorRT, which its functions report in no other way."""

    def __init__(self) -> None:
        trt.ILogger.__init__(self)
        self._last = ""

    def log(self, severity: Any, message: str) -> None:
        """Keep an error; called by TensorRT."""
        # Smaller numbers are more severe in TensorRT, unlike in `logging`.
        if severity <= trt.ILogger.ERROR:
            self._last = " ".join(message.split())

    def take_error(self) -> str:
        """Return the last error, once."""
        message, self._last = self._last, ""
        return message or "no error was logged"


class TensorRtEngine:
    """A deserialized engine.

    Parameters
    ----------
    engine : tensorrt.ICudaEngine
    log : EngineLog

    Attributes
    ----------
    inputs, outputs : dict of str to ModelTensor
    profile_count : int

    Raises
    ------
    InvalidArgumentError, UnsupportedError
        If a tensor has a type that Triton does not have, or is a shape tensor.
    """

    def __init__(self, engine: Any, log: EngineLog) -> None:
        self._engine = engine
        self.log = log
        self.profile_count = int(engine.num_optimization_profiles)
        self.inputs: dict[str, ModelTensor] = {}
        self.outputs: dict[str, ModelTensor] = {}
        for index in range(engine.num_io_tensors):
            name = engine.get_tensor_name(index)
            if engine.is_shape_inference_io(name):
                raise UnsupportedError(
                    f"tensor '{name}': expected an execution tensor, got a shape tensor: run the plan on Triton"
                )
            is_input = engine.get_tensor_mode(name) == trt.TensorIOMode.INPUT
            tensor = ModelTensor(name, _datatype(engine, name), tuple(engine.get_tensor_shape(name)))
            (self.inputs if is_input else self.outputs)[name] = tensor

    @property
    def batching(self) -> bool:
        """True if the first dimension of every tensor is variable."""
        return all(tensor.shape[:1] == (-1,) for tensor in (*self.inputs.values(), *self.outputs.values()))

    def limits(self, name: str, profile: int) -> tuple[Shape, Shape]:
        """Return the smallest and the largest shape of an input in a profile."""
        smallest, _, largest = self._engine.get_tensor_profile_shape(name, profile)
        return tuple(smallest), tuple(largest)

    def max_batch_size(self, profile: int) -> int:
        """Return the largest first dimension that a profile allows for every input."""
        return min((self.limits(name, profile)[1][0] for name in self.inputs), default=0)

    def new_context(self, profile: int, stream: int) -> Any:
        """Return an execution context with a profile; wait for the stream before it is used.

        Raises
        ------
        InternalError
            If TensorRT cannot create it.
        """
        context = self._engine.create_execution_context()
        if context is None or not context.set_optimization_profile_async(profile, stream):
            raise InternalError(f"unable to create TensorRT context: {self.log.take_error()}")
        return context


def _datatype(engine: Any, name: str) -> DataType:
    kind = engine.get_tensor_dtype(name).name
    if kind not in _DATATYPES:
        raise InvalidArgumentError(f"tensor '{name}': expected one of {', '.join(_DATATYPES)}, got {kind}")
    return BY_NAME[_DATATYPES[kind]]


class CudaStream:
    """A stream of a device, with one buffer for each name; to be used on one thread.

    Parameters
    ----------
    device_id : int

    Attributes
    ----------
    handle : int
        The ``cudaStream_t``.

    Raises
    ------
    InternalError
        If the device does not exist, or CUDA reports another error.
    """

    def __init__(self, device_id: int) -> None:
        self._buffers: dict[str, tuple[int, int]] = {}
        # The current device belongs to the thread, so this has to run on the thread of the instance.
        _call(runtime.cudaSetDevice, device_id)
        self.handle = int(_call(runtime.cudaStreamCreate))

    def reserve(self, name: str, byte_size: int) -> int:
        """Return the address of a buffer with at least this size; its contents are lost if it grows."""
        address, size = self._buffers.get(name, (0, 0))
        if size < max(byte_size, 1):
            if address:
                # The stream may still read from the buffer that is freed.
                self.wait()
                _call(runtime.cudaFree, address)
            # At least one byte: cudaMalloc of 0 returns a null pointer, which looks here as if there was no buffer.
            address = int(_call(runtime.cudaMalloc, max(byte_size, 1)))
            self._buffers[name] = address, max(byte_size, 1)
        return address

    def send(self, name: str, array: Array) -> int:
        """Copy an array into a buffer, and return the buffer's address; the array must live until `wait`."""
        address = self.reserve(name, array.nbytes)
        self._copy(address, array.ctypes.data, array.nbytes, _KINDS.cudaMemcpyHostToDevice)
        return address

    def receive(self, name: str, array: Array) -> None:
        """Copy the begin of a buffer into an array, which is complete after `wait`."""
        address, _ = self._buffers[name]
        self._copy(array.ctypes.data, address, array.nbytes, _KINDS.cudaMemcpyDeviceToHost)

    def _copy(self, target: int, source: int, byte_size: int, kind: Any) -> None:
        _call(runtime.cudaMemcpyAsync, target, source, byte_size, kind, self.handle)

    def wait(self) -> None:
        """Wait until everything in the stream is done."""
        _call(runtime.cudaStreamSynchronize, self.handle)

    def close(self) -> None:
        """Free the buffers and the stream."""
        buffers, self._buffers = self._buffers, {}
        for address, _ in buffers.values():
            _call(runtime.cudaFree, address)
        _call(runtime.cudaStreamDestroy, self.handle)


_KINDS = runtime.cudaMemcpyKind


def _call(function: Callable[..., tuple[Any, ...]], *arguments: object) -> Any:
    """Call a function of CUDA's runtime, and return its result."""
    error, *results = function(*arguments)
    if int(error):
        raise InternalError(f"CUDA: {function.__name__} failed: {error.name}")
    return results[0] if results else None


class TensorRtBackend(Backend):
    """The backend for TensorRT engines."""

    name = "tensorrt"

    def initialize(self, settings: Mapping[str, str]) -> None:
        """Create the runtime, and load plugins (``plugins``, ``version-compatible``)."""
        self._log = EngineLog()
        trt.init_libnvinfer_plugins(self._log, "")
        self._runtime = trt.Runtime(self._log)
        for library in filter(None, settings.get("plugins", "").split(";")):
            if self._runtime.get_plugin_registry().load_library(library) is None:
                raise InvalidArgumentError(
                    f"unable to load the plugin library '{library}' (plugins): {self._log.take_error()}"
                )
        if settings.get("version-compatible", "false").lower() == "true":
            self._runtime.engine_host_code_allowed = True

    def auto_complete(self, context: ModelContext) -> pb.ModelConfig:
        """Add the tensors of the engine, and batching up to the limit of its profile if it has a batch dimension."""
        config = context.config
        if config.input and config.output:
            return config
        engine = self.read(context)
        profile = profile_index(context)
        complete_config(
            config,
            engine.inputs.values(),
            engine.outputs.values(),
            batching=engine.batching,
            default_max_batch_size=engine.max_batch_size(profile) if engine.batching else 0,
        )
        return config

    def read(self, context: ModelContext) -> TensorRtEngine:
        """Deserialize the engine of a model version on the current device.

        Raises
        ------
        NotFoundError, InternalError
            If the file does not exist, or TensorRT cannot read it.
        """
        path = find_model_file(context, MODEL_FILE)
        engine = self._runtime.deserialize_cuda_engine(path.read_bytes())
        if engine is None:
            error = self._log.take_error()
            raise InternalError(f"unable to load plan file '{path}' of model '{context.name}': {error}")
        return TensorRtEngine(engine, self._log)

    def create_model(self, context: ModelContext) -> BackendModel:
        """Create a model."""
        return TensorRtModel(context, self)


class TensorRtModel(BackendModel):
    """One engine file; the instances of a device share its engine."""

    def __init__(self, context: ModelContext, backend: TensorRtBackend) -> None:
        super().__init__(context)
        self._backend = backend
        self._engines: dict[int, TensorRtEngine] = {}

    def initialize(self) -> None:
        """Read the tensors of the configuration; engines are loaded on the devices of the instances."""
        context = self.context
        if context.parameters.get("enable_multi_device") in ("true", "1"):
            raise UnsupportedError(
                f"model '{context.name}': expected an engine for one GPU, got enable_multi_device: serve it with "
                f"Triton 26.06 or later"
            )
        self.tensors = ConfiguredTensors(context.config, takes_ragged=False)
        self.profile = profile_index(context)
        find_model_file(context, MODEL_FILE)

    def engine(self, device_id: int) -> TensorRtEngine:
        """Return the engine on a device, the current device of the calling thread."""
        # One engine for each device: an engine can only be used on the device that was current when it was
        # deserialized.
        if device_id not in self._engines:
            engine = self._backend.read(self.context)
            _check_config(self, engine)
            self._engines[device_id] = engine
        return self._engines[device_id]

    def create_instance(self, spec: InstanceSpec) -> BackendModelInstance:
        """Create an instance."""
        if spec.kind != "KIND_GPU":
            raise InvalidArgumentError(
                f"unable to load model '{self.context.name}', TensorRT backend supports only GPU device"
            )
        return TensorRtInstance(self, spec)

    def finalize(self) -> None:
        """Release the engines."""
        self._engines.clear()


class TensorRtInstance(BackendModelInstance):
    """One execution context with its own stream."""

    def __init__(self, model: TensorRtModel, spec: InstanceSpec) -> None:
        self._model = model
        self._place = ("GPU", spec.device_id)
        self._name = model.context.name

    def initialize(self) -> None:
        """Load the engine on the device, and create the context."""
        with memory_growth(self._place) as self.memory:
            self._stream = CudaStream(self._place[1])
            self._engine = self._model.engine(self._place[1])
            self._context = self._engine.new_context(self._model.profile, self._stream.handle)
            self._stream.wait()

    def execute(self, execution: Execution) -> None:
        """Gather, run, scatter."""
        tensors = self._model.tensors
        gathered = tensors.gather(execution, tensors.inputs)
        arrays = {name: np.ascontiguousarray(array) for name, array in gathered.items()}
        execution.compute_started()
        results = self._run(arrays)
        execution.compute_ended()
        tensors.respond(execution, results)

    def finalize(self) -> None:
        """Release the context and the stream."""
        del self._context
        self._stream.close()

    def _run(self, arrays: Mapping[str, npt.NDArray[Any]]) -> dict[str, npt.NDArray[Any]]:
        context, stream = self._context, self._stream
        for name, array in arrays.items():
            if not context.set_input_shape(name, array.shape):
                limits = " and ".join(map(shape_text, self._engine.limits(name, self._model.profile)))
                raise InvalidArgumentError(
                    f"model '{self._name}': input '{name}' expected a shape between {limits}, got "
                    f"{shape_text(array.shape)}"
                )
            context.set_tensor_address(name, stream.send(name, array))
        results: dict[str, npt.NDArray[Any]] = {}
        for name in self._engine.outputs:  # outputs that are not configured also need memory
            shape = tuple(context.get_tensor_shape(name))
            # The shape is known only after the execution. TensorRT calls an `IOutputAllocator` then, which cannot be
            # tested without a GPU.
            if -1 in shape:
                raise UnsupportedError(
                    f"model '{self._name}': output '{name}' expected a shape that follows from the inputs, got "
                    f"{shape_text(shape)}, which depends on their values"
                )
            results[name] = np.empty(shape, self._engine.outputs[name].datatype.numpy)
            context.set_tensor_address(name, stream.reserve(name, results[name].nbytes))
        if not context.execute_async_v3(stream.handle):
            raise InternalError(f"model '{self._name}': TensorRT failed: {self._engine.log.take_error()}")
        for name in self._model.tensors.outputs:
            stream.receive(name, results[name])
        stream.wait()
        return results


def profile_index(context: ModelContext) -> int:
    """Return the optimization profile of a model: the first profile, or the profile that its instance groups name.

    Raises
    ------
    UnsupportedError
        If they name several.
    InvalidArgumentError
        If it is not a number.
    """
    names = {name for group in context.config.instance_group for name in group.profile}
    if len(names) > 1:
        raise UnsupportedError(
            f"model '{context.name}': expected one optimization profile in instance_group, got "
            f"{', '.join(sorted(names))}: use one model for each profile"
        )
    name = next(iter(names), "0")
    if not name.isdecimal():
        raise InvalidArgumentError(f"model '{context.name}': profile expected the number of a profile, got '{name}'")
    return int(name)


def _check_config(model: TensorRtModel, engine: TensorRtEngine) -> None:
    """Check that the engine has the configured tensors, and that its profile allows ``max_batch_size``."""
    config, tensors = model.context.config, model.tensors
    if model.profile >= engine.profile_count:
        raise InvalidArgumentError(
            f"model '{config.name}': profile expected a number below {engine.profile_count}, got {model.profile}"
        )
    tensors.check(engine.inputs, engine.outputs, functools.partial(_check_tensor, config))
    if not tensors.batching:
        return
    for name in tensors.inputs:
        limit = engine.limits(name, model.profile)[1][0]
        if config.max_batch_size > limit:
            raise InvalidArgumentError(
                f"unexpected configuration maximum batch size {config.max_batch_size} for '{config.name}', input "
                f"'{name}' of the engine has batches of at most {limit} rows in profile {model.profile}"
            )


def _check_tensor(config: pb.ModelConfig, spec: TensorSpec, tensor: ModelTensor, kind: str) -> None:
    """Check datatype and dims of a configured tensor; a variable dim, here or there, fits every dim, as on Triton."""
    check_datatype(config.name, spec, tensor.datatype, kind)
    batching = config.max_batch_size > 0
    expected = (-1, *spec.backend_dims) if batching else spec.backend_dims
    if not (
        len(expected) == len(tensor.shape)
        and all(-1 in pair or pair[0] == pair[1] for pair in zip(expected, tensor.shape, strict=True))
    ):
        raise shape_error(config.name, spec.name, tensor.shape, expected, batching)
