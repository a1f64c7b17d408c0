"""Listening sockets of the event loop."""

from __future__ import annotations

import asyncio
import errno
import os
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
    listener = server.sockets[0]
    if listener is None:  # uvloop hides it if another process began to listen after uvloop had bound its socket
        server.close()
        raise OSError(errno.EADDRINUSE, os.strerror(errno.EADDRINUSE))
    return server, int(listener.getsockname()[1])
