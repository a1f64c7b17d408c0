"""``pb_utils.Tensor``, and what it is on the server's side."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from tritonnb.backends.python.error import TritonModelException
from tritonnb.core import datatypes
from tritonnb.core.messages import Tensor as CoreTensor

#: Dtypes of tensors, beside strings; other byte orders are not among them.
_CARRIED = frozenset(each.numpy for each in datatypes.DATATYPES)


def as_text(value: str | bytes) -> str:
    """A text that a model may also give as UTF-8 bytes, such as an element of a string tensor."""
    if not isinstance(value, (str, bytes)):
        raise TypeError(f"expected a string, got {type(value).__name__}")
    return value.decode() if isinstance(value, bytes) else value


class Tensor:
    """A named tensor.

    Parameters
    ----------
    name : str
    array : numpy.ndarray
        Strings of any kind become TYPE_STRING.
    """

    __slots__ = ("_array", "_name")

    def __init__(self, name: str | bytes, array: npt.ArrayLike) -> None:
        if not isinstance(array, np.ndarray):
            raise TypeError(f"Tensor takes a NumPy array, got {type(array).__name__}")
        if not name:
            raise (
                TypeError("Tensor takes a name")
                if name is None
                else TritonModelException("Tensor name cannot be an empty string.")
            )
        if array.dtype not in _CARRIED and array.dtype.kind not in "SUO":
            raise TritonModelException("NumPy dtype is not supported.")
        self._name = as_text(name)
        self._array = array if array.flags.c_contiguous else np.ascontiguousarray(array)

    @classmethod
    def received(cls, tensor: CoreTensor) -> Tensor:
        """A tensor of the server as the model's, whose name and dtype need no check."""
        received = cls.__new__(cls)
        array = tensor.array
        received._name = tensor.name
        received._array = array if array.flags.c_contiguous else np.ascontiguousarray(array)
        return received

    @staticmethod
    def from_dlpack(name: str, tensor: Any) -> Tensor:
        """A tensor from anything that speaks DLPack, or from a DLPack capsule."""
        if not name:
            raise TritonModelException("Tensor name cannot be an empty string.")
        if type(tensor).__name__ != "PyCapsule" and not hasattr(tensor, "__dlpack__"):
            raise TritonModelException(
                "Provided tensor is not supported. Tensor must be a DLPack capsule or have `__dlpack__` and "
                "`__dlpack_device__` attributes"
            )
        if not hasattr(tensor, "__dlpack__"):
            import torch.utils.dlpack

            tensor = torch.utils.dlpack.from_dlpack(tensor)
        device = tensor.__dlpack_device__()[0]
        return Tensor(name, np.from_dlpack(tensor if int(device) == 1 else tensor.cpu()))

    def name(self) -> str:
        """The tensor's name."""
        return self._name

    def shape(self) -> list[int]:
        """The tensor's shape, batch dimension included."""
        return list(self._array.shape)

    def as_numpy(self) -> npt.NDArray[Any]:
        """The values; strings are ``bytes`` in an object array. The array may be written to."""
        if not self._array.flags.writeable:
            self._array = self._array.copy()
        return self._array

    def triton_dtype(self) -> int:
        """The number of the datatype in ``inference.DataType``."""
        return datatypes.datatype_of(self._array.dtype).number

    def is_cpu(self) -> bool:
        """Whether the values are in CPU memory."""
        return True

    def to_dlpack(self) -> Any:
        """A DLPack capsule of the values."""
        return self.as_numpy().__dlpack__()

    def __dlpack__(self, **options: Any) -> Any:
        return self.as_numpy().__dlpack__(**options)

    def __dlpack_device__(self) -> Any:
        return self._array.__dlpack_device__()


def to_core_tensor(tensor: Tensor) -> CoreTensor:
    """A model's tensor as the server's."""
    datatype = datatypes.datatype_of(tensor._array.dtype)
    array = tensor._array
    if datatype is datatypes.BYTES:
        array = datatypes.as_bytes_array(array)
    return CoreTensor(tensor._name, datatype, array)
