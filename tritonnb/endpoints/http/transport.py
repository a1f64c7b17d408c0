"""A fast HTTP/1.1 transport under Tornado's own interfaces, and Tornado's server as its stand-in.

httptools parses, asyncio moves the bytes, and everything above sees Tornado's
``HTTPServerConnectionDelegate``, ``HTTPMessageDelegate`` and ``HTTPConnection``, so that a
``tornado.web.Application`` runs on it unchanged. Beyond Tornado's interface an exchange has
`Exchange.respond`, which sends a whole, ready-made response in one write.

Pipelined requests are taken as they come and answered in order. A request line, header or length
that cannot be parsed closes the connection without an answer, as Triton does.
"""

from __future__ import annotations

import asyncio
import functools
import socket
from collections import deque
from collections.abc import Callable
from typing import Any, cast

from tornado import httputil
from tornado.http1connection import HTTP1Connection
from tornado.httpserver import HTTPServer
from tornado.iostream import StreamClosedError
from tornado.netutil import bind_sockets

try:
    import httptools
except ImportError:  # no wheel for this platform
    httptools = None

#: Requests of one connection that may wait for their answers before reading pauses.
_PIPELINED = 32
_CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"
_TOO_LARGE = (
    b"HTTP/1.1 413 Request Entity Too Large\r\nContent-Type: application/json\r\n"
    b"Connection: close\r\nContent-Length: 42\r\n\r\n"
    b'{"error":"request body exceeds the limit"}'
)


@functools.lru_cache(maxsize=256)
def _lower(name: str) -> bytes:
    return name.lower().encode("latin-1")


class LightHeaders:
    """Request headers, looked up by name in any case; made for few look-ups."""

    __slots__ = ("_by_name",)

    def __init__(self, by_name: dict[bytes, bytes]) -> None:
        self._by_name = by_name

    def get(self, name: str, default: str | None = None) -> str | None:
        """The value of a header, or the default."""
        value = self._by_name.get(_lower(name))
        return default if value is None else value.decode("latin-1")

    def full(self) -> httputil.HTTPHeaders:
        """The same as Tornado's headers."""
        headers = httputil.HTTPHeaders()
        for name, value in self._by_name.items():
            headers[name.decode("latin-1")] = value.decode("latin-1")
        return headers


class Context:
    """What Tornado's requests ask of a connection's context."""

    __slots__ = ("protocol", "remote_ip")

    def __init__(self, remote_ip: str) -> None:
        self.remote_ip = remote_ip
        self.protocol = "http"


