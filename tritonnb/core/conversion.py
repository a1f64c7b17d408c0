"""Converting values to arrays of a datatype; rounding of floating-point numbers is the only change allowed.

==========================  ======================================================================
values                      are converted to
==========================  ======================================================================
booleans                    every numeric datatype
integers                    integers, if all are in range; floating-point numbers, rounded
floating-point numbers      floating-point numbers, rounded, if none becomes infinite
anything                    BYTES, as text
==========================  ======================================================================

Everything else is an error, such as converting 1.5 to an integer, a string to a number, or a missing value (None, NaN
in a text, ``pandas.NA``, a masked element) to anything.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from numbers import Integral, Real

import numpy as np
import numpy.typing as npt

from tritonnb.core.datatypes import DataType, as_bytes_array
from tritonnb.core.texts import shown

#: Numbers are converted to the same or a higher kind only; times are no numbers.
_KINDS = {"b": 0, "i": 1, "u": 1, "f": 2, "m": 3, "M": 3}

_UNEQUAL_LENGTHS = "expected lists of equal length, got different lengths"


def convert(values: npt.ArrayLike, datatype: DataType) -> npt.NDArray[np.generic]:
    """Convert values to an array of a datatype.

    Parameters
    ----------
    values : array_like
        A NumPy array, an array of another library, or nested lists.
    datatype : DataType

    Returns
    -------
    numpy.ndarray
        Shape of ``values``, dtype ``datatype.numpy`` (for BF16 the bit patterns, as ``uint16``). An array that has
        this dtype already is returned without a copy.

    Raises
    ------
    ValueError
        If a value would change, as described above.

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
    check_present(values, datatype)
    if datatype.variable_size:
        return _to_bytes(values)
    dtype = datatype.values_dtype
    try:
        array = np.asarray(values)
    except ValueError as error:
        raise ValueError(_UNEQUAL_LENGTHS if "inhomogeneous" in str(error) else str(error)) from None
    if array.dtype.name == "bfloat16":  # of the package ml_dtypes; NumPy knows nothing of its values
        array = array.astype(np.float32)
    if array.dtype != dtype:
        array = _cast(array, dtype, datatype.name)
    return datatype.from_values(array)


def _to_bytes(values: npt.ArrayLike) -> npt.NDArray[np.object_]:
    # In a fixed-width string array NumPy would drop trailing zero bytes.
    array = np.asarray(values) if hasattr(values, "__array__") else np.asarray(values, dtype=object)
    if array.dtype.kind == "O" and not hasattr(values, "__array__"):
        for element in array.flat:
            if isinstance(element, (list, tuple)):
                raise ValueError(_UNEQUAL_LENGTHS)
    return as_bytes_array(array)


def check_present(values: object, datatype: DataType) -> None:
    """Check that values do not have elements that NumPy would convert to something else without a word.

    Parameters
    ----------
    values : object
    datatype : DataType
        For the message.

    Raises
    ------
    ValueError
        If an element of a masked array is masked, also inside of lists, ``bytes`` are writeable ones, whose elements
        NumPy takes for numbers, or the values are an iterator, which NumPy takes for a single value.
    """
    if type(values) is np.ndarray:
        return
    if isinstance(values, (list, tuple)):
        if any(issubclass(kind, (np.ma.MaskedArray, *_BUFFERS)) for kind in _kinds_of_leaves(values)):
            _check_leaves(values, datatype, ())
    elif isinstance(values, (np.ma.MaskedArray, *_BUFFERS)):
        _check_leaves(values, datatype, ())
    elif isinstance(values, Iterable) and not (isinstance(values, Sequence) or hasattr(values, "__array__")):
        raise ValueError(
            f"expected an array or lists of {datatype.name} values, got a {type(values).__name__}: pass list(...)"
        )


#: Objects that NumPy reads as arrays of numbers.
_BUFFERS = (bytearray, memoryview)


def _kinds_of_leaves(values: Iterable[object]) -> set[type]:
    """Return the types in nested lists; quick, since a list can have millions of numbers."""
    kinds = set(map(type, values))
    if list in kinds or tuple in kinds:
        for nested in values:
            if isinstance(nested, (list, tuple)):
                kinds |= _kinds_of_leaves(nested)
    return kinds


def _check_leaves(values: object, datatype: DataType, index: tuple[int, ...]) -> None:
    if isinstance(values, (list, tuple)):
        for number, nested in enumerate(values):
            _check_leaves(nested, datatype, (*index, number))
    elif isinstance(values, np.ma.MaskedArray) and np.ma.is_masked(values):
        (first,) = np.argwhere(np.ma.getmaskarray(values))[:1].tolist()
        index = (*index, *first)
        where = f" at index [{','.join(map(str, index))}]" if index else ""
        raise ValueError(f"expected {datatype.name} values, got a missing value (masked){where}")
    elif datatype.variable_size and isinstance(values, _BUFFERS):
        where = f" at index [{','.join(map(str, index))}]" if index else ""
        raise ValueError(f"expected BYTES values, got {shown(values)}{where}: convert it with bytes()")


def _cast(array: npt.NDArray[np.generic], dtype: np.dtype[np.generic], name: str) -> npt.NDArray[np.generic]:
    if array.size == 0:
        return array.astype(dtype)
    kind = _KINDS.get(array.dtype.kind)
    if kind is None:
        wrong = next((element for element in array.flat if not isinstance(element, Real)), array.flat[0])
        integers = [int(element) for element in array.flat if isinstance(element, Integral)]
        if dtype.kind in "iu" and len(integers) == array.size:
            limits = np.iinfo(dtype.name)  # integers of Python can have more than 64 bits
            beyond = next((value for value in integers if not limits.min <= value <= limits.max), None)
            if beyond is not None:
                raise ValueError(f"expected {name} values from {limits.min} to {limits.max}, got {beyond}")
        if array.dtype.kind == "O" and isinstance(wrong, Real):
            raise ValueError(
                f"expected {name} values, got an array of objects such as {wrong!r}; convert it with .astype('{dtype}')"
            )
        shown = wrong.item() if isinstance(wrong, np.generic) else wrong
        raise ValueError(f"expected {name} values, got {shown!r}")
    if kind > _KINDS[dtype.kind]:
        raise ValueError(
            f"expected {name} values, got {array.dtype} such as {array.flat[0]}; convert them with .astype('{dtype}')"
        )
    if dtype.kind in "iu" and not np.can_cast(array.dtype, dtype):
        limits = np.iinfo(dtype.name)
        for value in (int(array.min()), int(array.max())):
            if not limits.min <= value <= limits.max:
                raise ValueError(f"expected {name} values from {limits.min} to {limits.max}, got {value}")
    try:
        with np.errstate(over="raise"):
            return array.astype(dtype)
    except FloatingPointError:
        raise ValueError(
            f"expected {name} values up to {np.finfo(dtype.name).max}, got {np.abs(array).max()}"
        ) from None
