"""``pb_utils.Tensor``, and its conversion to and from the server's tensors.

NumPy has no BF16: such a tensor holds the bit patterns, and is exchanged with other libraries through DLPack.
"""

from __future__ import annotations

from typing import Any, Final, cast

import numpy as np
import numpy.typing as npt

from tritonnb.backends.python.error import TritonModelException
from tritonnb.core import datatypes
from tritonnb.core.datatypes import DataType
from tritonnb.core.messages import Tensor as CoreTensor
from tritonnb.core.ownership import writeable_copy
from tritonnb.core.texts import encodable, shown

_ARRAY: Final = np.ndarray
_BY_NUMPY: Final = datatypes.BY_NUMPY


def decode_text(value: object) -> str:
    """Return a ``str`` that UTF-8 can express, even from UTF-8 bytes, such as an element of a string tensor."""
    if type(value) is str and value.isascii():
        return value
    if isinstance(value, str):
        text = encodable(value)
        if text != value:
            raise TypeError(f"expected text that UTF-8 can express, got {shown(value)}")
        return text
    if isinstance(value, bytes):
        return value.decode()
    raise TypeError(f"expected str or bytes, got {type(value).__name__}")


class Tensor:
    """A named tensor.

    Parameters
    ----------
    name : str
    array : numpy.ndarray
        Strings are ``bytes`` or objects, as on Triton; arrays of dtype ``str`` (``<U…``) are rejected.
    """

    __slots__ = ("_array", "_datatype", "_name", "_shared")

    # The compiled class would refuse a name of another type with its own message. With a datatype, the name and the
    # array are known to be right.
    def __init__(self, name: object, array: npt.ArrayLike, _datatype: DataType | None = None) -> None:
        self._shared = False
        values = array if type(array) is _ARRAY else _plain(array)
        if _datatype is not None:
            self._array = values
            self._name = cast(str, name)
            self._datatype = _datatype
            return
        self._array = values if values.flags.c_contiguous else np.ascontiguousarray(values)
        if not name:
            raise (
                TypeError("Tensor: expected name to be str or bytes, got None")
                if name is None
                else TritonModelException("Tensor name cannot be an empty string.")
            )
        datatype = _BY_NUMPY.get(values.dtype)
        if datatype is None:
            # `<U` arrays are refused as on Triton, although they could be encoded: a model that uses them would not be
            # portable.
            if values.dtype.kind not in "SO":
                raise TritonModelException("NumPy dtype is not supported.")
            datatype = datatypes.BYTES
        self._name = decode_text(name)
        self._datatype = datatype

    @staticmethod
    def received(tensor: CoreTensor, read_only: bool = False) -> Tensor:
        """Convert a tensor of the server; its name and dtype are known to be right.

        The model may write to it, unless ``read_only``.
        """
        array = tensor.array
        flags = array.flags
        received = Tensor(tensor.name, array if flags.c_contiguous else np.ascontiguousarray(array), tensor.datatype)
        received._shared = not (flags.writeable or read_only)
        return received

    @staticmethod
    def from_dlpack(name: object, tensor: Any) -> Tensor:
        """Return a tensor from an object that supports DLPack, or from a DLPack capsule."""
        if not name:
            raise TritonModelException("Tensor name cannot be an empty string.")
        if type(tensor).__name__ != "PyCapsule" and not hasattr(tensor, "__dlpack__"):
            raise TritonModelException(
                "Provided tensor is not supported. Tensor must be a DLPack capsule or have `__dlpack__` and "
                "`__dlpack_device__` attributes"
            )
        # A bare capsule has no device to ask for, and NumPy accepts only objects; PyTorch takes it.
        if not hasattr(tensor, "__dlpack__"):
            import torch.utils.dlpack

            tensor = torch.utils.dlpack.from_dlpack(tensor)
        array, datatype = _imported(tensor if int(tensor.__dlpack_device__()[0]) == 1 else tensor.cpu())
        if not array.flags.c_contiguous:
            raise TritonModelException(
                "DLPack tensor is not contiguous. Only contiguous DLPack tensors that are stored in C-Order are "
                "supported."
            )
        imported = Tensor(name, array)
        if datatype is not None:
            imported._datatype = datatype
        return imported

    def name(self) -> str:
        """Return the tensor's name."""
        return self._name

    def shape(self) -> list[int]:
        """Return the shape, including the batch dimension."""
        return list(self._array.shape)

    def as_numpy(self) -> npt.NDArray[np.generic]:
        """Return the values; strings are ``bytes`` in an object array.

        The model may write to the array of an input, as on Triton. If the caller of the request passed ``copy=False``,
        it is read-only.
        """
        if self._datatype.bit_pattern:
            raise TritonModelException(
                f"Tensor dtype is {self._datatype.name} and cannot be converted to NumPy. Use to_dlpack() and "
                "from_dlpack() instead."
            )
        # Copied when it is looked at, and not before: many models only read some of their inputs.
        return self._own() if self._shared else self._array

    def triton_dtype(self) -> int:
        """Return the number of the datatype in ``inference.DataType``."""
        return self._datatype.number

    def is_cpu(self) -> bool:
        """Return whether the values are in CPU memory."""
        return True

    def to_dlpack(self) -> Any:
        """Return a DLPack capsule of the values."""
        return self._exported().__dlpack__()

    def __dlpack__(self, **options: Any) -> Any:
        return self._exported().__dlpack__(**options)

    def __dlpack_device__(self) -> Any:
        return self._array.__dlpack_device__()

    def _own(self) -> npt.NDArray[np.generic]:
        array = self._array
        self._array = array.copy() if type(array) is _ARRAY else writeable_copy(array)
        self._shared = False
        return self._array

    def _exported(self) -> Any:
        """Return the values for DLPack; they keep the tensor alive while they are in use."""
        datatype = self._datatype
        if datatype.variable_size:
            raise TritonModelException("DLPack does not have support for string tensors.")
        # An own copy, since DLPack has no flag for read-only memory (before its version 1.0).
        array = np.asarray(_KeepAlive(self, self._own()))
        if not datatype.bit_pattern:
            return array
        import torch

        return torch.from_numpy(array.view(f"i{datatype.itemsize}")).view(getattr(torch, datatype.torch))


