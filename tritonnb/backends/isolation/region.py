"""Shared memory without a name: when the last process that maps it has ended, nothing is left."""

from __future__ import annotations

import mmap
import os
import tempfile

import numpy as np
import numpy.typing as npt

from tritonnb.core.errors import InternalError

#: The size of the smallest region, in bytes; each larger one has twice the size.
_SMALLEST = 1 << 20


class Region:
    """A piece of shared memory.

    Parameters
    ----------
    file : int
        The descriptor of the memory; closed by `close`.
    size : int
        In bytes.

    Attributes
    ----------
    number : int
        Identifies the region on one channel.
    bytes : numpy.ndarray of uint8
        The contents.
    """

    def __init__(self, file: int, size: int, number: int) -> None:
        self.file = file
        self.size = size
        self.number = number
        self._map = mmap.mmap(file, size)
        self.bytes = self.view()

    def view(self) -> npt.NDArray[np.uint8]:
        """A new array of the contents, which keeps the memory mapped."""
        return np.frombuffer(self._map, np.uint8)

    def close(self) -> None:
        """Close the descriptor; the memory is freed when no array uses it."""
        os.close(self.file)


def create_region(size: int, number: int) -> Region:
    """Allocate shared memory.

    Parameters
    ----------
    size : int
        The least size in bytes; the region has the next power of two.
    number : int

    Raises
    ------
    InternalError
        If there is not enough memory.
    """
    size = max(_SMALLEST, 1 << (size - 1).bit_length())
    try:
        file = anonymous_file()
        try:
            # Allocated here, a lack of memory is an error; otherwise writing to a page would end the process.
            os.posix_fallocate(file, 0, size)
            return Region(file, size, number)
        except BaseException:
            os.close(file)
            raise
    except OSError as error:
        raise InternalError(f"Failed to allocate {size} bytes of shared memory: {error.strerror}") from None


def anonymous_file() -> int:
    """The descriptor of a new file in memory, which has no name."""
    if hasattr(os, "memfd_create"):
        return os.memfd_create("tritonnb")
    with tempfile.TemporaryFile() as file:  # deleted already
        return os.dup(file.fileno())
