"""The HTTP/REST endpoint: inference requests are handled here directly, all others by a Tornado application.

Nearly every request of a server is an inference request, so its route bypasses the web framework: the body goes
directly to the request reader, and the response is sent with one write.
"""

from __future__ import annotations

import re
import time
from typing import cast

from tornado import httputil, web

from tritonnb.core.messages import InferRequest, Respond
from tritonnb.endpoints.endpoint import Endpoint, Transport
from tritonnb.endpoints.http.application import make_application
from tritonnb.endpoints.http.handlers.metadata import JSON, TEXT, error_body
from tritonnb.endpoints.http.host_origin_check import HostOriginCheck
from tritonnb.endpoints.http.infer_request import read_request
from tritonnb.endpoints.http.inference import Inference, InferenceHead, InferenceModel, response_bytes
from tritonnb.endpoints.http.options import HttpOptions
from tritonnb.endpoints.http.raw_path import routed_path
from tritonnb.endpoints.http.request_cache import HttpRequestCache
from tritonnb.endpoints.http.restrictions import Restrictions
from tritonnb.endpoints.http.transport.exchange import Exchange, LightHeaders
from tritonnb.endpoints.http.transport.server import make_server
from tritonnb.endpoints.openai.access import Access
from tritonnb.endpoints.openai.application import PATHS, rules
from tritonnb.endpoints.openai.options import OpenAiOptions
from tritonnb.endpoints.requests import compile_forward_pattern
from tritonnb.endpoints.tensors import ResponseFormat
from tritonnb.runtime.engine import Engine

_INFER = re.compile(r"/v2/models/([^/]+)(?:/versions/(\d+))?/infer(?:\?.*)?", re.ASCII)
#: The headers of a request: our parser's or Tornado's.
RequestHeaders = LightHeaders | httputil.HTTPHeaders
_TRACE_CONTEXT = ("traceparent", "tracestate")  # W3C Trace Context


class HttpEndpoint(Endpoint, httputil.HTTPServerConnectionDelegate):
    """Serves an engine over HTTP, on the running event loop.

    Parameters
    ----------
    engine : Engine
    host : str
    port : int
        0 for any free port; the attribute `port` has its number after `start`.
    options : HttpOptions
    openai : OpenAiOptions, optional
        Serve OpenAI's API, too, under ``/v1``.
    """

    def __init__(
        self, engine: Engine, *, host: str, port: int, options: HttpOptions, openai: OpenAiOptions | None = None
    ) -> None:
        super().__init__(host, port)
        self.engine = engine
        self.options = options
        self.restrictions = Restrictions(options.restricted_api)
        self.forward_pattern = compile_forward_pattern(options.header_forward_pattern)
        self.host_origin_check = None if options.allow_foreign else HostOriginCheck(host, options.allowed_hosts)
        self.has_openai = openai is not None
        others = []
        if openai is not None:
            access = Access(self.host_origin_check, self.restrictions, openai.api_key)
            others = rules(engine, options.max_input_size, access)
        self.application = make_application(engine, options.max_input_size, others)
        self._request_caches: dict[tuple[str, int], HttpRequestCache] = {}

    def make_transport(self) -> Transport:
        """Make the HTTP server that the options name."""
        options = self.options
        return make_server(options.transport, self, max_body_size=options.max_body_size, reuse_port=options.reuse_port)

    @property
    def url(self) -> str:
        """The URL of the endpoint for programs on this machine."""
        host = "127.0.0.1" if self.host in ("", "0.0.0.0", "::") else self.host
        return f"http://{f'[{host}]' if ':' in host else host}:{self.port}"

    def read(
        self, served: InferenceModel, body: bytes | bytearray, length: int, respond: Respond
    ) -> tuple[InferRequest, ResponseFormat]:
        """Read and check a request whose first ``length`` bytes are JSON.

        Raises
        ------
        TritonError
            If the request is invalid; with Triton's text.
        """
        cache = self._request_caches.get((served.name, served.version))
        if cache is None or cache.spec is not served.spec:  # the model was loaded after the cache was made
            cache = self._make_request_cache(served)
        cached = cache.find(body, length, respond)
        if cached is not None:
            return cached
        request, response_format = read_request(
            served.spec, served.version, body, length, self.options.max_input_size, self.engine.shared_memory, respond
        )
        served.check(request)
        cache.store(body, length, request, response_format)
        return request, response_format

    def _make_request_cache(self, served: InferenceModel) -> HttpRequestCache:
        """Make the cache of a model that was loaded; the caches of unloaded models are dropped."""
        loaded = {(model.name, model.version) for model in self.engine.models()}
        self._request_caches = {model: cache for model, cache in self._request_caches.items() if model in loaded}
        cache = self._request_caches[served.name, served.version] = HttpRequestCache(served.spec)
        return cache

    def start_request(self, server_conn: object, request_conn: httputil.HTTPConnection) -> httputil.HTTPMessageDelegate:
        """Make the delegate of a new request (Tornado's interface)."""
        return _RequestDelegate(self, server_conn, cast(Exchange, request_conn))


