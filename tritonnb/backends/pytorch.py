"""The PyTorch backend: TorchScript files, ``backend: "pytorch"``.

Naming conventions and parameters are those of Triton's PyTorch backend. On CUDA every instance has
a stream of its own; inputs travel through pinned staging buffers, and copies do not block.
"""

from __future__ import annotations

import contextlib
import logging
import threading
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

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
from tritonnb.backends.device_states import DTYPES, DeviceStates
from tritonnb.backends.model_checks import find_model_file
from tritonnb.backends.parameters import boolean_parameter, integer_parameter
from tritonnb.backends.pytorch_names import arguments_by_tensor, result_positions
from tritonnb.backends.ragged import BatchTensors
from tritonnb.core.datatypes import BY_NUMBER
from tritonnb.core.errors import InternalError, InvalidArgumentError, TritonError
from tritonnb.model_config.schema import INVALID, ModelSpec

logger = logging.getLogger(__name__)

#: What a module's tensors may be; a list of strings is TYPE_STRING.
_DATATYPES = {dtype: name for name, dtype in DTYPES.items()}
_STRINGS = "TYPE_STRING"

#: A tensor, or a list of strings.
_Value = torch.Tensor | list[Any]


class PyTorchBackend(Backend):
    """Runs *model.pt* files."""

    name = "pytorch"
    supports_batch_tensors = True

    def __init__(self) -> None:
        self._threads_set = threading.Lock()
        self._threads: dict[str, int] = {}

    def auto_complete(self, context: ModelContext) -> Any:
        """Complete nothing: TorchScript does not tell its tensors, as on Triton."""
        logger.info(
            "skipping model configuration auto-complete for '%s': not supported for pytorch backend", context.name
        )
        return None

    def create_model(self, context: ModelContext) -> BackendModel:
        """A model."""
        self._set_threads(context)
        return TorchModel(context)

    def _set_threads(self, context: ModelContext) -> None:
        """Thread counts hold for the process: the first model that gives one wins, as on Triton."""
        with self._threads_set:
            for name, setter in _THREAD_SETTERS.items():
                count = integer_parameter(context, name, None)
                if count is None or count <= 0:
                    continue
                if self._threads.setdefault(name, count) != count:
                    taken = self._threads[name]
                    logger.warning("%s of model '%s' ignored: it is %d already", name, context.name, taken)
                    continue
                try:
                    setter(count)
                except RuntimeError as error:
                    logger.warning("%s of model '%s' ignored: %s", name, context.name, error)


class TorchModel(BackendModel):
    """One TorchScript file."""

    def initialize(self) -> None:
        """Check the file and the parameters."""
        context = self.context
        self.spec = ModelSpec.from_config(context.config)
        self.batch = BatchTensors(context.config)
        self.path = find_model_file(context, "model.pt")
        self.inference_mode = boolean_parameter(context, "INFERENCE_MODE", True)
        self.optimized = not boolean_parameter(context, "DISABLE_OPTIMIZED_EXECUTION", False)
        self.clean_cache = boolean_parameter(context, "ENABLE_CACHE_CLEANING", False)
        self.share_weights = boolean_parameter(context, "ENABLE_WEIGHT_SHARING", False)
        cudnn = not boolean_parameter(context, "DISABLE_CUDNN", False)
        if not cudnn:
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
        self.datatypes = _datatypes(context.config)
        self._shared: dict[str, Any] = {}
        self._sharing = threading.Lock()
        self._counted: set[int] = set()

    def module(self, device: torch.device) -> Any:
        """The module on a device; one for all its instances if weights are shared."""
        if not self.share_weights:
            return self._load(device)
        with self._sharing:
            key = str(device)
            if key not in self._shared:
                self._shared[key] = self._load(device)
            return self._shared[key]

    def counts(self, module: Any) -> bool:
        """Whether nobody asked for this module before."""
        known = id(module) in self._counted
        self._counted.add(id(module))
        return not known

    def create_instance(self, spec: InstanceSpec) -> BackendModelInstance:
        """An instance."""
        return TorchInstance(self, spec)

    def _load(self, device: torch.device) -> Any:
        try:
            module = torch.jit.load(str(self.path), map_location=device)  # type: ignore[no-untyped-call]
        except (RuntimeError, ValueError) as error:
            raise InternalError(f"failed to load model '{self.context.name}': {error}") from error
        module.eval()
        return module


