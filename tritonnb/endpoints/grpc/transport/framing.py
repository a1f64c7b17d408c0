"""The parts of HTTP/2: frames and flow control (RFC 9113), header blocks (HPACK, RFC 7541), and the call on a stream.

A client's requests nearly always have the same headers, so the fields of a header block are cached until the table that
blocks refer to changes.
"""

from __future__ import annotations

import asyncio
import re
import struct
import time
from collections import deque
from collections.abc import Callable, Sequence
from itertools import groupby
from typing import Final, Protocol

from hpack import Decoder
from hpack.hpack import encode_integer

from tritonnb.endpoints.back_pressure import MAX_UNREAD, Reader, SlowReaders
from tritonnb.endpoints.caches import BoundedCache

# Single names, since mypyc puts the values of these into the code, and looks up those of tuples.
DATA: Final = 0
HEADERS: Final = 1
PRIORITY: Final = 2
RST_STREAM: Final = 3
SETTINGS: Final = 4
PUSH_PROMISE: Final = 5
PING: Final = 6
GOAWAY: Final = 7
WINDOW_UPDATE: Final = 8
CONTINUATION: Final = 9
END_STREAM: Final = 1
ACK: Final = 1
END_HEADERS: Final = 4
PADDED: Final = 8
HAS_PRIORITY: Final = 32
NO_ERROR, PROTOCOL_ERROR, FLOW_CONTROL_ERROR, STREAM_CLOSED, FRAME_SIZE_ERROR = 0, 1, 3, 5, 6
REFUSED_STREAM, COMPRESSION_ERROR, ENHANCE_YOUR_CALM = 7, 9, 11
ENABLE_PUSH, MAX_CONCURRENT_STREAMS, INITIAL_WINDOW, MAX_FRAME_SIZE = 2, 3, 4, 5

_HEAD: Final = struct.Struct(">HBBBI")
Headers = dict[str, str]
_MAX_BLOCKS: Final = 64
_NAME: Final = re.compile(r":?[!#$%&'*+\-.^_`|~0-9a-z]+")
_NO_VALUE: Final = re.compile(r"[\0\r\n]")
_REQUEST_PSEUDO_HEADERS = {":method", ":scheme", ":path", ":authority", ":protocol"}
# RFC 9113, 8.2.2: they belong to HTTP/1.1, and a proxy that passes them on may be tricked into another framing.
_CONNECTION_HEADERS = {"connection", "keep-alive", "proxy-connection", "transfer-encoding", "upgrade"}
LARGEST_WINDOW: Final = 2**31 - 1
DEFAULT_WINDOW: Final = 65_535
DEFAULT_FRAME_LIMIT: Final = 16_384
#: Calls of a connection that may run however much its client has not read.
_ALWAYS_RUNNING: Final = 4
#: Parts of a message that are larger are sent from where they are, smaller ones are joined.
_LARGE_PART: Final = 4096


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
    is_full : bool
        Whether it has enough messages; its window is not replenished meanwhile.
    """

    stream: int
    window: int
    outgoing: deque[memoryview]
    trailers: bytes | None
    received: int
    half_closed: bool
    is_full: bool

    def headers_received(self) -> None:
        """Called when the headers have arrived."""

    def data(self, chunk: bytes | bytearray | memoryview) -> None:
        """Called when a part of the body has arrived."""

    def body_received(self) -> None:
        """Called when the client has ended its side of the stream."""

    def cancelled(self) -> None:
        """Called when the client has cancelled the call or disconnected."""

    def drained(self) -> None:
        """Called when everything that waited for the window has been sent."""

    def start(self) -> None:
        """Called when there is room for the call, which has waited for it."""


class ProtocolViolationError(Exception):
    """The client has violated the protocol, and the connection must be closed with the error ``code``."""

    def __init__(self, code: int) -> None:
        super().__init__(code)
        self.code = code


class FloodLimit:
    """The limit on a connection's frames per second."""

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
        # The clock is read at the first and at the last frame of a second only, so a flood itself costs almost nothing
        # to count.
        if self._count == self._per_second:
            if time.monotonic() - self._since < 1:
                raise ProtocolViolationError(ENHANCE_YOUR_CALM)
            self._count = 0
        if not self._count:
            self._since = time.monotonic()
        self._count += 1


