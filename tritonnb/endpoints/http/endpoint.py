"""The HTTP/REST endpoint: the inference route on a path of its own, all others through Tornado.

Inference is what a server does all day, so its route skips the web framework: the exchange feeds the
body straight to the request reader, and the answer leaves in one write.
"""

from __future__ import annotations

import logging
import re
import time
from dataclasses import dataclass
from typing import Any, cast

from tornado import httputil, web

from tritonnb.core.errors import InternalError, TritonError, UnsupportedError
from tritonnb.core.messages import InferRequest, InferResponse, Respond
from tritonnb.endpoints.client_errors import client_text, log_failed
from tritonnb.endpoints.endpoint import Endpoint, Transport
from tritonnb.endpoints.header_forwarding import forward_pattern
from tritonnb.endpoints.http.application import make_application, routed_path
from tritonnb.endpoints.http.compression import choose_encoding, compress, decompress
from tritonnb.endpoints.http.handlers.metadata import JSON, TEXT, error_body
from tritonnb.endpoints.http.host_origin_check import Guard
from tritonnb.endpoints.http.infer_request import RequestReader, header_length
from tritonnb.endpoints.http.infer_response import write_response
from tritonnb.endpoints.http.request_cache import RequestTemplates
from tritonnb.endpoints.http.restrictions import Restrictions
from tritonnb.endpoints.http.transport.exchange import Exchange, LightHeaders
from tritonnb.endpoints.http.transport.server import make_server
from tritonnb.endpoints.tensors import ResponseFormat
from tritonnb.endpoints.versions import version_number
from tritonnb.runtime.engine import Engine
from tritonnb.runtime.models.served_base import Served
from tritonnb.runtime.models.validation import IncompleteStringError
from tritonnb.telemetry.tracing import Trace

logger = logging.getLogger(__name__)

_INFER = re.compile(r"/v2/models/([^/]+)(?:/versions/(\d+))?/infer(?:\?.*)?", re.ASCII)
_TRACE_CONTEXT = ("traceparent", "tracestate")  # W3C Trace Context
_STATUS_LINES = {
    200: b"HTTP/1.1 200 OK\r\n",
    400: b"HTTP/1.1 400 Bad Request\r\n",
    403: b"HTTP/1.1 403 Forbidden\r\n",
    404: b"HTTP/1.1 404 Not Found\r\n",
    500: b"HTTP/1.1 500 Internal Server Error\r\n",
    501: b"HTTP/1.1 501 Not Implemented\r\n",
    503: b"HTTP/1.1 503 Service Unavailable\r\n",
}
_PLAIN = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n"
_BINARY = (
    b"HTTP/1.1 200 OK\r\nContent-Type: application/octet-stream\r\n"
    b"Inference-Header-Content-Length: %d\r\nContent-Length: %d\r\n\r\n"
)


@dataclass(frozen=True, slots=True)
class HttpOptions:
    """How the endpoint behaves.

    Attributes
    ----------
    max_input_size : int
        ``--http-max-input-size``, in bytes: for the JSON part of a request, a tensor in JSON, a raw
        binary request, and decompressed data. Triton's default, 64 MiB.
    max_body_size : int
        Bytes of a request body that are read at all; Triton, too, answers up to 2 GB.
    allow_foreign : bool
        Answer whatever name the server is called by, and requests of any page.
    allowed_hosts : tuple of str
        Names besides this machine's own that it may be called by.
    transport : str
        ``"fast"`` (httptools), ``"tornado"``, or ``"auto"``.
    restricted_api : tuple of (api, header, value)
        ``--http-restricted-api``: an API is answered only to requests with this header.
    reuse_port : bool
        ``--reuse-http-port``: share the port with servers that say the same.
    header_forward_pattern : str
        ``--http-header-forward-pattern``: headers in whose names it is found become parameters of
        inference requests, under their names in lower case.
    """

    max_input_size: int = 67_108_864
    max_body_size: int = (1 << 31) - 1
    allow_foreign: bool = False
    allowed_hosts: tuple[str, ...] = ()
    transport: str = "auto"
    restricted_api: tuple[tuple[str, str, str], ...] = ()
    header_forward_pattern: str = ""
    reuse_port: bool = False


