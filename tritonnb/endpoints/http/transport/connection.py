"""One client's HTTP/1.1 connection.

A connection (`Http1Connection`) is an asyncio protocol. Each request on it is an `Exchange`: the request's delegate
receives the body and responds through it.

- Pipelined requests are started while the connection has room, and answered in order. Reading pauses while requests
  wait to be started, or while the client does not read its responses.
- A stream that cannot be parsed is closed without a response, as on Triton, after the pending responses.
- A client that stops sending still gets the responses to its complete requests; if it disconnects, its requests are
  cancelled.
"""

from __future__ import annotations

import asyncio
import logging
import socket
import time
from collections import deque
from typing import Final, Protocol, cast

from tornado.iostream import StreamClosedError

from tritonnb.endpoints.back_pressure import MAX_UNREAD, SlowReaders, Turns, share
from tritonnb.endpoints.http.options import too_large
from tritonnb.endpoints.http.transport.exchange import LARGE_BODY, Body, Exchange, MessageDelegate
from tritonnb.endpoints.http.transport.request_parser import (
    DelegateError,
    Head,
    HeadCache,
    MalformedRequestError,
    RequestParser,
    RequestReceiver,
)

#: The limits of pending requests: of one connection, before its first response, whose size is not known, and of all
#: connections of an endpoint together; each may have one.
_MAX_PIPELINED: Final = 32
_FIRST_PIPELINED, _ALL_PIPELINED = 4, 4096
#: Seconds that a client has to read the response to a request that was refused before the end of its body.
_LINGER: Final = 2.0
#: Seconds between checks whether a client that has stopped sending is still connected.
_PROBE: Final = 0.05

_log = logging.getLogger(__name__)

_CONTINUE: Final = b"HTTP/1.1 100 Continue\r\n\r\n"


def _refusal(line: bytes, reason: bytes) -> bytes:
    body = b'{"error":"%s"}' % reason
    return b"HTTP/1.1 %s\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%s" % (line, len(body), body)


_TOO_MANY_CHUNKS = _refusal(
    b"400 Bad Request",
    b"Chunked request body exceeds maximum of 65536 non-empty chunks. Send fewer or larger HTTP chunks.",
)


class ConnectionServer(Protocol):
    """What a connection needs of its server, an `HttpServer`.

    Attributes
    ----------
    loop : asyncio.AbstractEventLoop
    connections : set of Http1Connection
        All open connections.
    heads : HeadCache
    turns : Turns
    slow_readers : SlowReaders
    max_body_size : int
        Bytes of a request body that are accepted.
    body_remedy : str
        What a client can do about a larger body.
    written : asyncio.Future
        Done: for writes that need no wait.
    """

    loop: asyncio.AbstractEventLoop
    connections: set[Http1Connection]
    heads: HeadCache
    turns: Turns
    slow_readers: SlowReaders
    max_body_size: int
    body_remedy: str
    written: asyncio.Future[None]

    def start_request(self, exchange: Exchange) -> MessageDelegate:
        """Make the delegate of a new request."""

    def body_protocol(self, connection: Http1Connection) -> asyncio.BufferedProtocol:
        """Make the protocol that reads a body into the memory that the connection provides."""