def frame(kind: int, flags: int, stream: int, payload: bytes | bytearray) -> bytes:
    """Return a complete frame."""
    return frame_head(len(payload), kind, flags, stream) + payload


def frame_head(size: int, kind: int, flags: int, stream: int) -> bytes:
    """Return the header of a frame, nine bytes."""
    return _HEAD.pack(size >> 8, size & 0xFF, kind, flags, stream)


def unpadded(payload: bytes | bytearray) -> bytes | bytearray:
    """Return a payload without its padding; the first byte is the length of the padding.

    Raises
    ------
    ProtocolViolationError
        If the padding is longer than the payload.
    """
    if not payload or payload[0] >= len(payload):
        raise ProtocolViolationError(PROTOCOL_ERROR)
    return payload[1 : len(payload) - payload[0]]


class MalformedHeadersError(Exception):
    """A header block can be decoded, but is malformed (RFC 9113, 8.2 and 8.3)."""


class HeaderBlocks:
    """A decoder for all header blocks of one connection, in order.

    Parameters
    ----------
    limit : int, optional
        The number of blocks that are cached.
    """

    def __init__(self, limit: int = _MAX_BLOCKS) -> None:
        self._decoder = Decoder()
        self._cache: BoundedCache[bytes, Headers] = BoundedCache(limit)

    def read(self, block: bytes) -> Headers:
        """Decode a block; the result must not be changed.

        Raises
        ------
        hpack.HPACKError
            If the block cannot be decoded.
        MalformedHeadersError
            If a field is not valid in a request.
        """
        # A block means the same only while the dynamic table does, which is why the cache is cleared with each change
        # of the table.
        cached = self._cache.values.get(block)
        if cached is not None:
            return cached
        table = self._decoder.header_table
        entries = table.dynamic_entries
        before = len(entries), table.maxsize
        newest = entries[0] if entries else None
        headers: Headers = {}
        well_formed = True
        for raw_name, raw_value in self._decoder.decode(block, raw=True):
            # Latin-1 never fails, and each byte stays one character; UTF-8 would make a text error of what is an error
            # of the protocol.
            name, value = bytes(raw_name).decode("latin-1"), bytes(raw_value).decode("latin-1")
            well_formed = well_formed and _is_valid_field(name, value, headers)
            # Joined by a comma (RFC 9110, 5.3); gRPC joins repeated metadata in the same way.
            headers[name] = f"{headers[name]},{value}" if name in headers else value
        if ":method" in headers and not (":scheme" in headers and ":path" in headers):
            well_formed = False
        # Compared by identity: a new entry that equals the newest one may have dropped another.
        if before != (len(entries), table.maxsize) or newest is not (entries[0] if entries else None):
            self._cache.clear()
        elif well_formed and self._cache.admits(block):
            self._cache.store(block, headers)
        if not well_formed:
            raise MalformedHeadersError
        return headers


def _is_valid_field(name: str, value: str, before: Headers) -> bool:
    """Return whether a field is valid after the fields before it."""
    if not _NAME.fullmatch(name) or _NO_VALUE.search(value):
        return False
    # RFC 9113, 8.3: each pseudo-header once, and all of them before the other fields.
    if name[0] == ":":
        return name in _REQUEST_PSEUDO_HEADERS and name not in before and all(earlier[0] == ":" for earlier in before)
    # `te: trailers` is what gRPC clients send to find proxies that drop trailers.
    return name not in _CONNECTION_HEADERS and (name != "te" or value == "trailers")


