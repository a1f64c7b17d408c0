"""The base class of endpoints: an engine served on a port, over a transport; and listening sockets."""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import time
from collections.abc import Callable
from functools import partial
from typing import Any, Protocol

from tritonnb.core import forks
from tritonnb.engine.execution.loop import run_in_thread

#: Connections that wait to be accepted.
_BACKLOG = 1024


class Transport(Protocol):
    """The transport of an endpoint's protocol over sockets."""

    async def start(self, host: str, port: int) -> int:
        """Listen, and return the port; the system chooses one if it is 0."""

    async def stop(self, drain: float) -> None:
        """Accept no more requests, and wait up to ``drain`` seconds for requests in progress."""


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
        self._is_listening = False
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
        # A counter and not a set: with `reuse_port`, two servers of this process may listen on one port.
        forks.ports[self.port] += 1
        self._is_listening = True

    async def stop(self, drain: float) -> None:
        """Accept no more requests, and wait up to ``drain`` seconds for requests in progress."""
        try:
            await self._transport.stop(drain)
        finally:
            if self._is_listening:
                self._is_listening = False
                forks.ports.subtract([self.port])


async def close_connections(connections: set[Any], is_busy: Callable[[Any], bool], drain: float) -> None:
    """Wait up to ``drain`` seconds while connections are busy, and close all of them."""
    deadline = time.monotonic() + drain
    # Polling is good enough once in the life of a server, and no request pays for the bookkeeping that a notification
    # would need.
    while any(map(is_busy, connections)) and time.monotonic() < deadline:
        await asyncio.sleep(0.01)
    # A copy, because a closed connection removes itself from the set.
    for connection in list(connections):
        connection.close()
    # Transports report the end of a connection in the next iteration of the loop, which must not be the last.
    await asyncio.sleep(0)


class Listener:
    """The listening sockets of a port: one for each address of its host."""

    def __init__(self) -> None:
        self._servers: list[tuple[asyncio.Server, socket.socket]] = []

    async def add(self, make_protocol: Callable[[], Any], listener: socket.socket) -> None:
        """Accept the connections of a socket that listens."""
        server = await asyncio.get_running_loop().create_server(make_protocol, sock=listener)
        self._servers.append((server, listener))

    def close(self) -> None:
        """Accept no more connections."""
        for server, listener in self._servers:
            # Ends the listening even if a process that was forked just now has not released its copy yet.
            with contextlib.suppress(OSError):  # macOS knows this of connected sockets only
                listener.shutdown(socket.SHUT_RDWR)
            server.close()
        self._servers.clear()


async def listen(make_protocol: Callable[[], Any], host: str, port: int, *, reuse_port: bool) -> tuple[Listener, int]:
    """Listen on a port, and return the listener and the port; the system chooses one if it is 0.

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
    # The event loop gets sockets, not the host: uvloop would look it up on threads of libuv, which a forked child does
    # not have. When the child exits, libuv joins them all the same, and crashes.
    look_up = partial(socket.getaddrinfo, host or None, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    listener = Listener()
    try:
        # Some resolvers return an address twice, for example where /etc/hosts lists `localhost` in two lines; the
        # second bind would fail.
        for family, _, _, _, address in dict.fromkeys(await run_in_thread(look_up)):
            bound = _bound_socket(family, (address[0], port, *address[2:]), reuse_port)
            # With port 0 the first address chooses, and the others have to follow: clients expect one port for IPv4 and
            # IPv6.
            port = int(bound.getsockname()[1])
            await listener.add(make_protocol, bound)
    # BaseException, since a start that is cancelled must not leave a listening socket either.
    except BaseException:
        listener.close()
        raise
    return listener, port


def _bound_socket(family: int, address: tuple[Any, ...], reuse_port: bool) -> socket.socket:
    """Return a socket that listens on an address."""
    bound = socket.socket(family, socket.SOCK_STREAM)
    try:
        if os.name == "posix":  # on Windows, it would permit two servers on one port
            bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if reuse_port:
            bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        if family == socket.AF_INET6:  # IPv4 has its own socket
            bound.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        bound.bind(address)
        bound.listen(_BACKLOG)
    except BaseException:
        bound.close()
        raise
    return bound
