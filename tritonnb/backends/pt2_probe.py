"""Check a compiled program against a configuration by running it once, with zeros.

An archive of AOTInductor does not describe its tensors. When its inputs are checked, an input that does not fit is an
error that contains the position of the input and of the dim.
"""

from __future__ import annotations

import re
import zipfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from tritonnb.backends.model_checks import shape_error
from tritonnb.core.datatypes import BY_NUMBER, DataType, datatype_of
from tritonnb.core.errors import InvalidArgumentError
from tritonnb.core.shapes import fits
from tritonnb.model_config.schema import ModelSpec, TensorSpec

Array = npt.NDArray[Any]
Run = Callable[[list[Array]], list[Array]]

_INPUT_ERROR = re.compile(r"input_handles\[(\d+)\]: (.*)", re.DOTALL)
_DIM_ERROR = re.compile(r"at (\d+), expected(?: it)?(?: to be [<>]=)?:? (\d+), but got: (\d+)")
#: The check of the first dimension in the C++ code of a program.
_ROWS_CHECK = re.compile(rb'dim value is too small at 0, "\s*<< "expected it to be >= (\d+)')
#: The size of a variable dim in the first attempt.
_FIRST_SIZE = 2


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
    row_counts = [int(rows) for source in sources for rows in _ROWS_CHECK.findall(source)]
    return max(row_counts, default=1) if sources else None


def check_program(
    config: Any, run: Run, inputs: Mapping[str, int], outputs: Mapping[str, int], rows: int | None = None
) -> int:
    """Run a program with zeros of the configured shapes, and compare its results with the configured outputs.

    It runs with ``max_batch_size`` rows. If it is not known how many rows it needs, it also runs with one row; PyTorch
    prints an error if that is too few.

    Parameters
    ----------
    config : inference.ModelConfig
    run : callable
        Runs the program with the inputs in the order of ``inputs``.
    inputs, outputs : mapping of str to int
        The position of each configured tensor in the program.
    rows : int, optional
        The number of rows that the program needs, if it is known (`least_rows`).

    Returns
    -------
    int
        The number of rows that the program needs.

    Raises
    ------
    InvalidArgumentError
        If an input or output does not fit.
    """
    spec = ModelSpec.from_config(config)
    shapes = _configured_shapes(config, spec, list(inputs))
    arrays = _find_accepted(config.name, run, shapes, inputs, spec.max_batch_size)
    results = run(arrays)
    for name, tensor in spec.outputs.items():
        _check_output(spec, tensor, results[outputs[name]], spec.max_batch_size)
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


def _configured_shapes(config: Any, spec: ModelSpec, names: list[str]) -> dict[str, tuple[list[int], DataType]]:
    """Return the shape, with the batch dimension, and the datatype of each input."""
    batch = [spec.max_batch_size] if spec.max_batch_size else []
    shapes = {name: ([*batch, *tensor.backend_dims], tensor.datatype) for name, tensor in spec.inputs.items()}
    for state in config.sequence_batching.state:
        shapes[state.input_name] = ([*batch, *state.dims], BY_NUMBER[state.data_type])
    for control in config.sequence_batching.control_input:
        shapes[control.name] = ([*batch, 1], _control_datatype(control.control[0]))
    return {name: shapes[name] for name in names}


def _control_datatype(control: Any) -> DataType:
    if control.kind == control.CONTROL_SEQUENCE_CORRID:
        return BY_NUMBER[control.data_type]
    kinds = {"int32_false_true": np.int32, "bool_false_true": np.bool_}
    return datatype_of(next((dtype for name, dtype in kinds.items() if getattr(control, name)), np.float32))


def _find_accepted(
    model: str, run: Run, shapes: Mapping[str, tuple[list[int], DataType]], inputs: Mapping[str, int], rows: int
) -> list[Array]:
    """Find zeros that the program accepts; a variable dim gets the size that it expects, if it names one."""
    names = {position: name for name, position in inputs.items()}
    sizes = {name: [_FIRST_SIZE if dim == -1 else dim for dim in dims] for name, (dims, _) in shapes.items()}
    while True:
        arrays = [np.zeros(sizes[name], datatype.numpy) for name, (_, datatype) in shapes.items()]
        try:
            run(arrays)
        except RuntimeError as error:
            reason = str(error).splitlines()[0]
            mismatch = _INPUT_ERROR.search(reason)
            if mismatch is None:
                raise InvalidArgumentError(
                    f"model '{model}': expected a program that runs with zeros of the shapes {sizes}, got: {reason}"
                ) from error
            name = names[int(mismatch[1])]
            dim = _DIM_ERROR.search(mismatch[2])
            index = int(dim[1]) if dim else -1
            if dim is None or shapes[name][0][index] != -1 or sizes[name][index] == int(dim[2]):
                raise _input_error(model, name, mismatch[2], sizes[name], index == 0 and rows > 0) from error
            sizes[name][index] = int(dim[2])
        else:
            return arrays


def _input_error(model: str, name: str, reason: str, sizes: list[int], is_batch: bool) -> InvalidArgumentError:
    advice = (
        "; export it with a dynamic first dimension that allows max_batch_size rows, or set max_batch_size: 0"
        if is_batch
        else ""
    )
    return InvalidArgumentError(
        f"model '{model}': input '{name}' of shape {sizes} in the configuration does not fit the program: "
        f"{reason.strip()}{advice}"
    )


def _check_output(spec: ModelSpec, tensor: TensorSpec, array: Array, rows: int) -> None:
    if array.dtype != tensor.datatype.numpy:
        raise InvalidArgumentError(
            f"configuration expects datatype {tensor.datatype.config_name} for output '{tensor.name}', model provides "
            f"{datatype_of(array.dtype).config_name}"
        )
    expected = (rows, *tensor.backend_dims) if rows else tensor.backend_dims
    if not fits(array.shape, expected):
        raise shape_error(spec.name, tensor.name, array.shape, expected, rows > 0)
