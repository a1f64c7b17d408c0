"""HTTP/2 as far as a gRPC server needs it (RFC 9113): frames, header blocks, and flow control.

A `Connection` cuts what comes into frames, makes a `Call` for each stream that a client opens, and sends what
calls have to say as far as the client's windows allow.
"""

from __future__ import annotations

import asyncio
import struct
from collections.abc import Callable
from typing import Protocol, cast

from hpack import HPACKError

from tritonnb.endpoints.grpc.frames import (
    ACK,
    COMPRESSION_ERROR,
    CONTINUATION,
    DATA,
    END_HEADERS,
    END_STREAM,
    ENHANCE_YOUR_CALM,
    FLOW_CONTROL_ERROR,
    FRAME_SIZE_ERROR,
    GOAWAY,
    HAS_PRIORITY,
    HEADERS,
    INITIAL_WINDOW,
    MAX_FRAME_SIZE,
    NO_ERROR,
    PADDED,
    PING,
    PROTOCOL_ERROR,
    PUSH_PROMISE,
    REFUSED_STREAM,
    RST_STREAM,
    SETTINGS,
    WINDOW_UPDATE,
    BrokenConnection,
    Call,
    frame,
    frame_head,
    unpadded,
)
from tritonnb.endpoints.grpc.header_blocks import HeaderBlocks, Headers

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
_LARGEST_WINDOW = 2**31 - 1
_DEFAULT_WINDOW = 65_535
_SMALLEST_FRAME_LIMIT = 16_384
#: The largest frame that we take, and how many bytes are read before a window is opened again.
_FRAME_LIMIT = 1 << 20
_REPLENISH_AFTER = 1 << 24
_MOST_HEADER_BYTES = 1 << 16
#: Replies that may wait for a client that reads nothing.
_MOST_WAITING_REPLIES = 1000


class Server(Protocol):
    """What a connection belongs to."""

    connections: set[Connection]
    stopping: bool

    def call(self, connection: Connection, stream: int, headers: Headers) -> Call:
        """A new call."""


