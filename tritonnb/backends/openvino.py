"""The OpenVINO backend: ``backend: "openvino"``.

Runs OpenVINO IR (*model.xml* with *model.bin*, the default), ONNX, TensorFlow SavedModel, TensorFlow Lite and
PaddlePaddle files; ``default_model_filename`` names a file of another format. Parameters, auto-completion and checks
follow Triton's OpenVINO backend. The instances of a model share one compiled model, and each has its own infer request.
"""

from __future__ import annotations

from typing import Any

import numpy.typing as npt
import openvino as ov

from tritonnb.backends import openvino_model
from tritonnb.backends.batching import append_zeros
from tritonnb.backends.configured_tensors import ConfiguredTensors
from tritonnb.backends.contract import Backend, BackendModel, BackendModelInstance, InstanceSpec, ModelContext
from tritonnb.backends.devices import CPU, memory_growth
from tritonnb.backends.execution import Execution
from tritonnb.backends.model_checks import complete_config
from tritonnb.core.errors import InternalError, InvalidArgumentError, UnsupportedError
from tritonnb.core.protobuf import model_config_pb2 as pb


class OpenVinoBackend(Backend):
    """The backend for *model.xml* files and the other formats that OpenVINO reads."""

    name = "openvino"

    def auto_complete(self, context: ModelContext) -> pb.ModelConfig:
        """Add the tensors, and batching if the layouts of all tensors in the file name a batch dimension."""
        config = context.config
        model = openvino_model.read_model(ov.Core(), context)
        has_batch = openvino_model.has_batch_layout(model)
        complete_config(
            config,
            map(openvino_model.model_tensor, model.inputs),
            map(openvino_model.model_tensor, model.outputs),
            # Many models have no layouts: with a configured max_batch_size they batch nevertheless.
            batching=has_batch or config.max_batch_size > 0,
            default_max_batch_size=max(1, context.default_max_batch_size),
        )
        if has_batch and config.max_batch_size > 1 and config.WhichOneof("scheduling_choice") is None:
            config.dynamic_batching.SetInParent()
        return config

    def create_model(self, context: ModelContext) -> BackendModel:
        """Create a model."""
        return OpenVinoModel(context)


class OpenVinoModel(BackendModel):
    """One compiled model, which the instances share."""

    def initialize(self) -> None:
        """Read the file, check the configuration against it, and compile it."""
        context = self.context
        self.tensors = ConfiguredTensors(context.config, takes_ragged=False)
        self.pads_batches = openvino_model.is_yes(context, "ENABLE_BATCH_PADDING")
        device = context.parameters.get("TARGET_DEVICE", "").upper() or "CPU"
        extension = context.parameters.get("CPU_EXTENSION_PATH", "")
        _check_config(context)
        core = ov.Core()
        with memory_growth(CPU) as self.memory:
            if extension:
                with openvino_model.errors_in(" loading custom CPU extensions"):
                    core.add_extension(extension)
            model = openvino_model.read_model(core, context)
            model = openvino_model.prepare_model(model, context, self.tensors.spec)
            with openvino_model.errors_in("loading model"):
                properties = openvino_model.device_properties(core, context, device)
                self.compiled = core.compile_model(model, device, properties)

    def create_instance(self, spec: InstanceSpec) -> BackendModelInstance:
        """Create an instance with its own infer request."""
        if spec.kind != "KIND_CPU":
            raise InvalidArgumentError(
                f"unable to load model '{self.context.name}', Triton OpenVINO backend supports only Kind CPU and AUTO"
            )
        return OpenVinoInstance(self)

    def finalize(self) -> None:
        """Release the compiled model."""
        del self.compiled


class OpenVinoInstance(BackendModelInstance):
    """One infer request."""

    thread_agnostic = True

    def __init__(self, model: OpenVinoModel) -> None:
        self._model = model
        self._max_batch_size = model.tensors.spec.max_batch_size
        self._has_fixed_batch_size = self._max_batch_size > 0 and model.compiled.input(0).partial_shape[0].is_static

    def initialize(self) -> None:
        """Create the infer request."""
        with openvino_model.errors_in("creating infer request object"):
            self._request = self._model.compiled.create_infer_request()
        self.memory, self._model.memory = self._model.memory, {CPU: 0}  # the first instance reports it

    def execute(self, execution: Execution) -> None:
        """Gather, run, scatter."""
        padding = self._padding(execution.size)
        tensors = self._model.tensors
        gathered = tensors.gather(execution, tensors.spec.inputs)
        feeds = {name: append_zeros(array, padding) for name, array in gathered.items()}
        execution.compute_started()
        with openvino_model.errors_in("running inference"):
            # Without copies: the arrays live until the responses have been copied.
            self._request.infer(feeds, share_inputs=True, share_outputs=True)
        execution.compute_ended()
        tensors.respond(execution, {name: self._output(name, execution.size, padding) for name in tensors.spec.outputs})

    def finalize(self) -> None:
        """Release the infer request."""
        del self._request

    def _padding(self, rows: int) -> int:
        """Return the number of rows of zeros that the batch needs."""
        missing = self._max_batch_size - rows
        if not self._max_batch_size or not missing:
            return 0
        if self._model.pads_batches:
            return missing
        if self._has_fixed_batch_size:
            raise InternalError(
                f"expected requests with batch size '{self._max_batch_size}', got '{rows}'... this error can be "
                "avoided by setting 'ENABLE_BATCH_PADDING' parameter in model configuration to 'YES' at a performance "
                "cost."
            )
        return 0

    def _output(self, name: str, rows: int, padding: int) -> npt.NDArray[Any]:
        array: npt.NDArray[Any] = self._request.get_tensor(name).data
        if self._max_batch_size and (not array.ndim or array.shape[0] != rows + padding):
            raise InternalError(
                f"expected the batch size of openvino model output to be {rows + padding}, got "
                f"{array.shape[0] if array.ndim else 0} (output '{name}')"
            )
        return array


def _check_config(context: ModelContext) -> None:
    """Refuse tensors that Triton's OpenVINO backend does not pass to the model."""
    sequences = context.config.sequence_batching
    kinds = {
        "control_input": [control.name for control in sequences.control_input],
        "state": [state.input_name for state in sequences.state],
    }
    for kind, names in kinds.items():
        if names:
            raise UnsupportedError(
                f"model '{context.name}': expected sequence_batching without {kind}, got '{names[0]}': as on Triton, "
                "the openvino backend does not pass it to the model; use the onnxruntime or the python backend"
            )