class Exchange(httputil.HTTPConnection):
    """One request and its response on a connection.

    Attributes
    ----------
    keep_alive : bool
        Whether the connection stays open after the response.
    """

    def __init__(self, protocol: _Protocol, http_1_0: bool, keep_alive: bool) -> None:
        self.context = protocol.context
        self.keep_alive = keep_alive
        self.done = False
        self.received = False
        self.delegate: httputil.HTTPMessageDelegate | None = None
        self.on_close: Callable[[], None] | None = None
        self.waiting: list[bytes] = []
        self._protocol = protocol
        self._http_1_0 = http_1_0
        self._chunked = False

    def respond(self, response: bytes) -> None:
        """Send a whole response: status line, headers, and body."""
        self.done = True
        self.on_close = self.delegate = None  # nothing that is left may keep the exchange alive
        if self._http_1_0 and self.keep_alive:
            response = response.replace(b"\r\n", b"\r\nConnection: keep-alive\r\n", 1)
        elif not self.keep_alive and not self._http_1_0:
            response = response.replace(b"\r\n", b"\r\nConnection: close\r\n", 1)
        self._protocol.write(self, response)

    def set_close_callback(self, callback: Callable[[], None] | None) -> None:
        """Have something called when the client goes away before the response is complete."""
        self.on_close = callback

    def write_headers(
        self,
        start_line: httputil.RequestStartLine | httputil.ResponseStartLine,
        headers: httputil.HTTPHeaders,
        chunk: bytes | None = None,
    ) -> asyncio.Future[None]:
        """Send the beginning of a response (Tornado's interface)."""
        line = cast(httputil.ResponseStartLine, start_line)
        # Tornado sends a body without a length in chunks, where the client knows of them.
        self._chunked = "Content-Length" not in headers and not self._http_1_0 and line.code not in (204, 304)
        if self._chunked:
            headers["Transfer-Encoding"] = "chunked"
        if self._http_1_0 and self.keep_alive:
            headers["Connection"] = "keep-alive"
        elif not self.keep_alive and not self._http_1_0:
            headers["Connection"] = "close"
        lines = [
            f"HTTP/1.1 {line.code} {line.reason}",
            *(f"{name}: {value}" for name, value in headers.get_all()),
        ]
        head = "\r\n".join(lines).encode("latin-1") + b"\r\n\r\n"
        return self._protocol.write(self, head + self._format(chunk or b""))

    def write(self, chunk: bytes) -> asyncio.Future[None]:
        """Send a part of the body (Tornado's interface)."""
        return self._protocol.write(self, self._format(chunk))

    def finish(self) -> None:
        """The response is complete (Tornado's interface)."""
        self.done = True
        self.on_close = self.delegate = None
        self._protocol.write(self, b"0\r\n\r\n" if self._chunked else b"")

    def _format(self, chunk: bytes) -> bytes:
        return b"%x\r\n%s\r\n" % (len(chunk), chunk) if self._chunked and chunk else chunk


