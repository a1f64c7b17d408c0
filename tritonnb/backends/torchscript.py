"""The PyTorch backend: TorchScript files, ``backend: "pytorch"``.

Naming conventions and parameters are those of Triton's PyTorch backend. On CUDA every instance has
a stream of its own; inputs travel through pinned staging buffers, and copies do not block.
"""

from __future__ import annotations

import contextlib
import logging
import re
import threading
from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from tritonnb.backends.batching import gather, publish_states, scatter
from tritonnb.backends.contract import (
    Backend,
    BackendModel,
    BackendModelInstance,
    Execution,
    InstanceSpec,
    ModelContext,
)
from tritonnb.core.datatypes import BYTES
from tritonnb.core.errors import InternalError, InvalidArgumentError, NotFoundError, UnsupportedError
from tritonnb.model_config.schema import ModelSpec

logger = logging.getLogger(__name__)

_INDEXED = re.compile(r".+__(\d+)")
#: Datatypes that the backend does not take.
_NOT_TAKEN = {"UINT16", "UINT32", "UINT64", "BF16"}


class PyTorchBackend(Backend):
    """Runs *model.pt* files."""

    name = "pytorch"

    def __init__(self) -> None:
        self._threads_set = threading.Lock()
        self._threads: dict[str, int] = {}

    def auto_complete(self, context: ModelContext) -> Any:
        """Complete nothing: TorchScript does not tell its tensors, as on Triton."""
        logger.info(
            "skipping model configuration auto-complete for '%s': not supported for pytorch backend", context.name
        )
        return context.config

    def create_model(self, context: ModelContext) -> BackendModel:
        """A model."""
        self._set_threads(context)
        return TorchModel(context)

    def _set_threads(self, context: ModelContext) -> None:
        """Thread counts hold for the process: the first model that gives one wins, as on Triton."""
        with self._threads_set:
            for name, setter in _THREAD_SETTERS.items():
                count = _integer(context, name)
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
        self.path = context.version_directory / (context.config.default_model_filename or "model.pt")
        if not self.path.is_file():
            raise NotFoundError(f"unable to find '{self.path}' for model '{context.name}'")
        self.inference_mode = _flag(context, "INFERENCE_MODE", True)
        self.optimized = not _flag(context, "DISABLE_OPTIMIZED_EXECUTION", False)
        self.clean_cache = _flag(context, "ENABLE_CACHE_CLEANING", False)
        self.share_weights = _flag(context, "ENABLE_WEIGHT_SHARING", False)
        if _flag(context, "DISABLE_CUDNN", False):
            torch.backends.cudnn.enabled = False
        for name, setter in _JIT_SETTINGS.items():
            if name in context.parameters:
                setter(_flag(context, name, True))
        for tensor in (*self.spec.inputs.values(), *self.spec.outputs.values()):
            if tensor.datatype.name in _NOT_TAKEN or tensor.datatype is BYTES:
                raise UnsupportedError(
                    f"tensor '{tensor.name}' of model '{context.name}': datatype {tensor.datatype.name} is not "
                    "supported by the pytorch backend"
                )
        self._shared: dict[str, Any] = {}
        self._sharing = threading.Lock()

    def module(self, device: torch.device) -> Any:
        """The module on a device; one for all its instances if weights are shared."""
        if not self.share_weights:
            return self._load(device)
        with self._sharing:
            key = str(device)
            if key not in self._shared:
                self._shared[key] = self._load(device)
            return self._shared[key]

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
        self._states = {each.output_name: each.input_name for each in model.context.config.sequence_batching.state}

    def initialize(self) -> None:
        """Load the module and decide how tensors go in and out."""
        self._module = self._model.module(self._device)
        names = [*self._model.spec.inputs, *_controls(self._model), *self._states.values()]
        self._arguments, self._passing = _argument_order(self._model.context.name, self._module, names)
        self._output_index = _output_order([*self._model.spec.outputs, *self._states])

    def execute(self, execution: Execution) -> None:
        """Gather, run, scatter."""
        arrays = {name: array for name in self._arguments if (array := gather(execution, name)) is not None}
        with self._modes():
            tensors = {name: self._to_device(name, array) for name, array in arrays.items()}
            self._synchronize()
            execution.compute_started()
            try:
                result = self._call(tensors)
            except RuntimeError as error:
                raise InternalError(f"PyTorch execute failure: {error}") from error
            self._synchronize()
            execution.compute_ended()
            produced = self._to_cpu(self._pick(result))
        if self._states:
            publish_states(execution, {name: produced[name] for name in self._states}, self._batching)
        outputs = {name: (spec, produced[name]) for name, spec in self._model.spec.outputs.items()}
        scatter(execution, outputs, self._batching)
        if self._model.clean_cache and self._stream is not None:
            torch.cuda.empty_cache()

    def finalize(self) -> None:
        """Free the module."""
        del self._module

    def _call(self, tensors: dict[str, torch.Tensor]) -> Any:
        if self._passing == "dictionary":
            return self._module(tensors)
        if self._passing == "keywords":
            return self._module(**tensors)
        # An absent input may only be followed by absent ones, or the others would change places.
        for name, expected in zip(tensors, self._arguments, strict=False):
            if name != expected:
                raise InvalidArgumentError(f"input '{expected}' of model '{self._model.context.name}' is missing")
        return self._module(*tensors.values())

    def _modes(self) -> contextlib.ExitStack:
        stack = contextlib.ExitStack()
        stack.enter_context(torch.inference_mode() if self._model.inference_mode else torch.no_grad())
        stack.enter_context(torch.jit.optimized_execution(self._model.optimized))  # type: ignore[attr-defined]
        if self._stream is not None:
            stack.enter_context(torch.cuda.stream(self._stream))
        return stack

    def _to_device(self, name: str, array: npt.NDArray[Any]) -> torch.Tensor:
        if self._stream is None:
            # torch.from_numpy warns of read-only arrays; a model does not write its inputs.
            return torch.from_numpy(array if array.flags.writeable else array.copy())
        count = array.size
        staging = self._staging.get(name)
        dtype = torch.from_numpy(np.empty(0, array.dtype)).dtype
        if staging is None or staging.numel() < count or staging.dtype != dtype:
            staging = self._staging[name] = torch.empty(count, dtype=dtype, pin_memory=True)
        pinned = staging[:count].view(array.shape)
        np.copyto(pinned.numpy(), array)
        return pinned.to(self._device, non_blocking=True)

    def _to_cpu(self, tensors: Mapping[str, torch.Tensor]) -> dict[str, npt.NDArray[Any]]:
        if self._stream is None:
            return {name: tensor.detach().contiguous().numpy() for name, tensor in tensors.items()}
        copies = {name: torch.empty(each.shape, dtype=each.dtype, pin_memory=True) for name, each in tensors.items()}
        for name, tensor in tensors.items():
            copies[name].copy_(tensor, non_blocking=True)
        self._synchronize()
        return {name: copy.numpy() for name, copy in copies.items()}

    def _pick(self, result: Any) -> dict[str, torch.Tensor]:
        """The module's result by output name, each checked against the configuration."""
        if isinstance(result, dict):
            produced = {name: result[name] for name in self._output_index if name in result}
        else:
            listed = [result] if isinstance(result, torch.Tensor) else list(result)
            if max(self._output_index.values()) >= len(listed):
                raise InternalError(
                    f"model '{self._model.context.name}' returned {len(listed)} tensors, the configuration has "
                    f"{len(self._output_index)} outputs"
                )
            produced = {name: listed[index] for name, index in self._output_index.items()}
        for name, spec in self._model.spec.outputs.items():
            if name not in produced:
                raise InternalError(f"model '{self._model.context.name}' returned no output '{name}'")
            if not isinstance(produced[name], torch.Tensor):
                raise InternalError(
                    f"model '{self._model.context.name}' returned no tensor for output '{name}' but "
                    f"'{type(produced[name]).__name__}'"
                )
            expected = torch.from_numpy(np.empty(0, spec.datatype.numpy)).dtype
            if produced[name].dtype != expected:
                raise InvalidArgumentError(
                    f"configuration expects datatype {spec.datatype.config_name} for output '{name}', model "
                    f"'{self._model.context.name}' provides {produced[name].dtype}"
                )
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


