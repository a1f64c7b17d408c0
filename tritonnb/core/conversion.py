"""Values as arrays of a datatype, so that none changes but by the rounding of floating-point numbers.

==========================  ======================================================================
values                      are converted to
==========================  ======================================================================
booleans                    every datatype of numbers
integers                    integers, where each is in range; floating-point numbers, rounded
floating-point numbers      floating-point numbers, rounded, where none becomes infinite
anything                    BYTES, as text
==========================  ======================================================================

Everything else, such as 1.5 as an integer, text as a number, or None, is an error.
"""

from __future__ import annotations

from numbers import Real
from typing import Any

import numpy as np
import numpy.typing as npt

from tritonnb.core.datatypes import BF16, BYTES, DataType, as_bytes_array, float32_to_bf16

#: Numbers of a kind are converted to those of the same or a higher kind.
_KINDS = {"b": 0, "i": 1, "u": 1, "f": 2}

_SEVERAL_LENGTHS = "expected lists of one length, got several lengths"


def convert(values: npt.ArrayLike, datatype: DataType) -> npt.NDArray[Any]:
    """Values as an array of a datatype.

    Parameters
    ----------
    values : array_like
        A NumPy array, an array of another library, or nested lists.
    datatype : DataType

    Returns
    -------
    numpy.ndarray
        Of ``datatype.numpy``; of an array that has it already, the same memory. For BF16 the bit patterns.

    Raises
    ------
    ValueError
        If a value would change, as described above. The text says what was expected, and what came.

    Examples
    --------
    >>> from tritonnb.core.datatypes import FP32, INT8
    >>> convert([1, 2.5], FP32)
    array([1. , 2.5], dtype=float32)
    >>> convert([1, 300], INT8)
    Traceback (most recent call last):
        ...
    ValueError: expected INT8 values from -128 to 127, got 300
    """
    if datatype is BYTES:
        return _to_bytes(values)
    wanted = np.dtype(np.float32) if datatype is BF16 else datatype.numpy
    try:
        array = np.asarray(values)
    except ValueError as error:
        raise ValueError(_SEVERAL_LENGTHS if "inhomogeneous" in str(error) else str(error)) from None
    if array.dtype != wanted:
        array = _cast(array, wanted, datatype.name)
    return float32_to_bf16(array) if datatype is BF16 else array


def _to_bytes(values: npt.ArrayLike) -> npt.NDArray[np.object_]:
    # As strings of one width NumPy would cut trailing zero bytes off.
    array = np.asarray(values) if hasattr(values, "__array__") else np.asarray(values, dtype=object)
    if array.dtype.kind == "O":
        for each in array.flat:
            if each is None:
                raise ValueError("expected BYTES values, got None")
            if isinstance(each, (list, tuple)):
                raise ValueError(_SEVERAL_LENGTHS)
    return as_bytes_array(array)


def _cast(array: npt.NDArray[Any], wanted: np.dtype[Any], name: str) -> npt.NDArray[Any]:
    if array.size == 0:
        return array.astype(wanted)
    kind = _KINDS.get(array.dtype.kind)
    if kind is None:
        other = next((each for each in array.flat if not isinstance(each, Real)), array.flat[0])
        shown = other.item() if isinstance(other, np.generic) else other
        raise ValueError(f"expected {name} values, got {shown!r}")
    if kind > _KINDS[wanted.kind]:
        raise ValueError(
            f"expected {name} values, got {array.dtype} such as {array.flat[0]}: convert them, such as with "
            f".astype('{wanted}')"
        )
    if wanted.kind in "iu" and not np.can_cast(array.dtype, wanted):
        limits = np.iinfo(wanted)
        for value in (int(array.min()), int(array.max())):
            if not limits.min <= value <= limits.max:
                raise ValueError(f"expected {name} values from {limits.min} to {limits.max}, got {value}")
    try:
        with np.errstate(over="raise"):
            return array.astype(wanted)
    except FloatingPointError:
        raise ValueError(f"expected {name} values up to {np.finfo(wanted).max}, got {np.abs(array).max()}") from None
