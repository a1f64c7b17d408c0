"""Triton's tensor datatypes: their names, NumPy dtypes, wire formats, and names in other libraries.

Names are from the KServe v2 protocol (``FP32``, ``BYTES``); the configuration writes them
``TYPE_FP32`` and ``TYPE_STRING`` (``inference.DataType`` in *model_config.proto*).
BF16 has no NumPy dtype: its arrays hold the 16-bit patterns as ``uint16``.

This is the only module that knows which datatypes exist: everything else reads the attributes of `DataType`. A new
datatype is a constant with its properties, its entry in `DATATYPES`, and its name in ``__all__``.
"""

from __future__ import annotations

import struct
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from tritonnb.core.errors import InvalidArgumentError
from tritonnb.core.texts import shown

#: The datatypes, which `tritonnb` exports: ``FP32[3, -1]`` in annotations of functions.
__all__ = [
    "BF16", "BOOL", "BYTES", "FP16", "FP32", "FP64", "INT8", "INT16", "INT32", "INT64", "UINT8", "UINT16", "UINT32",
    "UINT64",
]  # fmt: skip


#: How an element is written in JSON.
JsonForm = Literal["boolean", "number", "unsigned", "signed", "string", ""]


@dataclass(frozen=True, slots=True)
class TensorType:
    """A datatype with dims, which annotates an input or output of a function: ``FP32[3, -1]``.

    Attributes
    ----------
    datatype : DataType
    dims : tuple of int
        As ``dims`` in *config.pbtxt*: without the batch dimension; -1 is a variable dim.
    """

    datatype: DataType
    dims: tuple[int, ...]

    def __repr__(self) -> str:
        return f"{self.datatype.name}{list(self.dims)}"

    def __reduce__(self) -> tuple[Any, ...]:  # a frozen object cannot be filled after it was made
        return TensorType, (self.datatype, self.dims)