class _RequestDelegate(httputil.HTTPMessageDelegate):
    """Receives one request: an inference is begun here, everything else goes to another delegate."""

    __slots__ = (
        "_chunks", "_connection", "_delegate", "_endpoint", "_exchange", "_inference_head", "_received_ns",
    )  # fmt: skip

    def __init__(self, endpoint: HttpEndpoint, connection: object, exchange: Exchange) -> None:
        self._endpoint = endpoint
        self._connection = connection
        self._exchange = exchange
        self._chunks: list[bytes] = []
        self._delegate: httputil.HTTPMessageDelegate | None = None  # of a request that is not an inference
        self._inference_head: InferenceHead | None = None
        self._received_ns = 0

    def headers_received(  # type: ignore[override]
        self, start_line: httputil.RequestStartLine, headers: RequestHeaders
    ) -> None:
        # A client that repeats a head byte for byte gets the same headers object from the transport's head cache
        # (`HeadCache`). Its `route` is set only after the host, origin and restriction checks have accepted the
        # head. They depend on nothing but the head and the endpoint's constant options, so they are skipped here.
        if isinstance(headers, LightHeaders) and isinstance(headers.route, InferenceHead):
            self._expect_inference(headers.route)
            return
        endpoint = self._endpoint
        if endpoint.has_openai and PATHS.fullmatch(start_line.path):  # has its own checks and errors
            self._hand_to_application(start_line, headers)
            return
        if endpoint.host_origin_check is not None:
            refusal = endpoint.host_origin_check.refusal(headers.get("Host"), headers.get("Origin"))
            if refusal is not None:
                self._delegate = _RefusingDelegate(self._exchange, refusal, JSON)
                return
        restriction = endpoint.restrictions.refusal(start_line.path, headers.get)
        if restriction is not None:
            self._delegate = _RefusingDelegate(self._exchange, restriction, TEXT)
            return
        match = _INFER.fullmatch(routed_path(start_line.path)) if start_line.method == "POST" else None
        if match is None:
            self._hand_to_application(start_line, headers)
            return
        head = _parse_head(match, headers, endpoint.forward_pattern)
        if isinstance(headers, LightHeaders):
            headers.route = head
        self._expect_inference(head)

    def _expect_inference(self, head: InferenceHead) -> None:
        self._inference_head = head
        if self._endpoint.engine.tracer.active:
            self._received_ns = time.monotonic_ns()

    def _hand_to_application(self, start_line: httputil.RequestStartLine, headers: RequestHeaders) -> None:
        if start_line.method not in web.RequestHandler.SUPPORTED_METHODS:
            # Tornado rejects unknown methods by itself; OPTIONS has no handler, so it gets Triton's 405.
            start_line = start_line._replace(method="OPTIONS")
        self._delegate = self._endpoint.application.start_request(self._connection, self._exchange)
        if isinstance(headers, LightHeaders):
            headers = headers.full()
            headers.setdefault("Host", "localhost")  # Tornado requires it, Triton does not
        self._delegate.headers_received(start_line, headers)

    def data_received(self, chunk: bytes) -> None:
        if self._delegate is not None:
            self._delegate.data_received(chunk)
        else:
            self._chunks.append(chunk)

    def finish(self) -> None:
        if self._delegate is not None:
            self._delegate.finish()
        elif self._inference_head is not None:
            chunks, self._chunks = self._chunks, []
            Inference(self._endpoint, self._inference_head, self._exchange, self._received_ns).begin(chunks)

    def on_connection_close(self) -> None:
        if self._delegate is not None:
            self._delegate.on_connection_close()
        self._chunks.clear()  # a reference cycle may keep the delegate alive for a while, but not a large body


class _RefusingDelegate(httputil.HTTPMessageDelegate):
    """Reads a request to its end and refuses it with 403."""

    def __init__(self, exchange: Exchange, reason: str, content_type: str) -> None:
        self._exchange = exchange
        self._reason = reason
        self._content_type = content_type

    def finish(self) -> None:
        self._exchange.respond(response_bytes(403, self._content_type, error_body(self._reason)))


def _parse_head(
    match: re.Match[str], headers: RequestHeaders, forward_pattern: re.Pattern[str] | None
) -> InferenceHead:
    model, version = match.groups()
    return InferenceHead(
        model,
        version,
        content_encoding=headers.get("Content-Encoding"),
        accept_encoding=headers.get("Accept-Encoding"),
        json_length=headers.get("Inference-Header-Content-Length"),
        forwarded_headers=_forwarded_headers(headers, forward_pattern),
        trace_context={name: value for name in _TRACE_CONTEXT if (value := headers.get(name)) is not None},
    )


def _forwarded_headers(headers: RequestHeaders, pattern: re.Pattern[str] | None) -> dict[str, str] | None:
    if pattern is None:
        return None
    full = headers.full() if isinstance(headers, LightHeaders) else headers
    return {name.lower(): value for name, value in full.items() if pattern.search(name)}