class _Protocol(asyncio.Protocol):
    """One client's connection."""

    def __init__(self, server: FastServer) -> None:
        self._server = server
        self._exchanges: deque[Exchange] = deque()
        self._parser: Any = httptools.HttpRequestParser(self)
        self._transport: asyncio.Transport
        self._writable: asyncio.Future[None] | None = None
        self._reading = True
        self._closing = False
        self._body_size = 0
        self._url = b""
        self._headers: dict[bytes, bytes] = {}
        self.context = Context("")

    # --- asyncio ------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        peer = transport.get_extra_info("peername")
        self.context.remote_ip = peer[0] if isinstance(peer, tuple) else ""
        self._server.connections.add(self)
        self._idle_since = self._server.loop.time()

    def data_received(self, data: bytes) -> None:
        self._idle_since = self._server.loop.time()
        if self._closing:
            return
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserUpgrade:
            self._closing = True  # another protocol is not spoken here: answer, then close
        except httptools.HttpParserError:
            self._closing = True
            if not self._exchanges:
                self._transport.close()
        self._balance()

    def eof_received(self) -> bool:
        self._closing = True
        return bool(self._exchanges)  # a client that only stopped sending still gets its answers

    def connection_lost(self, error: Exception | None) -> None:
        self._closing = True
        self._server.connections.discard(self)
        self.resume_writing()
        for exchange in self._exchanges:
            if exchange.on_close is not None:
                exchange.on_close()
            elif exchange.delegate is not None and not exchange.received:
                exchange.delegate.on_connection_close()
        self._exchanges.clear()

    def pause_writing(self) -> None:
        self._writable = self._server.loop.create_future()
        self._balance()

    def resume_writing(self) -> None:
        if self._writable is not None:
            if not self._writable.done():
                self._writable.set_result(None)
            self._writable = None
            if not self._closing:
                self._balance()

    # --- httptools ----------------------------------------------------------------------------

    def on_message_begin(self) -> None:
        self._url = b""
        self._headers = {}
        self._body_size = 0

    def on_url(self, url: bytes) -> None:
        self._url += url

    def on_header(self, name: bytes, value: bytes) -> None:
        key = name.lower()
        known = self._headers.get(key)
        self._headers[key] = value if known is None else known + b"," + value

    def on_headers_complete(self) -> None:
        parser = self._parser
        http_1_0 = parser.get_http_version() == "1.0"
        exchange = Exchange(self, http_1_0, parser.should_keep_alive())
        self._exchanges.append(exchange)
        if int(self._headers.get(b"content-length", b"0")) > self._server.max_body_size:
            self._refuse_body(exchange)
            return
        if self._headers.get(b"expect", b"").lower() == b"100-continue" and len(self._exchanges) == 1:
            self._transport.write(_CONTINUE)
        exchange.delegate = self._server.delegate.start_request(self, exchange)
        line = httputil.RequestStartLine(
            parser.get_method().decode("latin-1"),
            self._url.decode("latin-1"),
            "HTTP/1.0" if http_1_0 else "HTTP/1.1",
        )
        exchange.delegate.headers_received(line, LightHeaders(self._headers))  # type: ignore[arg-type]

    def on_body(self, chunk: bytes) -> None:
        self._body_size += len(chunk)
        exchange = self._exchanges[-1]
        if self._body_size > self._server.max_body_size:
            self._refuse_body(exchange)
        elif exchange.delegate is not None:
            exchange.delegate.data_received(chunk)

    def on_message_complete(self) -> None:
        if not self._exchanges:
            return  # the connection was closed underneath the parser
        exchange = self._exchanges[-1]
        exchange.received = True
        if exchange.delegate is not None:
            exchange.delegate.finish()

    # --- answers ------------------------------------------------------------------------------

    def write(self, exchange: Exchange, data: bytes) -> asyncio.Future[None]:
        """Send what an exchange has to say, when it is its turn; done when more may be written."""
        if self._transport.is_closing():
            return self._failed()
        if not self._exchanges or exchange is not self._exchanges[0]:
            exchange.waiting.append(data)
            return self._server.written
        if data:
            self._transport.write(data)
        if exchange.done:
            self._next(exchange)
        return self._writable or self._server.written

    def _next(self, exchange: Exchange) -> None:
        exchanges = self._exchanges
        while exchange.done:
            # An answer may be complete before its request is: what follows is not parsed for it.
            exchanges.popleft()
            if not exchange.keep_alive or (self._closing and not exchanges) or not exchange.received:
                self._closing = True
                self._transport.close()
                return
            if not exchanges:
                break
            exchange = exchanges[0]
            if exchange.waiting:
                self._transport.write(b"".join(exchange.waiting))
                exchange.waiting.clear()
        if not self._reading:
            self._balance()

    def _failed(self) -> asyncio.Future[None]:
        future = self._server.loop.create_future()
        future.set_exception(StreamClosedError())
        future.exception()  # nobody has to look at it
        return future

    def _refuse_body(self, exchange: Exchange) -> None:
        exchange.delegate = None
        exchange.keep_alive = False
        exchange.done = True
        self.write(exchange, _TOO_LARGE)
        self._closing = True

    def _balance(self) -> None:
        """Read on only while answers leave: that is the back-pressure on a client."""
        wanted = self._writable is None and len(self._exchanges) < _PIPELINED
        if wanted != self._reading and not self._transport.is_closing():
            self._reading = wanted
            if wanted:
                self._transport.resume_reading()
            else:
                self._transport.pause_reading()

    def close_if_idle(self, before: float) -> None:
        """Close the connection when no request is in progress and nothing came since a time."""
        if not self._exchanges and self._idle_since <= before:
            self._closing = True
            self._transport.close()

    @property
    def busy(self) -> bool:
        """Whether a request has no complete answer yet."""
        return bool(self._exchanges)


