"""PyTorch 2 models compiled ahead of time: ``backend: "pytorch"``, ``platform: "torch_aoti"``, *model.pt2*.

`torch.export` and AOTInductor write such archives; `tritonnb.export_pt2` calls them. A tensor has two names, as on
Triton: its position (``INPUT__0``, ``OUTPUT__0``), or its place in the arguments and results of ``forward``
(``ARGS[0]``, ``ARGS[2][key]``, ``KWARGS[key]``, ``RESULT``, ``RESULT[key][0]``).

A compiled program does not check its inputs unless ``AOTI_RUNTIME_CHECK_INPUTS`` is set in the environment, and reads
outside of arrays that are too small. The first model sets the variable.

An archive does not describe its tensors, so a program is checked against the configuration by running it once, with
zeros. When its inputs are checked, an input that does not fit is an error that contains the position of the input and
of the dim.
"""

from __future__ import annotations

import itertools
import json
import os
import re
import threading
import zipfile
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch

from tritonnb.backends.batching import Array, append_zeros
from tritonnb.backends.configured_tensors import ConfiguredTensors
from tritonnb.backends.contract import BackendModel, BackendModelInstance, InstanceSpec
from tritonnb.backends.device_states import DTYPES
from tritonnb.backends.devices import CPU, memory_growth
from tritonnb.backends.execution import Execution
from tritonnb.backends.model_checks import boolean_parameter, find_tensor, shape_error
from tritonnb.core.datatypes import BF16, BY_NUMBER, INVALID, DataType, datatype_of
from tritonnb.core.errors import InternalError, InvalidArgumentError, UnavailableError
from tritonnb.core.forks import fork_safe
from tritonnb.core.protobuf import model_config_pb2 as pb
from tritonnb.core.shapes import fits
from tritonnb.model_config.schema import ModelSpec, TensorSpec

AOTI_PLATFORM, MODEL_FILE = "torch_aoti", "model.pt2"
#: The dtypes of the tensors of an archive; TorchScript lacks BF16.
PT2_DTYPES = DTYPES | {BF16.config_name: torch.bfloat16}

Run = Callable[[list[Array]], list[Array | None]]

_INPUT_ERROR = re.compile(r"input_handles\[(\d+)\]: (.*)", re.DOTALL)
_DIM_ERROR = re.compile(r"at (\d+), expected(?: it)?(?: to be [<>]=)?:? (\d+), but got: (\d+)")
#: Attempts to find the size of a variable dim.
_ROUNDS = 4
#: The check of the first dimension in the C++ code of a program.
_ROWS_CHECK = re.compile(rb'dim value is too small at 0, "\s*<< "expected it to be >= (\d+)')
#: The least size of a variable dim in the first attempt: PyTorch treats a dimension of size 1 as a constant.
_FIRST_SIZE = 2
_BATCH_ADVICE = "; export it with a dynamic first dimension that allows max_batch_size rows, or set max_batch_size: 0"

#: Archives are loaded one at a time, so that the growth of the process's memory belongs to one archive.
_loading = fork_safe(threading.Lock())