@dataclass(frozen=True, eq=False, repr=False)
class DataType:
    """A tensor datatype. There is one object for each datatype, so they are compared by identity.

    ``FP32[3, -1]`` is the `TensorType` of tensors with these dims.

    Attributes
    ----------
    name : str
        KServe v2 name, ``"FP32"``.
    config_name : str
        Name in *config.pbtxt*, ``"TYPE_FP32"``.
    number : int
        Value in the protobuf enum ``inference.DataType``.
    numpy : numpy.dtype
        Dtype of arrays of this datatype: ``object`` (elements are ``bytes``) for BYTES, ``uint16`` for BF16.
    itemsize : int
        Bytes of one element on the wire; 0 for BYTES, whose elements have different lengths.
    variable_size : bool
        Whether elements have different lengths, and therefore a length prefix on the wire: BYTES.
    json : {"boolean", "number", "unsigned", "signed", "string", ""}
        The form of an element in the JSON of HTTP requests and responses; empty for FP16 and BF16, which need binary
        data.
    contents : str
        The field of gRPC's ``InferTensorContents`` that holds the elements; empty if there is none.
    onnx : str
        Name of the element type in ONNX Runtime: ``float`` in ``tensor(float)``; empty if there is none.
    torch : str
        Name of the dtype in PyTorch: ``float32`` of ``torch.float32``; empty if there is none.
    in_torchscript : bool
        Whether Triton's PyTorch backend accepts tensors of this datatype.
    classifiable : bool
        Whether Triton's classification extension can rank its elements.
    to_float32, from_float32 : callable or None
        Convert arrays of bit patterns to FP32 values, and back, if NumPy has no such dtype.
    bit_pattern : bool
        Whether arrays hold bit patterns instead of values: BF16.
    values_dtype : numpy.dtype
        Dtype of the values that `to_values` returns: ``float32`` for BF16, otherwise ``numpy``.

    Examples
    --------
    >>> FP32.config_name, FP32[3, -1].dims
    ('TYPE_FP32', (3, -1))
    """

    name: str
    number: int
    numpy: np.dtype[np.generic]
    json: JsonForm = ""
    contents: str = ""
    onnx: str = ""
    torch: str = ""
    config_name: str = ""
    variable_size: bool = False
    in_torchscript: bool = True
    classifiable: bool = True
    to_float32: Callable[[npt.NDArray[np.generic]], npt.NDArray[np.float32]] | None = None
    from_float32: Callable[[npt.NDArray[np.generic]], npt.NDArray[np.generic]] | None = None
    itemsize: int = field(init=False)
    bit_pattern: bool = field(init=False)
    values_dtype: np.dtype[np.generic] = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "config_name", self.config_name or f"TYPE_{self.name}")
        object.__setattr__(self, "itemsize", 0 if self.numpy.kind == "O" else self.numpy.itemsize)
        object.__setattr__(self, "bit_pattern", self.to_float32 is not None)
        object.__setattr__(self, "values_dtype", np.dtype(np.float32) if self.bit_pattern else self.numpy)

    def __reduce__(self) -> tuple[Any, ...]:
        return datatype_named, (self.name,)  # the same object

    def encode(self, array: npt.NDArray[np.generic]) -> bytes:
        """Return the elements of an array in the wire form."""
        return encode_bytes(array) if self.variable_size else array.tobytes()

    def to_values(self, array: npt.NDArray[np.generic]) -> npt.NDArray[np.generic]:
        """Return an array's elements as values of `values_dtype`; the array itself unless it has bit patterns."""
        return array if self.to_float32 is None else self.to_float32(array)

    def from_values(self, values: npt.NDArray[np.generic]) -> npt.NDArray[np.generic]:
        """Return an array of this datatype from an array of numbers; the inverse of `to_values`."""
        return values.astype(self.numpy, copy=False) if self.from_float32 is None else self.from_float32(values)

    def __getitem__(self, dims: object) -> TensorType:
        """Return the type of tensors of this datatype with these dims.

        Raises
        ------
        InvalidArgumentError
            If a dim is not an integer >= 1, or -1.

        Examples
        --------
        >>> FP32[3, -1]
        FP32[3, -1]
        """
        checked: tuple[Any, ...] = dims if isinstance(dims, tuple) else (dims,)  # callers may pass anything
        for dim in checked:
            if not (isinstance(dim, (int, np.integer)) and (dim == -1 or dim > 0)):
                raise InvalidArgumentError(
                    f"{self.name}[...]: expected dims that are integers >= 1, or -1 for a variable dim, got {dim!r}"
                )
        return TensorType(self, tuple(map(int, checked)))

    def __repr__(self) -> str:
        return self.name


def float32_to_bf16(array: npt.NDArray[np.generic]) -> npt.NDArray[np.uint16]:
    """Convert FP32 values to BF16 bit patterns, truncating as Triton's clients do."""
    return (np.ascontiguousarray(array, "<f4").view("<u4") >> 16).astype("<u2")


def bf16_to_float32(array: npt.NDArray[np.generic]) -> npt.NDArray[np.float32]:
    """Convert BF16 bit patterns to FP32 values; exact."""
    return (array.astype("<u4") << 16).view("<f4")


# fmt: off
BOOL = DataType("BOOL", 1, np.dtype(np.bool_), json="boolean", contents="bool_contents", onnx="bool", torch="bool",
                classifiable=False)
UINT8 = DataType("UINT8", 2, np.dtype(np.uint8), json="unsigned", contents="uint_contents", onnx="uint8", torch="uint8")
UINT16 = DataType("UINT16", 3, np.dtype("<u2"), json="unsigned", contents="uint_contents", onnx="uint16",
                  torch="uint16", in_torchscript=False)
UINT32 = DataType("UINT32", 4, np.dtype("<u4"), json="unsigned", contents="uint_contents", onnx="uint32",
                  torch="uint32", in_torchscript=False)
UINT64 = DataType("UINT64", 5, np.dtype("<u8"), json="unsigned", contents="uint64_contents", onnx="uint64",
                  torch="uint64", in_torchscript=False)