class TorchInstance(BackendModelInstance):
    """One module on one device."""

    def __init__(self, model: TorchModel, spec: InstanceSpec) -> None:
        self._model = model
        self._spec = spec
        self._batching = model.spec.max_batch_size > 0
        cuda = spec.kind == "KIND_GPU"
        self._device = torch.device("cuda", spec.device_id) if cuda else torch.device("cpu")
        self._stream = torch.cuda.Stream(self._device) if cuda else None  # type: ignore[no-untyped-call]
        self._staging: dict[str, torch.Tensor] = {}
        self._states = DeviceStates(model.context.config, self._device.type, spec.device_id)

    def initialize(self) -> None:
        """Load the module and decide how tensors go in and out."""
        config = self._model.context.config
        self._module = self._model.module(self._device)
        self._arguments = arguments_by_tensor(config, self._module)
        self._positions = result_positions(config)
        controls = (each.name for each in config.sequence_batching.control_input)
        strings = [each for each in config.sequence_batching.state if each.output_name not in self._states.by_output]
        self._inputs = [*self._model.spec.inputs, *controls, *(each.input_name for each in strings)]
        self._string_states = [each.output_name for each in strings]

    def execute(self, execution: Execution) -> None:
        """Gather, run, scatter."""
        batch = self._model.batch
        arrays = batch.inputs(execution)
        for name in self._inputs:
            if (array := gather(execution, name, name in batch.ragged)) is not None:
                arrays[name] = decode_strings(execution, name, array) if array.dtype.kind == "O" else array
        with self._modes():
            tensors = {name: self._to_device(name, array) for name, array in arrays.items()}
            tensors |= self._states.gather(execution)
            self._synchronize()
            execution.compute_started()
            try:
                result = _listed(self._call(tensors))
            except TritonError:
                raise
            except Exception as error:  # torch.jit.Error is no RuntimeError
                raise InternalError(f"PyTorch execute failure: {error}") from error
            self._synchronize()
            execution.compute_ended()
            picked = self._pick(result)
            self._states.publish(execution, picked)  # type: ignore[arg-type]
            produced = self._to_cpu({name: picked[name] for name in (*self._model.spec.outputs, *self._string_states)})
        publish_states(execution, {name: produced[name] for name in self._string_states}, self._batching)
        outputs = {name: (spec, produced[name]) for name, spec in self._model.spec.outputs.items()}
        scatter(execution, outputs, self._batching, batch.parts(execution))
        if self._model.clean_cache and self._stream is not None:
            torch.cuda.empty_cache()

    def memory_usage(self) -> Mapping[MemoryPlace, int]:
        """What the module's parameters and buffers take; once if instances share them."""
        if not self._model.counts(self._module):
            return {}
        tensors = (*self._module.parameters(), *self._module.buffers())
        place = ("GPU", self._spec.device_id) if self._stream is not None else ("CPU", 0)
        return {place: sum(each.numel() * each.element_size() for each in tensors)}

    def finalize(self) -> None:
        """Free the module."""
        del self._module

    def _call(self, tensors: dict[str, _Value]) -> Any:
        if self._arguments is None:
            return self._module(tensors)
        for name, argument in self._arguments.items():
            if argument.required and name not in tensors:
                raise InvalidArgumentError(f"input '{name}' of model '{self._model.context.name}' is missing")
        return self._module(**{self._arguments[name].name: tensor for name, tensor in tensors.items()})

    def _modes(self) -> contextlib.ExitStack:
        stack = contextlib.ExitStack()
        stack.enter_context(torch.inference_mode() if self._model.inference_mode else torch.no_grad())
        stack.enter_context(torch.jit.optimized_execution(self._model.optimized))  # type: ignore[attr-defined]
        if self._stream is not None:
            stack.enter_context(torch.cuda.stream(self._stream))
        return stack

    def _to_device(self, name: str, array: npt.NDArray[Any]) -> _Value:
        if array.dtype.kind == "O":
            return list(array)
        if self._stream is None:
            # Read-only arrays, of which torch.from_numpy warns, are the bodies of HTTP requests.
            return torch.from_numpy(np.require(array, requirements="W"))
        count = array.size
        staging = self._staging.get(name)
        dtype = torch.from_numpy(np.empty(0, array.dtype)).dtype
        if staging is None or staging.numel() < count or staging.dtype != dtype:
            staging = self._staging[name] = torch.empty(count, dtype=dtype, pin_memory=True)
        pinned = staging[:count].view(array.shape)
        np.copyto(pinned.numpy(), array)
        return pinned.to(self._device, non_blocking=True)

    def _to_cpu(self, values: Mapping[str, _Value]) -> dict[str, npt.NDArray[Any]]:
        lists = {name: _strings(each) for name, each in values.items() if isinstance(each, list)}
        tensors = {name: each for name, each in values.items() if isinstance(each, torch.Tensor)}
        if self._stream is None:
            own = {name: tensor.detach().contiguous() for name, tensor in tensors.items()}
            return {name: tensor.numpy() for name, tensor in own.items()} | lists
        copies = {name: torch.empty(each.shape, dtype=each.dtype, pin_memory=True) for name, each in tensors.items()}
        for name, tensor in tensors.items():
            copies[name].copy_(tensor, non_blocking=True)
        self._synchronize()
        return {name: copy.numpy() for name, copy in copies.items()} | lists

    def _pick(self, result: Sequence[_Value]) -> dict[str, _Value]:
        """The module's result by output name, each checked against the configuration."""
        for name, position in self._positions.items():
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


