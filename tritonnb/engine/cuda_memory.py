"""Regions of GPU memory that other processes share (``cudaIpcMemHandle_t``).

Tensors pass through the memory of this process: an input is copied from the GPU when its request is read, and an output
to the GPU when its response is written. Requires NVIDIA's ``cuda-bindings``.

Implements the CUDA shared memory extension.
"""

from __future__ import annotations

import ctypes
import logging
import weakref
from collections.abc import Callable
from types import ModuleType
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt

from tritonnb.core.errors import InternalError, InvalidArgumentError

logger = logging.getLogger(__name__)

HANDLE_SIZE = 64  # sizeof(cudaIpcMemHandle_t)


class CudaError(Exception):
    """An error of the CUDA runtime."""


class CudaRegion:
    """A registered region: memory of another process, which is open until `release`.

    Parameters
    ----------
    name : str
        The name that clients use.
    handle : bytes
        A ``cudaIpcMemHandle_t``.
    device_id : int
    byte_size : int

    Raises
    ------
    InvalidArgumentError
        If the handle cannot be opened, or its allocation is too small.
    """

    kind: ClassVar[str] = "CUDA"

    def __init__(self, name: str, handle: bytes, device_id: int, byte_size: int) -> None:
        self.name = name
        self.device_id = device_id
        self.byte_size = byte_size
        self._parts: weakref.WeakSet[CudaPart] = weakref.WeakSet()
        try:
            self._runtime, self._driver = _bindings()
            allocated = self._open(handle)
        except CudaError as error:
            logger.error("failed to open CUDA IPC handle: %s", error)
            raise InvalidArgumentError("failed to register shared memory region: invalid args") from None
        if byte_size > allocated:
            self.release()
            raise InvalidArgumentError(f"failed to register shared memory region '{name}': invalid args")

    def _open(self, handle: bytes) -> int:
        """Open the allocation, and return its size in bytes."""
        opened = self._runtime.cudaIpcMemHandle_t()
        ctypes.memmove(opened.getPtr(), handle[:HANDLE_SIZE].ljust(HANDLE_SIZE, b"\0"), HANDLE_SIZE)
        self._call(self._runtime.cudaSetDevice, self.device_id)
        flags = self._runtime.cudaIpcMemLazyEnablePeerAccess
        (self._address,) = self._call(self._runtime.cudaIpcOpenMemHandle, opened, flags)
        try:
            # Only the driver knows how large the allocation of another process is.
            _, size = self._call(self._driver.cuMemGetAddressRange, self._address)
        except CudaError:
            self.release()
            raise
        return size

    def part(self, offset: int, byte_size: int) -> CudaPart:
        """Return a part of the region, which must be within its bounds."""
        part = CudaPart(self, offset, byte_size)
        self._parts.add(part)
        return part

    def release(self) -> bool:
        """Close the region, unless a request uses a part of it; return whether it was closed.

        Raises
        ------
        InternalError
            If CUDA reports an error.
        """
        if self._parts:
            return False
        try:
            self._call(self._runtime.cudaIpcCloseMemHandle, self._address)
        except CudaError as error:
            raise InternalError(f"failed to close CUDA IPC handle: {error}") from error
        return True

    def to_dict(self) -> dict[str, str | int]:
        """Return the region in the form of the extension."""
        return {"name": self.name, "device_id": self.device_id, "byte_size": self.byte_size}

    def copy(self, offset: int, array: npt.NDArray[np.generic], *, to_gpu: bool) -> None:
        """Copy the bytes of an array to ``offset``, or fill it with the bytes from there on."""
        gpu, cpu, kinds = self._address + offset, array.ctypes.data, self._runtime.cudaMemcpyKind
        target, source, kind = (cpu, gpu, kinds.cudaMemcpyDeviceToHost)
        if to_gpu:
            target, source, kind = (gpu, cpu, kinds.cudaMemcpyHostToDevice)
        try:
            self._call(self._runtime.cudaSetDevice, self.device_id)
            self._call(self._runtime.cudaMemcpy, target, source, array.nbytes, kind)
        except CudaError as error:
            raise InternalError(f"failed to copy to or from CUDA shared memory: {error}") from error

    def _call(self, function: Callable[..., tuple[Any, ...]], *arguments: object) -> tuple[int, ...]:
        try:
            error, *results = function(*arguments)
        except OverflowError as overflow:  # a number of the request is too large for the interface
            raise CudaError(str(overflow)) from None
        if int(error):
            raise CudaError(f"{error.name}")
        return tuple(int(result) for result in results)


class CudaPart:
    """The part of a region that contains a tensor."""

    __slots__ = ("__weakref__", "_byte_size", "_offset", "_region")

    def __init__(self, region: CudaRegion, offset: int, byte_size: int) -> None:
        self._region = region
        self._offset = offset
        self._byte_size = byte_size

    def __len__(self) -> int:
        return self._byte_size

    def read(self) -> memoryview:
        """Return a copy of the bytes."""
        copied = np.empty(self._byte_size, np.uint8)
        self._region.copy(self._offset, copied, to_gpu=False)
        return copied.data

    def write(self, contents: bytes | memoryview) -> None:
        """Overwrite the first bytes."""
        if contents:
            self._region.copy(self._offset, np.frombuffer(contents, np.uint8), to_gpu=True)


def _bindings() -> tuple[ModuleType, ModuleType]:
    """Return CUDA's runtime and driver."""
    try:
        from cuda.bindings import driver, runtime
    except ImportError as error:
        raise CudaError('cuda-bindings is missing: pip install "tritonnb[gpu]"') from error
    return runtime, driver
