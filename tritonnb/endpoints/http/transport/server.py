"""The two HTTP servers of the endpoint: our own on httptools, and Tornado's as a replacement.

Both drive Tornado's ``HTTPServerConnectionDelegate``, ``HTTPMessageDelegate`` and ``HTTPConnection``,
so that a ``tornado.web.Application`` runs on either unchanged. Beyond Tornado's interface an exchange
has ``respond``, which sends a complete response with one write.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import time
from collections.abc import Callable
from typing import Any, cast
from weakref import WeakSet

from tornado import httputil
from tornado.http1connection import HTTP1Connection
from tornado.httpserver import HTTPServer
from tornado.iostream import IOStream
from tornado.netutil import bind_sockets

from tritonnb.core.errors import InvalidArgumentError
from tritonnb.endpoints.busy_poll import BusyPoller
from tritonnb.endpoints.http.transport.connection import Http1Connection, ServerDelegate
from tritonnb.endpoints.http.transport.head_cache import HeadCache
from tritonnb.endpoints.http.transport.request_parser import AVAILABLE
from tritonnb.endpoints.listening import listen

#: Seconds that a client has to send the head of a request.
HEAD_TIMEOUT = 60.0
#: The longest interval between checks of the connections, in seconds.
_SWEEP = 10.0


class HttptoolsServer:
    """Listens, and passes every request to a delegate.

    Parameters
    ----------
    delegate : tornado.httputil.HTTPServerConnectionDelegate
    max_body_size : int
        Bytes of a request body that are accepted.
    idle_timeout : float
        Seconds after which a connection without a request is closed.
    reuse_port : bool
        Whether other servers may listen on the same port.
    """

    def __init__(
        self,
        delegate: httputil.HTTPServerConnectionDelegate,
        *,
        max_body_size: int,
        idle_timeout: float,
        reuse_port: bool = False,
    ) -> None:
        self.delegate: ServerDelegate = delegate
        self.heads = HeadCache()
        self.max_body_size = max_body_size
        self.connections: set[Http1Connection] = set()
        self.loop = asyncio.get_running_loop()
        self.written: asyncio.Future[None] = self.loop.create_future()
        self.written.set_result(None)
        self.busy_poller = BusyPoller(self.loop)
        self._idle_timeout = idle_timeout
        self._reuse_port = reuse_port
        self._server: asyncio.Server
        self._sweeper: asyncio.TimerHandle | None = None

    async def start(self, host: str, port: int) -> int:
        """Listen, and return the port; the system chooses one if it is 0.

        Raises
        ------
        OSError
            If the port is taken.
        """
        self._server, port = await listen(lambda: Http1Connection(self), host, port, reuse_port=self._reuse_port)
        self._sweep()
        return port

    async def stop(self, drain: float) -> None:
        """Accept no more requests, wait up to ``drain`` seconds for responses, and close every connection."""
        self._server.close()
        if self._sweeper is not None:
            self._sweeper.cancel()
        await _until(lambda: not any(connection.busy for connection in self.connections), drain)
        for connection in list(self.connections):
            connection.close()
        await asyncio.sleep(0)

    def _sweep(self) -> None:
        now = self.loop.time()
        for connection in list(self.connections):
            connection.close_if_idle(now - self._idle_timeout, now - HEAD_TIMEOUT)
        self._sweeper = self.loop.call_later(min(_SWEEP, self._idle_timeout), self._sweep)


class TornadoServer:
    """The same on Tornado's own HTTP server, for platforms without httptools."""

    def __init__(
        self,
        delegate: httputil.HTTPServerConnectionDelegate,
        *,
        max_body_size: int,
        idle_timeout: float,
        reuse_port: bool = False,
    ) -> None:
        self._delegate = _TornadoDelegate(delegate)
        self._reuse_port = reuse_port
        self._server = HTTPServer(
            cast(Any, self._delegate),
            max_body_size=max_body_size,
            max_buffer_size=max_body_size,
            idle_connection_timeout=idle_timeout,
        )

    async def start(self, host: str, port: int) -> int:
        """Listen, and return the port; the system chooses one if it is 0."""
        sockets: list[socket.socket] = bind_sockets(port, host, reuse_port=self._reuse_port)
        self._server.add_sockets(sockets)
        return int(sockets[0].getsockname()[1])

    async def stop(self, drain: float) -> None:
        """Accept no more requests, wait up to ``drain`` seconds for responses, and close every connection."""
        self._server.stop()
        await _until(lambda: not self._delegate.busy, drain)
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._server.close_all_connections(), 0.1)


