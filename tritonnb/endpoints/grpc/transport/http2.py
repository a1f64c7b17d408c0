"""The parts of HTTP/2 that a gRPC server needs (RFC 9113): frames, header blocks, and flow control.

An `Http2Connection` splits the incoming bytes into frames and makes a `Call` for each stream that a client opens; its
`Sender` sends the responses. If a client violates the protocol, the call ends, or the connection if RFC 9113 requires
it or the client floods it with frames without effect. The server stops reading from a client that does not read,
handles frames in turns, and starts calls while the connection has room.
"""

from __future__ import annotations

import asyncio
import struct
import time
from collections.abc import Callable
from typing import Final, Protocol, cast

from hpack import HPACKError

from tritonnb.endpoints.back_pressure import SlowReaders, Turns, share
from tritonnb.endpoints.grpc.transport.framing import (
    ACK,
    COMPRESSION_ERROR,
    CONTINUATION,
    DATA,
    DEFAULT_FRAME_LIMIT,
    DEFAULT_WINDOW,
    ENABLE_PUSH,
    END_HEADERS,
    END_STREAM,
    ENHANCE_YOUR_CALM,
    FLOW_CONTROL_ERROR,
    FRAME_SIZE_ERROR,
    GOAWAY,
    HAS_PRIORITY,
    HEADERS,
    INITIAL_WINDOW,
    LARGEST_WINDOW,
    MAX_CONCURRENT_STREAMS,
    MAX_FRAME_SIZE,
    NO_ERROR,
    PADDED,
    PING,
    PRIORITY,
    PROTOCOL_ERROR,
    PUSH_PROMISE,
    REFUSED_STREAM,
    RST_STREAM,
    SETTINGS,
    STREAM_CLOSED,
    WINDOW_UPDATE,
    Call,
    FloodLimit,
    HeaderBlocks,
    Headers,
    MalformedHeadersError,
    ProtocolViolationError,
    Sender,
    frame,
    unpadded,
)

PREFACE: Final = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
#: The largest frame that we accept, and the number of bytes read before a window is replenished.
_FRAME_LIMIT, _REPLENISH_AFTER = 1 << 20, 1 << 24
#: Bytes that a client may send on a stream, and on the connection, while a streaming call is full.
_STREAM_WINDOW, _CONNECTION_WINDOW = 1 << 26, 1 << 28
#: The limits of a header block: bytes, and CONTINUATION frames.
_MAX_HEADER_BYTES, _MAX_CONTINUATIONS = 1 << 16, 64
#: The limits of calls in progress on one connection, and of started calls: on all connections of an endpoint together,
#: and on one connection if there are many.
MAX_CALLS, ALL_STARTED, _LEAST_STARTED = 4096, 16_384, 64
#: Frames that are handled between two looks at the clock.
_FRAMES: Final = 8
#: Frames that a client may send in a second: SETTINGS, since each costs time for every call in progress, and
#: RST_STREAM, PING and PRIORITY, which cost time and do nothing.
_MAX_SETTINGS_PER_SECOND, _MAX_CONTROLS_PER_SECOND = 100, 10_000
#: Seconds that a client has to begin with the preface, and to read the GOAWAY frame before its connection is closed.
_HANDSHAKE, _LINGER = 60.0, 2.0


class ConnectionServer(Protocol):
    """The server of a connection."""

    connections: set[Http2Connection]
    stopping: bool
    turns: Turns
    slow_readers: SlowReaders

    def call(self, connection: Http2Connection, stream: int, headers: Headers) -> Call:
        """Make the call of a new stream."""


