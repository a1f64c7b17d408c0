"""``pb_utils.Tensor``, and what it is on the server's side.

NumPy has no BF16: such a tensor holds the bit patterns and goes to other libraries, and comes from them, by DLPack.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from tritonnb.backends.python.error import TritonModelException
from tritonnb.core import datatypes
from tritonnb.core.messages import Tensor as CoreTensor
from tritonnb.core.ownership import ensure_writeable

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
        Strings are ``bytes`` or objects, as on Triton; an array of ``str`` (``<U…``) is refused there, too.
    """

    __slots__ = ("_array", "_datatype", "_name", "_shared")

    def __init__(self, name: str | bytes, array: npt.ArrayLike) -> None:
        if not isinstance(array, np.ndarray):
            raise TypeError(f"Tensor takes a NumPy array, got {type(array).__name__}")
        if not name:
            raise (
                TypeError("Tensor takes a name")
                if name is None
                else TritonModelException("Tensor name cannot be an empty string.")
            )
        if array.dtype not in _CARRIED and array.dtype.kind not in "SO":
            raise TritonModelException("NumPy dtype is not supported.")
        self._name = as_text(name)
        self._datatype = datatypes.datatype_of(array.dtype)
        self._array = array if array.flags.c_contiguous else np.ascontiguousarray(array)
        self._shared = False

    @classmethod
    def received(cls, tensor: CoreTensor, read_only: bool = False) -> Tensor:
        """A tensor of the server as the model's, whose name and dtype need no check.

        The model may write to it, unless it is to stay read-only.
        """
        received = cls.__new__(cls)
        array = tensor.array
        flags = array.flags
        received._name = tensor.name
        received._datatype = tensor.datatype
        received._array = array if flags.c_contiguous else np.ascontiguousarray(array)
        received._shared = not (flags.writeable or read_only)
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
        array, is_bf16 = _imported(tensor if int(tensor.__dlpack_device__()[0]) == 1 else tensor.cpu())
        if not array.flags.c_contiguous:
            raise TritonModelException(
                "DLPack tensor is not contiguous. Only contiguous DLPack tensors that are stored in C-Order are "
                "supported."
            )
        found = Tensor(name, array)
        if is_bf16:
            found._datatype = datatypes.BF16
        return found

    def name(self) -> str:
        """The tensor's name."""
        return self._name

    def shape(self) -> list[int]:
        """The tensor's shape, batch dimension included."""
        return list(self._array.shape)

    def as_numpy(self) -> npt.NDArray[Any]:
        """The values; strings are ``bytes`` in an object array.

        The array of an input may be written to, as on Triton: it is the model's own. If the caller asked for
        ``copy=False``, it is read-only.
        """
        if self._datatype is datatypes.BF16:
            raise TritonModelException(
                "Tensor dtype is BF16 and cannot be converted to NumPy. Use to_dlpack() and from_dlpack() instead."
            )
        return self._own() if self._shared else self._array

    def triton_dtype(self) -> int:
        """The number of the datatype in ``inference.DataType``."""
        return self._datatype.number

    def is_cpu(self) -> bool:
        """Whether the values are in CPU memory."""
        return True

    def to_dlpack(self) -> Any:
        """A DLPack capsule of the values."""
        return self._exported().__dlpack__()

    def __dlpack__(self, **options: Any) -> Any:
        return self._exported().__dlpack__(**options)

    def __dlpack_device__(self) -> Any:
        return self._array.__dlpack_device__()

    def _own(self) -> npt.NDArray[Any]:
        self._array, self._shared = ensure_writeable(self._array), False
        return self._array

    def _exported(self) -> Any:
        """The values for DLPack; while they are in use, so is the tensor."""
        if self._datatype is datatypes.BYTES:
            raise TritonModelException("DLPack does not have support for string tensors.")
        held = np.asarray(_Held(self, self._own()))
        if self._datatype is not datatypes.BF16:
            return held
        import torch

        return torch.from_numpy(held.view(np.int16)).view(torch.bfloat16)


class _Held:
    """An array that keeps its tensor alive."""

    def __init__(self, tensor: Tensor, array: npt.NDArray[Any]) -> None:
        self.tensor = tensor
        self.__array_interface__ = array.__array_interface__


def _imported(tensor: Any) -> tuple[npt.NDArray[Any], bool]:
    """The values, and whether they are bit patterns of BF16."""
    try:
        return np.from_dlpack(tensor), False
    except (BufferError, RuntimeError):  # NumPy does not know the type
        import torch.utils.dlpack

        found = torch.utils.dlpack.from_dlpack(tensor)
        if found.dtype is not torch.bfloat16:
            raise
        return found.view(torch.int16).numpy().view(np.uint16), True


def to_core_tensor(tensor: Tensor) -> CoreTensor:
    """A model's tensor as the server's."""
    datatype, array = tensor._datatype, tensor._array
    if datatype is datatypes.BYTES:
        array = datatypes.as_bytes_array(array)
    return CoreTensor(tensor._name, datatype, array)
