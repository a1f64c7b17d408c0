"""Check what a function model returns against its declared outputs; values are never cut off or omitted."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import numpy as np
import numpy.typing as npt

from tritonnb.core.conversion import convert
from tritonnb.core.errors import InternalError
from tritonnb.core.shapes import fits
from tritonnb.model_config.schema import ModelSpec, TensorSpec


def read_outputs(
    spec: ModelSpec, returned: Mapping[str, npt.ArrayLike] | npt.ArrayLike, rows: int
) -> dict[str, npt.NDArray[np.generic]]:
    """The outputs of a batch as arrays of their datatypes.

    Parameters
    ----------
    spec : ModelSpec
    returned : mapping of str to array_like, or array_like
        What the function returned; for a single output also the value alone.
    rows : int
        Number of rows of the batch; ignored if the model does not batch.

    Returns
    -------
    dict of str to numpy.ndarray
        In the order of the configuration.

    Raises
    ------
    InternalError
        If an output is missing or not declared, or its values, dims or number of rows differ from the declaration.
    """
    if not isinstance(returned, Mapping):
        if len(spec.outputs) > 1:
            raise InternalError(
                f"model '{spec.name}': expected a dict of the outputs {_names(spec.outputs)}, got "
                f"{type(returned).__name__}"
            )
        returned = dict.fromkeys(spec.outputs, returned)
    if returned.keys() != spec.outputs.keys():
        raise InternalError(
            f"model '{spec.name}': expected the outputs {_names(spec.outputs)}, got {_names(returned) or 'none'}"
        )
    return {name: _read_output(spec, output, returned[name], rows) for name, output in spec.outputs.items()}


def _names(outputs: Iterable[object]) -> str:
    return ", ".join(map(repr, outputs))


def _read_output(spec: ModelSpec, output: TensorSpec, value: npt.ArrayLike, rows: int) -> npt.NDArray[np.generic]:
    where = f"model '{spec.name}': output '{output.name}'"
    if value is None:
        raise InternalError(f"{where} expected {output.datatype.name} values, got None: does the function return them?")
    try:
        array = convert(value, output.datatype)
    except Exception as error:  # arrays of other libraries raise exceptions of any type
        raise InternalError(f"{where} {error}") from None
    batch = (rows,) if spec.max_batch_size > 0 else ()
    expected = (*batch, *(output.dims if output.reshape is None else output.reshape))
    if not fits(array.shape, expected):
        remedy = f", one row for each of the {rows} in the batch" if batch and array.shape[:1] != batch else ""
        raise InternalError(f"{where} expected shape {list(expected)}{remedy}, got {list(array.shape)}")
    return array