def _listed(result: Any) -> Sequence[_Value]:
    """A module answers with a tensor, a list of strings, or a tuple of these."""
    if not isinstance(result, (torch.Tensor, list, tuple)):
        raise RuntimeError(
            "output must be of type Tensor, List[str] or Tuple containing one of these two types. It should not be a "
            "List / Dictionary of Tensors or a Scalar"
        )
    listed = result if isinstance(result, tuple) else (result,)
    for index, each in enumerate(listed):
        if isinstance(each, list):
            other = next((type(element).__name__ for element in each if not isinstance(element, str)), None)
            if other is not None:
                where = f"output at index {index}" if listed is result else "output"
                raise RuntimeError(f"{where} must be of type Tensor or List[str], received List[{other}]")
        elif not isinstance(each, torch.Tensor):
            raise RuntimeError(f"Expected Tensor but got {type(each).__name__}")
    return listed


def _strings(values: list[str]) -> npt.NDArray[Any]:
    return np.array([each.encode() for each in values], dtype=object)


def _datatypes(config: Any) -> dict[str, str]:
    """The datatype of each output and state output; those of all tensors are checked."""
    kinds = {"input": config.input, "output": config.output, "state": config.sequence_batching.state}
    datatypes: dict[str, str] = {}
    for kind, tensors in kinds.items():
        for each in tensors:
            name = each.output_name if kind == "state" else each.name
            datatype = BY_NUMBER.get(each.data_type, INVALID).config_name
            if datatype == _STRINGS:
                dims = each.reshape.shape if kind != "state" and each.HasField("reshape") else each.dims
                if len(dims) + (config.max_batch_size > 0) > 1:
                    raise InternalError(
                        f"Triton only supports 1 dimensional List of String as {kind.replace('state', 'output')} for "
                        f"'{name}' for model '{config.name}'"
                    )
            elif datatype not in _DATATYPES.values():
                raise InternalError(f"unsupported datatype {datatype} for {kind} '{name}' for model '{config.name}'")
            if kind != "input":
                datatypes[name] = datatype
    for tensor in config.sequence_batching.control_input:
        for control in tensor.control:
            datatype = BY_NUMBER.get(control.data_type, INVALID).config_name
            is_id = control.kind == control.CONTROL_SEQUENCE_CORRID
            if is_id and datatype not in (_STRINGS, *_DATATYPES.values()):
                raise InternalError(f"input '{tensor.name}' type '{datatype}' is not supported by PyTorch.")
    return datatypes