INT8 = DataType("INT8", 6, np.dtype(np.int8), json="signed", contents="int_contents", onnx="int8", torch="int8")
INT16 = DataType("INT16", 7, np.dtype("<i2"), json="signed", contents="int_contents", onnx="int16", torch="int16")
INT32 = DataType("INT32", 8, np.dtype("<i4"), json="signed", contents="int_contents", onnx="int32", torch="int32")
INT64 = DataType("INT64", 9, np.dtype("<i8"), json="signed", contents="int64_contents", onnx="int64", torch="int64")
FP16 = DataType("FP16", 10, np.dtype("<f2"), onnx="float16", torch="float16", classifiable=False)
FP32 = DataType("FP32", 11, np.dtype("<f4"), json="number", contents="fp32_contents", onnx="float", torch="float32")
FP64 = DataType("FP64", 12, np.dtype("<f8"), json="number", contents="fp64_contents", onnx="double", torch="float64")
BYTES = DataType("BYTES", 13, np.dtype(np.object_), json="string", contents="bytes_contents", onnx="string",
                 config_name="TYPE_STRING", variable_size=True, classifiable=False)
BF16 = DataType("BF16", 14, np.dtype("<u2"), onnx="bfloat16", torch="bfloat16", in_torchscript=False,
                classifiable=False, to_float32=bf16_to_float32, from_float32=float32_to_bf16)

DATATYPES: tuple[DataType, ...] = (
    BOOL, UINT8, UINT16, UINT32, UINT64, INT8, INT16, INT32, INT64, FP16, FP32, FP64, BYTES, BF16,
)
# fmt: on
#: Represents a ``data_type`` number, or a datatype's name in a request, that is not in the table.
INVALID = DataType("<invalid>", 0, np.dtype(np.object_), config_name="TYPE_INVALID")

BY_NAME: dict[str, DataType] = {datatype.name: datatype for datatype in DATATYPES}


def datatype_named(name: str) -> DataType:
    """Return the datatype with a name."""
    return BY_NAME[name]


BY_NUMBER: dict[int, DataType] = {datatype.number: datatype for datatype in DATATYPES}
#: The datatypes of arrays by their dtype, in native byte order; bit patterns have the dtype of another datatype.
BY_NUMPY = {datatype.numpy: datatype for datatype in DATATYPES if not datatype.bit_pattern}


def datatype_of(dtype: npt.DTypeLike) -> DataType:
    """Return the datatype of arrays of a NumPy dtype.

    Parameters
    ----------
    dtype : dtype_like
        Strings and ``bytes`` of any width, and objects, are BYTES; the byte order does not matter.

    Raises
    ------
    InvalidArgumentError
        If there is none, such as for complex numbers.

    Examples
    --------
    >>> datatype_of(np.float32).name
    'FP32'
    """
    numpy = dtype if isinstance(dtype, np.dtype) else np.dtype(dtype)
    if numpy.kind in "SUO":
        return BYTES
    datatype = BY_NUMPY.get(numpy.newbyteorder("<") if numpy.byteorder == ">" else numpy)
    if datatype is None:
        raise InvalidArgumentError(f"no Triton datatype for NumPy dtype '{numpy}'")
    return datatype


#: Elements after which other threads may run: compiled code keeps Python's lock in a loop, and so does a call of NumPy.
_UNINTERRUPTED = 1 << 15


def encode_bytes(array: npt.NDArray[np.generic]) -> bytes:
    """Encode BYTES elements for the wire: for each a 4-byte little-endian length, then its bytes."""
    if array.size > _UNINTERRUPTED:
        return b"".join([encode_bytes(part) for part in parts_of(array)])
    pack = struct.Struct("<I").pack
    parts: list[bytes] = []
    for element in array.ravel().tolist():
        parts += (pack(len(element)), element)
    return b"".join(parts)


def parts_of(array: npt.NDArray[np.generic]) -> Iterator[npt.NDArray[np.generic]]:
    """Yield the elements of an array in flat parts, and let other threads run between them."""
    flat = array.ravel()
    for start in range(0, flat.size, _UNINTERRUPTED):
        if start:
            time.sleep(0)
        yield flat[start : start + _UNINTERRUPTED]


