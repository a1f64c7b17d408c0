"""Listening sockets."""

from __future__ import annotations

import asyncio
import errno
import socket
from typing import Any

import pytest

from tritonnb.endpoints.endpoint import listen

uvloop = pytest.importorskip("uvloop")


def bound_socket(port: int = 0) -> socket.socket:
    """A socket that has a port but does not listen yet; several may have the same one."""
    bound = socket.socket()
    bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    bound.bind(("127.0.0.1", port))
    return bound


class OvertakenLoop(uvloop.Loop):  # type: ignore[misc, name-defined]
    """A loop whose port is taken by another process between bind and listen."""

    async def create_server(self, make_protocol: Any, host: str, port: int, **options: Any) -> asyncio.Server:
        with bound_socket() as other:
            own = bound_socket(other.getsockname()[1])
            other.listen()
            return await super().create_server(make_protocol, sock=own)


def test_port_taken_between_bind_and_listen_is_an_error() -> None:
    loop = OvertakenLoop()
    try:
        with pytest.raises(OSError, match="already in use") as raised:
            loop.run_until_complete(listen(asyncio.Protocol, "127.0.0.1", 0, reuse_port=False))
        assert raised.value.errno == errno.EADDRINUSE
    finally:
        loop.close()


def test_port_is_returned() -> None:
    async def connect() -> None:
        server, port = await listen(asyncio.Protocol, "127.0.0.1", 0, reuse_port=False)
        _, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.close()
        server.close()

    asyncio.run(connect())
