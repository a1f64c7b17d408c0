"""One request and its response on a connection: what Tornado calls an ``HTTPConnection``."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Protocol, cast

from tornado import httputil


class LightHeaders:
    """Request headers, looked up by name in any case; made for few look-ups.

    Attributes
    ----------
    route : object or None
        What a delegate made of this head; it finds that again when the same head comes again.
    """

    __slots__ = ("_by_name", "route")

    def __init__(self, by_name: dict[bytes, bytes]) -> None:
        self._by_name = by_name
        self.route: object = None

    def get(self, name: str, default: str | None = None) -> str | None:
        """The value of a header, or the default."""
        value = self._by_name.get(name.lower().encode("latin-1"))
        return default if value is None else value.decode("latin-1")

    def full(self) -> httputil.HTTPHeaders:
        """The same as Tornado's headers."""
        headers = httputil.HTTPHeaders()
        for name, value in self._by_name.items():
            headers[name.decode("latin-1")] = value.decode("latin-1")
        return headers


class Context:
    """What Tornado's requests ask of a connection's context."""

    __slots__ = ("protocol", "remote_ip")

    def __init__(self, remote_ip: str) -> None:
        self.remote_ip = remote_ip
        self.protocol = "http"


class Writer(Protocol):
    """The connection that an exchange is on."""

    context: Context

    def write(self, exchange: Exchange, data: bytes) -> asyncio.Future[None]:
        """Send what an exchange has to say, when it is its turn; done when more may be written."""


class Exchange(httputil.HTTPConnection):
    """One request and its response.

    Attributes
    ----------
    keep_alive : bool
        Whether the connection stays open after the response.
    http_1_0 : bool
        The client speaks the older protocol.
    received, begun, done : bool
        The request is here whole; a part of the response is sent; the response is complete.
    expects_continue : bool
        The client waits for ``100 Continue`` before it sends the body.
    waiting : list of bytes
        The response so far, while an earlier one is not complete.
    """

    def __init__(self, connection: Writer, http_1_0: bool, keep_alive: bool) -> None:
        self.context = connection.context
        self.keep_alive = keep_alive
        self.http_1_0 = http_1_0
        self.begun = False
        self.done = False
        self.received = False
        self.expects_continue = False
        self.delegate: httputil.HTTPMessageDelegate | None = None
        self.on_close: Callable[[], None] | None = None
        self.waiting: list[bytes] = []
        self._connection = connection
        self._chunked = False

    def respond(self, response: bytes) -> None:
        """Send a whole response: status line, headers, and body."""
        self.done = True
        self.on_close = self.delegate = None  # nothing that is left may keep the exchange alive
        if self.http_1_0 and self.keep_alive:
            response = response.replace(b"\r\n", b"\r\nConnection: keep-alive\r\n", 1)
        elif not self.keep_alive and not self.http_1_0:
            response = response.replace(b"\r\n", b"\r\nConnection: close\r\n", 1)
        self._connection.write(self, response)

    def set_close_callback(self, callback: Callable[[], None] | None) -> None:
        """Have something called when the client goes away before the response is complete."""
        self.on_close = callback

    def write_headers(
        self,
        start_line: httputil.RequestStartLine | httputil.ResponseStartLine,
        headers: httputil.HTTPHeaders,
        chunk: bytes | None = None,
    ) -> asyncio.Future[None]:
        """Send the beginning of a response (Tornado's interface)."""
        line = cast(httputil.ResponseStartLine, start_line)
        if "Content-Length" not in headers and line.code not in (204, 304):
            # Tornado leaves it to the connection to say where such a body ends.
            if self.http_1_0:
                self.keep_alive = False
            else:
                self._chunked = True
                headers["Transfer-Encoding"] = "chunked"
        if self.http_1_0 and self.keep_alive:
            headers["Connection"] = "keep-alive"
        elif not self.keep_alive and not self.http_1_0:
            headers["Connection"] = "close"
        lines = [
            f"HTTP/1.1 {line.code} {line.reason}",
            *(f"{name}: {value}" for name, value in headers.get_all()),
        ]
        head = "\r\n".join(lines).encode("latin-1") + b"\r\n\r\n"
        return self._connection.write(self, head + self._format(chunk or b""))

    def write(self, chunk: bytes) -> asyncio.Future[None]:
        """Send a part of the body (Tornado's interface)."""
        return self._connection.write(self, self._format(chunk))

    def finish(self) -> None:
        """The response is complete (Tornado's interface)."""
        self.done = True
        self.on_close = self.delegate = None
        self._connection.write(self, b"0\r\n\r\n" if self._chunked else b"")

    def _format(self, chunk: bytes) -> bytes:
        return b"%x\r\n%s\r\n" % (len(chunk), chunk) if self._chunked and chunk else chunk