def split_bytes(raw: bytes | memoryview, limit: int = sys.maxsize) -> tuple[npt.NDArray[np.object_], int]:
    """Decode up to ``limit`` BYTES elements into a one-dimensional object array of ``bytes``.

    Parameters
    ----------
    raw : bytes or memoryview
        The wire form: for each element a 4-byte little-endian length, then its bytes.
    limit : int, optional

    Returns
    -------
    elements : numpy.ndarray
    end : int
        Offset of the end of the last element. It is beyond ``len(raw)`` if the data of that element is cut short,
        and before it if further elements, or too few bytes for a length, follow.
    """
    view = memoryview(raw)
    parts: list[npt.NDArray[np.object_]] = []
    elements: list[bytes] = []
    at, last_length = 0, len(view) - 4
    count = 0
    length_at = struct.Struct("<I").unpack_from
    while at <= last_length and count < limit:
        (length,) = length_at(view, at)
        elements.append(bytes(view[at + 4 : at + 4 + length]))
        at += 4 + length
        count += 1
        if len(elements) == _UNINTERRUPTED:
            parts.append(np.array(elements, dtype=object))
            elements = []
            time.sleep(0)
    last = np.array(elements, dtype=object)
    return (_joined([*parts, last], count) if parts else last), at


def _joined(parts: list[npt.NDArray[np.object_]], count: int) -> npt.NDArray[np.object_]:
    """Return the elements of arrays, part by part."""
    joined = np.empty(count, dtype=object)
    start = 0
    for part in parts:
        joined[start : start + len(part)] = part
        start += len(part)
        time.sleep(0)
    return joined


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
    return elements


def as_bytes_array(values: npt.ArrayLike) -> npt.NDArray[np.object_]:
    """Convert strings (to UTF-8), ``bytes``, numbers and other scalars (by ``str()``) to an object array of ``bytes``.

    Raises
    ------
    ValueError
        For a missing value, such as None, NaN and ``pandas.NA``, whose text would look like one that somebody wrote,
        and for a container, such as a dict.
    """
    array = np.asarray(values)
    if array.dtype.kind == "S":
        return array.astype(object)
    missing = getattr(array.dtype, "na_object", None)  # of `StringDType`
    result = np.empty(array.shape, dtype=object)
    flat = result.reshape(-1)
    for index, value in enumerate(array.reshape(-1)):
        if isinstance(value, bytes):
            flat[index] = bytes(value)  # the elements of arrays of bytes are `numpy.bytes_`
            continue
        if not isinstance(value, str) or value is missing:
            _check_scalar(value, missing, index, array.shape)
        flat[index] = str(value).encode()
    return flat.reshape(array.shape)


def _check_scalar(value: object, missing: object, index: int, shape: tuple[int, ...]) -> None:
    """Check an element of a BYTES tensor that is no text."""
    if is_missing(value) or value is missing:
        got, remedy = f"a missing value ({shown(value)})", ""
    elif isinstance(value, (list, tuple, dict, set, frozenset, bytearray, memoryview, np.ndarray)) or callable(value):
        got, remedy = shown(value), ": convert it to str or bytes"
    else:
        return
    raise ValueError(f"expected BYTES values, got {got}{index_text(index, shape)}{remedy}")


def index_text(index: int, shape: tuple[int, ...]) -> str:
    """Return where an element is, as a part of a message; empty for a single value.

    Examples
    --------
    >>> index_text(4, (2, 3))
    ' at index [1,1]'
    """
    if not shape:
        return ""
    return f" at index [{','.join(map(str, np.unravel_index(index, shape)))}]"


def is_missing(value: Any) -> bool:
    """Return whether a value stands for a missing value: None, NaN, NaT, ``pandas.NA`` or a masked element.

    Examples
    --------
    >>> [is_missing(value) for value in (None, float("nan"), np.datetime64("NaT"), np.ma.masked, "", 0)]
    [True, True, True, True, False, False]
    """
    if value is None or value is np.ma.masked:
        return True
    if isinstance(value, (np.ndarray, np.void)):
        return False
    try:
        # No missing value equals itself. From an `object`, the compiled module would expect a `bool`, and NumPy's
        # numbers return another type.
        return bool(value != value)
    except Exception:  # nor can `pandas.NA` say whether it does
        return True


def zeros(datatype: DataType, shape: tuple[int, ...]) -> npt.NDArray[np.generic]:
    """Return an array of zeros, or of empty strings for BYTES."""
    if datatype.itemsize:
        return np.zeros(shape, datatype.numpy)
    return np.full(shape, b"", dtype=object)
