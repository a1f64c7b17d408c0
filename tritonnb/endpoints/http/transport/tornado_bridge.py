"""Tornado's interfaces on the HTTP transport: requests for a ``tornado.web.Application``, and its responses.

Everything except inference requests is answered by handlers of Tornado; users add their own with `Server.add_handlers`.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from typing import Any, cast

from tornado import httputil, web

from tritonnb.endpoints.http.transport.exchange import Exchange, LightHeaders, MessageDelegate


def tornado_headers(headers: LightHeaders) -> httputil.HTTPHeaders:
    """Return the headers of a request as Tornado's class, which writes their names as ``Content-Type``."""
    converted = httputil.HTTPHeaders()
    for name, value in headers.items():
        converted[name] = value
    return converted


def start_in(application: web.Application) -> Callable[[Exchange], MessageDelegate]:
    """Return a function that makes the delegate of each request, which passes it to an application as Tornado does."""
    return lambda exchange: _Message(application, exchange)


#: The most fields of a query that Tornado reads.
_MOST_FIELDS = 1000


class _Message(httputil.HTTPMessageDelegate):
    """One request."""

    def __init__(self, application: web.Application, exchange: Exchange) -> None:
        self._connection = _Connection(exchange)
        self._delegate = delegate = application.start_request(None, self._connection)
        self.data_received = delegate.data_received  # type: ignore[method-assign]
        self.finish = delegate.finish  # type: ignore[method-assign]
        self.on_connection_close = delegate.on_connection_close  # type: ignore[method-assign]

    def headers_received(self, start_line: Any, headers: Any) -> Any:
        """Called when the head has arrived."""
        self._connection.is_head = start_line.method == "HEAD"
        if start_line.method not in web.RequestHandler.SUPPORTED_METHODS:
            # Tornado rejects unknown methods by itself; OPTIONS has no handler, so it gets Triton's 405.
            start_line = start_line._replace(method="OPTIONS")
        if start_line.path.count("&") >= _MOST_FIELDS:
            # Tornado refuses them. Triton ignores every query, and no handler of a user expects a longer query.
            start_line = start_line._replace(path=start_line.path.partition("?")[0])
        full = tornado_headers(headers)
        full.setdefault("Host", "localhost")  # Tornado requires it, Triton does not
        try:
            return self._delegate.headers_received(start_line, full)
        except httputil.HTTPInputError as error:
            body = json.dumps({"error": str(error)}).encode()
            self.data_received = lambda chunk: None  # type: ignore[method-assign]
            self.finish = lambda: self._connection.refuse(body)  # type: ignore[method-assign]


class _Connection(httputil.HTTPConnection):
    """The exchange of a request, as Tornado's handlers write to it; also the context that its requests read.

    Attributes
    ----------
    is_head : bool
        Whether the method is HEAD: the response has no body.
    """

    protocol = "http"

    def __init__(self, exchange: Exchange) -> None:
        self._exchange = exchange
        self._chunked = False
        self.context = self
        self.remote_ip = exchange.remote_ip
        self.is_head = False

    def set_close_callback(self, callback: Callable[[], None] | None) -> None:
        """Set the function to call if the client disconnects before the response is complete."""
        self._exchange.set_close_callback(callback)

    def write_headers(
        self,
        start_line: httputil.RequestStartLine | httputil.ResponseStartLine,
        headers: httputil.HTTPHeaders,
        chunk: bytes | None = None,
    ) -> asyncio.Future[None]:
        """Send the beginning of a response."""
        exchange = self._exchange
        line = cast(httputil.ResponseStartLine, start_line)
        if "Content-Length" not in headers and line.code not in (204, 304) and not self.is_head:
            # Tornado leaves the framing of such a body to the connection.
            if exchange.http_1_0:
                exchange.keep_alive = False
            else:
                self._chunked = True
                headers["Transfer-Encoding"] = "chunked"
        if exchange.http_1_0 and exchange.keep_alive:
            headers["Connection"] = "keep-alive"
        elif not exchange.keep_alive and not exchange.http_1_0:
            headers["Connection"] = "close"
        lines = [f"HTTP/1.1 {line.code} {line.reason}", *(f"{name}: {value}" for name, value in headers.get_all())]
        return exchange.write("\r\n".join(lines).encode("latin-1") + b"\r\n\r\n" + self._format(chunk or b""))

    def write(self, chunk: bytes) -> asyncio.Future[None]:
        """Send a part of the body."""
        return self._exchange.write(self._format(chunk))

    def finish(self) -> None:
        """End the response."""
        self._exchange.write(b"0\r\n\r\n" if self._chunked else b"", last=True)

    def refuse(self, body: bytes) -> None:
        """Respond to a request that no handler can have."""
        head = b"HTTP/1.1 400 Bad Request\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n"
        self._exchange.respond(head % len(body) + body)

    def _format(self, chunk: bytes) -> bytes:
        return b"%x\r\n%s\r\n" % (len(chunk), chunk) if self._chunked and chunk else chunk
