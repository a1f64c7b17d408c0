"""One inference over HTTP: read the request, submit it, write the response, cancel it.

Inference requests bypass the web framework. `HttpRequestHandler` has the methods of Tornado's ``HTTPMessageDelegate``,
but does not inherit from it: it is not compiled.
"""

from __future__ import annotations

import asyncio
import functools
import re
import time
from collections.abc import Callable
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any, Final, Protocol, TypeAlias

from tornado import httputil

from tritonnb.core.errors import IncompleteStringError, InvalidArgumentError, TritonError, UnsupportedError
from tritonnb.core.messages import InferRequest, InferResponse
from tritonnb.endpoints.compression import choose_encoding, compress, decompress, is_long
from tritonnb.endpoints.http.admission import Admission
from tritonnb.endpoints.http.handlers.metadata import JSON, TEXT, error_body
from tritonnb.endpoints.http.infer_response import write_response
from tritonnb.endpoints.http.options import RAISE_BODY_SIZE, too_large
from tritonnb.endpoints.http.request_reader import RequestReader, header_length, plain_number, takes_long
from tritonnb.endpoints.http.routes import OPENAI_PATHS, V2_ROUTES, routed_path
from tritonnb.endpoints.http.transport.exchange import LARGE_BODY, Exchange, LightHeaders, MessageDelegate
from tritonnb.endpoints.http.transport.tornado_bridge import tornado_headers
from tritonnb.endpoints.long_work import LONG, LongWork
from tritonnb.endpoints.protocols import InferenceModel, Models
from tritonnb.endpoints.request_rules import check_forwarded, client_text, log_failed, version_number
from tritonnb.endpoints.tensors import ResponseFormat, response_size
from tritonnb.engine.submission import Submission, as_triton_error
from tritonnb.telemetry.tracing import Trace, Tracer

# Names of other modules are looked up in two dictionaries each time, these are not.
_JSON: Final = JSON
_TEXT: Final = TEXT
_JSON_HEAD: Final = "HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: "
_BINARY_HEAD: Final = "HTTP/1.1 200 OK\r\nContent-Type: application/octet-stream\r\nInference-Header-Content-Length: "

#: Removes the content encoding of a body; the last argument is its limit: `decompress`.
Decompress: TypeAlias = Callable[[bytes | bytearray | memoryview, str | None, int], bytes | bytearray | memoryview]
#: The head of a response, and its body if that is not joined to the head.
_Written: TypeAlias = tuple[bytes, list[bytes | memoryview] | None]
_decompress: Final = decompress
_INFER = next(route.pattern for route in V2_ROUTES if route.name == "infer")
_TRACE_CONTEXT = ("traceparent", "tracestate")  # W3C Trace Context


def response_bytes(status: int, content_type: str, body: bytes, headers: tuple[str, ...] = ()) -> bytes:
    """Return a complete response: status line, headers, and body."""
    lines = [f"HTTP/1.1 {status} {HTTPStatus(status).phrase}", *headers]
    lines += (f"Content-Type: {content_type}", f"Content-Length: {len(body)}", "", "")
    return "\r\n".join(lines).encode() + body


@dataclass(slots=True)
class InferenceServices:
    """The services that the inferences of an endpoint use, without a lookup in classes that are not compiled.

    Attributes
    ----------
    models : Models
    tracer : Tracer
    reader : RequestReader
    max_input_size, max_body_size : int
        Of `HttpOptions`, in bytes.
    long_work : LongWork
    """

    models: Models
    tracer: Tracer
    reader: RequestReader
    max_input_size: int
    max_body_size: int
    long_work: LongWork


@dataclass(frozen=True, slots=True)
class InferRoute:
    """The request line and the headers of an inference request, parsed.

    Attributes
    ----------
    model : str
    version : str or None
    content_encoding, accept_encoding : str or None
    json_length : str or None
        ``Inference-Header-Content-Length``.
    json_size : int
        Its number; -1 if it is missing, or no plain number.
    forwarded_headers : dict of str to str or None
        They become request parameters; None if no headers are forwarded.
    trace_context : dict of str to str
        The client's W3C trace context.
    """

    model: str
    version: str | None
    content_encoding: str | None
    accept_encoding: str | None
    json_length: str | None
    json_size: int
    forwarded_headers: dict[str, str] | None
    trace_context: dict[str, str]


