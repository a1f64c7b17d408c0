"""HTTP/2 frames, and the interface between a connection and the call on a stream (RFC 9113)."""

from __future__ import annotations

import struct
import time
from collections import deque
from typing import Protocol

DATA, HEADERS, PRIORITY, RST_STREAM, SETTINGS, PUSH_PROMISE, PING, GOAWAY, WINDOW_UPDATE, CONTINUATION = range(10)
END_STREAM, ACK, END_HEADERS, PADDED, HAS_PRIORITY = 1, 1, 4, 8, 32
NO_ERROR, PROTOCOL_ERROR, FLOW_CONTROL_ERROR, STREAM_CLOSED, FRAME_SIZE_ERROR = 0, 1, 3, 5, 6
REFUSED_STREAM, COMPRESSION_ERROR, ENHANCE_YOUR_CALM = 7, 9, 11
ENABLE_PUSH, MAX_CONCURRENT_STREAMS, INITIAL_WINDOW, MAX_FRAME_SIZE = 2, 3, 4, 5


class Call(Protocol):
    """The call on one stream, as the connection sees it.

    Attributes
    ----------
    stream : int
    window : int
        Bytes that the client still accepts.
    outgoing : deque of memoryview
        Data that waits for the window.
    trailers : bytes or None
        The header block that ends the stream after the waiting data.
    received : int
        Bytes since the stream's window was last replenished.
    half_closed : bool
        Whether the client has ended its side of the stream.
    """

    stream: int
    window: int
    outgoing: deque[memoryview]
    trailers: bytes | None
    received: int
    half_closed: bool

    def begin(self) -> None:
        """The headers have arrived."""

    def data(self, chunk: bytes | bytearray) -> None:
        """A part of the body has arrived."""

    def end(self) -> None:
        """The client has ended its side of the stream."""

    def cancelled(self) -> None:
        """The client has cancelled the call, or is gone."""

    def drained(self) -> None:
        """Everything that was waiting for the window has been sent."""


class ProtocolViolationError(Exception):
    """The client has violated the protocol, and the connection must be closed with the error ``code``."""

    def __init__(self, code: int) -> None:
        super().__init__(code)
        self.code = code


class FloodLimit:
    """Counts frames of one connection."""

    def __init__(self, per_second: int) -> None:
        self._per_second = per_second
        self._since, self._count = 0.0, 0

    def count(self) -> None:
        """Count one frame.

        Raises
        ------
        ProtocolViolationError
            If there are too many in a second.
        """
        if self._count == self._per_second:
            if time.monotonic() - self._since < 1:
                raise ProtocolViolationError(ENHANCE_YOUR_CALM)
            self._count = 0
        if not self._count:
            self._since = time.monotonic()
        self._count += 1


def frame(kind: int, flags: int, stream: int, payload: bytes | bytearray) -> bytes:
    """A complete frame."""
    return frame_head(len(payload), kind, flags, stream) + payload


def frame_head(size: int, kind: int, flags: int, stream: int) -> bytes:
    """The header of a frame, nine bytes."""
    return _HEAD.pack(size >> 8, size & 0xFF, kind, flags, stream)


_HEAD = struct.Struct(">HBBBI")


def unpadded(payload: bytes | bytearray) -> bytes | bytearray:
    """A payload without its padding, the length of which is in the first byte.

    Raises
    ------
    ProtocolViolationError
        If the padding is longer than the payload.
    """
    if not payload or payload[0] >= len(payload):
        raise ProtocolViolationError(PROTOCOL_ERROR)
    return payload[1 : len(payload) - payload[0]]
