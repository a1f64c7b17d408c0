"""Sockets of the event loop: listening, and busy polling.

With a single client, the loop polls for a moment instead of sleeping. Waking a thread takes tens of microseconds,
longer than a small model runs. A client that sends one request after the other would pay that twice for each: when the
model has run, and when the next request arrives.
"""

from __future__ import annotations

import asyncio
import errno
import os
import time
from collections.abc import Callable
from typing import Any


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
    sockets: Any = server.sockets  # uvloop has a list here, asyncio a tuple
    if sockets[0] is None:  # uvloop hides it if another process began to listen after uvloop had bound its socket
        server.close()
        raise OSError(errno.EADDRINUSE, os.strerror(errno.EADDRINUSE))
    return server, int(sockets[0].getsockname()[1])


#: How long the loop polls: longer than a small model or its client takes, even if the model has its own process,
#: and too short to cost noticeable processor time.
POLL_NS = 100_000


class BusyPoller:
    """Keeps an event loop from sleeping.

    Parameters
    ----------
    loop : asyncio.AbstractEventLoop

    Attributes
    ----------
    polling : bool
        Whether the loop is polling.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._until_ns = 0
        self.polling = False

    def extend(self) -> None:
        """Poll for `POLL_NS` from now on; everything else on the loop runs in between."""
        self._until_ns = time.monotonic_ns() + POLL_NS
        if not self.polling:
            self.polling = True
            self._loop.call_soon(self._poll)

    def _poll(self) -> None:
        if time.monotonic_ns() < self._until_ns:
            self._loop.call_soon(self._poll)
        else:
            self.polling = False