class Inference:
    """A request in progress.

    Parameters
    ----------
    services : InferenceServices
    head : InferRoute
    exchange : Exchange
        Where the response goes.
    received_ns : int
        When the head arrived, on the monotonic clock; 0 if no request is traced.
    """

    __slots__ = (
        "_content_type", "_exchange", "_head", "_received_ns", "_response_format", "_served", "_services",
        "_submission", "_trace",
    )  # fmt: skip

    def __init__(self, services: InferenceServices, head: InferRoute, exchange: Exchange, received_ns: int) -> None:
        self._services = services
        self._head = head
        self._exchange = exchange
        self._received_ns = received_ns
        self._served: InferenceModel | None = None
        self._content_type = _TEXT  # of a refusal
        self._submission = Submission(self._responded)
        self._response_format: ResponseFormat | None = None
        self._trace: Trace | None = None

    def submit(self, chunks: list[bytes | memoryview], decompress: Decompress | None = None) -> None:
        """Read the request and submit it to its model; a refused request is answered at once.

        Parameters
        ----------
        chunks : list of bytes or memoryview
            The body; a large body is a single writeable `memoryview`.
        decompress : callable, optional
            Called with the body, its encoding and the limit; `decompress` by default.
        """
        services = self._services
        head = self._head
        served: InferenceModel | None = None
        try:
            # The order of Triton's checks: model, decoupled, encoding, length, JSON. A request that is wrong twice gets
            # the first error.
            served = services.models.get(head.model, -1 if head.version is None else version_number(head.version))
            self._served = served
            if served.decoupled:
                raise UnsupportedError("HTTP end point doesn't support models with decoupled transaction policy")
            if services.tracer.active:
                self._start_trace()
            # Views of a bytearray are writable: a model that may write to its inputs does not need a copy.
            body: bytes | bytearray | memoryview
            raw: bytes | None = None  # of which the JSON is the beginning
            if len(chunks) != 1:
                body = bytearray().join(chunks)
            elif head.json_length is None or not isinstance(chunks[0], bytes):
                body = chunks[0]
            else:
                raw = chunks[0]
                body = bytearray(raw)
            if head.content_encoding is not None:
                raw = None
                body = (decompress or _decompress)(body, head.content_encoding, services.max_input_size)
                if len(body) > services.max_body_size:
                    raise InvalidArgumentError(
                        "decompressed " + too_large(services.max_body_size, len(body), RAISE_BODY_SIZE)
                    )
            length = head.json_size
            if not 0 <= length <= len(body):
                length = header_length(head.json_length, body)
            # Up to here Triton labels its errors text/plain, although they are JSON; what the reader finds is labelled
            # application/json.
            self._content_type = _JSON
            if takes_long(served.spec, body, length):
                self._read_aside(served, body, length)
                return
            raw = None if raw is None else raw[:length]
            request, self._response_format = services.reader.read(served, body, length, raw)
        except Exception as error:
            self._submission.refuse(error, served)
            return
        self._start(served, request)

    def _read_aside(self, served: InferenceModel, body: bytes | bytearray | memoryview, length: int) -> None:
        """Read a long request on another thread."""
        read = functools.partial(self._services.reader.read_long, served, body, length)
        reading = asyncio.ensure_future(self._services.long_work.run(read))

        def start(done: asyncio.Future[tuple[InferRequest, ResponseFormat]]) -> None:
            if done.cancelled():
                return
            try:
                request, self._response_format = done.result()
            except Exception as error:
                self._submission.refuse(error, served)
                return
            self._start(served, request)

        self._exchange.holds_next = True
        self._exchange.set_close_callback(lambda: _cancel(reading))
        reading.add_done_callback(start)

    def _start(self, served: InferenceModel, request: InferRequest) -> None:
        if self._head.forwarded_headers:
            try:
                request.parameters.update(check_forwarded(self._head.forwarded_headers))
            except Exception as error:
                self._submission.refuse(error, served)
                return
        # Before `submit`, which may respond at once: a callback set later would stay on a finished exchange.
        self._exchange.set_close_callback(self._submission.cancel)
        self._submission.submit(served, request, self._trace)

    def _responded(self, response: InferResponse) -> None:
        request, error = self._submission.request, response.error
        if error is not None:
            content_type = TEXT
            if self._submission.refusal is not None:
                log_failed("" if request is None else request.id, error)
                # One validation error is found so late in Triton that it has the label of a failed execution.
                content_type = TEXT if isinstance(error, IncompleteStringError) else self._content_type
            self._fail(error, content_type)
            return
        assert self._served is not None
        assert self._response_format is not None
        assert request is not None
        accepted = self._head.accept_encoding
        encoding = choose_encoding(accepted) if accepted else "identity"
        is_copied = encoding == "identity" and self._response_format.only_bytes
        if response_size(response, is_copied) > LONG:
            self._write_aside(request, response, encoding)
            return
        response_head, body = self._write(request, response, encoding)
        self._send(response_head, body)

    def _write(self, request: InferRequest, response: InferResponse, encoding: str) -> _Written:
        """Return the head and the rest of a response."""
        assert self._served is not None
        assert self._response_format is not None
        body, json_length = write_response(self._served, request, response, self._response_format)
        if encoding != "identity":
            return self._compressed(body, json_length, encoding), None
        length = 0
        for part in body:
            length += len(part)
        # Text is joined and encoded in a third of the time that `%` of bytes takes.
        if json_length:
            response_head = f"{_BINARY_HEAD}{json_length}\r\nContent-Length: {length}\r\n\r\n".encode()
        else:
            response_head = f"{_JSON_HEAD}{length}\r\n\r\n".encode()
        # One buffer for a small response, and no copy of a large one.
        if length < LARGE_BODY:
            return b"".join((response_head, *body)), None
        return response_head, body

    def _write_aside(self, request: InferRequest, response: InferResponse, encoding: str) -> None:
        """Write a long response on another thread."""
        write = functools.partial(self._write, request, response, encoding)
        writing = asyncio.ensure_future(self._services.long_work.run(write))

        def send(done: asyncio.Future[_Written]) -> None:
            if done.cancelled():
                return
            try:
                head, body = done.result()
            except Exception as error:
                self._fail(as_triton_error(error), TEXT)
            else:
                self._send(head, body)

        self._exchange.set_close_callback(lambda: _cancel(writing))
        writing.add_done_callback(send)

    def _compressed(self, body: list[bytes | memoryview], json_length: int, encoding: str) -> bytes:
        headers: tuple[str, ...] = (f"Content-Encoding: {encoding}",)
        if json_length:
            headers += (f"Inference-Header-Content-Length: {json_length}",)
        content_type = "application/octet-stream" if json_length else JSON
        # Only successful inferences are compressed, as on Triton: errors, metadata and generate never are.
        return response_bytes(200, content_type, compress(b"".join(body), encoding), headers)

    def _fail(self, error: TritonError, content_type: str) -> None:
        # Triton adds the header to this error alone, so that a client learns what it may send.
        headers = ("Accept-Encoding: gzip, deflate",) if error.message == "Unsupported compression type" else ()
        self._send(response_bytes(error.status.http, content_type, error_body(client_text(error)), headers))

    def _send(self, response: bytes, tensors: list[bytes | memoryview] | None = None) -> None:
        trace, self._trace = self._trace, None
        if trace is None:
            self._exchange.respond(response, tensors)
            return
        trace.stamp("HTTP_SEND_START", time.monotonic_ns())
        self._exchange.respond(response, tensors)
        trace.stamp("HTTP_SEND_END", time.monotonic_ns())
        trace.finish()

    def _start_trace(self) -> None:
        self._trace = self._services.tracer.sample(self._head.model, self._head.trace_context)
        if self._trace is not None:
            now = time.monotonic_ns()
            self._trace.stamp("HTTP_RECV_START", self._received_ns or now)
            self._trace.stamp("HTTP_RECV_END", now)