async def _until(condition: Callable[[], bool], seconds: float) -> None:
    deadline = time.monotonic() + seconds
    while not condition() and time.monotonic() < deadline:
        await asyncio.sleep(0.01)


class _TornadoDelegate(httputil.HTTPServerConnectionDelegate):
    """Adds ``respond`` to Tornado's exchanges, and counts those in progress."""

    def __init__(self, delegate: httputil.HTTPServerConnectionDelegate) -> None:
        self._delegate = delegate
        self._open: dict[HTTP1Connection, object] = {}
        self._streams: WeakSet[IOStream] = WeakSet()

    @property
    def busy(self) -> bool:
        """Whether a request has no response yet, or a response is not sent completely."""
        return bool(self._open) or any(stream.writing() for stream in self._streams)

    def start_request(self, server_conn: object, request_conn: httputil.HTTPConnection) -> Any:
        exchange = cast(Any, request_conn)
        finish = exchange.finish

        def finished() -> None:
            self._open.pop(exchange, None)
            finish()

        def begun() -> None:
            self._open[exchange] = server_conn

        exchange.finish = finished
        exchange.respond = lambda response: _respond(exchange, response)
        self._streams.add(exchange.stream)
        return _TornadoMessage(self._delegate.start_request(server_conn, request_conn), begun)

    def on_close(self, server_conn: object) -> None:
        self._open = {exchange: owner for exchange, owner in self._open.items() if owner is not server_conn}
        self._delegate.on_close(server_conn)


class _TornadoMessage(httputil.HTTPMessageDelegate):
    """Reports when a request begins: Tornado calls ``start_request`` as soon as the previous one ends."""

    def __init__(self, delegate: httputil.HTTPMessageDelegate, begun: Callable[[], None]) -> None:
        self._begun = begun
        self._delegate = delegate
        self.data_received = delegate.data_received  # type: ignore[method-assign]
        self.finish = delegate.finish  # type: ignore[method-assign]
        self.on_connection_close = delegate.on_connection_close  # type: ignore[method-assign]

    def headers_received(self, start_line: Any, headers: httputil.HTTPHeaders) -> Any:
        self._begun()
        return self._delegate.headers_received(start_line, headers)


def _respond(connection: httputil.HTTPConnection, response: bytes) -> None:
    """Send a complete response through Tornado, which needs its parts."""
    head, _, body = response.partition(b"\r\n\r\n")
    first, _, rest = head.decode("latin-1").partition("\r\n")
    connection.write_headers(httputil.parse_response_start_line(first), httputil.HTTPHeaders.parse(rest), body)
    connection.finish()


Server = HttptoolsServer | TornadoServer


def make_server(
    kind: str,
    delegate: httputil.HTTPServerConnectionDelegate,
    *,
    max_body_size: int,
    idle_timeout: float = 3600.0,
    reuse_port: bool = False,
) -> Server:
    """Make the server of a transport: ``"fast"``, ``"tornado"``, or ``"auto"`` for the faster one available.

    Raises
    ------
    InvalidArgumentError
        If the transport is another one.
    """
    if kind not in ("auto", "fast", "tornado"):
        raise InvalidArgumentError(f"HttpOptions.transport: expected 'auto', 'fast' or 'tornado', got {kind!r}")
    use_fast = kind == "fast" or (kind == "auto" and AVAILABLE)
    server_class = HttptoolsServer if use_fast else TornadoServer
    return server_class(delegate, max_body_size=max_body_size, idle_timeout=idle_timeout, reuse_port=reuse_port)
