"""Arrays copied to and from a CUDA device, in the order of one stream.

For backends whose runtime takes addresses of device memory. Requires NVIDIA's ``cuda-bindings``.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
from cuda.bindings import runtime

from tritonnb.core.errors import InternalError

Array = npt.NDArray[np.generic]


class CudaStream:
    """A stream of a device, with one buffer for each name; to be used on one thread.

    Parameters
    ----------
    device_id : int

    Attributes
    ----------
    handle : int
        The ``cudaStream_t``.

    Raises
    ------
    InternalError
        If the device does not exist, or CUDA reports another error.
    """

    def __init__(self, device_id: int) -> None:
        self._buffers: dict[str, tuple[int, int]] = {}
        _call(runtime.cudaSetDevice, device_id)
        self.handle = int(_call(runtime.cudaStreamCreate))

    def reserve(self, name: str, byte_size: int) -> int:
        """The address of a buffer with at least this size; its contents are lost if it grows."""
        address, size = self._buffers.get(name, (0, 0))
        if size < max(byte_size, 1):
            if address:
                self.wait()
                _call(runtime.cudaFree, address)
            address = int(_call(runtime.cudaMalloc, max(byte_size, 1)))
            self._buffers[name] = address, max(byte_size, 1)
        return address

    def send(self, name: str, array: Array) -> int:
        """Copy an array into a buffer, and return the buffer's address; the array must live until `wait`."""
        address = self.reserve(name, array.nbytes)
        _call(
            runtime.cudaMemcpyAsync,
            address,
            array.ctypes.data,
            array.nbytes,
            _KINDS.cudaMemcpyHostToDevice,
            self.handle,
        )
        return address

    def receive(self, name: str, array: Array) -> None:
        """Copy the begin of a buffer into an array, which is complete after `wait`."""
        address, _ = self._buffers[name]
        _call(
            runtime.cudaMemcpyAsync,
            array.ctypes.data,
            address,
            array.nbytes,
            _KINDS.cudaMemcpyDeviceToHost,
            self.handle,
        )

    def wait(self) -> None:
        """Wait until everything in the stream is done."""
        _call(runtime.cudaStreamSynchronize, self.handle)

    def close(self) -> None:
        """Free the buffers and the stream."""
        buffers, self._buffers = self._buffers, {}
        for address, _ in buffers.values():
            _call(runtime.cudaFree, address)
        _call(runtime.cudaStreamDestroy, self.handle)


_KINDS = runtime.cudaMemcpyKind


def _call(function: Callable[..., tuple[Any, ...]], *arguments: object) -> Any:
    """Call a function of CUDA's runtime, and return its result."""
    error, *results = function(*arguments)
    if int(error):
        raise InternalError(f"CUDA: {function.__name__} failed: {error.name}")
    return results[0] if results else None