class HttpEndpoint(Endpoint, httputil.HTTPServerConnectionDelegate):
    """Serves an engine over HTTP, on the running event loop.

    Parameters
    ----------
    engine : Engine
    host : str
    port : int
        0 for any free one; `port` says which.
    options : HttpOptions
    """

    def __init__(self, engine: Engine, *, host: str, port: int, options: HttpOptions) -> None:
        super().__init__(host, port)
        self.engine = engine
        self.options = options
        self.reader = RequestReader(options.max_input_size, engine.shared_memory)
        self.restrictions = Restrictions(options.restricted_api)
        self.forwarded = forward_pattern(options.header_forward_pattern)
        self.guard = None if options.allow_foreign else Guard(host, options.allowed_hosts)
        self._templates: dict[tuple[str, int], RequestTemplates] = {}
        self.application = make_application(engine, options.max_input_size)

    def make_transport(self) -> Transport:
        """The HTTP server of the kind that the options want."""
        options = self.options
        return make_server(options.transport, self, max_body_size=options.max_body_size, reuse_port=options.reuse_port)

    @property
    def url(self) -> str:
        """Where the endpoint is, for this machine."""
        host = "127.0.0.1" if self.host in ("", "0.0.0.0", "::") else self.host
        return f"http://{f'[{host}]' if ':' in host else host}:{self.port}"

    def read(
        self, served: Served, body: bytes | bytearray, length: int, respond: Respond
    ) -> tuple[InferRequest, ResponseFormat]:
        """Read and check a request whose first ``length`` bytes are JSON.

        Raises
        ------
        TritonError
            As Triton complains of what is wrong with it.
        """
        templates = self._templates.get((served.name, served.version))
        if templates is None or templates.spec is not served.spec:  # loaded since
            templates = self._begin_templates(served)
        made = templates.make(body, length, respond)
        if made is None:
            request, answer = made = self.reader.read(served.spec, served.version, body, length, respond)
            served.check(request)
            templates.learn(body, length, request, answer)
        return made

    def _begin_templates(self, served: Served) -> RequestTemplates:
        """Those of a model that was loaded; what was known of models that are gone is forgotten."""
        there = {(each.name, each.version) for each in self.engine.models()}
        self._templates = {model: known for model, known in self._templates.items() if model in there}
        templates = self._templates[served.name, served.version] = RequestTemplates(served.spec)
        return templates

    def start_request(self, server_conn: object, request_conn: httputil.HTTPConnection) -> httputil.HTTPMessageDelegate:
        """A request begins (Tornado's interface)."""
        return _Message(self, server_conn, cast(Exchange, request_conn))


@dataclass(frozen=True, slots=True)
class _Inference:
    """What the head of an inference request says."""

    model: str
    version: str | None
    encoding: str | None
    json_length: str | None
    accepted: str | None
    forwarded: dict[str, str] | None
    trace_context: dict[str, str]


