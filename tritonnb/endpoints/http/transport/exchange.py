"""One request and its response on a connection."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from typing import Any, Final, Protocol

import numpy as np
from tornado import httputil

#: A body of at least this size is assembled in one buffer, and sent without being joined to its head.
LARGE_BODY: Final = 65_536
_RESERVED: Final = 64 << 20


class Body:
    """A large request body of known length, in one buffer into which it can be read directly.

    Parameters
    ----------
    length : int
        Its size in bytes.
    reserved : int, optional
        Bytes of memory that are reserved before the body has arrived.
    """

    __slots__ = ("_buffer", "length", "received")

    def __init__(self, length: int, reserved: int = _RESERVED) -> None:
        self.length = length
        self.received = 0
        # Unlike a new bytearray, a new array is not filled with zeros.
        self._buffer = np.empty(min(length, reserved), np.uint8).data

    def missing(self) -> memoryview:
        """Return the memory for the bytes that come next."""
        size = len(self._buffer)
        if self.received == size:
            # Twice the size on demand: a client that announces 2 GiB and sends nothing costs 64 MiB of untouched
            # memory, which the system does not even provide.
            larger = np.empty(min(self.length, 2 * size), np.uint8).data
            larger[:size] = self._buffer
            self._buffer = larger
        return self._buffer[self.received :]

    def add(self, chunk: bytes) -> None:
        """Copy bytes that have arrived."""
        while chunk:
            missing = self.missing()
            size = min(len(missing), len(chunk))
            missing[:size] = chunk[:size]
            self.received += size
            chunk = chunk[size:]

    def contents(self) -> memoryview:
        """Return the complete body, writeable."""
        return self._buffer[: self.received]


class LightHeaders:
    """Request headers by case-insensitive name; cheaper to make than Tornado's, for a few lookups.

    Attributes
    ----------
    route : object or None
        What a delegate has parsed from this head. Requests with the same head share the object (`HeadCache`), so the
        delegate gets it again.
    """

    __slots__ = ("_by_name", "route")

    def __init__(self, by_name: dict[bytes, bytes]) -> None:
        self._by_name = by_name
        self.route: object = None

    def get(self, name: str, default: str | None = None) -> str | None:
        """Return the value of a header, or the default."""
        value = self._by_name.get(name.lower().encode("latin-1"))
        return default if value is None else value.decode("latin-1")

    def items(self) -> Iterator[tuple[str, str]]:
        """Return an iterator over names, in lower case, and values."""
        return iter([(name.decode("latin-1"), value.decode("latin-1")) for name, value in self._by_name.items()])


class MessageDelegate(Protocol):
    """The receiver of a request: Tornado's ``HTTPMessageDelegate``; the headers may be `LightHeaders`."""

    def headers_received(self, start_line: httputil.RequestStartLine, headers: Any, /) -> Any:
        """Called when the head has arrived."""

    def data_received(self, chunk: bytes, /) -> Any:
        """Called when a part of the body has arrived."""

    def finish(self) -> None:
        """Called when the request is complete."""

    def on_connection_close(self) -> None:
        """Called when the client has disconnected before the request was complete."""


class Writer(Protocol):
    """The connection of an exchange."""

    remote_ip: str

    def write(
        self, exchange: Exchange, data: bytes, tensors: list[bytes | memoryview] | None = None
    ) -> asyncio.Future[None]:
        """Send a part of a response, after all earlier responses; the future is done when more may be written."""


class Exchange:
    """One request and its response.

    Attributes
    ----------
    remote_ip : str
        The address of the client.
    keep_alive : bool
        Whether the connection stays open after the response.
    http_1_0 : bool
        Whether the client speaks HTTP/1.0.
    received, begun, done : bool
        Whether the request is complete; a part of the response is sent; the response is complete.
    expects_continue : bool
        Whether the client waits for ``100 Continue`` before it sends the body.
    holds_next : bool
        Whether the next request on the connection waits for this response: this one is read on another thread, which
        the next request of its sequence must not overtake.
    on_body : callable or None
        Set by a delegate that wants a large body in one piece; called with it instead of the delegate's
        ``data_received``.
    body : Body or None
        The large body of such a delegate.
    waiting : list of bytes or memoryview
        The parts of the response that wait for earlier responses.
    """

    def __init__(self, connection: Writer, http_1_0: bool, keep_alive: bool) -> None:
        self.remote_ip = connection.remote_ip
        self.keep_alive = keep_alive
        self.http_1_0 = http_1_0
        self.begun = False
        self.done = False
        self.received = False
        self.expects_continue = False
        self.holds_next = False
        self.delegate: MessageDelegate | None = None
        self.on_close: Callable[[], None] | None = None
        self.on_body: Callable[[memoryview], None] | None = None
        self.body: Body | None = None
        self.waiting: list[bytes | memoryview] = []
        self._connection = connection

    def respond(self, response: bytes, tensors: list[bytes | memoryview] | None = None) -> None:
        """Send a complete response: status line, headers, and body; large parts of the body may follow separately."""
        self._end()
        if self.http_1_0 and self.keep_alive:
            response = response.replace(b"\r\n", b"\r\nConnection: keep-alive\r\n", 1)
        elif not self.keep_alive and not self.http_1_0:
            response = response.replace(b"\r\n", b"\r\nConnection: close\r\n", 1)
        self._connection.write(self, response, tensors)

    def set_close_callback(self, callback: Callable[[], None] | None) -> None:
        """Set the function to call if the client disconnects before the response is complete."""
        self.on_close = callback

    def write(self, data: bytes, last: bool = False) -> asyncio.Future[None]:
        """Send a part of a response as it is; even an empty last part is what lets the next response go out."""
        if last:
            self._end()
        return self._connection.write(self, data)

    def _end(self) -> None:
        self.done = True
        self.on_close = self.on_body = self.delegate = None  # break reference cycles
