"""A Tornado application behind the HTTP server."""

from __future__ import annotations

from typing import Any

from tornado import httputil, web


class ApplicationDelegate(httputil.HTTPServerConnectionDelegate):
    """Passes requests to an application in the form that Tornado requires.

    Parameters
    ----------
    application : tornado.web.Application
    """

    def __init__(self, application: web.Application) -> None:
        self._application = application

    def start_request(self, server_conn: object, request_conn: Any) -> Any:
        """Make the delegate of a new request (Tornado's interface)."""
        return _Message(self._application.start_request(server_conn, request_conn))


class _Message(httputil.HTTPMessageDelegate):
    """One request."""

    def __init__(self, delegate: httputil.HTTPMessageDelegate) -> None:
        self._delegate = delegate
        self.data_received = delegate.data_received  # type: ignore[method-assign]
        self.finish = delegate.finish  # type: ignore[method-assign]
        self.on_connection_close = delegate.on_connection_close  # type: ignore[method-assign]

    def headers_received(self, start_line: Any, headers: Any) -> Any:
        """The head has arrived."""
        if start_line.method not in web.RequestHandler.SUPPORTED_METHODS:
            # Tornado rejects unknown methods by itself; OPTIONS has no handler, so it gets Triton's 405.
            start_line = start_line._replace(method="OPTIONS")
        full = headers.full()
        full.setdefault("Host", "localhost")  # Tornado requires it, Triton does not
        return self._delegate.headers_received(start_line, full)
