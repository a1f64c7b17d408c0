"""PyTorch 2 models compiled ahead of time: ``backend: "pytorch"``, ``platform: "torch_aoti"``, *model.pt2*.

`torch.export` and AOTInductor write such archives; `tritonnb.export_pt2` calls them. A tensor has two names, as on
Triton: its position (``INPUT__0``, ``OUTPUT__0``), or its place in the arguments and results of ``forward``
(``ARGS[0]``, ``ARGS[2][key]``, ``KWARGS[key]``, ``RESULT``, ``RESULT[key][0]``).

A compiled program does not check its inputs unless ``AOTI_RUNTIME_CHECK_INPUTS`` is set in the environment, and reads
outside of arrays that are too small. The first model sets the variable.
"""

from __future__ import annotations

import json
import logging
import os
import threading
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from tritonnb.backends.batching import append_zeros
from tritonnb.backends.configured_tensors import ConfiguredTensors
from tritonnb.backends.contract import BackendModel, BackendModelInstance, InstanceSpec
from tritonnb.backends.device_states import DTYPES
from tritonnb.backends.devices import CPU, memory_growth
from tritonnb.backends.execution import Execution
from tritonnb.backends.model_checks import boolean_parameter, find_tensor
from tritonnb.backends.pt2_probe import check_program, least_rows, name_inputs
from tritonnb.core.datatypes import BY_NUMBER, INVALID
from tritonnb.core.errors import InternalError, InvalidArgumentError, UnavailableError
from tritonnb.core.protobuf import model_config_pb2 as pb

logger = logging.getLogger(__name__)

PLATFORM, MODEL_FILE = "torch_aoti", "model.pt2"

#: Archives are loaded one at a time, so that the growth of the process's memory is that of one archive.
_loading = threading.Lock()


class Pt2Model(BackendModel):
    """One archive."""

    def initialize(self) -> None:
        """Find the archive and check the names and datatypes of the configuration."""
        os.environ.setdefault("AOTI_RUNTIME_CHECK_INPUTS", "1")
        context = self.context
        self.tensors = ConfiguredTensors(context.config, takes_ragged=False)
        self.path = context.version_directory / (context.config.default_model_filename or MODEL_FILE)
        if not self.path.is_file():
            raise UnavailableError(f'PyTorch inductor model file "{self.path}" is unreachable or inaccessible.')
        self.inference_mode = boolean_parameter(context, "INFERENCE_MODE", True)
        self._share = boolean_parameter(context, "ENABLE_WEIGHT_SHARING", False)
        self._shared: dict[int, Any] = {}

        _check_datatypes(context.config)

    def load(self, device_index: int) -> Any:
        """Load the archive on a device, -1 for the CPU; instances share it with ``ENABLE_WEIGHT_SHARING``."""
        with _loading:
            if self._share and device_index in self._shared:
                return self._shared[device_index]
            try:
                compiled = torch._inductor.aoti_load_package(str(self.path), device_index=device_index)
            except Exception as error:  # zipfile, JSON and PyTorch errors of all kinds
                raise InternalError(
                    f"unable to load '{self.path}' of model '{self.context.name}': {first_line(error)}"
                ) from error
            self._shared[device_index] = compiled
            return compiled

    def create_instance(self, spec: InstanceSpec) -> BackendModelInstance:
        """Create an instance."""
        return Pt2Instance(self, spec)


class Pt2Instance(BackendModelInstance):
    """One loaded archive on one device."""

    def __init__(self, model: Pt2Model, spec: InstanceSpec) -> None:
        self._model = model
        self._spec = spec

        cuda = spec.kind == "KIND_GPU"
        self._device = torch.device("cuda", spec.device_id) if cuda else torch.device("cpu")
        self._place = ("GPU", spec.device_id) if cuda else CPU

    def initialize(self) -> None:
        """Load the archive, find the position of each tensor, and check the program with an input of zeros."""
        model = self._model
        with memory_growth(self._place) as self.memory:
            self._loader = model.load(self._spec.device_id if self._device.type == "cuda" else -1).loader
        built_for = self._loader.get_metadata().get("AOTI_DEVICE_KEY", self._device.type)
        if built_for != self._device.type:
            raise InvalidArgumentError(
                f"model '{model.context.name}': '{model.path}' is compiled for {built_for}, expected "
                f"{self._device.type} for an instance of {self._spec.kind}"
            )
        inputs, outputs = argument_names(self._loader.get_call_spec())
        self._positions = _positions(model, inputs)
        known = numbered(outputs, "OUTPUT__")
        self._results = {name: find_tensor(name, known, "output") for name in model.tensors.outputs}
        self._minimum_rows = check_program(
            model.context.config, self._run, self._positions, self._results, least_rows(model.path)
        )

    def execute(self, execution: Execution) -> None:
        """Gather, run, scatter."""
        tensors = self._model.tensors
        gathered = tensors.gather(execution, self._positions)
        missing = self._minimum_rows - execution.size if tensors.batching else 0
        arrays = [append_zeros(gathered[name], missing) for name in self._positions]
        execution.compute_started()
        try:
            results = self._run(arrays)
        except RuntimeError as error:
            text = name_inputs(first_line(error), list(self._positions))
            raise InternalError(f'Inductor model instance "{self._spec.name}" execution failure: {text}') from error
        execution.compute_ended()
        tensors.respond(execution, {name: results[position] for name, position in self._results.items()})

    def finalize(self) -> None:
        """Release the archive."""
        del self._loader

    def _run(self, arrays: list[npt.NDArray[np.generic]]) -> list[npt.NDArray[np.generic]]:
        """Return all results of the program, for the inputs in the order of ``_positions``."""
        flat: list[Any] = [None] * len(arrays)
        for array, position in zip(arrays, self._positions.values(), strict=True):
            # torch.from_numpy warns of read-only arrays, such as the bodies of HTTP requests.
            flat[position] = torch.from_numpy(np.require(array, requirements=["C", "W"])).to(self._device)
        with torch.inference_mode() if self._model.inference_mode else torch.no_grad():
            # The list is emptied by the call.
            return [result.detach().cpu().contiguous().numpy() for result in self._loader.boxed_run(flat)]


