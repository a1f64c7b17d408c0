"""The HTTP/1.1 server of all endpoints, on httptools.

A delegate receives each request; its exchange sends the response. `tornado_bridge.start_in` makes the delegates of a
``tornado.web.Application``.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TypeAlias

from tritonnb.endpoints.back_pressure import SlowReaders, Turns
from tritonnb.endpoints.endpoint import Listener, close_connections, listen
from tritonnb.endpoints.http.options import RAISE_BODY_SIZE
from tritonnb.endpoints.http.transport.connection import Http1Connection
from tritonnb.endpoints.http.transport.exchange import Exchange, MessageDelegate
from tritonnb.endpoints.http.transport.request_parser import HeadCache

#: Seconds that a client has to send the head of a request.
HEAD_TIMEOUT = 60.0
#: The longest interval between checks of the connections, in seconds.
_SWEEP = 10.0


#: Makes the delegate of a new request.
StartRequest: TypeAlias = Callable[[Exchange], MessageDelegate]


class BodyProtocol(asyncio.BufferedProtocol):
    """A protocol that lets a transport read the rest of a large body into its memory."""

    def __init__(self, connection: Http1Connection) -> None:
        self._connection = connection

    def get_buffer(self, sizehint: int) -> memoryview:
        """Return the memory for the bytes that come next (asyncio's interface)."""
        return self._connection.missing_body()

    def buffer_updated(self, nbytes: int) -> None:
        """Called when bytes are in the buffer (asyncio's interface)."""
        self._connection.body_received(nbytes)

    def eof_received(self) -> bool:
        """Called when the client has stopped sending."""
        return self._connection.eof_received()

    def connection_lost(self, exc: Exception | None) -> None:
        """Called when the client has disconnected."""
        self._connection.connection_lost(exc)

    def pause_writing(self) -> None:
        """Called when the client reads more slowly than it gets responses."""
        self._connection.pause_writing()

    def resume_writing(self) -> None:
        """Called when the client has caught up with its responses."""
        self._connection.resume_writing()


class HttpServer:
    """A server that passes every request to its delegate.

    Parameters
    ----------
    start_request : callable
        Makes the delegate of a new request.
    max_body_size : int
        Bytes of a request body that are accepted.
    body_remedy : str, optional
        What a client can do about a larger body, for the error.
    idle_timeout : float, optional
        A connection without a request is closed after these seconds.
    reuse_port : bool, optional
        Whether other servers may listen on the same port.
    max_unread_size : int, optional
        Bytes of responses in all, beyond this size, connections of clients that read nothing are closed.
    """

    def __init__(
        self,
        start_request: StartRequest,
        *,
        max_body_size: int,
        body_remedy: str = RAISE_BODY_SIZE,
        idle_timeout: float = 3600.0,
        reuse_port: bool = False,
        max_unread_size: int = 1 << 30,
    ) -> None:
        self.start_request = start_request
        self.heads = HeadCache()
        self.max_body_size = max_body_size
        self.body_remedy = body_remedy
        self.connections: set[Http1Connection] = set()
        self._idle_timeout = idle_timeout
        self._reuse_port = reuse_port
        self._max_unread_size = max_unread_size
        self._listener: Listener
        self._sweeper: asyncio.TimerHandle | None = None

    def body_protocol(self, connection: Http1Connection) -> asyncio.BufferedProtocol:
        """Make the protocol that reads a body into the memory that the connection provides."""
        return BodyProtocol(connection)

    async def start(self, host: str, port: int) -> int:
        """Listen, and return the port; the system chooses one if it is 0.

        Raises
        ------
        OSError
            If the port is taken.
        """
        self.run_on(asyncio.get_running_loop())
        self._listener, port = await listen(lambda: Http1Connection(self), host, port, reuse_port=self._reuse_port)
        self._sweep()
        return port

    def run_on(self, loop: asyncio.AbstractEventLoop) -> None:
        """Prepare for connections on a loop."""
        self.loop = loop
        self.turns = Turns(loop)
        self.slow_readers = SlowReaders(loop, self._max_unread_size)
        self.written: asyncio.Future[None] = self.loop.create_future()
        # Nearly no write needs a wait, so all of them share this future, which is done.
        self.written.set_result(None)

    async def stop(self, drain: float) -> None:
        """Accept no more requests, wait up to ``drain`` seconds for responses, and close every connection."""
        self._listener.close()
        if self._sweeper is not None:
            self._sweeper.cancel()
        await close_connections(self.connections, lambda connection: connection.busy, drain)

    def _sweep(self) -> None:
        now = self.loop.time()
        for connection in list(self.connections):
            connection.close_if_idle(now - self._idle_timeout, now - HEAD_TIMEOUT)
        # One timer for all connections, since a timer for each would be set and cancelled with every request; a timeout
        # may be 10 s late.
        self._sweeper = self.loop.call_later(min(_SWEEP, self._idle_timeout), self._sweep)
