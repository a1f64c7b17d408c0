"""The PyTorch backend, ``backend: "pytorch"``: TorchScript files; `tritonnb.backends.pt2` has PyTorch 2 archives.

Naming conventions and parameters follow Triton's PyTorch backend. On CUDA, every instance has its own stream;
inputs are copied through pinned staging buffers without blocking.
"""

from __future__ import annotations

import contextlib
import logging
import threading
from collections.abc import Mapping, Sequence

import numpy as np
import torch

from tritonnb.backends.batching import Array
from tritonnb.backends.configured_tensors import ConfiguredTensors
from tritonnb.backends.contract import Backend, BackendModel, BackendModelInstance, InstanceSpec, ModelContext
from tritonnb.backends.device_states import DTYPES, DeviceStates
from tritonnb.backends.devices import CPU
from tritonnb.backends.execution import Execution
from tritonnb.backends.model_checks import boolean_parameter, find_model_file, integer_parameter
from tritonnb.backends.pt2 import AOTI_PLATFORM, Pt2Model, check_has_dtype, check_sequence_ids, configured_tensors
from tritonnb.backends.pytorch_names import arguments_by_tensor, result_positions
from tritonnb.core.errors import InternalError, InvalidArgumentError, TritonError
from tritonnb.core.forks import fork_safe
from tritonnb.core.protobuf import model_config_pb2 as pb

logger = logging.getLogger(__name__)

#: The datatypes of a module's tensors; a list of strings is TYPE_STRING.
_DATATYPES = {dtype: name for name, dtype in DTYPES.items()}
_STRINGS = "TYPE_STRING"

#: A tensor, or a list of strings.
_Value = torch.Tensor | list[str]


class PyTorchBackend(Backend):
    """The backend for *model.pt* files."""

    name = "pytorch"
    supports_batch_tensors = True

    def __init__(self) -> None:
        self._threads_set = fork_safe(threading.Lock())
        self._threads: dict[str, int] = {}

    def auto_complete(self, context: ModelContext) -> pb.ModelConfig | None:
        """Return None, as on Triton: neither a TorchScript file nor a PyTorch 2 archive describes its tensors."""
        if context.config.platform == AOTI_PLATFORM:
            logger.warning(
                "Auto-complete configuration is not supported for Inductor models. Skipping auto-complete for model "
                '"%s".',
                context.name,
            )
            return None
        logger.info(
            "skipping model configuration auto-complete for '%s': not supported for pytorch backend", context.name
        )
        return None

    def create_model(self, context: ModelContext) -> BackendModel:
        """Create a model."""
        self._set_threads(context)
        return Pt2Model(context) if context.config.platform == AOTI_PLATFORM else TorchModel(context)

    def _set_threads(self, context: ModelContext) -> None:
        """Set thread counts, which apply to the process: as on Triton, the counts of the first model are used."""
        with self._threads_set:
            for name, setter in _THREAD_SETTERS.items():
                count = integer_parameter(context, name, None)
                if count is None or count <= 0:
                    continue
                if self._threads.setdefault(name, count) != count:
                    current = self._threads[name]
                    logger.warning("%s of model '%s' ignored: it is already %d", name, context.name, current)
                    continue
                try:
                    setter(count)
                # PyTorch accepts the number of interop threads only once in a process, and only before its first
                # parallel work.
                except RuntimeError as error:
                    logger.warning("%s of model '%s' ignored: %s", name, context.name, error)


class TorchModel(BackendModel):
    """One TorchScript file."""

    def initialize(self) -> None:
        """Check the file and the parameters."""
        context = self.context
        self.tensors = ConfiguredTensors(context.config)
        self.path = find_model_file(context, "model.pt")
        self.inference_mode = boolean_parameter(context, "INFERENCE_MODE", True)
        self.optimized = not boolean_parameter(context, "DISABLE_OPTIMIZED_EXECUTION", False)
        self.clean_cache = boolean_parameter(context, "ENABLE_CACHE_CLEANING", False)
        self.share_weights = boolean_parameter(context, "ENABLE_WEIGHT_SHARING", False)
        cudnn = not boolean_parameter(context, "DISABLE_CUDNN", False)
        if not cudnn:
            # For the whole process, as the parameter on Triton: PyTorch has no setting for one module.
            torch.backends.cudnn.enabled = False
        modes = {
            "Optimized execution": self.optimized,
            "Cache Cleaning": self.clean_cache,
            "Inference Mode": self.inference_mode,
            "cuDNN": cudnn,
        }
        for mode, enabled in modes.items():
            state = "enabled" if enabled else "disabled"
            logger.info("%s is %s for model instance '%s'", mode, state, context.name)
        for name, setter in _JIT_SETTINGS.items():
            if name in context.parameters:
                setter(boolean_parameter(context, name, True))
        self.datatypes = _check_datatypes(context.config)
        self._shared: dict[torch.device, torch.jit.ScriptModule] = {}

    def create_instance(self, spec: InstanceSpec) -> BackendModelInstance:
        """Create an instance."""
        return TorchInstance(self, spec)

    def module(self, device: torch.device) -> tuple[torch.jit.ScriptModule, bool]:
        """Return the module on a device, and whether another instance also has it (``ENABLE_WEIGHT_SHARING``)."""
        if device in self._shared:
            return self._shared[device], True
        try:
            module: torch.jit.ScriptModule = torch.jit.load(str(self.path), map_location=device)  # type: ignore[no-untyped-call]
        except (RuntimeError, ValueError) as error:
            raise InternalError(f"failed to load model '{self.context.name}': {error}") from error
        # A file that was saved in training mode would drop values at random.
        module.eval()
        # Off by default, as on Triton: a module that writes to its attributes must not be shared by two threads.
        if self.share_weights:
            self._shared[device] = module
        return module, False