def argument_names(call_spec: list[str]) -> tuple[list[str], list[str]]:
    r"""Return the names of the arguments and results of ``forward``, in the order of the compiled program.

    Parameters
    ----------
    call_spec : list of str
        Two JSON documents: the structures of the arguments, and of the result.

    Returns
    -------
    inputs, outputs : list of str

    Examples
    --------
    >>> leaf = '{"type": null, "context": null, "children_spec": []}'
    >>> one = '{"type": "builtins.tuple", "context": "null", "children_spec": [' + leaf + ']}'
    >>> key = '{"type": "builtins.dict", "context": "[\\"k\\"]", "children_spec": [' + leaf + ']}'
    >>> both = '{"type": "builtins.tuple", "context": "null", "children_spec": [' + one + ', ' + key + ']}'
    >>> argument_names(["[1, " + both + "]", "[1, " + leaf + "]"])
    (['ARGS[0]', 'KWARGS[k]'], ['RESULT'])
    """
    (_, arguments), (_, result) = (json.loads(document) for document in call_spec)
    args, kwargs = arguments["children_spec"]
    return [*_leaves(args, "ARGS"), *_leaves(kwargs, "KWARGS")], list(_leaves(result, "RESULT"))


def _leaves(spec: Mapping[str, Any], prefix: str) -> Iterator[str]:
    kind, children = spec["type"], spec["children_spec"]
    if kind is None:
        yield prefix
    elif kind in ("builtins.tuple", "builtins.list"):
        for index, child in enumerate(children):
            yield from _leaves(child, f"{prefix}[{index}]")
    elif kind == "builtins.dict":
        for key, child in zip(json.loads(spec["context"]), children, strict=True):
            yield from _leaves(child, f"{prefix}[{key}]")
    else:
        raise InvalidArgumentError(f"'{prefix}': expected a tensor, tuple, list or dict of tensors, got {kind}")


def numbered(names: list[str], prefix: str) -> dict[str, int]:
    """Return the position by name, for both names of each tensor."""
    return {f"{prefix}{index}": index for index in range(len(names))} | {name: i for i, name in enumerate(names)}


def first_line(error: Exception) -> str:
    """Return the first line of an error's text; PyTorch appends the frames of its C++ code."""
    return next((line.strip() for line in str(error).splitlines() if line.strip()), type(error).__name__)


def _positions(model: Pt2Model, inputs: list[str]) -> dict[str, int]:
    known = numbered(inputs, "INPUT__")
    positions = {name: find_tensor(name, known, "input") for name in model.tensors.inputs}
    if missing := [name for index, name in enumerate(inputs) if index not in positions.values()]:
        raise InvalidArgumentError(
            f"unable to load model '{model.context.name}', configuration expects {len(positions)} inputs, model "
            f"provides {len(inputs)}: '{missing[0]}' (INPUT__{inputs.index(missing[0])}) is not configured"
        )
    names: dict[int, str] = {}
    for name, position in positions.items():
        other = names.setdefault(position, name)
        if other != name:
            raise InvalidArgumentError(
                f"unable to load model '{model.context.name}', inputs '{other}' and '{name}' are the same input"
            )
    return positions


def _check_datatypes(config: pb.ModelConfig) -> None:
    for kind, tensors in (
        ("input", config.input),
        ("output", config.output),
        ("state", config.sequence_batching.state),
    ):
        for tensor in tensors:
            name = tensor.output_name if kind == "state" else tensor.name
            datatype = BY_NUMBER.get(tensor.data_type, INVALID).config_name
            if datatype not in DTYPES:
                raise InternalError(f"unsupported datatype {datatype} for {kind} '{name}' for model '{config.name}'")
