"""The pieces of HTTP/2 (RFC 9113): frames, and what a stream is to a connection."""

from __future__ import annotations

import struct
from collections import deque
from typing import Protocol

DATA, HEADERS, PRIORITY, RST_STREAM, SETTINGS, PUSH_PROMISE, PING, GOAWAY, WINDOW_UPDATE, CONTINUATION = range(10)
END_STREAM, ACK, END_HEADERS, PADDED, HAS_PRIORITY = 1, 1, 4, 8, 32
NO_ERROR, PROTOCOL_ERROR, FLOW_CONTROL_ERROR, STREAM_CLOSED, FRAME_SIZE_ERROR = 0, 1, 3, 5, 6
REFUSED_STREAM, COMPRESSION_ERROR, ENHANCE_YOUR_CALM = 7, 9, 11
MAX_CONCURRENT_STREAMS, INITIAL_WINDOW, MAX_FRAME_SIZE = 3, 4, 5


class Call(Protocol):
    """What happens on one stream.

    Attributes
    ----------
    stream : int
    window : int
        Bytes that the client will take.
    outgoing : deque of memoryview
        What waits for the window.
    trailers : bytes or None
        The header block that ends the stream after that.
    received : int
        Bytes since the stream's window was opened last.
    half_closed : bool
        The client sends no more.
    """

    stream: int
    window: int
    outgoing: deque[memoryview]
    trailers: bytes | None
    received: int
    half_closed: bool

    def begin(self) -> None:
        """The headers are there."""

    def data(self, chunk: bytes | bytearray) -> None:
        """A part of the body."""

    def end(self) -> None:
        """The client sends no more."""

    def cancelled(self) -> None:
        """Nobody waits for an answer any more."""

    def drained(self) -> None:
        """What waited has been sent."""


class BrokenConnectionError(Exception):
    """The connection cannot go on; ``code`` says why."""

    def __init__(self, code: int) -> None:
        super().__init__(code)
        self.code = code


def frame(kind: int, flags: int, stream: int, payload: bytes | bytearray) -> bytes:
    """A whole frame."""
    return frame_head(len(payload), kind, flags, stream) + payload


def frame_head(size: int, kind: int, flags: int, stream: int) -> bytes:
    """The nine bytes before a payload."""
    return _HEAD.pack(size >> 8, size & 0xFF, kind, flags, stream)


_HEAD = struct.Struct(">HBBBI")


def unpadded(payload: bytes | bytearray) -> bytes | bytearray:
    """A payload without the padding that its first byte tells of.

    Raises
    ------
    BrokenConnectionError
        If there is more padding than payload.
    """
    if not payload or payload[0] >= len(payload):
        raise BrokenConnectionError(PROTOCOL_ERROR)
    return payload[1 : len(payload) - payload[0]]