class TorchInstance(BackendModelInstance):
    """One module on one device."""

    def __init__(self, model: TorchModel, spec: InstanceSpec) -> None:
        self._model = model
        self._spec = spec
        cuda = spec.kind == "KIND_GPU"
        self._device = torch.device("cuda", spec.device_id) if cuda else torch.device("cpu")
        self._stream = torch.cuda.Stream(self._device) if cuda else None  # type: ignore[no-untyped-call]
        self._staging: dict[str, torch.Tensor] = {}
        self._states = DeviceStates(model.context.config, self._device.type, spec.device_id)

    def initialize(self) -> None:
        """Load the module and map the tensors to its arguments and results."""
        config = self._model.context.config
        self._module, is_shared = self._model.module(self._device)
        if not is_shared:
            place = ("GPU", self._spec.device_id) if self._stream is not None else CPU
            weights = (*self._module.parameters(), *self._module.buffers())
            # The weights are counted and not the process's growth, because the file says exactly what they take.
            self.memory = {place: sum(weight.numel() * weight.element_size() for weight in weights)}
        self._arguments = arguments_by_tensor(config, self._module)
        self._positions = result_positions(config)
        tensors = self._model.tensors
        self._inputs = [name for name in tensors.inputs if name not in self._states.inputs]
        self._string_states = [name for name in tensors.states if name not in self._states.by_output]

    def execute(self, execution: Execution) -> None:
        """Gather, run, scatter."""
        configured = self._model.tensors
        arrays = configured.gather(execution, self._inputs, optional=True, decode=True)
        with (
            torch.inference_mode() if self._model.inference_mode else torch.no_grad(),
            torch.jit.optimized_execution(self._model.optimized),  # type: ignore[attr-defined]
            contextlib.nullcontext() if self._stream is None else torch.cuda.stream(self._stream),
        ):
            tensors = {name: self._to_device(name, array) for name, array in arrays.items()}
            tensors |= self._states.gather(execution)
            self._synchronize()
            execution.compute_started()
            try:
                result = _as_sequence(self._call(tensors))
            except TritonError:
                raise
            except Exception as error:  # torch.jit.Error is not a RuntimeError
                raise InternalError(f"PyTorch execute failure: {error}") from error
            self._synchronize()
            execution.compute_ended()
            picked = self._pick(result)
            self._states.publish(execution, picked)  # type: ignore[arg-type]
            produced = self._to_cpu({name: picked[name] for name in (*configured.spec.outputs, *self._string_states)})
        configured.respond(execution, produced, self._string_states)
        if self._model.clean_cache and self._stream is not None:
            torch.cuda.empty_cache()

    def finalize(self) -> None:
        """Release the module."""
        del self._module

    def _call(self, tensors: dict[str, _Value]) -> object:
        if self._arguments is None:
            return self._module(tensors)
        for name, argument in self._arguments.items():
            if argument.required and name not in tensors:
                raise InvalidArgumentError(f"model '{self._model.context.name}': expected input '{name}', got none")
        # By name, so that an omitted optional input does not move the arguments behind it.
        return self._module(**{self._arguments[name].name: tensor for name, tensor in tensors.items()})

    def _to_device(self, name: str, array: Array) -> _Value:
        if array.dtype.kind == "O":
            # TorchScript has no tensors of strings, only lists.
            return list(array.tolist())
        if self._stream is None:
            # torch.from_numpy warns of read-only arrays, such as the bodies of HTTP requests.
            return torch.from_numpy(np.require(array, requirements="W"))
        count = array.size
        staging = self._staging.get(name)
        dtype = torch.from_numpy(np.empty(0, array.dtype)).dtype
        # Grows and never shrinks, since allocating pinned memory is slow.
        if staging is None or staging.numel() < count or staging.dtype != dtype:
            staging = self._staging[name] = torch.empty(count, dtype=dtype, pin_memory=True)
        pinned = staging[:count].view(array.shape)
        np.copyto(pinned.numpy(), array)
        return pinned.to(self._device, non_blocking=True)

    def _to_cpu(self, values: Mapping[str, _Value]) -> dict[str, Array]:
        lists = {name: _encode_strings(value) for name, value in values.items() if isinstance(value, list)}
        tensors = {name: value for name, value in values.items() if isinstance(value, torch.Tensor)}
        if self._stream is None:
            return {name: tensor.detach().contiguous().numpy() for name, tensor in tensors.items()} | lists
        copies = {name: torch.empty(value.shape, dtype=value.dtype, pin_memory=True) for name, value in tensors.items()}
        for name, tensor in tensors.items():
            copies[name].copy_(tensor, non_blocking=True)
        self._synchronize()
        return {name: copy.numpy() for name, copy in copies.items()} | lists

    def _pick(self, result: Sequence[_Value]) -> dict[str, _Value]:
        """Return the results by output name, checked against the configuration."""
        for name, position in self._positions.items():
            # Checked with the results, as on Triton, and not when the model is loaded.
            if position >= len(result):
                raise InvalidArgumentError(
                    f"The output {name} in the model configuration refers to an output index which doesn't exist. "
                    f"This model has {len(result)} outputs"
                )
        produced = {name: result[position] for name, position in self._positions.items()}
        for name, value in produced.items():
            expected = self._model.datatypes[name]
            provided = _STRINGS if isinstance(value, list) else _DATATYPES.get(value.dtype, "TYPE_<invalid>")
            if provided != expected:
                raise InvalidArgumentError(
                    f"configuration expects datatype {expected} for output '{name}', model provides {provided}"
                )
            if not isinstance(value, list) and not value.ndim:
                raise InvalidArgumentError(f"output '{name}' is a scalar which is not supported.")
        return produced

    def _synchronize(self) -> None:
        if self._stream is not None:
            self._stream.synchronize()