def _plain(array: object) -> npt.NDArray[np.generic]:
    """Return the array that is the value of a tensor."""
    if not isinstance(array, np.ndarray):
        raise TypeError(f"Tensor: expected a NumPy array, got {type(array).__name__}")
    # A mask would be lost on the wire, and with it the difference between a value and a hole.
    if isinstance(array, np.ma.MaskedArray):
        if np.ma.is_masked(array):
            raise TritonModelException("Tensor: expected an array without missing values, got masked elements")
        return np.asarray(array)
    return array


class _KeepAlive:
    """An array that keeps its tensor alive."""

    def __init__(self, tensor: Tensor, array: npt.NDArray[np.generic]) -> None:
        self.tensor = tensor
        self.__array_interface__ = array.__array_interface__


def _imported(tensor: Any) -> tuple[npt.NDArray[np.generic], DataType | None]:
    """Import the values; also returns the datatype if they are bit patterns."""
    try:
        return np.from_dlpack(tensor), None
    except (BufferError, RuntimeError):  # NumPy does not know the type
        import torch.utils.dlpack

        values = torch.utils.dlpack.from_dlpack(tensor)
        for datatype in datatypes.DATATYPES:
            if datatype.bit_pattern and values.dtype is getattr(torch, datatype.torch, None):
                bits = values.view(getattr(torch, f"int{8 * datatype.itemsize}"))
                return bits.numpy().view(datatype.numpy), datatype
        raise


def to_core_tensor(tensor: Tensor) -> CoreTensor:
    """Convert a model's tensor to the server's."""
    datatype, array = tensor._datatype, tensor._array
    if datatype.variable_size:
        try:
            array = datatypes.as_bytes_array(array)
        except UnicodeError:
            raise
        except ValueError as error:  # a missing value, or a container
            raise TritonModelException(f"tensor '{tensor._name}': {error}") from error
    return CoreTensor(tensor._name, datatype, array)