class Pt2Model(BackendModel):
    """One archive."""

    def initialize(self) -> None:
        """Find the archive and check the names and datatypes of the configuration."""
        # `setdefault`: a user who has switched the checks off for the whole process meant it.
        os.environ.setdefault("AOTI_RUNTIME_CHECK_INPUTS", "1")
        context = self.context
        self.tensors = ConfiguredTensors(context.config, takes_ragged=False)
        self.path = context.version_directory / (context.config.default_model_filename or MODEL_FILE)
        if not self.path.is_file():
            raise UnavailableError(f'PyTorch inductor model file "{self.path}" is unreachable or inaccessible.')
        self.inference_mode = boolean_parameter(context, "INFERENCE_MODE", True)
        self._share = boolean_parameter(context, "ENABLE_WEIGHT_SHARING", False)
        self._shared: dict[int, Any] = {}
        for tensor in configured_tensors(context.config):
            check_has_dtype(context.config, tensor, PT2_DTYPES)
        check_sequence_ids(context.config, PT2_DTYPES)

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
        # An archive is compiled for one kind of device, which nothing in the configuration says.
        built_for = self._loader.get_metadata().get("AOTI_DEVICE_KEY", self._device.type)
        if built_for != self._device.type:
            raise InvalidArgumentError(
                f"model '{model.context.name}': '{model.path}' is compiled for {built_for}, expected "
                f"{self._device.type} for an instance of {self._spec.kind}"
            )
        inputs, outputs = argument_names(self._loader.get_call_spec())
        self._positions = _positions(model, inputs)
        shapes = _configured_shapes(model.context.config, model.tensors.spec)
        self._bf16 = {position for name, position in self._positions.items() if shapes[name][1] is BF16}
        known = numbered(outputs, "OUTPUT__")
        self._results = {name: find_tensor(name, known, "output") for name in model.tensors.outputs}
        self._minimum_rows = _check_program(model, self._run, self._positions, self._results)

    def execute(self, execution: Execution) -> None:
        """Gather, run, scatter."""
        tensors = self._model.tensors
        gathered = tensors.gather(execution, self._positions)
        # `torch.export` specializes dimensions of size 1, so many programs refuse a single row: it gets company of
        # zeros.
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

    def _run(self, arrays: list[Array]) -> list[Array | None]:
        """Return all results of the program, for the inputs in the order of ``_positions``."""
        flat: list[Any] = [None] * len(arrays)
        for array, position in zip(arrays, self._positions.values(), strict=True):
            # torch.from_numpy warns of read-only arrays, such as the bodies of HTTP requests.
            tensor = torch.from_numpy(np.require(array, requirements=["C", "W"])).to(self._device)
            flat[position] = tensor.view(torch.bfloat16) if position in self._bf16 else tensor
        with torch.inference_mode() if self._model.inference_mode else torch.no_grad():
            # The list is emptied by the call.
            # A result of the module can be None; it also has a position, and `_check_program` refuses it as an output.
            return [None if result is None else _to_numpy(result) for result in self._loader.boxed_run(flat)]


def _to_numpy(tensor: Any) -> Array:
    """Return a tensor as an array; of BF16, its bit patterns."""
    tensor = tensor.detach().cpu().contiguous()
    array: Array = (tensor.view(torch.uint16) if tensor.dtype == torch.bfloat16 else tensor).numpy()
    return array


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
    # The first number is the version of the format, so far always 1.
    (_, arguments), (_, result) = (json.loads(document) for document in call_spec)
    args, kwargs = arguments["children_spec"]
    return [*_leaves(args, "ARGS"), *_leaves(kwargs, "KWARGS")], list(_leaves(result, "RESULT"))


def _leaves(spec: Mapping[str, Any], prefix: str) -> Iterator[str]:
    if spec["type"] is None:
        yield prefix
        return
    children = spec["children_spec"]
    for key, child in zip(_child_names(spec["context"], len(children)), children, strict=True):
        yield from _leaves(child, f"{prefix}[{key}]")


def _child_names(context: Any, count: int) -> Sequence[Any]:
    """Return the keys or fields of a container, or else the positions of its elements.

    Only the context says which: any class can be registered as a container, and its name is free. Dicts and ordered
    dicts have a list of keys, default dicts have ``dict_context``, dataclasses two lists of fields (with a tensor, and
    with None). Named tuples have no fields there.
    """
    if isinstance(context, str):
        try:
            context = json.loads(context)
        except ValueError:  # the name of a class
            return range(count)
    if isinstance(context, dict):
        context = context.get("dict_context")
    if isinstance(context, list) and len(context) == 2 and all(isinstance(fields, list) for fields in context):
        context = context[0]
    return context if isinstance(context, list) and len(context) == count else range(count)


def numbered(names: list[str], prefix: str) -> dict[str, int]:
    """Return the position by name, for both names of each tensor."""
    return {f"{prefix}{index}": index for index in range(len(names))} | {name: i for i, name in enumerate(names)}


def first_line(error: Exception) -> str:
    """Return the first line of an error's text; PyTorch appends the frames of its C++ code."""
    return next((line.strip() for line in str(error).splitlines() if line.strip()), type(error).__name__)


def _positions(model: Pt2Model, inputs: list[str]) -> dict[str, int]:
    known = numbered(inputs, "INPUT__")
    positions = {name: find_tensor(name, known, "input") for name in model.tensors.inputs}
    # All inputs are needed: a compiled program has no defaults.
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


