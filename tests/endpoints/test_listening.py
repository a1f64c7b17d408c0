"""Listening sockets."""

from __future__ import annotations

import asyncio
import errno
import socket
from typing import Any

import pytest

from tritonnb.endpoints.endpoint import listen

ORDINARY_SOCKET = socket.socket


class OvertakenSocket(socket.socket):
    """A socket whose port is taken by another one between bind and listen."""

    def bind(self, address: Any) -> None:
        super().bind(address)
        self.other = ORDINARY_SOCKET()
        self.other.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        self.other.bind(self.getsockname())
        self.other.listen()


def test_port_taken_between_bind_and_listen_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(socket, "socket", OvertakenSocket)
    with pytest.raises(OSError, match="already in use") as raised:
        asyncio.run(listen(asyncio.Protocol, "127.0.0.1", 0, reuse_port=False))
    assert raised.value.errno == errno.EADDRINUSE


def test_all_addresses_of_a_host_have_the_same_port() -> None:
    async def connect() -> list[int]:
        listener, port = await listen(asyncio.Protocol, "localhost", 0, reuse_port=False)
        ports = [bound.getsockname()[1] for _, bound in listener._servers]
        listener.close()
        return [port, *ports]

    assert len(set(asyncio.run(connect()))) == 1


def test_port_is_returned() -> None:
    async def connect() -> None:
        server, port = await listen(asyncio.Protocol, "127.0.0.1", 0, reuse_port=False)
        _, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.close()
        server.close()

    asyncio.run(connect())
