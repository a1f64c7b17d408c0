"""Tensors between the wire and the model, as far as HTTP and gRPC share it: bytes to tensors and back."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from functools import cached_property
from typing import Protocol

import numpy as np

from tritonnb.core.datatypes import BYTES, DataType, encode_bytes
from tritonnb.core.errors import InternalError, InvalidArgumentError
from tritonnb.core.messages import Tensor, UndecodedTensor, shape_text
from tritonnb.core.protobuf import model_config_pb2 as pb
from tritonnb.endpoints.classification import classify
from tritonnb.model_config.backend_selection import ENSEMBLE
from tritonnb.model_config.schema import ModelSpec
from tritonnb.runtime.shared_memory import Part, fill

_MAX_INT64 = 2**63 - 1


class ResponseModel(Protocol):
    """What an answer has to know of the model that gave it."""

    name: str
    version: int
    config: pb.ModelConfig
    spec: ModelSpec

    def labels(self, output_name: str) -> list[str] | None:
        """The lines of an output's ``label_filename``; None where it has none."""


@dataclass(slots=True)
class OutputFormat:
    """How a client wants one output.

    Attributes
    ----------
    binary : bool
        As bytes, rather than as JSON.
    classification : int
        As this many classes; 0 for as it is.
    region : Part or None
        In this part of a shared memory region.
    """

    binary: bool = False
    classification: int = 0
    region: Part | None = None


@dataclass
class ResponseFormat:
    """How a client wants its answer.

    Attributes
    ----------
    binary : bool
        For outputs that have no entry of their own (``binary_data_output``).
    outputs : dict of str to OutputFormat
    """

    binary: bool = False
    outputs: dict[str, OutputFormat] = field(default_factory=dict)

    @cached_property
    def only_bytes(self) -> bool:
        """Whether every output goes as it is, as bytes, into the body."""
        formats = self.outputs.values()
        return all(each == OutputFormat(binary=True) for each in formats) if formats else self.binary


def binary_tensor(
    name: str, datatype: DataType, shape: tuple[int, ...], body: bytes | bytearray | memoryview, at: int, size: int
) -> Tensor | UndecodedTensor:
    """A tensor that is a view into the body or region, if the bytes are as many as the shape needs."""
    count = math.prod(shape)
    if datatype.itemsize and size == count * datatype.itemsize:
        array = np.frombuffer(body, datatype.numpy, count, at)
        return Tensor(name, datatype, array.reshape(shape))
    return UndecodedTensor(name, datatype, shape, memoryview(body)[at : at + size])


def check_overflow(name: str, datatype: DataType, shape: tuple[int, ...]) -> None:
    """Refuse shapes that no memory holds; they bring older Tritons down.

    Raises
    ------
    InvalidArgumentError
        If it is such a shape.
    """
    count = math.prod(shape)
    if count > _MAX_INT64:
        raise InvalidArgumentError(
            f"invalid shape for input '{name}': shape {shape_text(shape)} causes total element count to exceed maximum "
            f"size of {_MAX_INT64}"
        )
    if count * datatype.itemsize > _MAX_INT64:
        raise InvalidArgumentError(
            f"byte size overflow for input '{name}': element count ({count}) * data type size "
            f"({datatype.itemsize}) exceeds maximum allowed size ({_MAX_INT64})"
        )


def contents(tensor: Tensor) -> bytes | memoryview:
    """The bytes of a tensor on the wire."""
    array = tensor.array
    if tensor.datatype is BYTES:
        return encode_bytes(array)
    if array.nbytes < 65_536:
        return array.tobytes()
    # A large array is joined into the answer from where it lies.
    return np.ascontiguousarray(array).data.cast("B")


def fill_region(served: ResponseModel, tensor: Tensor, region: Part) -> None:
    """Write an output where the client wants it.

    Raises
    ------
    InternalError
        If there is not room enough.
    """
    try:
        fill(tensor.name, region, contents(tensor))
    except InternalError as error:
        if served.config.platform == ENSEMBLE:
            raise InternalError(f"in ensemble '{served.name}', {error.message}") from None
        raise


def classified(served: ResponseModel, tensor: Tensor, count: int) -> Tensor:
    """An output as its ``count`` best classes.

    Raises
    ------
    InvalidArgumentError
        If its type has no order, or the answer would be too large.
    """
    batching = served.spec.max_batch_size > 0
    labels = served.labels(tensor.name)
    return Tensor(tensor.name, BYTES, classify(tensor.array, tensor.datatype, count, labels, batching))
