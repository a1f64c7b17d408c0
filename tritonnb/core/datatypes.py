"""Triton's tensor datatypes: their names, NumPy dtypes and wire formats.

Names are those of the KServe v2 protocol (``FP32``, ``BYTES``); the configuration writes them
``TYPE_FP32`` and ``TYPE_STRING`` (``inference.DataType`` in *model_config.proto*).
BF16 has no NumPy dtype: its tensors hold the raw 16-bit patterns as ``uint16``.
"""

from __future__ import annotations

import struct
import sys
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from tritonnb.core.errors import InvalidArgumentError


@dataclass(frozen=True, slots=True, eq=False)
class DataType:
    """A tensor datatype. There is exactly one object for each, so comparison is by identity.

    Attributes
    ----------
    name : str
        KServe v2 name, ``"FP32"``.
    config_name : str
        Name in *config.pbtxt*, ``"TYPE_FP32"``.
    number : int
        Value in the protobuf enum ``inference.DataType``.
    numpy : numpy.dtype
        Dtype of arrays of this datatype; ``object`` (elements are ``bytes``) for BYTES, ``uint16`` for BF16.
    itemsize : int
        Bytes of one element on the wire; 0 for BYTES, whose elements have different lengths.
    in_json : bool
        Whether HTTP requests and responses can carry its elements as JSON; FP16 and BF16 need binary data.
    classifiable : bool
        Whether Triton's classification extension can rank its elements.
    """

    name: str
    config_name: str
    number: int
    numpy: np.dtype[np.generic]
    itemsize: int
    in_json: bool = True
    classifiable: bool = True


def _datatype(
    name: str,
    number: int,
    numpy: npt.DTypeLike,
    config_name: str = "",
    in_json: bool = True,
    classifiable: bool = True,
) -> DataType:
    dtype = np.dtype(numpy)
    itemsize = 0 if dtype.kind == "O" else dtype.itemsize
    return DataType(name, config_name or f"TYPE_{name}", number, dtype, itemsize, in_json, classifiable)


BOOL = _datatype("BOOL", 1, np.bool_, classifiable=False)
UINT8 = _datatype("UINT8", 2, np.uint8)
UINT16 = _datatype("UINT16", 3, "<u2")
UINT32 = _datatype("UINT32", 4, "<u4")
UINT64 = _datatype("UINT64", 5, "<u8")
INT8 = _datatype("INT8", 6, np.int8)
INT16 = _datatype("INT16", 7, "<i2")
INT32 = _datatype("INT32", 8, "<i4")
INT64 = _datatype("INT64", 9, "<i8")
FP16 = _datatype("FP16", 10, "<f2", in_json=False, classifiable=False)
FP32 = _datatype("FP32", 11, "<f4")
FP64 = _datatype("FP64", 12, "<f8")
BYTES = _datatype("BYTES", 13, np.object_, "TYPE_STRING", classifiable=False)
BF16 = _datatype("BF16", 14, "<u2", in_json=False, classifiable=False)

DATATYPES: tuple[DataType, ...] = (
    BOOL, UINT8, UINT16, UINT32, UINT64, INT8, INT16, INT32, INT64, FP16, FP32, FP64, BYTES, BF16,
)  # fmt: skip
BY_NAME: dict[str, DataType] = {datatype.name: datatype for datatype in DATATYPES}
BY_NUMBER: dict[int, DataType] = {datatype.number: datatype for datatype in DATATYPES}
_BY_NUMPY = {datatype.numpy: datatype for datatype in DATATYPES if datatype is not BF16}


def datatype_of(dtype: npt.DTypeLike) -> DataType:
    """The datatype of arrays of a NumPy dtype.

    Parameters
    ----------
    dtype : dtype_like
        Strings and ``bytes`` of any width, and objects, are BYTES; the byte order does not matter.

    Raises
    ------
    InvalidArgumentError
        If there is none, such as for complex numbers.
    """
    numpy = np.dtype(dtype)
    if numpy.kind in "SUO":
        return BYTES
    datatype = _BY_NUMPY.get(numpy.newbyteorder("<") if numpy.byteorder == ">" else numpy)
    if datatype is None:
        raise InvalidArgumentError(f"no Triton datatype for NumPy dtype '{numpy}'")
    return datatype


def encode_bytes(array: npt.NDArray[np.object_]) -> bytes:
    """Encode BYTES elements for the wire: for each a 4-byte little-endian length, then its bytes."""
    pack = struct.Struct("<I").pack
    parts: list[bytes] = []
    for element in array.ravel():
        parts += (pack(len(element)), element)
    return b"".join(parts)


def split_bytes(raw: bytes | memoryview, limit: int = sys.maxsize) -> tuple[list[bytes], int]:
    """Decode up to ``limit`` BYTES elements.

    Parameters
    ----------
    raw : bytes or memoryview
        The wire form: for each element a 4-byte little-endian length, then its bytes.
    limit : int, optional

    Returns
    -------
    elements : list of bytes
    end : int
        Offset of the end of the last element. It is beyond ``len(raw)`` if the data of that element is cut short,
        and before it if further elements, or too few bytes for a length, follow.
    """
    view = memoryview(raw)
    elements: list[bytes] = []
    at, last_length = 0, len(view) - 4
    length_at = struct.Struct("<I").unpack_from
    while at <= last_length and len(elements) < limit:
        (length,) = length_at(view, at)
        elements.append(bytes(view[at + 4 : at + 4 + length]))
        at += 4 + length
    return elements, at


def decode_bytes(raw: bytes | memoryview) -> npt.NDArray[np.object_]:
    """Decode BYTES elements into a one-dimensional object array of ``bytes``.

    Raises
    ------
    InvalidArgumentError
        If the data ends within a length or an element.
    """
    elements, end = split_bytes(raw)
    remaining = len(raw) - end
    if remaining > 0:
        raise InvalidArgumentError(f"incomplete string length indicator: {remaining} bytes left")
    if remaining < 0:
        length = len(elements[-1])
        raise InvalidArgumentError(f"incomplete string data: expected {length - remaining} bytes, {length} left")
    return np.array(elements, dtype=object)


def as_bytes_array(values: npt.ArrayLike) -> npt.NDArray[np.object_]:
    """Convert strings (to UTF-8), ``bytes``, or any objects (by ``str()``) to an object array of ``bytes``."""
    array = np.asarray(values)
    if array.dtype.kind == "S":
        return array.astype(object)
    result = np.empty(array.shape, dtype=object)
    flat = result.reshape(-1)
    for index, value in enumerate(array.reshape(-1)):
        flat[index] = value if isinstance(value, bytes) else str(value).encode()
    return flat.reshape(array.shape)


def float32_to_bf16(array: npt.NDArray[np.float32]) -> npt.NDArray[np.uint16]:
    """Convert FP32 values to BF16 bit patterns, truncating as Triton's clients do."""
    return (np.ascontiguousarray(array, "<f4").view("<u4") >> 16).astype("<u2")


def bf16_to_float32(array: npt.NDArray[np.uint16]) -> npt.NDArray[np.float32]:
    """Convert BF16 bit patterns to FP32 values; exact."""
    return (array.astype("<u4") << 16).view("<f4")