class Http2Connection:
    """One client's connection; has the methods of ``asyncio.Protocol``, which is not compiled."""

    def __init__(self, server: ConnectionServer) -> None:
        self.calls: dict[int, Call] = {}
        self._server = server
        self._connections = server.connections
        self._transport: asyncio.Transport
        self._buffer = bytearray()
        self._turns = server.turns
        self._slow_readers = server.slow_readers
        self._waits = False  # True: its turn will come
        self._has_frames = False  # whether the buffer has frames that are not handled yet
        self._reading = True  # False: the transport's reading is paused
        self._missing = self._data_flags = self._data_stream = 0  # of a DATA frame that is passed on in parts
        self._in_preface = True
        self._blocks = HeaderBlocks()
        self._block: bytearray | None = None  # the header block that is not complete yet
        self._block_stream = self._block_flags = self._continuations = 0
        self._last_stream = 0
        self._received = 0
        self._settings = FloodLimit(_MAX_SETTINGS_PER_SECOND)
        self._controls = FloodLimit(_MAX_CONTROLS_PER_SECOND)
        self._frames: dict[int, Callable[[int, int, bytes | bytearray], None]] = {
            DATA: self._on_data,
            HEADERS: self._on_headers,
            PRIORITY: self._on_priority,
            RST_STREAM: self._on_reset,
            SETTINGS: self._on_settings,
            PING: self._on_ping,
            GOAWAY: self._on_go_away,
            WINDOW_UPDATE: self._on_window_update,
            CONTINUATION: self._on_continuation,
            PUSH_PROMISE: self._on_push_promise,
        }

    # --- asyncio's interface --------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Called when a client has connected."""
        self._transport = cast(asyncio.Transport, transport)
        self._sender = Sender(self._transport, self.calls, self._await_turn, self._slow_readers, self)
        self.send = self._sender.send
        self._connections.add(self)
        settings = struct.pack(
            ">HIHIHI", MAX_CONCURRENT_STREAMS, MAX_CALLS, INITIAL_WINDOW, _STREAM_WINDOW, MAX_FRAME_SIZE, _FRAME_LIMIT
        )
        # The window of the connection cannot be set by SETTINGS; only WINDOW_UPDATE enlarges it (RFC 9113, 6.9.2).
        opened = struct.pack(">I", _CONNECTION_WINDOW - DEFAULT_WINDOW)
        self._transport.write(frame(SETTINGS, 0, 0, settings) + frame(WINDOW_UPDATE, 0, 0, opened))
        # Without it, a thousand connections without a preface would stay open; with it they are closed after a minute
        # (docs/reliability.md).
        self._handshake = asyncio.get_running_loop().call_later(_HANDSHAKE, self._transport.abort)

    def connection_lost(self, error: Exception | None) -> None:
        """Cancel the calls of a client that has disconnected."""
        self._handshake.cancel()
        self._connections.discard(self)
        self._slow_readers.discard(self)
        self._has_frames = False
        self._sender.waiting.clear()
        for call in list(self.calls.values()):
            call.cancelled()
        self.calls.clear()

    def eof_received(self) -> None:
        """Close the connection: the client has stopped sending."""

    def pause_writing(self) -> None:
        """Stop reading from a client that reads too slowly, until it catches up."""
        self._sender.paused = True
        self._slow_readers.add(self)
        self._update_reading()

    def resume_writing(self) -> None:
        """Resume reading: the client has caught up."""
        self._sender.paused = False
        if not self._sender.unread:
            self._slow_readers.discard(self)
        if not self._transport.is_closing():
            self._sender.resume()
            self._await_turn()
            self._update_reading()

    def _update_reading(self) -> None:
        may_read = not (self._sender.paused or self._has_frames)
        if may_read != self._reading and not self._transport.is_closing():
            self._reading = may_read
            if may_read:
                self._transport.resume_reading()
            else:
                self._transport.pause_reading()

    @property
    def unread(self) -> int:
        """Bytes of responses that the client has not read (`SlowReaders`)."""
        return self._sender.unread + self._transport.get_write_buffer_size()

    def abort(self) -> None:
        """Close the connection at once (`SlowReaders`)."""
        self._transport.abort()

    def data_received(self, data: bytes) -> None:
        """Called when bytes have arrived."""
        if self._has_frames:  # a transport that is paused may still pass on what it has read
            self._buffer += data
        else:
            self._handle(data)

    def _await_turn(self) -> None:
        if not self._waits and (self._has_frames or self._sender.waiting) and not self._transport.is_closing():
            self._waits = True
            self._turns.add(self)

    def take_turn(self) -> None:
        """Start calls that wait, and handle frames that have arrived (`Turns`)."""
        self._waits = False
        if self._transport.is_closing():
            return
        waiting = self._sender.waiting
        end = time.monotonic() + self._turns.seconds
        # Calls that wait come before new frames, so that the calls of a connection start in order.
        while waiting and self._has_room() and time.monotonic() < end:
            call = waiting.pop(next(iter(waiting)))
            self._sender.running.add(call.stream)
            call.start()
        if self._has_room():
            self._await_turn()
        if self._has_frames and not self._sender.paused:
            self._has_frames = False
            self._handle(b"")
        self._update_reading()

    def may_start(self, call: Call) -> bool:
        """Return whether a call may be started; if not, it waits until there is room for it."""
        may_start = self._has_room()
        if may_start:
            self._sender.running.add(call.stream)
        else:
            self._sender.waiting[call.stream] = call
        return may_start

    def _has_room(self) -> bool:
        # Most connections have fewer calls than their least share.
        if self._sender.has_room(_LEAST_STARTED):
            return True
        return self._sender.has_room(share(ALL_STARTED, len(self._connections), _LEAST_STARTED, MAX_CALLS))

    def _handle(self, data: bytes) -> None:
        """Handle frames for a short time; the rest waits for the next turn."""
        buffer = self._buffer
        try:
            if buffer:
                buffer += data
                del buffer[: self._read(buffer)]
            else:
                # An empty buffer is the common case: the bytes are parsed where the transport has put them, and only
                # the rest is copied.
                buffer += data[self._read(data) :]
        except ProtocolViolationError as error:
            self._close_with_error(error.code)
        except HPACKError:
            self._close_with_error(COMPRESSION_ERROR)
        if self._has_frames:
            self._update_reading()
            self._await_turn()

    # --- what comes -----------------------------------------------------------------------------

    def _read(self, data: bytes | bytearray) -> int:
        """Handle all complete frames, or the frames of one turn; return the number of bytes that they took."""
        at, end = self._data_part(data, 0) if self._missing else 0, len(data)
        if self._in_preface:
            # The beginning is enough: an HTTP/1.1 client learns at once that this is another protocol, and does not
            # wait for 24 bytes.
            if not PREFACE.startswith(bytes(data[: len(PREFACE)])):
                raise ProtocolViolationError(PROTOCOL_ERROR)
            if end < len(PREFACE) + 9:
                return 0
            # RFC 9113, 3.4: the preface ends with a SETTINGS frame, which may be empty and may not be an
            # acknowledgement.
            if data[len(PREFACE) + 3] != SETTINGS or data[len(PREFACE) + 4] & ACK:
                raise ProtocolViolationError(PROTOCOL_ERROR)
            self._in_preface = False
            self._handshake.cancel()
            at = len(PREFACE)
        count, until = 0, 0.0
        while end - at >= 9:
            count += 1
            if not count % _FRAMES:
                now = time.monotonic()
                until = until or now + self._turns.seconds
                if now > until or self._sender.paused:
                    self._has_frames = True
                    return at
            length = data[at] << 16 | data[at + 1] << 8 | data[at + 2]
            # Before the frame has arrived: its length alone is the violation, and memory for it is never reserved.
            if length > _FRAME_LIMIT:
                raise ProtocolViolationError(FRAME_SIZE_ERROR)
            start, stop = at + 9, at + 9 + length
            kind, flags = data[at + 3], data[at + 4]
            # Only plain DATA is passed on in parts. The padding of a frame is at its end, so a padded frame is read as
            # a whole.
            if stop > end and (kind != DATA or flags & PADDED):
                break
            # The highest bit is reserved and ignored (RFC 9113, 4.1).
            stream = int.from_bytes(data[at + 5 : start], "big") & LARGEST_WINDOW
            # Nothing may come between the parts of a header block, not even on another stream (RFC 9113, 6.10), since
            # both ends share one HPACK table.
            if self._block is not None and (kind != CONTINUATION or stream != self._block_stream):
                raise ProtocolViolationError(PROTOCOL_ERROR)
            if stop > end:
                self._missing, self._data_flags, self._data_stream = length, flags, stream
                return self._data_part(data, start)
            handle = self._frames.get(kind)
            if handle is not None:  # frames of unknown types are ignored
                handle(flags, stream, data[start:stop])
            at = stop
        return at

    def _data_part(self, data: bytes | bytearray, at: int) -> int:
        """Pass on what has come of a DATA frame; return where it ends."""
        stop = min(len(data), at + self._missing)
        self._missing -= stop - at
        # The end of the stream belongs to the last part.
        flags = self._data_flags & ~END_STREAM if self._missing else self._data_flags
        self._on_data(flags, self._data_stream, memoryview(data)[at:stop] if isinstance(data, bytes) else data[at:stop])
        return stop

    def _on_data(self, flags: int, stream: int, payload: bytes | bytearray | memoryview) -> None:
        if not stream:
            raise ProtocolViolationError(PROTOCOL_ERROR)
        # Padding counts as well: flow control covers the whole payload (RFC 9113, 6.9.1), which is why it is counted
        # before it is removed.
        self._received += len(payload)
        call = self.calls.get(stream)
        if call is None:
            # A stream that was never opened is an error of the connection, while a closed one is normal: the client may
            # not know of the end yet.
            if stream > self._last_stream:
                raise ProtocolViolationError(PROTOCOL_ERROR)
            self._replenish_connection()
            return
        if call.half_closed:
            self._end(call, STREAM_CLOSED)
            return
        call.received += len(payload)
        if not call.is_full:
            self.replenish(call)
        if flags & PADDED:
            payload = unpadded(bytes(payload))
        if payload:
            call.data(payload)
        if flags & END_STREAM:
            self._half_close(call)

    def replenish(self, call: Call) -> None:
        """Let the client send more to a call that has room, and on the connection."""
        # One WINDOW_UPDATE for 16 MiB and not for each frame; the window of 64 MiB leaves the client enough to go on
        # with.
        if call.received > _REPLENISH_AFTER:
            self._open_window(call.stream, call.received)
            call.received = 0
        self._replenish_connection()

    def _replenish_connection(self) -> None:
        if self._received > _REPLENISH_AFTER:
            self._open_window(0, self._received)
            self._received = 0

    def _on_headers(self, flags: int, stream: int, payload: bytes | bytearray) -> None:
        # Clients open odd streams; even numbers, and 0, are the server's (RFC 9113, 5.1.1).
        if not stream % 2:
            raise ProtocolViolationError(PROTOCOL_ERROR)
        if flags & PADDED:
            payload = unpadded(payload)
        if flags & HAS_PRIORITY:
            if len(payload) < 5:
                raise ProtocolViolationError(FRAME_SIZE_ERROR)
            # Priorities were deprecated by RFC 9113, 5.3, and are skipped.
            payload = payload[5:]
        if flags & END_HEADERS:
            self._open(flags, stream, payload)
        else:
            self._block, self._block_stream, self._block_flags = bytearray(payload), stream, flags
            self._continuations = 0

    def _on_continuation(self, flags: int, stream: int, payload: bytes | bytearray) -> None:
        if self._block is None:
            raise ProtocolViolationError(PROTOCOL_ERROR)
        self._block += payload
        self._continuations += 1
        # A header block without an end is the "CONTINUATION flood" (CVE-2024-27316 in another server): empty frames
        # make the number matter as much as the bytes.
        if len(self._block) > _MAX_HEADER_BYTES or self._continuations > _MAX_CONTINUATIONS:
            raise ProtocolViolationError(ENHANCE_YOUR_CALM)
        if flags & END_HEADERS:
            block, self._block = self._block, None
            self._open(self._block_flags, stream, block)

    def _open(self, flags: int, stream: int, block: bytes | bytearray) -> None:
        call = self.calls.get(stream)
        try:
            headers = self._blocks.read(bytes(block))  # even for a refused stream: both ends must have the same table
        except MalformedHeadersError:
            headers = {}
        if call is not None:
            self._take_trailers(call, flags)
            return
        if stream <= self._last_stream:
            if ":method" in headers:
                raise ProtocolViolationError(PROTOCOL_ERROR)
            return  # trailers of a call that has ended
        self._last_stream = stream
        if ":method" not in headers:
            self._reset(stream, PROTOCOL_ERROR)
            return
        # REFUSED_STREAM promises that nothing was done, so clients may try again elsewhere (RFC 9113, 8.7).
        if self._server.stopping or len(self.calls) >= MAX_CALLS:
            self._reset(stream, REFUSED_STREAM)
            return
        call = self.calls[stream] = self._server.call(self, stream, headers)
        call.window = self._sender.initial_window
        call.headers_received()
        if flags & END_STREAM:
            self._half_close(call)

    def _take_trailers(self, call: Call, flags: int) -> None:
        """Handle trailers: they only end the client's side of the stream."""
        if call.half_closed:
            self._end(call, STREAM_CLOSED)
        elif not flags & END_STREAM:
            self._end(call, PROTOCOL_ERROR)
        else:
            self._half_close(call)

    def _half_close(self, call: Call) -> None:
        if not call.half_closed:
            call.half_closed = True
            call.body_received()

    def _on_priority(self, flags: int, stream: int, payload: bytes | bytearray) -> None:
        self._controls.count()
        _check(stream != 0, len(payload) == 5)

    def _on_reset(self, flags: int, stream: int, payload: bytes | bytearray) -> None:
        self._controls.count()
        _check(0 < stream <= self._last_stream, len(payload) == 4)
        # Popped before it is cancelled, because a model that answers the cancellation at once must not write to the
        # stream.
        call = self.calls.pop(stream, None)
        if call is not None:
            self._sender.forget(call)
            call.cancelled()

    def _on_settings(self, flags: int, stream: int, payload: bytes | bytearray) -> None:
        # An acknowledgement must be empty, a list of settings a multiple of six bytes (RFC 9113, 6.5).
        _check(not stream, not (payload if flags & ACK else len(payload) % 6))
        if flags & ACK:
            return
        self._settings.count()
        for setting, value in struct.iter_unpack(">HI", payload):
            # Unknown settings are ignored, as the RFC demands; HEADER_TABLE_SIZE concerns the table of our encoder,
            # which we do not use.
            if setting == ENABLE_PUSH and value > 1:
                raise ProtocolViolationError(PROTOCOL_ERROR)
            if setting == INITIAL_WINDOW:
                self._sender.set_initial_window(value)
            elif setting == MAX_FRAME_SIZE:
                if not DEFAULT_FRAME_LIMIT <= value < 2**24:
                    raise ProtocolViolationError(PROTOCOL_ERROR)
                self._sender.frame_limit = value
        self._transport.write(frame(SETTINGS, ACK, 0, b""))
        # Only now: a client judges data by the settings whose acknowledgement it has seen, and grpcio closes the
        # connection over data that only the settings in between allowed.
        self._sender.pump_all()

    def _on_ping(self, flags: int, stream: int, payload: bytes | bytearray) -> None:
        self._controls.count()
        _check(not stream, len(payload) == 8)
        if not flags & ACK:
            self._transport.write(frame(PING, ACK, 0, payload))

    def _on_window_update(self, flags: int, stream: int, payload: bytes | bytearray) -> None:
        _check(stream <= self._last_stream, len(payload) == 4)
        more = int.from_bytes(payload, "big") & LARGEST_WINDOW
        if not stream:
            if not more:
                raise ProtocolViolationError(PROTOCOL_ERROR)
            self._sender.open_window(more)
            return
        call = self.calls.get(stream)
        if call is None:
            return
        call.window += more
        # On a stream, both are errors of the stream alone (RFC 9113, 6.9 and 6.9.1).
        if not more or call.window > LARGEST_WINDOW:
            self._end(call, FLOW_CONTROL_ERROR if more else PROTOCOL_ERROR)
        elif call.outgoing:
            self._sender.pump(call)

    def _on_go_away(self, flags: int, stream: int, payload: bytes | bytearray) -> None:
        # The client's GOAWAY has no consequence: it forbids streams of the server, which opens none.
        _check(not stream, len(payload) >= 8)

    def _on_push_promise(self, flags: int, stream: int, payload: bytes | bytearray) -> None:
        raise ProtocolViolationError(PROTOCOL_ERROR)

    # --- sending ---------------------------------------------------------------------------------

    def _open_window(self, stream: int, size: int) -> None:
        self._transport.write(frame(WINDOW_UPDATE, 0, stream, struct.pack(">I", size)))

    def _reset(self, stream: int, code: int) -> None:
        self._transport.write(frame(RST_STREAM, 0, stream, struct.pack(">I", code)))

    def _end(self, call: Call, code: int) -> None:
        """Reset the call of a client that violates the protocol."""
        del self.calls[call.stream]
        self._sender.forget(call)
        self._reset(call.stream, code)
        call.cancelled()

    def _close_with_error(self, code: int) -> None:
        """Close the connection of a client that violates the protocol."""
        self.go_away(code)
        self._transport.close()
        # `close` waits for what is written, and a client that does not read would keep it waiting forever.
        asyncio.get_running_loop().call_later(_LINGER, self._transport.abort)

    def go_away(self, code: int = NO_ERROR) -> None:
        """Tell the client that no more calls are accepted (GOAWAY)."""
        if not self._transport.is_closing():
            self._transport.write(frame(GOAWAY, 0, 0, struct.pack(">II", self._last_stream, code)))

    def close(self) -> None:
        """Close the connection; calls in progress are cancelled."""
        # `close` would wait for a client that may not read; its calls are lost either way.
        self._transport.abort() if self.calls else self._transport.close()


def _check(is_right_stream: bool, is_right_size: bool) -> None:
    """Raise an error unless a frame is on the right kind of stream, and has the right size."""
    # The size first: for a frame that is wrong in both ways, FRAME_SIZE_ERROR says more.
    if not is_right_size:
        raise ProtocolViolationError(FRAME_SIZE_ERROR)
    if not is_right_stream:
        raise ProtocolViolationError(PROTOCOL_ERROR)