class ConfiguredTensor(NamedTuple):
    """An input, output or state of a configuration.

    Attributes
    ----------
    kind : str
        ``input``, ``output`` or ``state``.
    name : str
        For a state, the name of its output.
    datatype : str
    dims : tuple of int
        After the reshape.
    """

    kind: str
    name: str
    datatype: str
    dims: tuple[int, ...]


def configured_tensors(config: pb.ModelConfig) -> Iterator[ConfiguredTensor]:
    """Yield the inputs, outputs and states of a configuration, whatever their datatypes are."""
    for kind, tensors in (("input", config.input), ("output", config.output)):
        for tensor in tensors:
            dims = tensor.reshape.shape if tensor.HasField("reshape") else tensor.dims
            yield ConfiguredTensor(kind, tensor.name, _config_name(tensor.data_type), tuple(dims))
    for state in config.sequence_batching.state:
        yield ConfiguredTensor("state", state.output_name, _config_name(state.data_type), tuple(state.dims))


def _config_name(data_type: int) -> str:
    return BY_NUMBER.get(data_type, INVALID).config_name


def check_has_dtype(config: pb.ModelConfig, tensor: ConfiguredTensor, known: Collection[str] = DTYPES) -> None:
    """Check that tensors of PyTorch can have the datatype of a configured tensor.

    Raises
    ------
    InternalError
        If they cannot.
    """
    if tensor.datatype not in known:
        raise InternalError(
            f"unsupported datatype {tensor.datatype} for {tensor.kind} '{tensor.name}' for model '{config.name}'"
        )


def check_sequence_ids(config: pb.ModelConfig, known: Collection[str]) -> None:
    """Check that a model can read the IDs of sequences with the configured datatype.

    Raises
    ------
    InternalError
        If it cannot.
    """
    for control_input in config.sequence_batching.control_input:
        for control in control_input.control:
            datatype = _config_name(control.data_type)
            if control.kind == control.CONTROL_SEQUENCE_CORRID and datatype not in known:
                raise InternalError(f"input '{control_input.name}' type '{datatype}' is not supported by PyTorch.")


# --- the check of a program -----------------------------------------------------------------------


def name_inputs(text: str, names: Sequence[str]) -> str:
    """Return an error text of a compiled program with the names of the inputs instead of their positions.

    Examples
    --------
    >>> name_inputs("input_handles[0]: unmatched dim value at 1, expected: 8, but got: 9", ["INPUT__0"])
    "input 'INPUT__0': unmatched dim value at 1, expected: 8, but got: 9"
    """
    return re.sub(r"input_handles\[(\d+)\]", lambda match: f"input '{names[int(match[1])]}'", text)


def least_rows(archive: Path) -> int | None:
    """Return the number of rows that a program needs, from its C++ code; None if the archive has none.

    Often it is 2, since PyTorch treats a dimension of size 1 as a constant.
    """
    with zipfile.ZipFile(archive) as files:
        sources = [files.read(name) for name in files.namelist() if name.endswith(".wrapper.cpp")]
    # Reading the C++ source for a number is a hack, but the archive says it nowhere else; without sources, the program
    # is run with one row.
    row_counts = [int(rows) for source in sources for rows in _ROWS_CHECK.findall(source)]
    return max(row_counts, default=1) if sources else None


def _check_program(model: Pt2Model, run: Run, inputs: Mapping[str, int], outputs: Mapping[str, int]) -> int:
    """Run a program with zeros of the configured shapes, and compare its results with the configured outputs.

    It runs with ``max_batch_size`` rows. If the archive does not say how many rows it needs, it also runs with one row;
    PyTorch prints an error if that is too few.

    Parameters
    ----------
    model : Pt2Model
    run : callable
        Runs the program with the inputs in the order of ``inputs``.
    inputs, outputs : mapping of str to int
        The position of each configured tensor in the program.

    Returns
    -------
    int
        The number of rows that the program needs.

    Raises
    ------
    InvalidArgumentError
        If an input or output does not fit.
    """
    spec = model.tensors.spec
    rows = least_rows(model.path)
    shapes = _configured_shapes(model.context.config, spec)
    arrays, results = _run_accepted(spec, run, {name: shapes[name] for name in inputs}, inputs)
    for name, tensor in spec.outputs.items():
        _check_output(spec, tensor, results[outputs[name]])
    if not spec.max_batch_size:
        return 1
    if rows is not None:
        return rows
    try:
        run([array[:1] for array in arrays])
    except RuntimeError as error:
        too_small = _DIM_ERROR.search(str(error).splitlines()[0])
        if too_small is None or int(too_small[1]) != 0:
            raise
        return int(too_small[2])
    return 1