def _flag(context: ModelContext, name: str, default: bool) -> bool:
    text = context.parameters.get(name)
    if text is None:
        return default
    if text.lower() not in ("true", "false"):
        raise InvalidArgumentError(
            f"parameter '{name}' of model '{context.name}' must be 'true' or 'false', got '{text}'"
        )
    return text.lower() == "true"


def _integer(context: ModelContext, name: str) -> int | None:
    text = context.parameters.get(name)
    if text is None:
        return None
    try:
        return int(text)
    except ValueError:
        raise InvalidArgumentError(
            f"parameter '{name}' of model '{context.name}' must be an integer, got '{text}'"
        ) from None


def _controls(model: TorchModel) -> list[str]:
    return [each.name for each in model.context.config.sequence_batching.control_input]


def _argument_order(model: str, module: Any, names: list[str]) -> tuple[list[str], str]:
    """Inputs in the order of ``forward``'s arguments, and how they are passed."""
    arguments = list(module.forward.schema.arguments)[1:]
    if len(arguments) == 1 and str(arguments[0].type).startswith("Dict"):
        return names, "dictionary"
    expected = [each.name for each in arguments]
    if len(names) > len(expected):
        raise InvalidArgumentError(
            f"unable to load model '{model}', configuration expects {len(names)} inputs, model provides {len(expected)}"
        )
    if set(names) <= set(expected):
        return [name for name in expected if name in names], "keywords"
    indices = {name: found.group(1) for name in names if (found := _INDEXED.fullmatch(name))}
    if len(indices) == len(names):
        return sorted(names, key=lambda name: int(indices[name])), "positions"
    return names, "positions"


def _output_order(names: list[str]) -> dict[str, int]:
    """The position of each output in what the module returns."""
    indices = {name: int(found.group(1)) for name in names if (found := _INDEXED.fullmatch(name))}
    return indices if len(indices) == len(names) else {name: index for index, name in enumerate(names)}
