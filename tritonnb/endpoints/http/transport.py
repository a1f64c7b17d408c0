"""The two HTTP servers under the endpoint: a fast one, and Tornado's own as its stand-in.

Both drive Tornado's ``HTTPServerConnectionDelegate``, ``HTTPMessageDelegate`` and ``HTTPConnection``,
so that a ``tornado.web.Application`` runs on either unchanged. Beyond Tornado's interface an exchange
has ``respond``, which sends a whole, ready-made response in one write.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
from typing import Any, cast

from tornado import httputil
from tornado.httpserver import HTTPServer
from tornado.netutil import bind_sockets

from tritonnb.endpoints.http.connection import AVAILABLE, Connection


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
        self.connections: set[Connection] = set()
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
        self._server = await self.loop.create_server(lambda: Connection(self), host, port, backlog=1024)
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
            connection.close()
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
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._server.close_all_connections(), max(drain, 0.1))


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
    use_fast = kind == "fast" or (kind == "auto" and AVAILABLE)
    chosen = FastServer if use_fast else TornadoServer
    return chosen(delegate, max_body_size=max_body_size, idle_timeout=idle_timeout)