def _configured_shapes(config: pb.ModelConfig, spec: ModelSpec) -> dict[str, tuple[list[int], DataType]]:
    """Return the shape, with the batch dimension, and the datatype of each input."""
    batch = [spec.max_batch_size] if spec.max_batch_size else []
    shapes = {name: ([*batch, *tensor.backend_dims], tensor.datatype) for name, tensor in spec.inputs.items()}
    for state in config.sequence_batching.state:
        shapes[state.input_name] = ([*batch, *state.dims], BY_NUMBER[state.data_type])
    for control in config.sequence_batching.control_input:
        shapes[control.name] = ([*batch, 1], _control_datatype(control.control[0]))
    return shapes


def _control_datatype(control: Any) -> DataType:
    if control.kind == control.CONTROL_SEQUENCE_CORRID:
        return BY_NUMBER[control.data_type]
    kinds = {"int32_false_true": np.int32, "bool_false_true": np.bool_}
    return datatype_of(next((dtype for name, dtype in kinds.items() if getattr(control, name)), np.float32))


def _run_accepted(
    spec: ModelSpec, run: Run, shapes: Mapping[str, tuple[list[int], DataType]], inputs: Mapping[str, int]
) -> tuple[list[Array], list[Array | None]]:
    """Return zeros that the program accepts, and its results; a variable dim gets the size that it expects."""
    names = {position: name for name, position in inputs.items()}
    # A size that no output is configured with: an output that varies with it must not look as if its size were fixed.
    configured = {dim for tensor in spec.outputs.values() for dim in tensor.backend_dims}
    size = next(size for size in itertools.count(_FIRST_SIZE) if size not in configured)
    sizes = {name: [size if dim == -1 else dim for dim in dims] for name, (dims, _) in shapes.items()}
    # Each round sets one variable dimension to the size that the program names. It may name several sizes for one, such
    # as a minimum and then the size of another; a program whose checks contradict each other would go on for ever.
    for _ in range(_ROUNDS * (1 + sum(shape.count(-1) for shape, _ in shapes.values()))):
        arrays = [np.zeros(sizes[name], datatype.numpy) for name, (_, datatype) in shapes.items()]
        try:
            return arrays, run(arrays)
        except RuntimeError as error:
            reason = str(error).splitlines()[0]
            mismatch = _INPUT_ERROR.search(reason)
            if mismatch is None:
                raise InvalidArgumentError(
                    f"model '{spec.name}': expected a program that runs with zeros of the shapes {sizes}, got: {reason}"
                ) from error
            name = names[int(mismatch[1])]
            dim = _DIM_ERROR.search(mismatch[2])
            index = int(dim[1]) if dim else -1
            if dim is None or shapes[name][0][index] != -1 or sizes[name][index] == int(dim[2]):
                advice = _BATCH_ADVICE if index == 0 and spec.max_batch_size else ""
                raise InvalidArgumentError(
                    f"model '{spec.name}': input '{name}' of shape {sizes[name]} in the configuration does not fit the "
                    f"program: {mismatch[2].strip()}{advice}"
                ) from error
            sizes[name][index] = int(dim[2])
    raise InvalidArgumentError(
        f"model '{spec.name}': expected a program that runs with zeros of some shapes, got sizes that contradict one "
        f"another: {reason}"
    )


def _check_output(spec: ModelSpec, tensor: TensorSpec, array: Array | None) -> None:
    # Positions of None are kept so that the names of the other results stay right.
    if array is None:
        raise InvalidArgumentError(
            f"model '{spec.name}', output '{tensor.name}': expected a tensor, got None; remove the output"
        )
    if array.dtype != tensor.datatype.numpy:
        raise InvalidArgumentError(
            f"configuration expects datatype {tensor.datatype.config_name} for output '{tensor.name}', model provides "
            f"{datatype_of(array.dtype).config_name}"
        )
    rows = spec.max_batch_size
    expected = (rows, *tensor.backend_dims) if rows else tensor.backend_dims
    if not fits(array.shape, expected):
        raise shape_error(spec.name, tensor.name, array.shape, expected, rows > 0)
