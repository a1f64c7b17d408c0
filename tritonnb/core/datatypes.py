"""Triton's tensor datatypes and what each is in NumPy and on the wire.

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
    """One datatype; there is one object of each, so they compare and hash as fast as objects do.

    Attributes
    ----------
    name : str
        KServe v2 name, ``"FP32"``.
    config_name : str
        Name in *config.pbtxt*, ``"TYPE_FP32"``.
    number : int
        Value in the protobuf enum ``inference.DataType``.
    numpy : numpy.dtype
        What arrays of this type hold; ``object`` (of ``bytes``) for BYTES.
    itemsize : int
        Bytes an element takes on the wire; 0 for BYTES, whose elements vary.
    """

    name: str
    config_name: str
    number: int
    numpy: np.dtype[np.generic]
    itemsize: int


def _datatype(name: str, number: int, numpy: npt.DTypeLike, config_name: str = "") -> DataType:
    dtype = np.dtype(numpy)
    itemsize = 0 if dtype.kind == "O" else dtype.itemsize
    return DataType(name, config_name or f"TYPE_{name}", number, dtype, itemsize)


BOOL = _datatype("BOOL", 1, np.bool_)
UINT8 = _datatype("UINT8", 2, np.uint8)
UINT16 = _datatype("UINT16", 3, "<u2")
UINT32 = _datatype("UINT32", 4, "<u4")
UINT64 = _datatype("UINT64", 5, "<u8")
INT8 = _datatype("INT8", 6, np.int8)
INT16 = _datatype("INT16", 7, "<i2")
INT32 = _datatype("INT32", 8, "<i4")
INT64 = _datatype("INT64", 9, "<i8")
FP16 = _datatype("FP16", 10, "<f2")
FP32 = _datatype("FP32", 11, "<f4")
FP64 = _datatype("FP64", 12, "<f8")
BYTES = _datatype("BYTES", 13, np.object_, "TYPE_STRING")
BF16 = _datatype("BF16", 14, "<u2")

DATATYPES: tuple[DataType, ...] = (
    BOOL, UINT8, UINT16, UINT32, UINT64, INT8, INT16, INT32, INT64, FP16, FP32, FP64, BYTES, BF16,
)  # fmt: skip
BY_NAME: dict[str, DataType] = {each.name: each for each in DATATYPES}
BY_NUMBER: dict[int, DataType] = {each.number: each for each in DATATYPES}
_BY_NUMPY = {each.numpy: each for each in DATATYPES if each is not BF16}


def datatype_of(dtype: npt.DTypeLike) -> DataType:
    """The datatype that carries arrays of a NumPy dtype.

    Strings and ``bytes`` of any width, and objects, are BYTES.

    Raises
    ------
    InvalidArgumentError
        If no datatype fits, such as for complex numbers.
    """
    given = np.dtype(dtype)
    if given.kind in "SUO":
        return BYTES
    found = _BY_NUMPY.get(given.newbyteorder("<") if given.byteorder == ">" else given)
    if found is None:
        raise InvalidArgumentError(f"no Triton datatype for NumPy dtype '{given}'")
    return found


def encode_bytes(array: npt.NDArray[np.object_]) -> bytes:
    """The wire form of BYTES elements: each a 4-byte little-endian length, then its bytes."""
    pack = struct.Struct("<I").pack
    parts: list[bytes] = []
    for element in array.ravel():
        parts += (pack(len(element)), element)
    return b"".join(parts)


def split_bytes(raw: bytes | memoryview, most: int = sys.maxsize) -> tuple[list[bytes], int]:
    """At most so many elements of BYTES data in wire form, and where the last of them ends.

    That is after the end of the data if it is cut short, and before it if there is more, or too little for a length.
    """
    view = memoryview(raw)
    elements: list[bytes] = []
    at, last_length = 0, len(view) - 4
    length_at = struct.Struct("<I").unpack_from
    while at <= last_length and len(elements) < most:
        (length,) = length_at(view, at)
        elements.append(bytes(view[at + 4 : at + 4 + length]))
        at += 4 + length
    return elements, at


def decode_bytes(raw: bytes | memoryview) -> npt.NDArray[np.object_]:
    """The elements of BYTES data in wire form, as a flat object array of ``bytes``.

    Raises
    ------
    InvalidArgumentError
        If a length does not fit what follows it.
    """
    elements, at = split_bytes(raw)
    left = len(raw) - at
    if left > 0:
        raise InvalidArgumentError(f"incomplete string length indicator: {left} bytes left")
    if left < 0:
        there = len(elements[-1])
        raise InvalidArgumentError(f"incomplete string data: expected {there - left} bytes, {there} left")
    return np.array(elements, dtype=object)


def as_bytes_array(values: npt.ArrayLike) -> npt.NDArray[np.object_]:
    """Strings, ``bytes``, or anything printable as an object array of ``bytes``."""
    array = np.asarray(values)
    if array.dtype.kind == "S":
        return array.astype(object)
    result = np.empty(array.shape, dtype=object)
    flat = result.reshape(-1)
    for index, value in enumerate(array.reshape(-1)):
        flat[index] = value if isinstance(value, bytes) else str(value).encode()
    return flat.reshape(array.shape)


def float32_to_bf16(array: npt.NDArray[np.float32]) -> npt.NDArray[np.uint16]:
    """BF16 bit patterns of FP32 values, truncated as Triton's own clients do."""
    return (np.ascontiguousarray(array, "<f4").view("<u4") >> 16).astype("<u2")


def bf16_to_float32(array: npt.NDArray[np.uint16]) -> npt.NDArray[np.float32]:
    """The FP32 values of BF16 bit patterns."""
    return (array.astype("<u4") << 16).view("<f4")
