"""What receives the requests of the HTTP endpoint: inference requests bypass the web framework.

The classes have the methods of Tornado's ``HTTPMessageDelegate``, but do not inherit from it: it is not compiled.
"""

from __future__ import annotations

import re
import time
from typing import TYPE_CHECKING

from tornado import httputil

from tritonnb.endpoints.http.handlers.metadata import error_body
from tritonnb.endpoints.http.inference import (
    Inference,
    InferenceHead,
    InferenceServices,
    RespondingConnection,
    response_bytes,
)
from tritonnb.endpoints.http.raw_path import routed_path
from tritonnb.endpoints.http.routes import OPENAI_PATHS, V2_ROUTES
from tritonnb.endpoints.http.transport.exchange import LightHeaders, MessageDelegate

if TYPE_CHECKING:
    from tritonnb.endpoints.http.endpoint import HttpEndpoint

_INFER = next(route.pattern for route in V2_ROUTES if route.name == "infer")
_TRACE_CONTEXT = ("traceparent", "tracestate")  # W3C Trace Context


class RequestDelegate:
    """Receives one request: an inference is begun here, everything else goes to another delegate.

    Parameters
    ----------
    endpoint : HttpEndpoint
    connection : object
        Tornado's connection, for its application.
    exchange : Exchange
        Where the response goes.
    """

    __slots__ = (
        "_chunks", "_connection", "_delegate", "_endpoint", "_exchange", "_inference_head", "_received_ns", "_services",
    )  # fmt: skip

    def __init__(self, endpoint: HttpEndpoint, connection: object, exchange: RespondingConnection) -> None:
        self._endpoint = endpoint
        self._services: InferenceServices = endpoint.services
        self._connection = connection
        self._exchange = exchange
        self._chunks: list[bytes] = []
        self._delegate: MessageDelegate | None = None  # of a request that is not an inference
        self._inference_head: InferenceHead | None = None
        self._received_ns = 0

    def headers_received(self, start_line: httputil.RequestStartLine, headers: LightHeaders) -> None:
        """The head has arrived."""
        # A client that repeats a head byte for byte gets the same headers object from the transport's head cache
        # (`HeadCache`). Its `route` is set only after the host, origin and restriction checks have accepted the
        # head. They depend on nothing but the head and the endpoint's constant options, so they are skipped here.
        if isinstance(headers.route, InferenceHead):
            self._expect_inference(headers.route)
            return
        endpoint = self._endpoint
        if endpoint.has_openai and OPENAI_PATHS.fullmatch(start_line.path):  # has its own checks and errors
            self._hand_to_application(start_line, headers)
            return
        refusal = endpoint.admission.refusal(start_line.path, headers.get)
        if refusal is not None:
            reason, content_type = refusal
            self._delegate = _RefusingDelegate(self._exchange, reason, content_type)
            return
        match = _INFER.fullmatch(routed_path(start_line.path)) if start_line.method == "POST" else None
        if match is None:
            self._hand_to_application(start_line, headers)
            return
        head = _parse_head(match, headers, endpoint.forward_pattern)
        headers.route = head
        self._expect_inference(head)

    def _expect_inference(self, head: InferenceHead) -> None:
        self._inference_head = head
        if self._services.tracer.active:
            self._received_ns = time.monotonic_ns()

    def _hand_to_application(self, start_line: httputil.RequestStartLine, headers: LightHeaders) -> None:
        delegate: MessageDelegate = self._endpoint.application.start_request(self._connection, self._exchange)
        self._delegate = delegate
        delegate.headers_received(start_line, headers)

    def data_received(self, chunk: bytes) -> None:
        """A part of the body has arrived."""
        if self._delegate is not None:
            self._delegate.data_received(chunk)
        else:
            self._chunks.append(chunk)

    def finish(self) -> None:
        """The request is complete."""
        if self._delegate is not None:
            self._delegate.finish()
        elif self._inference_head is not None:
            chunks, self._chunks = self._chunks, []
            Inference(self._services, self._inference_head, self._exchange, self._received_ns).begin(chunks)

    def on_connection_close(self) -> None:
        """The client has disconnected before the request was complete."""
        if self._delegate is not None:
            self._delegate.on_connection_close()
        self._chunks.clear()  # a reference cycle may keep the delegate alive for a while, but not a large body


class _RefusingDelegate:
    """Reads a request to its end and refuses it with 403."""

    def __init__(self, exchange: RespondingConnection, reason: str, content_type: str) -> None:
        self._exchange = exchange
        self._reason = reason
        self._content_type = content_type

    def headers_received(self, start_line: httputil.RequestStartLine, headers: LightHeaders) -> None:
        """Nothing of the request matters any more."""

    def data_received(self, chunk: bytes) -> None:
        """Nothing of the request matters any more."""

    def on_connection_close(self) -> None:
        """Nothing was begun."""

    def finish(self) -> None:
        """The request is complete."""
        self._exchange.respond(response_bytes(403, self._content_type, error_body(self._reason)))


def _parse_head(match: re.Match[str], headers: LightHeaders, forward_pattern: re.Pattern[str] | None) -> InferenceHead:
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


def _forwarded_headers(headers: LightHeaders, pattern: re.Pattern[str] | None) -> dict[str, str] | None:
    if pattern is None:
        return None
    return {name.lower(): value for name, value in headers.full().items() if pattern.search(name)}