class FastServer:
    """Listens, and hands every request to a delegate.

    Parameters
    ----------
    delegate : tornado.httputil.HTTPServerConnectionDelegate
    max_body_size : int
        Bytes of a request body that are accepted.
    idle_timeout : float
        Seconds after which a connection without a request is closed.
    """

    def __init__(
        self, delegate: httputil.HTTPServerConnectionDelegate, *, max_body_size: int, idle_timeout: float
    ) -> None:
        self.delegate = delegate
        self.max_body_size = max_body_size
        self.connections: set[_Protocol] = set()
        self.loop = asyncio.get_running_loop()
        self.written: asyncio.Future[None] = self.loop.create_future()
        self.written.set_result(None)
        self._idle_timeout = idle_timeout
        self._server: asyncio.Server
        self._sweeper: asyncio.TimerHandle | None = None

    async def start(self, host: str, port: int) -> int:
        """Listen; the port, which the system chooses if it was 0.

        Raises
        ------
        OSError
            If the port is taken.
        """
        self._server = await self.loop.create_server(lambda: _Protocol(self), host, port, backlog=1024)
        self._sweep()
        return int(self._server.sockets[0].getsockname()[1])

    async def stop(self, drain: float) -> None:
        """Accept no more, give answers in progress some seconds, and close every connection."""
        self._server.close()
        if self._sweeper is not None:
            self._sweeper.cancel()
        deadline = self.loop.time() + drain
        while any(each.busy for each in self.connections) and self.loop.time() < deadline:
            await asyncio.sleep(0.01)
        for connection in list(self.connections):
            connection._transport.abort() if connection.busy else connection._transport.close()
        await asyncio.sleep(0)

    def _sweep(self) -> None:
        before = self.loop.time() - self._idle_timeout
        for connection in list(self.connections):
            connection.close_if_idle(before)
        self._sweeper = self.loop.call_later(min(60.0, self._idle_timeout), self._sweep)


class TornadoServer:
    """The same on Tornado's own HTTP server, for platforms without httptools."""

    def __init__(
        self, delegate: httputil.HTTPServerConnectionDelegate, *, max_body_size: int, idle_timeout: float
    ) -> None:
        self._server = HTTPServer(
            cast(Any, _TornadoDelegate(delegate)),
            max_body_size=max_body_size,
            max_buffer_size=max_body_size,
            idle_connection_timeout=idle_timeout,
        )

    async def start(self, host: str, port: int) -> int:
        """Listen; the port, which the system chooses if it was 0."""
        sockets: list[socket.socket] = bind_sockets(port, host)
        self._server.add_sockets(sockets)
        return int(sockets[0].getsockname()[1])

    async def stop(self, drain: float) -> None:
        """Accept no more, and close every connection."""
        self._server.stop()
        try:
            await asyncio.wait_for(self._server.close_all_connections(), max(drain, 0.1))
        except TimeoutError:
            pass


class _TornadoDelegate(httputil.HTTPServerConnectionDelegate):
    """Gives Tornado's connections the method ``respond``."""

    def __init__(self, delegate: httputil.HTTPServerConnectionDelegate) -> None:
        self._delegate = delegate

    def start_request(self, server_conn: object, request_conn: httputil.HTTPConnection) -> Any:
        cast(Any, request_conn).respond = lambda response: _respond(request_conn, response)
        return self._delegate.start_request(server_conn, request_conn)

    def on_close(self, server_conn: object) -> None:
        self._delegate.on_close(server_conn)


def _respond(connection: httputil.HTTPConnection, response: bytes) -> None:
    """Send a ready-made response through Tornado, which wants its parts."""
    head, _, body = response.partition(b"\r\n\r\n")
    first, _, rest = head.decode("latin-1").partition("\r\n")
    connection.write_headers(httputil.parse_response_start_line(first), httputil.HTTPHeaders.parse(rest), body)
    connection.finish()


Connection = Exchange | HTTP1Connection
Server = FastServer | TornadoServer


def make_server(
    kind: str,
    delegate: httputil.HTTPServerConnectionDelegate,
    *,
    max_body_size: int,
    idle_timeout: float = 3600.0,
) -> Server:
    """A transport: ``"fast"``, ``"tornado"``, or ``"auto"`` for the best there is."""
    if kind not in ("auto", "fast", "tornado"):
        raise ValueError(f"transport must be 'auto', 'fast' or 'tornado', not {kind!r}")
    use_fast = kind == "fast" or (kind == "auto" and httptools is not None)
    chosen = FastServer if use_fast else TornadoServer
    return chosen(delegate, max_body_size=max_body_size, idle_timeout=idle_timeout)
