"""Messages between the server and a child: a header in MessagePack, and tensors inline or in shared memory.

A frame is a fixed head, the header, and the inline payload. For a payload in shared memory, it contains the number of
the region; the first frame with a number is sent with the region's descriptor. No message makes the reader execute
code. Shared memory has no name, so it is freed when the last process that maps it ends.
"""

from __future__ import annotations

import mmap
import os
import socket
import struct
import tempfile
import threading
from collections import deque
from typing import Any, Final, NamedTuple, TypeAlias

import msgpack
import numpy as np
import numpy.typing as npt

from tritonnb.core.errors import InternalError

#: The size of the smallest region, in bytes; each larger region has twice the size.
_SMALLEST: Final = 1 << 20


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
        """Return a new array of the contents, which keeps the memory mapped."""
        # The array refers to the mapping, which therefore lives as long as the last array, even without its descriptor.
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
    """Return the descriptor of a new file in memory, which has no name."""
    if hasattr(os, "memfd_create"):
        # Without a name, nothing stays in /dev/shm when a process crashes.
        return os.memfd_create("tritonnb")
    with tempfile.TemporaryFile() as file:  # deleted already
        return os.dup(file.fileno())


#: Lengths of the header and of the inline payload, number and size of the region, whether a descriptor is attached.
_HEAD: Final = struct.Struct("<IIIQ?")
_CHUNK: Final = 1 << 16
#: At most this many descriptors are received at once.
_DESCRIPTORS: Final = 8

#: The number of a region that carries one message only.
ONCE: Final = 2**32 - 1

Header = list[Any]
Payload: TypeAlias = npt.NDArray[np.uint8]

#: Text from HTTP requests that is not UTF-8 has surrogates.
_TEXT_ERRORS: Final = "surrogatepass"


class Message(NamedTuple):
    """A received message.

    Attributes
    ----------
    header : list
        The kind of the message, and its arguments.
    payload : numpy.ndarray of uint8
        Writeable; belongs to the message, unless ``region`` is set.
    region : Region or None
        The region that the next message may overwrite.
    """

    header: Header
    payload: Payload
    region: Region | None


_EMPTY: Payload = np.empty(0, np.uint8)


class Channel:
    """One end of a socket pair. One thread receives, any thread sends.

    Parameters
    ----------
    connection : socket.socket
        In blocking mode.
    """

    def __init__(self, connection: socket.socket) -> None:
        self._socket = connection
        self._sending = threading.Lock()
        # JSON was used at first: 4.1 µs to write and read a header instead of 1.1 µs.
        self._encode = msgpack.Packer(unicode_errors=_TEXT_ERRORS).pack  # with the lock held
        self._received = bytearray()
        self._descriptors: deque[int] = deque()
        self._region: Region | None = None

    def fileno(self) -> int:
        """Return the descriptor of the socket."""
        return self._socket.fileno()

    def send(
        self, header: Header, payload: bytes | bytearray = b"", region: Region | None = None, new: bool = False
    ) -> None:
        """Send a message.

        Parameters
        ----------
        header : list
            Anything that MessagePack can express; integers have at most 64 bits.
        payload : bytes, optional
            Tensors, inline.
        region : Region, optional
            Contains the tensors instead.
        new : bool
            Whether the receiver does not have the region yet.

        Raises
        ------
        OSError
            If the other process has ended.
        OverflowError
            If an integer of the header has more than 64 bits.
        """
        number, size = (0, 0) if region is None else (region.number, region.size)
        with self._sending:
            encoded = self._encode(header)
            frame = b"".join((_HEAD.pack(len(encoded), len(payload), number, size, new), encoded, payload))
            if new and region is not None:
                # The descriptor goes with the first byte; the rest of a long frame can follow by itself.
                sent = socket.send_fds(self._socket, [frame], [region.file])
                if sent < len(frame):
                    self._socket.sendall(frame[sent:])
            else:
                self._socket.sendall(frame)

    def receive(self) -> Message | None:
        """Wait for a message; None if the other end is closed."""
        while (message := self.buffered()) is None:
            if not self.fill():
                return None
        return message

    def fill(self) -> bool:
        """Wait for data, and store it; False if the other end is closed."""
        try:
            data, descriptors, _, _ = socket.recv_fds(self._socket, _CHUNK, _DESCRIPTORS)
        except ConnectionError:
            return False
        self._descriptors.extend(descriptors)
        self._received += data
        return bool(data)

    def buffered(self) -> Message | None:
        """Return the next message that was received completely; None if there is none."""
        received = self._received
        if len(received) < _HEAD.size:
            return None
        length, inline, number, size, new = _HEAD.unpack_from(received)
        start, end = _HEAD.size + length, _HEAD.size + length + inline
        if len(received) < end:
            return None
        # Not pickle or marshal: the other process may have corrupt memory, and reading must not run code or crash.
        header: Header = msgpack.unpackb(
            received[_HEAD.size : start], unicode_errors=_TEXT_ERRORS, strict_map_key=False
        )
        # The slice is a copy of its own, so that a model may write into its inputs.
        payload: Payload = np.frombuffer(received[start:end], np.uint8) if inline else _EMPTY
        if len(received) == end:
            self._received = bytearray()
        else:
            del received[:end]
        if not number:
            return Message(header, payload, None)
        return self._with_region(header, number, size, new)

    def _with_region(self, header: Header, number: int, size: int, new: bool) -> Message:
        region = self._region
        if new:
            region = Region(self._descriptors.popleft(), size, number)
            region.close()  # the mapping does not need the descriptor
            if number == ONCE:
                return Message(header, region.bytes, None)
            self._region = region
        assert region is not None
        return Message(header, region.bytes, region)

    def close(self) -> None:
        """Close the socket, and forget the shared memory of the other side."""
        self._socket.close()
        self._region = None
        while self._descriptors:
            socket.close(self._descriptors.popleft())