class RequestEndpoint(Protocol):
    """What the handler of a request needs of its endpoint, an `HttpEndpoint`.

    Attributes
    ----------
    services : InferenceServices
    admission : Admission
    forward_pattern : re.Pattern or None
        Of the names of headers that are forwarded.
    has_openai : bool
        Whether it has the routes of OpenAI's API.
    """

    services: InferenceServices
    admission: Admission
    forward_pattern: re.Pattern[str] | None
    has_openai: bool

    def start_in_application(self, exchange: Exchange) -> MessageDelegate:
        """Make the delegate of a request that is not an inference."""


class HttpRequestHandler:
    """The receiver of one request: an inference is started here, everything else goes to another delegate.

    Parameters
    ----------
    endpoint : RequestEndpoint
    exchange : Exchange
        Where the response goes.
    """

    __slots__ = (
        "_chunks", "_delegate", "_endpoint", "_exchange", "_inference_head", "_received_ns", "_refusal", "_services",
    )  # fmt: skip

    def __init__(self, endpoint: RequestEndpoint, exchange: Exchange) -> None:
        self._endpoint = endpoint
        self._services: InferenceServices = endpoint.services
        self._exchange = exchange
        self._chunks: list[bytes | memoryview] = []
        self._delegate: MessageDelegate | None = None  # of a request that is not an inference
        self._inference_head: InferRoute | None = None
        self._refusal = b""  # the response to a request that is refused
        self._received_ns = 0

    def headers_received(self, start_line: httputil.RequestStartLine, headers: LightHeaders) -> None:
        """Called when the head has arrived."""
        # A client that repeats a head byte for byte gets the same headers object from the transport's head cache
        # (`HeadCache`). Its `route` is set only after the host, origin and restriction checks have accepted the
        # head. They depend on nothing but the head and the endpoint's constant options, so they are skipped here.
        if isinstance(headers.route, InferRoute):
            self._expect_inference(headers.route)
            return
        endpoint = self._endpoint
        path = routed_path(start_line.path)  # as the application matches it, which may have handlers for any path
        if endpoint.has_openai and OPENAI_PATHS.fullmatch(path):  # has its own checks and errors
            self._hand_to_application(start_line, headers)
            return
        refusal = endpoint.admission.refusal(start_line.path, headers.get)
        if refusal is not None:
            reason, content_type = refusal
            self._refusal = response_bytes(403, content_type, error_body(reason))
            return
        match = _INFER.fullmatch(path) if start_line.method == "POST" else None
        if match is None:
            self._hand_to_application(start_line, headers)
            return
        head = _parse_head(match, headers, endpoint.forward_pattern)
        headers.route = head
        self._expect_inference(head)

    def _expect_inference(self, head: InferRoute) -> None:
        self._inference_head = head
        self._exchange.on_body = self._chunks.append
        if self._services.tracer.active:
            self._received_ns = time.monotonic_ns()

    def _hand_to_application(self, start_line: httputil.RequestStartLine, headers: LightHeaders) -> None:
        delegate: MessageDelegate = self._endpoint.start_in_application(self._exchange)
        self._delegate = delegate
        delegate.headers_received(start_line, headers)

    def data_received(self, chunk: bytes) -> None:
        """Called when a part of the body has arrived."""
        if self._delegate is not None:
            self._delegate.data_received(chunk)
        elif not self._refusal:
            self._chunks.append(chunk)

    def finish(self) -> None:
        """Called when the request is complete."""
        if self._delegate is not None:
            self._delegate.finish()
        elif self._inference_head is not None:
            chunks, self._chunks = self._chunks, []
            inference = Inference(self._services, self._inference_head, self._exchange, self._received_ns)
            encoding = self._inference_head.content_encoding
            # Up to a megabyte, decompression takes a few milliseconds; other requests can wait for it.
            if encoding in ("gzip", "deflate") and is_long(body := b"".join(chunks)):
                self._submit_decompressed(inference, body, encoding)
            else:
                inference.submit(chunks)
        elif self._refusal:
            self._exchange.respond(self._refusal)

    def _submit_decompressed(self, inference: Inference, body: bytes, encoding: str) -> None:
        """Submit a request after decompressing its body on another thread."""
        pending = asyncio.get_running_loop().run_in_executor(
            None, decompress, body, encoding, self._services.max_input_size
        )

        def cancel() -> None:
            pending.cancel()

        def submit(done: asyncio.Future[bytes | bytearray | memoryview]) -> None:
            if not done.cancelled():
                inference.submit([body], lambda *_: done.result())

        self._exchange.holds_next = True
        self._exchange.set_close_callback(cancel)
        pending.add_done_callback(submit)

    def on_connection_close(self) -> None:
        """Called when the client has disconnected before the request was complete."""
        if self._delegate is not None:
            self._delegate.on_connection_close()
        self._chunks.clear()  # a reference cycle may keep the delegate alive for a while, but not a large body


