"""A fast connection with both its ends in memory: the test decides when bytes arrive and time passes."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Iterable
from typing import cast

from tornado import httputil

from tritonnb.endpoints.http.transport import connection
from tritonnb.endpoints.http.transport.exchange import Exchange
from tritonnb.endpoints.http.transport.server import HttpServer

ANSWER = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"


class Message(httputil.HTTPMessageDelegate):
    """The content of a request."""

    def __init__(self, server: Server, exchange: Exchange) -> None:
        self.server, self.exchange = server, exchange
        self.body = b""
        self.gone = False

    def headers_received(  # type: ignore[override]
        self, start_line: httputil.RequestStartLine, headers: object
    ) -> None:
        self.line = start_line

    def data_received(self, chunk: bytes) -> None:
        self.body += chunk

    def finish(self) -> None:
        self.exchange.set_close_callback(self.on_connection_close)
        if not self.server.hold:
            self.answer()

    def answer(self) -> None:
        self.exchange.respond(ANSWER)

    def on_connection_close(self) -> None:
        self.gone = True


class Server(HttpServer):
    """A server that keeps every message; it answers at once unless it is set to hold."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        super().__init__(self._start_request, max_body_size=1000)
        self.run_on(loop)
        self.hold = False
        self.messages: list[Message] = []

    def _start_request(self, exchange: Exchange) -> Message:
        self.messages.append(Message(self, exchange))
        return self.messages[-1]


class Socket:
    """A socket of which only the error is asked."""

    def __init__(self) -> None:
        self.error = 0

    def getsockopt(self, level: int, option: int) -> int:
        assert (level, option) == (socket.SOL_SOCKET, socket.SO_ERROR)
        return self.error


class Wire:
    """The transport: keeps what is written."""

    def __init__(self) -> None:
        self.sent = b""
        self.reading = True
        self.state = "open"
        self.socket = Socket()

    def get_extra_info(self, name: str) -> object:
        return ("127.0.0.1", 5) if name == "peername" else self.socket

    def write(self, data: bytes) -> None:
        self.sent += data

    def writelines(self, parts: Iterable[bytes | memoryview]) -> None:
        self.sent += b"".join(parts)

    def is_closing(self) -> bool:
        return self.state in ("closed", "aborted")

    def can_write_eof(self) -> bool:
        return True

    def write_eof(self) -> None:
        self.state = "shut"

    def close(self) -> None:
        self.state = "closed"

    def abort(self) -> None:
        self.state = "aborted"

    def pause_reading(self) -> None:
        self.reading = False

    def resume_reading(self) -> None:
        self.reading = True

    def get_write_buffer_size(self) -> int:
        return 0


class Peer:
    """A connection with both its ends; to its own server unless one is given."""

    def __init__(self, loop: asyncio.AbstractEventLoop, server: Server | None = None) -> None:
        self.server = server or Server(loop)
        self.wire = Wire()
        self.connection = connection.Http1Connection(self.server)
        self.connection.connection_made(cast(asyncio.BaseTransport, self.wire))

    @property
    def messages(self) -> list[Message]:
        return self.server.messages

    def feed(self, *parts: bytes) -> None:
        for part in parts:
            self.connection.data_received(part)
            self.pass_turns()

    def pass_turns(self) -> None:
        """Run the loop until the connection has done what it can; a slow machine needs several turns."""
        while self.connection._waits:
            self.server.loop.call_soon(self.server.loop.stop)
            self.server.loop.run_forever()


class Loop(asyncio.SelectorEventLoop):
    """A loop whose timers the test runs."""

    def __init__(self) -> None:
        super().__init__()
        self.now = 100.0

    def time(self) -> float:
        return self.now

    @property
    def is_busy(self) -> bool:
        """True if the next pass has something to do."""
        return bool(self._ready)  # type: ignore[attr-defined]

    def pass_time(self, seconds: float) -> None:
        self.now += seconds
        self.call_soon(self.stop)
        self.run_forever()
