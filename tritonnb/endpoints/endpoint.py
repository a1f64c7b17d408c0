"""The base class of endpoints: an engine served on a port, over a transport; and listening sockets."""

from __future__ import annotations

import asyncio
import errno
import os
import time
from collections.abc import Callable
from typing import Any, Protocol


class Transport(Protocol):
    """The transport of an endpoint's protocol over sockets."""

    async def start(self, host: str, port: int) -> int:
        """Listen, and return the port; the system chooses one if it is 0."""

    async def stop(self, drain: float) -> None:
        """Accept no more requests, and wait up to ``drain`` seconds for those in progress."""


class Endpoint:
    """An endpoint of an engine, on the running event loop.

    Parameters
    ----------
    host : str
    transport : Transport

    Attributes
    ----------
    port : int
        Set by `start`.
    """

    def __init__(self, host: str, transport: Transport) -> None:
        self.host = host
        self.port = 0
        self._transport = transport

    async def start(self, port: int = 0) -> None:
        """Listen on a port; on any free one if it is 0.

        Raises
        ------
        OSError
            If the port is taken.
        InvalidArgumentError
            If an option is invalid.
        """
        self.port = await self._transport.start(self.host, port)

    async def stop(self, drain: float) -> None:
        """Accept no more requests, and wait up to ``drain`` seconds for those in progress."""
        await self._transport.stop(drain)


async def close_connections(connections: set[Any], is_busy: Callable[[Any], bool], drain: float) -> None:
    """Wait up to ``drain`` seconds while connections are busy, and close all of them."""
    deadline = time.monotonic() + drain
    while any(map(is_busy, connections)) and time.monotonic() < deadline:
        await asyncio.sleep(0.01)
    for connection in list(connections):
        connection.close()
    await asyncio.sleep(0)


async def listen(
    make_protocol: Callable[[], Any], host: str, port: int, *, reuse_port: bool
) -> tuple[asyncio.Server, int]:
    """Listen on a port, and return the server and the port; the system chooses one if it is 0.

    Parameters
    ----------
    make_protocol : callable
        Makes the protocol of a connection: an object with the methods of ``asyncio.Protocol``.
    host : str
    port : int
    reuse_port : bool
        Whether other servers may listen on the same port.

    Raises
    ------
    OSError
        If the port is taken.
    """
    loop = asyncio.get_running_loop()
    server = await loop.create_server(make_protocol, host, port, backlog=1024, reuse_port=reuse_port or None)
    listener = server.sockets[0]
    if listener is None:  # uvloop hides it if another process began to listen after uvloop had bound its socket
        server.close()
        raise OSError(errno.EADDRINUSE, os.strerror(errno.EADDRINUSE))
    return server, int(listener.getsockname()[1])
