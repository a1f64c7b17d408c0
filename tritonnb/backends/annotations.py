"""Annotations that make a Python function a model: ``def double(X: FP32[1]) -> FP32[1]``.

``FP32[3, -1]`` is a tensor of that datatype and those dims, without the batch dimension, -1 for a
variable one: what *config.pbtxt* calls ``data_type`` and ``dims``.
"""

from __future__ import annotations

from dataclasses import dataclass

from tritonnb.core import datatypes
from tritonnb.core.datatypes import DataType


@dataclass(frozen=True, slots=True)
class TensorType:
    """A datatype with dims, or without any yet.

    Examples
    --------
    >>> FP32[3, -1]
    FP32[3, -1]
    """

    datatype: DataType
    dims: tuple[int, ...] = ()

    def __getitem__(self, dims: int | tuple[int, ...]) -> TensorType:
        """The type with dims."""
        return TensorType(self.datatype, dims if isinstance(dims, tuple) else (dims,))

    def __repr__(self) -> str:
        return f"{self.datatype.name}{list(self.dims)}" if self.dims else self.datatype.name


BOOL = TensorType(datatypes.BOOL)
UINT8 = TensorType(datatypes.UINT8)
UINT16 = TensorType(datatypes.UINT16)
UINT32 = TensorType(datatypes.UINT32)
UINT64 = TensorType(datatypes.UINT64)
INT8 = TensorType(datatypes.INT8)
INT16 = TensorType(datatypes.INT16)
INT32 = TensorType(datatypes.INT32)
INT64 = TensorType(datatypes.INT64)
FP16 = TensorType(datatypes.FP16)
FP32 = TensorType(datatypes.FP32)
FP64 = TensorType(datatypes.FP64)
BYTES = TensorType(datatypes.BYTES)