class Connection(asyncio.Protocol):
    """One client."""

    def __init__(self, server: Server) -> None:
        self.calls: dict[int, Call] = {}
        self._server = server
        self._transport: asyncio.Transport
        self._buffer = bytearray()
        self._in_preface = True
        self._blocks = HeaderBlocks()
        self._block: bytearray | None = None  # of headers that are not complete
        self._block_stream = self._block_flags = 0
        self._last_stream = 0
        self._received = 0
        self._window = _DEFAULT_WINDOW
        self._initial_window = _DEFAULT_WINDOW
        self._frame_limit = _SMALLEST_FRAME_LIMIT
        self._blocked: dict[int, Call] = {}
        self._paused = False
        self._waiting_replies = 0
        self._frames: dict[int, Callable[[int, int, bytes | bytearray], None]] = {
            DATA: self._on_data,
            HEADERS: self._on_headers,
            RST_STREAM: self._on_reset,
            SETTINGS: self._on_settings,
            PING: self._on_ping,
            WINDOW_UPDATE: self._on_window_update,
            CONTINUATION: self._on_continuation,
            PUSH_PROMISE: self._on_push_promise,
        }

    # --- asyncio's interface --------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """A client has connected."""
        self._transport = cast(asyncio.Transport, transport)
        self._server.connections.add(self)
        settings = struct.pack(">HIHI", INITIAL_WINDOW, _LARGEST_WINDOW, MAX_FRAME_SIZE, _FRAME_LIMIT)
        opened = struct.pack(">I", _LARGEST_WINDOW - _DEFAULT_WINDOW)
        self._transport.write(frame(SETTINGS, 0, 0, settings) + frame(WINDOW_UPDATE, 0, 0, opened))

    def connection_lost(self, error: Exception | None) -> None:
        """The client is gone."""
        self._server.connections.discard(self)
        for call in list(self.calls.values()):
            call.cancelled()
        self.calls.clear()
        self._blocked.clear()

    def pause_writing(self) -> None:
        """The client reads too slowly."""
        self._paused = True

    def resume_writing(self) -> None:
        """It has caught up."""
        self._paused = False
        self._waiting_replies = 0
        self._pump_blocked()

    def data_received(self, data: bytes) -> None:
        """Bytes have come."""
        buffer = self._buffer
        try:
            if buffer:
                buffer += data
                del buffer[: self._read(buffer)]
            else:
                buffer += data[self._read(data) :]
        except BrokenConnection as error:
            self.go_away(error.code)
            self._transport.close()
        except HPACKError:
            self.go_away(COMPRESSION_ERROR)
            self._transport.close()

    # --- what comes -----------------------------------------------------------------------------

    def _read(self, data: bytes | bytearray) -> int:
        """Handle whole frames; how many bytes they were."""
        at, end = 0, len(data)
        if self._in_preface:
            if not PREFACE.startswith(bytes(data[: len(PREFACE)])):
                raise BrokenConnection(PROTOCOL_ERROR)
            if end < len(PREFACE):
                return 0
            self._in_preface = False
            at = len(PREFACE)
        while end - at >= 9:
            length = data[at] << 16 | data[at + 1] << 8 | data[at + 2]
            if length > _FRAME_LIMIT:
                raise BrokenConnection(FRAME_SIZE_ERROR)
            start, stop = at + 9, at + 9 + length
            if stop > end:
                break
            kind, flags = data[at + 3], data[at + 4]
            stream = int.from_bytes(data[at + 5 : start], "big") & _LARGEST_WINDOW
            if self._block is not None and (kind != CONTINUATION or stream != self._block_stream):
                raise BrokenConnection(PROTOCOL_ERROR)
            handle = self._frames.get(kind)
            if handle is not None:  # others, and those that nobody knows, are ignored
                handle(flags, stream, data[start:stop])
            at = stop
        return at

    def _on_data(self, flags: int, stream: int, payload: bytes | bytearray) -> None:
        if not stream:
            raise BrokenConnection(PROTOCOL_ERROR)
        self._received += len(payload)
        if self._received > _REPLENISH_AFTER:
            self._open_window(0, self._received)
            self._received = 0
        call = self.calls.get(stream)
        if call is None:
            if stream > self._last_stream:
                raise BrokenConnection(PROTOCOL_ERROR)
            return
        call.received += len(payload)
        if call.received > _REPLENISH_AFTER:
            self._open_window(stream, call.received)
            call.received = 0
        if flags & PADDED:
            payload = unpadded(payload)
        if payload:
            call.data(payload)
        if flags & END_STREAM:
            self._half_close(call)

    def _on_headers(self, flags: int, stream: int, payload: bytes | bytearray) -> None:
        if not stream % 2:
            raise BrokenConnection(PROTOCOL_ERROR)
        if flags & PADDED:
            payload = unpadded(payload)
        if flags & HAS_PRIORITY:
            payload = payload[5:]
        if flags & END_HEADERS:
            self._open(flags, stream, payload)
        else:
            self._block, self._block_stream, self._block_flags = bytearray(payload), stream, flags

    def _on_continuation(self, flags: int, stream: int, payload: bytes | bytearray) -> None:
        if self._block is None:
            raise BrokenConnection(PROTOCOL_ERROR)
        self._block += payload
        if len(self._block) > _MOST_HEADER_BYTES:
            raise BrokenConnection(ENHANCE_YOUR_CALM)
        if flags & END_HEADERS:
            block, self._block = self._block, None
            self._open(self._block_flags, stream, block)

    def _open(self, flags: int, stream: int, block: bytes | bytearray) -> None:
        headers = self._blocks.read(bytes(block))  # also of a stream that is refused: the table must keep in step
        call = self.calls.get(stream)
        if call is not None:  # trailers, which mean nothing here
            if flags & END_STREAM:
                self._half_close(call)
            return
        if stream <= self._last_stream:
            return
        self._last_stream = stream
        if self._server.stopping:
            self._reply(frame(RST_STREAM, 0, stream, struct.pack(">I", REFUSED_STREAM)))
            return
        call = self.calls[stream] = self._server.call(self, stream, headers)
        call.window = self._initial_window
        call.begin()
        if flags & END_STREAM:
            self._half_close(call)

    def _half_close(self, call: Call) -> None:
        if not call.half_closed:
            call.half_closed = True
            call.end()

    def _on_reset(self, flags: int, stream: int, payload: bytes | bytearray) -> None:
        if len(payload) != 4:
            raise BrokenConnection(FRAME_SIZE_ERROR)
        call = self.calls.pop(stream, None)
        if call is not None:
            self._blocked.pop(stream, None)
            call.cancelled()

    def _on_settings(self, flags: int, stream: int, payload: bytes | bytearray) -> None:
        if stream:
            raise BrokenConnection(PROTOCOL_ERROR)
        if len(payload) % 6 or (flags & ACK and payload):
            raise BrokenConnection(FRAME_SIZE_ERROR)
        if flags & ACK:
            return
        for setting, value in struct.iter_unpack(">HI", payload):
            if setting == INITIAL_WINDOW:
                if value > _LARGEST_WINDOW:
                    raise BrokenConnection(FLOW_CONTROL_ERROR)
                for call in self.calls.values():
                    call.window += value - self._initial_window
                self._initial_window = value
            elif setting == MAX_FRAME_SIZE:
                if not _SMALLEST_FRAME_LIMIT <= value < 2**24:
                    raise BrokenConnection(PROTOCOL_ERROR)
                self._frame_limit = value
        self._reply(frame(SETTINGS, ACK, 0, b""))
        self._pump_blocked()

    def _on_ping(self, flags: int, stream: int, payload: bytes | bytearray) -> None:
        if len(payload) != 8:
            raise BrokenConnection(FRAME_SIZE_ERROR)
        if not flags & ACK:
            self._reply(frame(PING, ACK, 0, payload))

    def _on_window_update(self, flags: int, stream: int, payload: bytes | bytearray) -> None:
        if len(payload) != 4:
            raise BrokenConnection(FRAME_SIZE_ERROR)
        more = int.from_bytes(payload, "big") & _LARGEST_WINDOW
        if not more:
            raise BrokenConnection(PROTOCOL_ERROR)
        if not stream:
            self._window += more
            if self._window > _LARGEST_WINDOW:
                raise BrokenConnection(FLOW_CONTROL_ERROR)
            self._pump_blocked()
            return
        call = self.calls.get(stream)
        if call is not None:
            call.window += more
            if call.window > _LARGEST_WINDOW:
                raise BrokenConnection(FLOW_CONTROL_ERROR)
            if stream in self._blocked:
                self._pump(call)

    def _on_push_promise(self, flags: int, stream: int, payload: bytes | bytearray) -> None:
        raise BrokenConnection(PROTOCOL_ERROR)

    # --- what goes ------------------------------------------------------------------------------

    def send(self, call: Call, head: bytes, body: bytes, trailers: bytes | None) -> None:
        """Send something of a call.

        Parameters
        ----------
        call : Call
        head : bytes
            A header block that comes first; may be empty.
        body : bytes
            May be empty.
        trailers : bytes or None
            The header block that ends the stream.
        """
        if self._transport.is_closing() or self.calls.get(call.stream) is not call:
            return
        size = len(body)
        parts = [frame(HEADERS, END_HEADERS, call.stream, head)] if head else []
        ready = not call.outgoing and not self._paused
        if ready and size <= self._frame_limit and size <= self._window and size <= call.window:
            if size:
                self._window -= size
                call.window -= size
                parts += (frame_head(size, DATA, 0, call.stream), body)
            if trailers is not None:
                parts += self._last(call, trailers)
            self._transport.write(b"".join(parts))
            return
        if parts:
            self._transport.write(parts[0])
        if size:
            call.outgoing.append(memoryview(body))
        call.trailers = trailers
        self._pump(call)

    def _pump(self, call: Call) -> None:
        """Send what waits, as far as the windows allow."""
        while call.outgoing and not self._paused:
            waiting = call.outgoing[0]
            size = min(len(waiting), self._frame_limit, self._window, call.window)
            if size <= 0:
                break
            self._window -= size
            call.window -= size
            self._transport.write(frame_head(size, DATA, 0, call.stream))
            self._transport.write(waiting[:size])
            if size == len(waiting):
                call.outgoing.popleft()
            else:
                call.outgoing[0] = waiting[size:]
        if call.outgoing:
            self._blocked[call.stream] = call
            return
        self._blocked.pop(call.stream, None)
        if call.trailers is not None:
            self._transport.write(b"".join(self._last(call, call.trailers)))
        else:
            call.drained()

    def _pump_blocked(self) -> None:
        for call in list(self._blocked.values()):
            self._pump(call)

    def _last(self, call: Call, trailers: bytes) -> list[bytes]:
        """The end of a stream; the client need not send what it still wants to."""
        del self.calls[call.stream]
        limit = self._frame_limit
        pieces = [trailers[at : at + limit] for at in range(0, len(trailers), limit)]
        flags = END_STREAM | (0 if len(pieces) > 1 else END_HEADERS)
        parts = [frame(HEADERS, flags, call.stream, pieces[0])]
        for number, piece in enumerate(pieces[1:], 2):
            parts.append(frame(CONTINUATION, END_HEADERS * (number == len(pieces)), call.stream, piece))
        if not call.half_closed:
            parts.append(frame(RST_STREAM, 0, call.stream, struct.pack(">I", NO_ERROR)))
        return parts

    def _open_window(self, stream: int, size: int) -> None:
        self._reply(frame(WINDOW_UPDATE, 0, stream, struct.pack(">I", size)))

    def _reply(self, reply: bytes) -> None:
        if self._paused:
            self._waiting_replies += 1
            if self._waiting_replies > _MOST_WAITING_REPLIES:
                self._transport.abort()
                return
        self._transport.write(reply)

    def go_away(self, code: int = NO_ERROR) -> None:
        """Take no more calls."""
        if not self._transport.is_closing():
            self._transport.write(frame(GOAWAY, 0, 0, struct.pack(">II", self._last_stream, code)))

    def close(self) -> None:
        """End the connection; calls in progress are cancelled."""
        self._transport.abort() if self.calls else self._transport.close()
