"""Conversion between bytes and tensors, shared by HTTP and gRPC."""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from tritonnb.core.datatypes import BYTES, FP32, FP64, DataType, encode_bytes
from tritonnb.core.errors import InternalError, InvalidArgumentError
from tritonnb.core.messages import InferResponse, Tensor, UndecodedTensor
from tritonnb.core.shapes import MAX_ELEMENTS, element_count, shape_text
from tritonnb.endpoints.classification import classify
from tritonnb.endpoints.long_work import LONG
from tritonnb.endpoints.protocols import ResponseModel
from tritonnb.engine.shared_memory import Part, fill
from tritonnb.model_config.backend_selection import ENSEMBLE

#: The largest number of dimensions of an array in every version of NumPy. The shape of a tensor with more is refused
#: when the request is validated, unless its model has as many.
MAX_ARRAY_DIMS: Final = 32
_ARRAY: Final = np.ndarray
_pack_into: Final = struct.pack_into
#: Floats that are converted in one call, which holds Python's lock.
_MOST_FLOATS: Final = 1 << 15
#: Bytes of an element in NumPy, at most.
_LARGEST_ITEM: Final = 8


@dataclass(slots=True)
class OutputFormat:
    """The requested format of one output; nothing writes to it once it has been read.

    Attributes
    ----------
    binary : bool
        Whether as bytes instead of JSON.
    classification : int
        The number of classes; 0 for the tensor itself.
    region : Part or None
        The part of a shared memory region to write to.
    """

    binary: bool
    classification: int
    region: Part | None

    # mypyc does not compile the constructor that `dataclass` writes, here and below.
    def __init__(self, binary: bool = False, classification: int = 0, region: Part | None = None) -> None:
        self.binary = binary
        self.classification = classification
        self.region = region

    @property
    def is_bytes(self) -> bool:
        """True if the tensor is written to the body as bytes."""
        return self.binary and not self.classification and self.region is None


#: The formats of nearly all outputs.
BINARY: Final = OutputFormat(binary=True)
DEFAULT: Final = OutputFormat()


@dataclass(slots=True)
class ResponseFormat:
    """The requested format of a response.

    Attributes
    ----------
    binary : bool
        For outputs without an entry (``binary_data_output``).
    outputs : dict of str to OutputFormat
    """

    binary: bool
    outputs: dict[str, OutputFormat]

    def __init__(self, binary: bool = False, outputs: dict[str, OutputFormat] | None = None) -> None:
        self.binary = binary
        self.outputs = {} if outputs is None else outputs

    @property
    def only_bytes(self) -> bool:
        """True if every output is written to the body as bytes."""
        for requested in self.outputs.values():
            if not requested.is_bytes:
                return False
        return self.binary or len(self.outputs) > 0


