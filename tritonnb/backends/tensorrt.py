"""The TensorRT backend: ``backend: "tensorrt"``, serialized engines (*model.plan*) on NVIDIA GPUs.

Written against the documented Python API of TensorRT 10. **Not tried on a GPU**: the tests run it with doubles of
TensorRT and CUDA. It has one optimization profile for each instance, the first one or the one that ``profile`` of the
instance group names; no CUDA graphs; and no tensors whose shape depends on values.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
import tensorrt as trt

from tritonnb.backends.batching import gather, publish_states, scatter
from tritonnb.backends.contract import (
    Backend,
    BackendModel,
    BackendModelInstance,
    InstanceSpec,
    MemoryPlace,
    ModelContext,
)
from tritonnb.backends.cuda_stream import CudaStream
from tritonnb.backends.execution import Execution
from tritonnb.backends.memory import memory_in_use
from tritonnb.backends.model_checks import (
    check_input_count,
    check_tensor,
    complete_config,
    find_model_file,
    find_tensor,
)
from tritonnb.backends.tensorrt_engine import Engine, EngineLog, read_engine
from tritonnb.core.errors import InternalError, InvalidArgumentError, UnsupportedError
from tritonnb.core.protobuf import model_config_pb2 as pb
from tritonnb.core.shapes import shape_text
from tritonnb.model_config.schema import ModelSpec

MODEL_FILE = "model.plan"


class TensorRtBackend(Backend):
    """Runs engines."""

    name = "tensorrt"

    def initialize(self, settings: Mapping[str, str]) -> None:
        """Create the runtime, and load plugins (``plugins``, ``version-compatible``)."""
        self._log = EngineLog()
        trt.init_libnvinfer_plugins(self._log, "")
        self._runtime = trt.Runtime(self._log)
        for library in filter(None, settings.get("plugins", "").split(";")):
            if self._runtime.get_plugin_registry().load_library(library) is None:
                raise InvalidArgumentError(
                    f"unable to load the plugin library '{library}' (plugins): {self._log.take()}"
                )
        if settings.get("version-compatible", "false").lower() == "true":
            self._runtime.engine_host_code_allowed = True

    def auto_complete(self, context: ModelContext) -> pb.ModelConfig:
        """Add the tensors of the engine, and batching up to the limit of its profile if it has a batch dimension."""
        config = pb.ModelConfig()
        config.CopyFrom(context.config)
        if config.input and config.output:
            return config
        engine = self.read(context)
        profile = profile_index(context)
        complete_config(
            config,
            [] if config.input else list(engine.inputs.values()),
            [] if config.output else list(engine.outputs.values()),
            batching=engine.batching,
            default_max_batch_size=engine.max_batch_size(profile) if engine.batching else 0,
        )
        return config

    def read(self, context: ModelContext) -> Engine:
        """Read the engine of a model version."""
        return read_engine(self._runtime, self._log, find_model_file(context, MODEL_FILE), context.name)

    def create_model(self, context: ModelContext) -> BackendModel:
        """Create a model."""
        return TensorRtModel(context, self)


class TensorRtModel(BackendModel):
    """One engine file; the instances of a device share its engine."""

    def __init__(self, context: ModelContext, backend: TensorRtBackend) -> None:
        super().__init__(context)
        self._backend = backend
        self._engines: dict[int, Engine] = {}
        self._lock = threading.Lock()

    def initialize(self) -> None:
        """Read the tensors of the configuration; engines are loaded on the devices of the instances."""
        context = self.context
        self.spec = ModelSpec.from_config(context.config)
        self.profile = profile_index(context)
        sequences = context.config.sequence_batching
        self.states = {state.output_name: state.input_name for state in sequences.state}
        controls = (control.name for control in sequences.control_input)
        self.inputs = list(dict.fromkeys((*self.spec.inputs, *controls, *self.states.values())))
        self.outputs = list(dict.fromkeys((*self.spec.outputs, *self.states)))
        find_model_file(context, MODEL_FILE)

    def engine(self, device_id: int) -> Engine:
        """The engine on a device, which is the current one of the calling thread."""
        with self._lock:
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
        self._place: MemoryPlace = ("GPU", spec.device_id)
        self._name = model.context.name
        self._batching = model.spec.max_batch_size > 0

    def initialize(self) -> None:
        """Load the engine on the device, and create the context."""
        before = memory_in_use([self._place])[self._place]
        self._stream = CudaStream(self._place[1])
        self._engine = self._model.engine(self._place[1])
        self._context = self._engine.new_context(self._model.profile, self._stream.handle)
        self._stream.wait()
        self._memory = max(0, memory_in_use([self._place])[self._place] - before)

    def execute(self, execution: Execution) -> None:
        """Gather, run, scatter."""
        model = self._model
        arrays: dict[str, npt.NDArray[Any]] = {}
        for name in model.inputs:
            array = gather(execution, name)
            if array is None:
                raise InvalidArgumentError(f"model '{self._name}': expected input '{name}', got none")
            arrays[name] = np.ascontiguousarray(array)
        execution.compute_started()
        results = self._run(arrays)
        execution.compute_ended()
        publish_states(execution, {name: results[name] for name in model.states}, self._batching)
        outputs = {name: (spec, results[name]) for name, spec in model.spec.outputs.items()}
        scatter(execution, outputs, self._batching)

    def memory_usage(self) -> Mapping[MemoryPlace, int]:
        """Growth of the memory in use when the engine was loaded and the context created."""
        return {self._place: self._memory}

    def finalize(self) -> None:
        """Release the context and the stream."""
        del self._context
        self._stream.close()

    def _run(self, arrays: Mapping[str, npt.NDArray[Any]]) -> dict[str, npt.NDArray[Any]]:
        context, stream = self._context, self._stream
        for name, array in arrays.items():
            if not context.set_input_shape(name, array.shape):
                limits = self._engine.profile_text(name, self._model.profile)
                raise InvalidArgumentError(
                    f"model '{self._name}': input '{name}' expected a shape between {limits}, got "
                    f"{shape_text(array.shape)}"
                )
            context.set_tensor_address(name, stream.send(name, array))
        results: dict[str, npt.NDArray[Any]] = {}
        for name in self._engine.outputs:  # also those that are not configured need memory
            shape = tuple(context.get_tensor_shape(name))
            if -1 in shape:
                raise UnsupportedError(
                    f"model '{self._name}': output '{name}' expected a shape that follows from the inputs, got "
                    f"{shape_text(shape)}, which depends on their values"
                )
            results[name] = np.empty(shape, self._engine.outputs[name].datatype.numpy)
            context.set_tensor_address(name, stream.reserve(name, results[name].nbytes))
        if not context.execute_async_v3(stream.handle):
            raise InternalError(f"model '{self._name}': TensorRT failed: {self._engine.log.take()}")
        for name in self._model.outputs:
            stream.receive(name, results[name])
        stream.wait()
        return results


def profile_index(context: ModelContext) -> int:
    """The optimization profile of a model: the first one, or the one that its instance groups name.

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


def _check_config(model: TensorRtModel, engine: Engine) -> None:
    """Check that the configured tensors are those of the engine, and that its profile allows ``max_batch_size``."""
    config, spec = model.context.config, model.spec
    if model.profile >= engine.profile_count:
        raise InvalidArgumentError(
            f"model '{config.name}': profile expected a number below {engine.profile_count}, got {model.profile}"
        )
    check_input_count(config.name, len(model.inputs), len(engine.inputs))
    for name in model.inputs:
        find_tensor(name, engine.inputs, "input")
    for name in model.outputs:
        find_tensor(name, engine.outputs, "output")
    for kind, specs, known in (("input", spec.inputs, engine.inputs), ("output", spec.outputs, engine.outputs)):
        for name, tensor in specs.items():
            check_tensor(config, tensor, known[name], kind)
    if not spec.max_batch_size:
        return
    for name in model.inputs:
        limit = engine.limits(name, model.profile)[1][0]
        if spec.max_batch_size > limit:
            raise InvalidArgumentError(
                f"unexpected configuration maximum batch size {spec.max_batch_size} for '{config.name}', input "
                f"'{name}' of the engine has batches of at most {limit} rows in profile {model.profile}"
            )
