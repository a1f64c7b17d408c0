"""The sending side of an HTTP/2 connection, with the client's flow control windows (RFC 9113, 5.2)."""

from __future__ import annotations

import asyncio
import struct

from tritonnb.endpoints.grpc.transport.frames import (
    CONTINUATION,
    DATA,
    END_HEADERS,
    END_STREAM,
    FLOW_CONTROL_ERROR,
    HEADERS,
    NO_ERROR,
    RST_STREAM,
    Call,
    ProtocolViolationError,
    frame,
    frame_head,
)

LARGEST_WINDOW = 2**31 - 1
DEFAULT_WINDOW = 65_535
DEFAULT_FRAME_LIMIT = 16_384


class Sender:
    """Sends for the calls of one connection.

    Parameters
    ----------
    transport : asyncio.Transport
    calls : dict of int to Call
        The calls in progress, by stream; a call is removed with its last frame.

    Attributes
    ----------
    initial_window : int
        Bytes that the client accepts on a new stream.
    frame_limit : int
        The largest frame that the client accepts, in bytes.
    paused : bool
        Whether the client is too slow to read.
    """

    def __init__(self, transport: asyncio.Transport, calls: dict[int, Call]) -> None:
        self.initial_window = DEFAULT_WINDOW
        self.frame_limit = DEFAULT_FRAME_LIMIT
        self.paused = False
        self._transport = transport
        self._calls = calls
        self._window = DEFAULT_WINDOW
        self._starved: dict[int, Call] = {}  # calls that wait for the connection's window, not their own

    def send(self, call: Call, head: bytes, body: bytes, trailers: bytes | None) -> None:
        """Send a part of a call's response.

        Parameters
        ----------
        call : Call
        head : bytes
            The header block before the body; may be empty.
        body : bytes
            May be empty.
        trailers : bytes or None
            The header block that ends the stream.
        """
        if self._transport.is_closing() or self._calls.get(call.stream) is not call:
            return
        size = len(body)
        parts = [frame(HEADERS, END_HEADERS, call.stream, head)] if head else []
        ready = not call.outgoing and not self.paused
        if ready and size <= self.frame_limit and size <= self._window and size <= call.window:
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
        self.pump(call)

    def pump(self, call: Call) -> None:
        """Send the waiting data of a call, as far as the windows allow."""
        while call.outgoing:
            if self.paused or self._window <= 0:
                self._starved[call.stream] = call
                return
            waiting = call.outgoing[0]
            size = min(len(waiting), self.frame_limit, self._window, call.window)
            if size <= 0:
                return
            self._window -= size
            call.window -= size
            self._transport.write(frame_head(size, DATA, 0, call.stream))
            self._transport.write(waiting[:size])
            if size == len(waiting):
                call.outgoing.popleft()
            else:
                call.outgoing[0] = waiting[size:]
        if call.trailers is not None:
            self._transport.write(b"".join(self._last(call, call.trailers)))
        else:
            call.drained()

    def open_window(self, size: int) -> None:
        """The client accepts more bytes on the whole connection.

        Raises
        ------
        ProtocolViolationError
            If the window becomes too large.
        """
        self._window += size
        if self._window > LARGEST_WINDOW:
            raise ProtocolViolationError(FLOW_CONTROL_ERROR)
        self.resume()

    def set_initial_window(self, size: int) -> None:
        """The client accepts more bytes, or fewer, on every stream.

        Raises
        ------
        ProtocolViolationError
            If a window becomes too large.
        """
        if size > LARGEST_WINDOW:
            raise ProtocolViolationError(FLOW_CONTROL_ERROR)
        more, self.initial_window = size - self.initial_window, size
        for call in list(self._calls.values()):
            call.window += more
            if call.window > LARGEST_WINDOW:
                raise ProtocolViolationError(FLOW_CONTROL_ERROR)
            if call.outgoing and more > 0:
                self.pump(call)

    def resume(self) -> None:
        """Send the data that waits for the connection's window."""
        while self._starved and self._window > 0 and not self.paused:
            self.pump(self._starved.pop(next(iter(self._starved))))

    def forget(self, stream: int) -> None:
        """Drop a call that was reset."""
        self._starved.pop(stream, None)

    def _last(self, call: Call, trailers: bytes) -> list[bytes]:
        """The frames that end a stream; a client that has not ended its side is asked to stop sending."""
        del self._calls[call.stream]
        limit = self.frame_limit
        pieces = [trailers[at : at + limit] for at in range(0, len(trailers), limit)]
        flags = END_STREAM | (0 if len(pieces) > 1 else END_HEADERS)
        parts = [frame(HEADERS, flags, call.stream, pieces[0])]
        for number, piece in enumerate(pieces[1:], 2):
            parts.append(frame(CONTINUATION, END_HEADERS * (number == len(pieces)), call.stream, piece))
        if not call.half_closed:
            parts.append(frame(RST_STREAM, 0, call.stream, struct.pack(">I", NO_ERROR)))
        return parts
