"""A minimal HTTP client for loads, which takes little time from a server in the same interpreter.

Each request in flight has its own connection; free connections are reused.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Callable
from typing import cast
from urllib.parse import urlsplit

import httptools

Response = tuple[int, bytes]


class HttpClient:
    """Posts to one server; used on one event loop.

    Parameters
    ----------
    url : str
        ``http://HOST:PORT`` or ``https://HOST:PORT``; a path is ignored.
    context : ssl.SSLContext, optional
        For ``https``; by default one that trusts the authorities of the system.
    """

    def __init__(self, url: str, context: ssl.SSLContext | None = None) -> None:
        parts = urlsplit(url)
        self._ssl = (context or ssl.create_default_context()) if parts.scheme == "https" else None
        self._host = parts.hostname or "localhost"
        self._port = parts.port or (443 if self._ssl else 80)
        self._authority = parts.netloc.rpartition("@")[2]
        self._free: list[_Connection] = []

    def head(self, path: str, length: int, headers: dict[str, str]) -> bytes:
        """Encode the head of a request; ``length`` is the size of its body in bytes."""
        fields = {"Host": self._authority, "Content-Length": str(length), **headers}
        return "\r\n".join([f"POST {path} HTTP/1.1", *(f"{k}: {v}" for k, v in fields.items()), "", ""]).encode(
            "latin-1"
        )

    async def post(self, head: bytes, body: bytes, on_data: Callable[[bytes], object] | None = None) -> Response:
        """Send a request; returns status and body of its response.

        Parameters
        ----------
        head, body : bytes
        on_data : callable, optional
            Called with each part of the body of the response when it arrives.

        Raises
        ------
        OSError
            If the connection fails.
        """
        connection = self._free_connection() or await self._connect()
        try:
            response = await connection.send_request(head, body, on_data)
        except BaseException:
            connection.close()
            raise
        if connection.usable:
            self._free.append(connection)
        return response

    def close(self) -> None:
        """Close the free connections."""
        while self._free:
            self._free.pop().close()

    def _free_connection(self) -> _Connection | None:
        while self._free:
            connection = self._free.pop()
            if connection.usable:
                return connection
        return None

    async def _connect(self) -> _Connection:
        loop = asyncio.get_running_loop()
        try:
            _, connection = await loop.create_connection(_Connection, self._host, self._port, ssl=self._ssl)
        except OSError as error:
            raise ConnectionError(
                f"no HTTP server of the v2 protocol responds at {self._host}:{self._port}: {error}"
            ) from error
        return connection


class _Connection(asyncio.Protocol):
    """One request at a time; httptools calls its ``on_…`` methods."""

    def __init__(self) -> None:
        self.usable = True
        self._parser = httptools.HttpResponseParser(self)
        self._body: list[bytes] = []
        self._transport: asyncio.Transport
        self._response: asyncio.Future[Response] | None = None
        self._on_data: Callable[[bytes], object] | None = None

    def send_request(
        self, head: bytes, body: bytes, on_data: Callable[[bytes], object] | None
    ) -> asyncio.Future[Response]:
        """Send a request; the future resolves with its response."""
        self._response = asyncio.get_running_loop().create_future()
        self._body = []
        self._on_data = on_data
        self._transport.writelines([head, body])
        return self._response

    def close(self) -> None:
        """Abort the connection."""
        self.usable = False
        self._transport.abort()

    # --- asyncio and httptools call these -----------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserError as error:
            self._fail(ConnectionError(f"expected an HTTP response, got: {error}"))
            self.close()

    def connection_lost(self, error: Exception | None) -> None:
        self.usable = False
        text = "the server closed the connection"
        self._fail(ConnectionError(text if error is None else f"{text}: {error}"))

    def on_body(self, data: bytes) -> None:
        self._body.append(data)
        if self._on_data is not None:
            self._on_data(data)

    def on_message_complete(self) -> None:
        self.usable = self._parser.should_keep_alive()
        if self._response is not None and not self._response.done():
            self._response.set_result((self._parser.get_status_code(), b"".join(self._body)))

    def _fail(self, error: Exception) -> None:
        if self._response is not None and not self._response.done():
            self._response.set_exception(error)