class _Message(httputil.HTTPMessageDelegate):
    """One request: inference is handled here, everything else by the application."""

    __slots__ = (
        "_answer", "_begun_ns", "_chunks", "_endpoint", "_other", "_request", "_route", "_served",
        "_server_connection", "_trace", "connection",
    )  # fmt: skip

    def __init__(self, endpoint: HttpEndpoint, server_connection: object, connection: Exchange) -> None:
        self._endpoint = endpoint
        self._server_connection = server_connection
        self.connection = connection
        self._chunks: list[bytes] = []
        self._other: httputil.HTTPMessageDelegate | None = None
        self._request: InferRequest | None = None
        self._trace: Trace | None = None

    # --- Tornado's interface --------------------------------------------------------------------

    def headers_received(self, start_line: Any, headers: Any) -> None:
        endpoint = self._endpoint
        if isinstance(headers, LightHeaders) and isinstance(headers.route, _Inference):
            self._begin(headers.route)
            return
        if endpoint.guard is not None:
            refusal = endpoint.guard.refusal(headers.get("Host"), headers.get("Origin"))
            if refusal is not None:
                self._other = _Refused(self, refusal, JSON)
                return
        restriction = endpoint.restrictions.refusal(start_line.path, headers.get)
        if restriction is not None:
            self._other = _Refused(self, restriction, TEXT)
            return
        found = _INFER.fullmatch(routed_path(start_line.path)) if start_line.method == "POST" else None
        if found is not None:
            model, version = found.groups()
            route = _Inference(
                model,
                version,
                headers.get("Content-Encoding"),
                headers.get("Inference-Header-Content-Length"),
                headers.get("Accept-Encoding"),
                _matching(headers, endpoint.forwarded),
                {name: value for name in _TRACE_CONTEXT if (value := headers.get(name)) is not None},
            )
            if isinstance(headers, LightHeaders):
                headers.route = route
            self._begin(route)
            return
        if start_line.method not in web.RequestHandler.SUPPORTED_METHODS:
            # Tornado knows no such method; any that no route has will do.
            start_line = start_line._replace(method="OPTIONS")
        self._other = endpoint.application.start_request(self._server_connection, self.connection)
        if isinstance(headers, LightHeaders):
            headers = headers.full()
            headers.setdefault("Host", "localhost")  # Tornado wants one, Triton does not
        self._other.headers_received(start_line, headers)

    def _begin(self, route: _Inference) -> None:
        self._route = route
        if self._endpoint.engine.tracer.active:
            self._begun_ns = time.monotonic_ns()

    def data_received(self, chunk: bytes) -> None:
        if self._other is not None:
            self._other.data_received(chunk)
        else:
            self._chunks.append(chunk)

    def finish(self) -> None:
        if self._other is not None:
            self._other.finish()
        else:
            self._infer()

    def on_connection_close(self) -> None:
        if self._other is not None:
            self._other.on_connection_close()
        self._chunks.clear()  # a circle of objects outlives the connection for a while, but not with a large body

    # --- inference ------------------------------------------------------------------------------

    def _infer(self) -> None:
        endpoint = self._endpoint
        route = self._route
        chunks = self._chunks
        content_type = TEXT
        try:
            self._served = served = endpoint.engine.model(route.model, version_number(route.version))
            if served.decoupled:
                raise UnsupportedError("HTTP end point doesn't support models with decoupled transaction policy")
            if endpoint.engine.tracer.active:
                self._start_trace()
            # Views of a bytearray may be written to: a model that does needs no copy of a large input.
            body: bytes | bytearray = chunks[0] if len(chunks) == 1 else bytearray().join(chunks)
            if route.encoding is not None:
                body = decompress(body, route.encoding, endpoint.options.max_input_size)
            length = header_length(route.json_length, body)
            content_type = JSON
            request, self._answer = endpoint.read(served, body, length, self._answered)
            self._request = request
            if route.forwarded:
                request.parameters.update(route.forwarded)
            self.connection.set_close_callback(self._closed)
            if self._trace is None:
                served.submit(request)
            else:
                self._trace.submit(served, request)
        except TritonError as error:
            log_failed("" if self._request is None else self._request.id, error)
            self._fail(error, TEXT if isinstance(error, IncompleteStringError) else content_type)
        except Exception as error:
            self._fail(_unexpected(error), content_type)

    def _answered(self, request: InferRequest, response: InferResponse) -> None:
        self._request = None  # or request and message would keep each other alive
        if self._trace is not None:
            self._trace.responded(response, time.monotonic_ns())
        if response.error is not None:
            self._fail(response.error, TEXT)
            return
        try:
            body, json_length = write_response(self._served, request, response, self._answer)
        except TritonError as error:
            self._fail(error, TEXT)
            return
        except Exception as error:
            self._fail(_unexpected(error), TEXT)
            return
        accepted = self._route.accepted
        encoding = choose_encoding(accepted) if accepted else "identity"
        if encoding != "identity":
            self._respond_compressed(body, json_length, encoding)
            return
        length = sum(map(len, body))
        if self._trace is not None:
            self._trace.stamp("HTTP_SEND_START", time.monotonic_ns())
        head = _BINARY % (json_length, length) if json_length else _PLAIN % length
        self.connection.respond(b"".join((head, *body)))
        self._end_trace()

    def _respond_compressed(self, body: list[bytes | memoryview], json_length: int, encoding: str) -> None:
        headers = [f"Content-Encoding: {encoding}"]
        if json_length:
            headers.append(f"Inference-Header-Content-Length: {json_length}")
        content_type = "application/octet-stream" if json_length else JSON
        self.respond(200, content_type, compress(b"".join(body), encoding), headers)

    def _fail(self, error: TritonError, content_type: str) -> None:
        self._request = None
        headers = ["Accept-Encoding: gzip, deflate"] if error.message == "Unsupported compression type" else []
        self.respond(error.status.http, content_type, error_body(client_text(error)), headers)

    def respond(self, status: int, content_type: str, body: bytes, headers: list[str] | None = None) -> None:
        """Send a whole answer."""
        if self._trace is not None:
            self._trace.stamp("HTTP_SEND_START", time.monotonic_ns())
        lines = [*(headers or ()), f"Content-Type: {content_type}", f"Content-Length: {len(body)}", "", ""]
        self.connection.respond(_STATUS_LINES[status] + "\r\n".join(lines).encode() + body)
        self._end_trace()

    def _start_trace(self) -> None:
        self._trace = self._endpoint.engine.tracer.sample(self._route.model, self._route.trace_context)
        if self._trace is not None:
            now = time.monotonic_ns()
            self._trace.stamp("HTTP_RECV_START", getattr(self, "_begun_ns", now))
            self._trace.stamp("HTTP_RECV_END", now)

    def _end_trace(self) -> None:
        if self._trace is not None:
            self._trace.stamp("HTTP_SEND_END", time.monotonic_ns())
            self._trace.finish()
            self._trace = None

    def _closed(self) -> None:
        if self._request is not None:
            self._served.cancel(self._request)


def _matching(headers: Any, pattern: re.Pattern[str] | None) -> dict[str, str] | None:
    """The headers that are forwarded."""
    if pattern is None:
        return None
    full = headers.full() if isinstance(headers, LightHeaders) else headers
    return {name.lower(): value for name, value in full.items() if pattern.search(name)}


def _unexpected(error: Exception) -> InternalError:
    """A fault of this server: the client hears of it, and the log has the rest."""
    logger.error("an inference request failed unexpectedly", exc_info=error)
    return InternalError(f"{type(error).__name__}: {error}")


class _Refused(httputil.HTTPMessageDelegate):
    """Reads a request to its end and refuses it."""

    def __init__(self, message: _Message, reason: str, content_type: str) -> None:
        self._message = message
        self._reason = reason
        self._content_type = content_type

    def finish(self) -> None:
        self._message.respond(403, self._content_type, error_body(self._reason))