def literal(name: str, value: bytes) -> bytes:
    """Encode a header field without adding it to the table (RFC 7541, 6.2.2)."""
    # Without our side of the dynamic table there is no state to keep, and nothing to evict if a client shrinks its
    # table. Responses have few headers anyway.
    return b"\x00" + _string(name.encode()) + _string(value)


def _string(value: bytes) -> bytes:
    return bytes(encode_integer(len(value), 7)) + value


class Sender:
    """The sender for the calls of one connection.

    Parameters
    ----------
    transport : asyncio.Transport
    calls : dict of int to Call
        The calls in progress, by stream; a call is removed with its last frame.
    wake : callable
        Called when there may be room for calls that wait.

    Attributes
    ----------
    unread : int
        Bytes that wait for the client's windows.
    running : set of int
        The streams of the calls that were started, except streaming calls.
    waiting : dict of int to Call
        Calls that are not started yet, by stream.
    initial_window : int
        Bytes that the client accepts on a new stream.
    frame_limit : int
        The largest frame that the client accepts, in bytes.
    paused : bool
        Whether the client is too slow to read.
    """

    def __init__(
        self,
        transport: asyncio.Transport,
        calls: dict[int, Call],
        wake: Callable[[], None],
        slow_readers: SlowReaders,
        reader: Reader,
    ) -> None:
        self.unread = 0
        self.running: set[int] = set()
        self.waiting: dict[int, Call] = {}
        self._wake = wake
        self._slow_readers = slow_readers
        self._reader = reader
        self.initial_window = DEFAULT_WINDOW
        self.frame_limit = DEFAULT_FRAME_LIMIT
        self.paused = False
        self._transport = transport
        self._calls = calls
        self._window = DEFAULT_WINDOW
        self._starved: dict[int, Call] = {}  # calls that wait for the connection's window, not their own

    def send(self, call: Call, head: bytes, body: Sequence[bytes | memoryview], trailers: bytes | None) -> None:
        """Send a part of a call's response.

        Parameters
        ----------
        call : Call
        head : bytes
            The header block before the body; may be empty.
        body : sequence of bytes or memoryview
            Its parts. If the body is larger than a frame, the parts are not copied, so they must not change any more.
        trailers : bytes or None
            The header block that ends the stream.
        """
        # By identity: the model may respond after the client has reset the stream, when nobody waits for it any more.
        if self._transport.is_closing() or self._calls.get(call.stream) is not call:
            return
        size = 0
        for part in body:
            size += len(part)
        parts: list[bytes | memoryview] = [frame(HEADERS, END_HEADERS, call.stream, head)] if head else []
        # Data that already waits has to go first.
        ready = not call.outgoing and not self.paused
        if ready and size <= self.frame_limit and size <= self._window and size <= call.window:
            if size:
                self._window -= size
                call.window -= size
                parts += (frame_head(size, DATA, 0, call.stream), *body)
            if trailers is not None:
                parts += self._last(call, trailers)
            # One write is one system call: the head, the message and the trailers of a small response usually leave in
            # one packet.
            self._transport.write(b"".join(parts))
            return
        if parts:
            self._transport.write(parts[0])
        self.unread += size
        if size:
            self._slow_readers.add(self._reader)
        # Small parts are joined since each part costs a frame and a memoryview; large ones stay where they are.
        for is_large, group in groupby(body, lambda part: len(part) > _LARGE_PART):
            pieces = list(group)
            call.outgoing.extend(map(memoryview, pieces if is_large else [b"".join(pieces)]))
        call.trailers = trailers
        self.pump(call)

    def pump(self, call: Call) -> None:
        """Send as much of a call's waiting data as the windows allow, without copying it."""
        parts: list[bytes | memoryview] = []
        # A window may be negative after SETTINGS has shrunk it (RFC 9113, 6.9.2), hence "> 0" and not "!= 0".
        while call.outgoing and not self.paused and self._window > 0 and call.window > 0:
            waiting = call.outgoing[0]
            size = min(len(waiting), self.frame_limit, self._window, call.window)
            self._window -= size
            call.window -= size
            self.unread -= size
            parts += (frame_head(size, DATA, 0, call.stream), waiting[:size])
            if size == len(waiting):
                call.outgoing.popleft()
            else:
                call.outgoing[0] = waiting[size:]
        if call.outgoing:
            # A call that waits for its own window needs no entry: the WINDOW_UPDATE of its stream finds it.
            if self.paused or self._window <= 0:
                self._starved[call.stream] = call
        elif call.trailers is not None:
            parts += self._last(call, call.trailers)
        if parts:
            self._transport.writelines(parts)
        if not self.unread and not self.paused:
            self._slow_readers.discard(self._reader)
        if self.waiting:
            self._wake()
        if not call.outgoing and call.trailers is None:
            call.drained()

    def open_window(self, size: int) -> None:
        """Allow more bytes on the whole connection.

        Raises
        ------
        ProtocolViolationError
            If the window becomes too large.
        """
        self._window += size
        # RFC 9113, 6.9.1: a window above 2**31 - 1 is an error of the connection.
        if self._window > LARGEST_WINDOW:
            raise ProtocolViolationError(FLOW_CONTROL_ERROR)
        self.resume()

    def set_initial_window(self, size: int) -> None:
        """Change the number of bytes that the client accepts on every stream.

        Raises
        ------
        ProtocolViolationError
            If a window becomes too large.
        """
        if size > LARGEST_WINDOW:
            raise ProtocolViolationError(FLOW_CONTROL_ERROR)
        # The setting changes streams that are open by the difference, and never the window of the connection (RFC 9113,
        # 6.9.2).
        more, self.initial_window = size - self.initial_window, size
        for call in list(self._calls.values()):
            call.window += more
            if call.window > LARGEST_WINDOW:
                raise ProtocolViolationError(FLOW_CONTROL_ERROR)

    def pump_all(self) -> None:
        """Send the data of all calls that the windows allow; called when a setting may have opened them."""
        for call in [call for call in self._calls.values() if call.outgoing]:
            self.pump(call)

    def resume(self) -> None:
        """Send the data that waits for the connection's window."""
        while self._starved and self._window > 0 and not self.paused:
            self.pump(self._starved.pop(next(iter(self._starved))))

    def forget(self, call: Call) -> None:
        """Drop a call that was reset."""
        self._starved.pop(call.stream, None)
        self._end(call.stream)
        self.unread -= sum(map(len, call.outgoing))
        call.outgoing.clear()

    def has_room(self, most: int) -> bool:
        """Return whether one more call may be started.

        Parameters
        ----------
        most : int
            The number of calls that may be running.
        """
        # A client may wait for a call before it reads the responses of a stream, so that a few calls always have room.
        return not self.paused and len(self.running) < (most if self.unread <= MAX_UNREAD else _ALWAYS_RUNNING)

    def _end(self, stream: int) -> None:
        """Make room for another call."""
        self.running.discard(stream)
        self.waiting.pop(stream, None)
        if self.waiting:
            self._wake()

    def _last(self, call: Call, trailers: bytes) -> list[bytes]:
        """Return the frames that end a stream; a client that has not ended its side is asked to stop sending."""
        del self._calls[call.stream]
        self._end(call.stream)
        # One frame, since the text of a status is cut at 6 KiB, and no client may demand frames below 16 KiB.
        parts = [frame(HEADERS, END_STREAM | END_HEADERS, call.stream, trailers)]
        # RFC 9113, 8.1: NO_ERROR tells the client that the response is complete although its request is not.
        if not call.half_closed:
            parts.append(frame(RST_STREAM, 0, call.stream, struct.pack(">I", NO_ERROR)))
        return parts