def handler_factory(endpoint: RequestEndpoint) -> Callable[[Exchange], HttpRequestHandler]:
    """Return a function that makes the handler of a request: compiled, which a method of the endpoint is not."""

    def start_request(exchange: Exchange) -> HttpRequestHandler:
        return HttpRequestHandler(endpoint, exchange)

    return start_request


def _cancel(pending: asyncio.Future[Any]) -> None:
    pending.cancel()


def _parse_head(match: re.Match[str], headers: LightHeaders, forward_pattern: re.Pattern[str] | None) -> InferRoute:
    model, version = match.groups()
    json_length = headers.get("Inference-Header-Content-Length")
    return InferRoute(
        model,
        version,
        content_encoding=headers.get("Content-Encoding"),
        accept_encoding=headers.get("Accept-Encoding"),
        json_length=json_length,
        json_size=-1 if json_length is None else plain_number(json_length),
        forwarded_headers=_forwarded_headers(headers, forward_pattern),
        trace_context={name: value for name in _TRACE_CONTEXT if (value := headers.get(name)) is not None},
    )


def _forwarded_headers(headers: LightHeaders, pattern: re.Pattern[str] | None) -> dict[str, str] | None:
    if pattern is None:
        return None
    return {name.lower(): value for name, value in tornado_headers(headers).items() if pattern.search(name)}
