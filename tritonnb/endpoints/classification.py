"""The classification extension: the best classes of an output as ``value:index[:label]`` strings."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from tritonnb.core.datatypes import DataType
from tritonnb.core.errors import InvalidArgumentError

#: Triton's limit for the classes of a row; here it also limits the classes of a response.
_MAX_CLASSES = 1_000_000


def classify(
    array: npt.NDArray[np.generic], datatype: DataType, count: int, labels: Sequence[str] | None, batching: bool
) -> npt.NDArray[np.object_]:
    """Format the ``count`` largest values of an output.

    Parameters
    ----------
    array : numpy.ndarray
        Batch dimension first if ``batching``; the other dimensions are flattened into one list of classes.
    datatype : DataType
    count : int
    labels : sequence of str or None
        By class; may have fewer entries than there are classes.
    batching : bool

    Returns
    -------
    numpy.ndarray
        BYTES of shape ``[batch, min(count, classes)]``, or without the batch dimension.

    Raises
    ------
    InvalidArgumentError
        If the output's datatype has no order, or the output or the result is too large.
    """
    # FP16 and BF16 have an order, but no classes on Triton either.
    if not datatype.classifiable:
        raise InvalidArgumentError(f"class result not available for output due to unsupported type '{datatype.name}'")
    array = datatype.to_values(array)
    rows = array.reshape(array.shape[0], -1) if batching else array.reshape(1, -1)
    count = min(count, rows.shape[1])
    if max(rows.shape[1], rows.shape[0] * count) > _MAX_CLASSES:
        raise InvalidArgumentError("classification output tensor too large")
    result = np.empty((rows.shape[0], count), dtype=object)
    decimals = np.issubdtype(array.dtype, np.floating)
    for row, values in enumerate(rows):
        # Triton's order among equal values is not defined (an unstable sort). The first index wins here, so that equal
        # requests get equal responses.
        best_first = values.size - 1 - np.argsort(values[::-1], kind="stable")[::-1]  # of equal values, the first
        for column, index in enumerate(best_first[:count]):
            # Six decimals, as C++'s `std::to_string` writes floats on Triton; integers have none.
            text = f"{values[index]:.6f}:{index}" if decimals else f"{values[index]}:{index}"
            # Triton accepts a label file with fewer lines than classes; the remaining classes have no label.
            if labels is not None and index < len(labels):
                text += f":{labels[index]}"
            result[row, column] = text.encode()
    return result if batching else result[0]
