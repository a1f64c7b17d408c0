"""The HTTP targets of a load, for the server of this process or any other server of the v2 protocol.

A decoupled model is reached through ``generate_stream``, with an event for each response.
"""

from __future__ import annotations

import asyncio
import json
import ssl
import time
from collections.abc import Callable
from http import HTTPStatus
from typing import Any, cast
from urllib.parse import urlsplit

import httptools

from tritonnb.client.address import ModelAddress
from tritonnb.client.infer_requests import HEADER_LENGTH, http_body
from tritonnb.client.options import error_text
from tritonnb.core.errors import UnsupportedError
from tritonnb.core.json_types import Json
from tritonnb.core.protobuf import model_config_pb2 as pb
from tritonnb.engine.execution.loop import BackgroundLoop
from tritonnb.lab.load.examples import Tensors
from tritonnb.lab.load.targets import (
    CANCELLED,
    GONE_S,
    TOKEN_COUNT,
    Parameters,
    PendingRequest,
    RemoteTarget,
    request_parameters,
)

_DATA = b"data:"
#: How servers without the generate extension answer.
_NO_EXTENSION = {HTTPStatus.NOT_FOUND, HTTPStatus.METHOD_NOT_ALLOWED, HTTPStatus.NOT_IMPLEMENTED}
Response = tuple[int, bytes]


class HttpTarget(RemoteTarget[tuple[bytes, bytes]]):
    """A model reached over HTTP, with binary tensors and one connection per request in flight."""

    def __init__(self, model: ModelAddress, config: pb.ModelConfig) -> None:
        super().__init__(model, config)
        access = model.server.access
        self._client = HttpClient(model.url, access.ssl_context() if model.server.scheme == "https" else None)
        self._headers = dict(access.headers)
        self._path = model.path
        self._loop = BackgroundLoop("tritonnb-load-http")

    def begin(self, pending: PendingRequest) -> None:
        """Send the request on the thread of the connections."""
        self._loop.loop.call_soon_threadsafe(self._begin, pending, *self.request(pending))

    def abort(self, pending: PendingRequest) -> None:
        """Close the connection of the request."""
        self._loop.loop.call_soon_threadsafe(self._cancel, pending)

    def close(self) -> None:
        """Close all connections and stop their thread."""
        self._loop.call(self._client.close)
        self._loop.stop()

    def _begin(self, pending: PendingRequest, head: bytes, body: bytes) -> None:
        pending.handle = task = self._loop.loop.create_task(self._post(pending, head, body))
        task.add_done_callback(lambda done: self._complete_cancelled(pending) if done.cancelled() else None)

    def _cancel(self, pending: PendingRequest) -> None:
        assert isinstance(pending.handle, asyncio.Task)
        pending.handle.cancel()

    def _complete_cancelled(self, pending: PendingRequest) -> None:
        """Complete a request whose task was cancelled, possibly before it began."""
        self.complete(pending, time.monotonic_ns(), CANCELLED)

    async def _post(self, pending: PendingRequest, head: bytes, body: bytes) -> None:
        is_connected = True
        try:
            error = await self._exchange(pending, head, body)
        except Exception as raised:  # any error: the load waits for the completion
            error = str(raised) or type(raised).__name__
            is_connected = not isinstance(raised, NoConnectionError)
        self.complete(pending, time.monotonic_ns(), error, is_connected=is_connected)

    async def _exchange(self, pending: PendingRequest, head: bytes, body: bytes) -> str:
        """Send a request and receive its response; the text of the error, empty for a success."""
        status, content = await self._client.post(head, body)
        return "" if status == 200 else error_text(content) or f"HTTP status {status}"

    def encode(self, inputs: Tensors, parameters: Parameters) -> tuple[bytes, bytes]:
        """Return the head and body of a request."""
        json_length, body = http_body(self.tensors(inputs), parameters)
        headers = {**self._headers, HEADER_LENGTH: str(json_length)}
        return self._client.head(f"{self._path}/infer", len(body), headers), body


