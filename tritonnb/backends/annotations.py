"""Annotations that turn a Python function into a model: ``def double(X: FP32[1]) -> FP32[1]``.

``FP32[3, -1]`` is a tensor of that datatype and those dims: ``data_type`` and ``dims`` in *config.pbtxt*. Dims do not
include the batch dimension; -1 is a variable dim. Dims have no names.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from tritonnb.core import datatypes
from tritonnb.core.datatypes import DataType
from tritonnb.core.errors import InvalidArgumentError


@dataclass(frozen=True, slots=True)
class TensorType:
    """A datatype with or without dims.

    Examples
    --------
    >>> FP32[3, -1]
    FP32[3, -1]
    """

    datatype: DataType
    dims: tuple[int, ...] = ()

    def __getitem__(self, dims: int | tuple[int, ...]) -> TensorType:
        """The tensor type with these dims.

        Raises
        ------
        InvalidArgumentError
            If a dim is not an integer >= 1, or -1.
        """
        checked = dims if isinstance(dims, tuple) else (dims,)
        for dim in checked:
            if not (isinstance(dim, (int, np.integer)) and (dim == -1 or dim > 0)):
                raise InvalidArgumentError(
                    f"{self.datatype.name}[...]: expected dims that are integers >= 1, or -1 for a variable dim, "
                    f"got {dim!r}"
                )
        return TensorType(self.datatype, tuple(map(int, checked)))

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
BF16 = TensorType(datatypes.BF16)
FP16 = TensorType(datatypes.FP16)
FP32 = TensorType(datatypes.FP32)
FP64 = TensorType(datatypes.FP64)
BYTES = TensorType(datatypes.BYTES)