def binary_tensor(
    name: str, datatype: DataType, shape: tuple[int, ...], body: bytes | bytearray | memoryview, offset: int, size: int
) -> Tensor | UndecodedTensor:
    """Make a tensor that is a view of the body or region, if the size fits the shape."""
    itemsize = datatype.itemsize
    # Anything that does not fit is kept undecoded and refused by the validation, so that all protocols have one text
    # and one order of checks.
    if itemsize and size == element_count(shape) * itemsize and len(shape) <= MAX_ARRAY_DIMS:
        # The constructor takes less than half the time, but would not keep the memory behind a view open.
        if type(body) is not memoryview and size:
            return Tensor(name, datatype, _ARRAY(shape, datatype.numpy, body, offset))
        array = np.frombuffer(body, datatype.numpy, size // itemsize, offset)
        return Tensor(name, datatype, array.reshape(shape))
    return UndecodedTensor(name, datatype, shape, memoryview(body)[offset : offset + size])


def float_tensor(
    name: str, datatype: DataType, shape: tuple[int, ...], values: list[Any], max_size: int
) -> Tensor | None:
    """Make a tensor of a flat list of floats, as most JSON data are, of at most so many bytes; None for other data."""
    code = "f" if datatype is FP32 else "d" if datatype is FP64 else ""
    size = len(values) * datatype.itemsize
    is_small = 0 < size <= max_size and len(values) <= _MOST_FLOATS and 0 < len(shape) <= MAX_ARRAY_DIMS
    if not code or not is_small or element_count(shape) != len(values):
        return None
    for value in values:
        if type(value) is not float:
            return None
    contents = bytearray(size)
    # In the machine's own form, 1e39 becomes infinity as FP32 without a complaint, as on Triton.
    _pack_into(f"{len(values)}{code}", contents, 0, *values)
    return Tensor(name, datatype, _ARRAY(shape, datatype.numpy, contents))


def check_overflow(name: str, datatype: DataType, shape: tuple[int, ...]) -> None:
    """Refuse shapes with a size that overflows; they crash older versions of Triton.

    Raises
    ------
    InvalidArgumentError
        If the size overflows.
    """
    count = element_count(shape)
    # Triton 2.51 multiplies with overflow instead: a shape [1, 4611686018427387904] of FP32 ends its process.
    if count > MAX_ELEMENTS or (not count and _is_refused_by_numpy(shape)):
        raise InvalidArgumentError(
            f"invalid shape for input '{name}': shape {shape_text(shape)} causes total element count to exceed maximum "
            f"size of {MAX_ELEMENTS}"
        )
    if count * datatype.itemsize > MAX_ELEMENTS:
        raise InvalidArgumentError(
            f"byte size overflow for input '{name}': element count ({count}) * data type size "
            f"({datatype.itemsize}) exceeds maximum allowed size ({MAX_ELEMENTS})"
        )


def _is_refused_by_numpy(shape: tuple[int, ...]) -> bool:
    """Return whether NumPy refuses a shape because of its non-zero dimensions, which Triton does not."""
    # Surprisingly, NumPy refuses even an array without elements if its other dimensions are large, such as (0, 2**62,
    # 8).
    return element_count([dim for dim in shape if dim]) * _LARGEST_ITEM > MAX_ELEMENTS


def contents(tensor: Tensor) -> bytes | memoryview:
    """Return the bytes of a tensor on the wire; a large array is not copied."""
    array = tensor.array
    if tensor.datatype.variable_size:
        return tensor.raw if isinstance(tensor, EncodedTensor) else encode_bytes(array)
    # The size from which on HTTP sends parts without joining them (`LARGE_BODY`): anything smaller is copied anyway.
    if array.nbytes < 65_536:
        return array.tobytes()
    # A transport may keep the view until the client reads, so the array must not be written to any more.
    return np.ascontiguousarray(array).data.cast("B")


def response_size(response: InferResponse, is_copied: bool = False) -> int:
    """Return about how many elements and bytes of strings have to be written one by one.

    Parameters
    ----------
    response : InferResponse
    is_copied : bool, optional
        Whether elements of a fixed size are copied as they are.
    """
    size = 0
    for tensor in response.outputs:
        if tensor.datatype.variable_size:
            size += tensor.array.size
            # An array that is long by its number of elements need not be looked at.
            size += sum(map(len, tensor.array.ravel().tolist())) if size <= LONG else 0
        elif not is_copied:
            size += tensor.array.size
    return size


class EncodedTensor(Tensor):
    """An output with its contents.

    Attributes
    ----------
    raw : bytes
        In the form of BYTES.
    """

    __slots__ = ("raw",)

    def __init__(self, tensor: Tensor) -> None:
        super().__init__(tensor.name, tensor.datatype, tensor.array)
        self.raw = encode_bytes(tensor.array)


def encoded(response: InferResponse) -> InferResponse:
    """Return a response with its strings encoded; called on a worker thread."""
    outputs = [EncodedTensor(tensor) if tensor.datatype.variable_size else tensor for tensor in response.outputs]
    return InferResponse(outputs, response.error, response.final, response.parameters, response.empty)


def fill_region(served: ResponseModel, tensor: Tensor, region: Part) -> None:
    """Write an output to shared memory.

    Raises
    ------
    InternalError
        If the region is too small.
    """
    try:
        fill(tensor.name, region, contents(tensor))
    except InternalError as error:
        if served.config.platform == ENSEMBLE:
            raise InternalError(f"in ensemble '{served.name}', {error.message}") from None
        raise


def classified(served: ResponseModel, tensor: Tensor, count: int) -> Tensor:
    """Convert an output to its ``count`` best classes.

    Raises
    ------
    InvalidArgumentError
        If its datatype has no order, or the result would be too large.
    """
    batching = served.spec.max_batch_size > 0
    labels = served.output_labels.get(tensor.name)
    return Tensor(tensor.name, BYTES, classify(tensor.array, tensor.datatype, count, labels, batching))