class HttpStreamTarget(HttpTarget):
    """A decoupled model reached over HTTP.

    The generate extension has neither sequences nor priorities nor timeouts.

    Raises
    ------
    UnsupportedError
        If the model requires sequences.
    """

    def __init__(self, model: ModelAddress, config: pb.ModelConfig) -> None:
        super().__init__(model, config)
        if self.stateful:
            self.close()
            raise UnsupportedError(f"model '{model.name}': generate_stream sends no sequences: use over='grpc'")

    async def _exchange(self, pending: PendingRequest, head: bytes, body: bytes) -> str:
        if request_parameters(pending.arrival):
            return "generate_stream sends no sequences, priorities or timeouts: use over='grpc'"
        error, rest = "", b""

        def receive(data: bytes) -> None:
            nonlocal error, rest
            now = time.monotonic_ns()
            events, rest = read_events(rest + data)
            for event in events:
                if "error" in event:
                    error = str(event["error"])
                else:
                    pending.add_response(now, _counted_tokens(event))

        status, content = await self._client.post(head, body, receive)
        if status == HTTPStatus.OK:
            return error
        hint = ": the server has no generate extension, use over='grpc'" if status in _NO_EXTENSION else ""
        return error or error_text(content) or f"HTTP status {status}{hint}"

    def encode(self, inputs: Tensors, parameters: Parameters) -> tuple[bytes, bytes]:
        """Return the head and body of a request; `_exchange` refuses parameters."""
        body = json.dumps({name: _elements(array) for name, array in inputs.items()}).encode()
        headers = {**self._headers, "Content-Type": "application/json"}
        return self._client.head(f"{self._path}/generate_stream", len(body), headers), body


def read_events(data: bytes) -> tuple[list[Json], bytes]:
    r"""Return the server-sent events with JSON objects that end in a part of a stream, and the rest of it.

    Examples
    --------
    >>> read_events(b'data: {"OUT": 1}\n\ndata: {"OUT')
    ([{'OUT': 1}], b'data: {"OUT')
    """
    *lines, rest = data.split(b"\n")
    events = [json.loads(line.removeprefix(_DATA)) for line in lines if line.startswith(_DATA)]
    return [event for event in events if isinstance(event, dict)], rest


def _elements(array: Any) -> Any:
    """Return the elements of a tensor in the form of the generate extension: a value, or a flat list."""
    elements = [value.decode() if isinstance(value, bytes) else value for value in array.reshape(-1).tolist()]
    return elements[0] if len(elements) == 1 else elements


def _counted_tokens(event: Json) -> int:
    count = event.get(TOKEN_COUNT, 0)
    return int(count[0] if isinstance(count, list) else count)


class NoConnectionError(ConnectionError):
    """No connection could be made."""


class HttpClient:
    """A client that posts to one server; used on one event loop.

    Parameters
    ----------
    url : str
        ``http://HOST:PORT`` or ``https://HOST:PORT``; a path is ignored.
    context : ssl.SSLContext, optional
        For ``https``.
    """

    def __init__(self, url: str, context: ssl.SSLContext | None = None) -> None:
        parts = urlsplit(url)
        self._ssl = context
        self._host = parts.hostname or "localhost"
        self._port = parts.port or (443 if self._ssl else 80)
        self._authority = parts.netloc.rpartition("@")[2]
        self._free: list[_Connection] = []

    def head(self, path: str, length: int, headers: dict[str, str]) -> bytes:
        """Encode the head of a request; ``length`` is the size of its body in bytes."""
        fields = {"Host": self._authority, "Content-Length": str(length), **headers}
        lines = [f"POST {path} HTTP/1.1", *(f"{name}: {value}" for name, value in fields.items()), "", ""]
        return "\r\n".join(lines).encode("latin-1")

    async def post(self, head: bytes, body: bytes, on_data: Callable[[bytes], object] | None = None) -> Response:
        """Send a request; return status and body of its response.

        Parameters
        ----------
        head, body : bytes
        on_data : callable, optional
            Called with each part of the body of the response when it arrives.

        Raises
        ------
        OSError
            If the connection fails; `NoConnectionError` if none could be made.
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
            async with asyncio.timeout(GONE_S):
                _, connection = await loop.create_connection(_Connection, self._host, self._port, ssl=self._ssl)
        except OSError as error:
            reason = str(error) or f"no connection within {GONE_S:g} s"
            raise NoConnectionError(
                f"no HTTP server of the v2 protocol responds at {self._host}:{self._port}: {reason}"
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