class Http1Connection(RequestReceiver):
    """One client's connection; has the methods of ``asyncio.Protocol``, which is not compiled."""

    def __init__(self, server: ConnectionServer) -> None:
        self.remote_ip = ""
        self._server = server
        # What each message needs is kept here: `server` is not compiled, so its attributes are slow.
        self._start_request = server.start_request
        self._time = server.loop.time
        self._connections = server.connections
        self._written = server.written
        self._exchanges: deque[Exchange] = deque()
        self._parser = RequestParser(self, server.heads)
        self._transport: asyncio.Transport
        self._writable: asyncio.Future[None] | None = None
        self._turns = server.turns
        self._slow_readers = server.slow_readers
        self._waits = False  # True: its turn will come
        self._arrived = b""  # requests that are not started yet, from `_at` on
        self._at = 0
        self._largest = -1  # bytes of the largest response so far; negative if there was none
        self._reading = True  # False: the transport's reading is paused
        self._closing = False  # True: everything that arrives is ignored
        self._body_size = 0
        self._head_since = 0.0  # when an incomplete head began; 0 if there is none

    # --- asyncio ------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Called when a client has connected."""
        self._transport = cast(asyncio.Transport, transport)
        peer = transport.get_extra_info("peername")
        self.remote_ip = peer[0] if isinstance(peer, tuple) else ""
        self._connections.add(self)
        self._active_since = self._time()

    def data_received(self, data: bytes) -> None:
        """Called when bytes have arrived: a part of a request, one request, or several."""
        self._active_since = self._time()
        if self._closing:
            return
        if self._arrived:  # a transport that is paused may still pass on what it has read
            self._arrived = self._arrived[self._at :] + data
            self._at = 0
        else:
            self._handle(data, 0)

    def take_turn(self) -> None:
        """Start some of the requests that have arrived (`Turns`)."""
        self._waits = False
        if self._arrived and not self._closing and self._may_parse():
            data, self._arrived = self._arrived, b""
            self._handle(data, self._at, self._turns.seconds)

    def _handle(self, data: bytes, at: int, turn: float = -1.0) -> None:
        """Pass on requests while the connection has room, for some seconds; the rest waits for the next turn.

        Without a turn, it is one that begins now (`Turns.turn`).
        """
        parser = self._parser
        heads = parser.heads
        size = len(data)
        end = 0.0
        try:
            while at < size and not self._closing:
                # The clock is not read for the first request of a read: most reads contain one request.
                if not self._may_parse() or (end and time.monotonic() > end):
                    self._arrived, self._at = data, at
                    break
                at = parser.feed(data, at)
                if at < size and not end:
                    end = time.monotonic() + (self._turns.turn() if turn < 0 else turn)
        except MalformedRequestError:
            # Without a response, as on Triton: after bytes that are not HTTP, nobody knows what the client would take
            # for one.
            self._stop_reading()
        except DelegateError as error:
            _log.error("a request's delegate failed", exc_info=error.__cause__)
            self.close()
        if not parser.in_head:
            self._head_since = 0.0
        elif parser.heads != heads or not self._head_since:
            self._head_since = self._active_since
        if self._arrived:
            self._await_turn()
        self._update_reading()
        if (
            parser.may_skip_body
            and not (self._closing or self._arrived)
            and self._exchanges
            and self._exchanges[-1].body is not None
        ):
            self._change_protocol(self._server.body_protocol(self))

    def _may_parse(self) -> bool:
        """Return whether the rest of a request may be read, or one more may be started."""
        if not self._parser.between:
            return True
        pending = len(self._exchanges)
        if not pending or self._writable is not None:
            return self._writable is None
        if self._exchanges[-1].holds_next:
            return False
        # The sizes of responses are only known from experience: until there is one, four requests are a cautious guess.
        most = _FIRST_PIPELINED if self._largest < 0 else _MAX_PIPELINED
        if pending >= share(_ALL_PIPELINED, len(self._connections), 1, most):
            return False
        # As if each response were as large as the largest so far; too cautious for mixed sizes, but it needs no
        # knowledge of models.
        return (pending + 1) * self._largest <= MAX_UNREAD

    def _await_turn(self) -> None:
        if not self._waits and not self._closing and self._may_parse():
            self._waits = True
            self._turns.add(self)

    def missing_body(self) -> memoryview:
        """Return the memory for the rest of a large body."""
        return self._large_body().missing()

    def body_received(self, size: int) -> None:
        """Called when bytes of a large body are in its memory."""
        self._active_since = self._time()
        if self._closing:
            return
        body = self._large_body()
        body.received += size
        if body.received == body.length:
            self._change_protocol(cast(asyncio.BaseProtocol, self))
            self._parser.skip_body()
            try:
                self.complete()
            except Exception as error:
                _log.error("a request's delegate failed", exc_info=error)
                self.close()
            self._update_reading()

    def _large_body(self) -> Body:
        body = self._exchanges[-1].body
        assert body is not None
        return body

    def _change_protocol(self, protocol: asyncio.BaseProtocol) -> None:
        """Let another protocol receive the next bytes; transports ask for it when they begin to read."""
        if self._reading:
            self._transport.pause_reading()
        self._transport.set_protocol(protocol)
        if self._reading:
            self._transport.resume_reading()

    def eof_received(self) -> bool:
        """Called when the client has stopped sending; it may still read."""
        self._drop_incomplete()
        self._closing = True
        if self._exchanges:
            self._probe()
        # True keeps the transport open for writing, which asyncio would otherwise close.
        return bool(self._exchanges)

    def connection_lost(self, error: Exception | None) -> None:
        """Cancel the requests of a client that has disconnected."""
        self._closing = True
        self._arrived = b""
        self._connections.discard(self)
        self.resume_writing()
        for exchange in self._exchanges:
            if exchange.on_close is not None:
                exchange.on_close()
            elif exchange.delegate is not None and not exchange.received:
                exchange.delegate.on_connection_close()
        self._exchanges.clear()

    def pause_writing(self) -> None:
        """Called when the client reads more slowly than it gets responses."""
        self._writable = self._server.loop.create_future()
        self._slow_readers.add(self)
        self._update_reading()

    def resume_writing(self) -> None:
        """Called when the client has caught up with its responses."""
        if self._writable is not None:
            if not self._writable.done():
                self._writable.set_result(None)
            self._writable = None
            self._slow_readers.discard(self)
            if not self._closing:
                if self._arrived:
                    self._await_turn()
                self._update_reading()

    @property
    def unread(self) -> int:
        """Bytes of responses that the client has not read (`SlowReaders`)."""
        waiting = sum(len(part) for exchange in self._exchanges for part in exchange.waiting)
        return self._transport.get_write_buffer_size() + waiting

    def abort(self) -> None:
        """Close the connection at once (`SlowReaders`)."""
        self._closing = True
        self._transport.abort()

    # --- the parser -----------------------------------------------------------------------------

    def head_received(self, head: Head) -> bool:
        """Start a request after its head; return False if it is refused."""
        if self._closing:
            return False
        exchange = Exchange(self, head.line.version == "HTTP/1.0", head.keep_alive)
        self._exchanges.append(exchange)
        self._body_size = 0
        # Refused by its announced length, before any of the body is read.
        if head.length > self._server.max_body_size:
            self._refuse_body(exchange, head.length)
            return False
        if head.expects_continue:
            exchange.expects_continue = True
            # The interim response of a pipelined request has to wait for the responses before it: see `_next`.
            if len(self._exchanges) == 1:
                self._transport.write(_CONTINUE)
        exchange.delegate = self._start_request(exchange)
        exchange.delegate.headers_received(head.line, head.headers)
        # Only then, because a chunked body has no known length, and most bodies arrive in one read.
        if head.length >= LARGE_BODY and exchange.on_body is not None:
            exchange.body = Body(head.length)
        return True

    def body(self, chunk: bytes) -> None:
        """Called when a part of a request's body has arrived."""
        if self._closing:
            return
        exchange = self._exchanges[-1]
        self._body_size += len(chunk)
        if self._body_size > self._server.max_body_size:
            self._refuse_body(exchange)
        elif exchange.body is not None:
            exchange.body.add(chunk)
        elif exchange.delegate is not None:
            exchange.delegate.data_received(chunk)

    def _refuse_body(self, exchange: Exchange, size: int = 0) -> None:
        text = too_large(self._server.max_body_size, size, self._server.body_remedy)
        self._refuse(exchange, _refusal(b"413 Request Entity Too Large", text.encode()))

    def too_many_chunks(self) -> None:
        """Refuse a body with too many chunks."""
        if not self._closing:
            self._refuse(self._exchanges[-1], _TOO_MANY_CHUNKS)

    def complete(self) -> None:
        """Called when a request is complete."""
        if self._closing or not self._exchanges:
            return
        exchange = self._exchanges[-1]
        exchange.received = True
        # Nothing is read after the last request of a connection (RFC 9112, 9.6).
        self._closing = not exchange.keep_alive
        if exchange.body is not None and exchange.on_body is not None:
            exchange.on_body(exchange.body.contents())
            exchange.body = None
        if exchange.delegate is not None:
            exchange.delegate.finish()

    # --- responses ----------------------------------------------------------------------------

    def write(
        self, exchange: Exchange, data: bytes, tensors: list[bytes | memoryview] | None = None
    ) -> asyncio.Future[None]:
        """Write as `Writer.write` does; large tensors are not copied."""
        if self._transport.is_closing():
            return self._failed()
        size = len(data) if tensors is None else sum(map(len, tensors))
        if size > self._largest:
            self._largest = size
        # Responses have to be in the order of the requests (RFC 9112, 9.3.2), although models finish in any order.
        if not self._exchanges or exchange is not self._exchanges[0]:
            exchange.waiting.append(data)
            if tensors is not None:
                exchange.waiting += tensors
            return self._written
        if data:
            exchange.begun = True
            if tensors is None:
                self._transport.write(data)
            else:
                self._transport.writelines([data, *tensors])
        if exchange.done:
            self._next(exchange)
        return self._writable or self._written

    def _next(self, exchange: Exchange) -> None:
        exchanges = self._exchanges
        while exchange.done:
            exchanges.popleft()
            # A response before the end of its request is a refusal.
            if not exchange.received:
                self._linger()
                return
            if not exchange.keep_alive or (self._closing and not exchanges):
                self._closing = True
                self._transport.close()
                return
            if not exchanges:
                break
            exchange = exchanges[0]
            if exchange.expects_continue and not exchange.received:
                self._transport.write(_CONTINUE)
            if exchange.waiting:
                self._transport.write(b"".join(exchange.waiting))
                exchange.waiting.clear()
        if self._arrived:
            self._await_turn()
        if not self._reading:
            self._update_reading()

    def _failed(self) -> asyncio.Future[None]:
        future = self._server.loop.create_future()
        future.set_exception(StreamClosedError())
        future.exception()  # marks it as retrieved, so that asyncio does not log it
        return future

    # --- the end of reading ---------------------------------------------------------------------

    def _probe(self) -> None:
        """Find out whether a client that has stopped sending is still connected.

        A client that has closed its socket looks the same until it is sent something and its system rejects that.
        An interim response is sent, which a waiting client skips.
        """
        exchange = self._exchanges[0]
        # HTTP/1.0 has no interim responses: such a client would take it for the response.
        if not exchange.begun and not exchange.http_1_0:
            self._transport.write(_CONTINUE)
        self._server.loop.call_later(_PROBE, self._check_client)

    def _check_client(self) -> None:
        if not self._exchanges or self._transport.is_closing():
            return
        # uvloop and asyncio do not report a reset while reading is over, so the socket is asked.
        if self._transport.get_extra_info("socket").getsockopt(socket.SOL_SOCKET, socket.SO_ERROR):
            self._transport.abort()
        else:
            self._server.loop.call_later(_PROBE, self._check_client)

    def _refuse(self, exchange: Exchange, response: bytes) -> None:
        """Respond to a request without reading the rest of it."""
        self._closing = True
        if exchange.delegate is not None:
            exchange.delegate.on_connection_close()
        exchange.keep_alive = False
        exchange.respond(response)

    def _linger(self) -> None:
        """Let the client read the response: closing while it still sends would discard it."""
        self._closing = True
        if self._transport.can_write_eof():
            self._transport.write_eof()
        self._server.loop.call_later(_LINGER, self._transport.close)

    def _stop_reading(self) -> None:
        """Stop reading a stream that cannot be parsed: send the pending responses, then close."""
        self._drop_incomplete()
        self._closing = True
        if not self._exchanges:
            self._transport.close()

    def _drop_incomplete(self) -> None:
        if self._exchanges and not self._exchanges[-1].received and not self._closing:
            exchange = self._exchanges.pop()
            if exchange.delegate is not None:
                exchange.delegate.on_connection_close()

    def _update_reading(self) -> None:
        """Pause or resume reading: the back-pressure on a client that does not read its responses."""
        may_read = self._writable is None and not self._arrived and len(self._exchanges) < _MAX_PIPELINED
        if may_read != self._reading and not self._transport.is_closing():
            self._reading = may_read
            if may_read:
                self._transport.resume_reading()
            else:
                self._transport.pause_reading()

    # --- called by the server --------------------------------------------------------------------

    def close_if_idle(self, before: float, head_before: float) -> None:
        """Close the connection if no response is pending, and it is idle or its client is too slow.

        Parameters
        ----------
        before : float
            Close it if nothing has arrived since this time of the loop.
        head_before : float
            Close it if a head that began before this time is incomplete.
        """
        is_slow = 0.0 < self._head_since <= head_before
        if (is_slow or self._active_since <= before) and not self.busy:
            self.close()

    def close(self) -> None:
        """Close the connection; requests in progress are cancelled."""
        self._closing = True
        self._transport.abort() if self._exchanges else self._transport.close()

    @property
    def busy(self) -> bool:
        """True if a complete request has no complete response yet."""
        return any(exchange.received for exchange in self._exchanges)