_THREAD_SETTERS = {
    "INTRA_OP_THREAD_COUNT": torch.set_num_threads,
    "INTER_OP_THREAD_COUNT": torch.set_num_interop_threads,
}
_JIT_SETTINGS = {
    "ENABLE_JIT_EXECUTOR": torch._C._jit_set_profiling_executor,
    "ENABLE_JIT_PROFILING": torch._C._jit_set_profiling_mode,
    "ENABLE_TENSOR_FUSER": torch._C._jit_set_texpr_fuser_enabled,
}


def _as_sequence(result: object) -> Sequence[_Value]:
    """Return the results of a module, which returns a tensor, a list of strings, or a tuple of these."""
    if not isinstance(result, (torch.Tensor, list, tuple)):
        raise RuntimeError(
            "output must be of type Tensor, List[str] or Tuple containing one of these two types. It should not be a "
            "List / Dictionary of Tensors or a Scalar"
        )
    values = result if isinstance(result, tuple) else (result,)
    for index, value in enumerate(values):
        if isinstance(value, list):
            other = next((type(element).__name__ for element in value if not isinstance(element, str)), None)
            if other is not None:
                where = f"output at index {index}" if values is result else "output"
                raise RuntimeError(f"{where} must be of type Tensor or List[str], received List[{other}]")
        elif not isinstance(value, torch.Tensor):
            raise RuntimeError(f"Expected Tensor but got {type(value).__name__}")
    return values


def _encode_strings(values: list[str]) -> Array:
    return np.array([value.encode() for value in values], dtype=object)


def _check_datatypes(config: pb.ModelConfig) -> dict[str, str]:
    """Check the datatypes of all tensors, and return the datatypes of outputs and state outputs by name."""
    datatypes: dict[str, str] = {}
    for tensor in configured_tensors(config):
        if tensor.datatype != _STRINGS:
            check_has_dtype(config, tensor)
        elif len(tensor.dims) + (config.max_batch_size > 0) > 1:
            raise InternalError(
                f"Triton only supports 1 dimensional List of String as {tensor.kind.replace('state', 'output')} for "
                f"'{tensor.name}' for model '{config.name}'"
            )
        if tensor.kind != "input":
            datatypes[tensor.name] = tensor.datatype
    check_sequence_ids(config, (_STRINGS, *DTYPES))
    return datatypes
