"""`otlp_receiver`: receive the spans of servers in the trace mode ``opentelemetry``."""

from __future__ import annotations

import functools
import gzip
import io
import threading
import weakref
import zlib
from collections import deque
from collections.abc import Callable
from typing import Self

from tornado import web

from tritonnb.core import forks
from tritonnb.core.copies import OfThisProcess
from tritonnb.core.errors import InvalidArgumentError, UnavailableError
from tritonnb.core.failures import with_short_traceback, with_short_tracebacks
from tritonnb.core.option_types import with_checked_types
from tritonnb.endpoints.http.transport.server import HttpServer
from tritonnb.endpoints.http.transport.tornado_bridge import start_in
from tritonnb.engine.execution.loop import BackgroundLoop, stop_unused
from tritonnb.lab.traces.from_trace import Configs, configs_of, recording_of
from tritonnb.lab.traces.otlp import SpanCollector, spans_of_json, spans_of_protobuf
from tritonnb.lab.traces.traced_request import TracedRequest
from tritonnb.recording.recording import Recording

#: The default port of OTLP over HTTP, and the path of traces.
PORT, PATH = 4318, "/v1/traces"
_LAST_PORT = 65_535
#: Requests that are kept, and bytes of a message, before and after decompression.
_KEPT, _MAX_MESSAGE = 200_000, 64 << 20

OnRequest = Callable[[TracedRequest], None]


@with_short_tracebacks
class OtlpReceiver(OfThisProcess):
    """A running receiver; see `otlp_receiver`.

    Attributes
    ----------
    port : int
    requests : collections.deque of TracedRequest
        The newest requests that were received.

    Examples
    --------
    >>> with otlp_receiver(port=0) as receiver:
    ...     receiver.url == f"http://127.0.0.1:{receiver.port}/v1/traces"
    True
    >>> import tritonnb as tnb
    >>> receiver, received = otlp_receiver(port=0), []
    >>> receiver.subscribe(received.append)
    >>> exporting = (("url", receiver.url),)
    >>> trace = tnb.TraceOptions("", frozenset({"TIMESTAMPS"}), 1, mode="opentelemetry", exporting=exporting)
    >>> with tnb.Server(port=0, trace=trace) as server:
    ...     @server.model(max_batch_size=8)
    ...     def double(X: tnb.FP32[1]) -> tnb.FP32[1]:
    ...         return X * 2
    ...     _ = tnb.connect(server.url)["double"](X=[[1.0], [2.0]])
    >>> receiver.flush()
    >>> [batch.size for batch in receiver.recording().batches], len(received)
    ([2], 1)
    >>> receiver.unsubscribe(received.append)
    >>> receiver.receive(b'{"resourceSpans": []}', "application/json")
    >>> receiver.close()
    """

    def __init__(self, port: int, host: str) -> None:
        if not isinstance(port, int) or not 0 <= port <= _LAST_PORT:
            raise InvalidArgumentError(f"OTLP receiver: expected a port from 0 to {_LAST_PORT}, got {port!r}")
        self.requests: deque[TracedRequest] = deque(maxlen=_KEPT)
        self.host = host
        self._listeners: list[OnRequest] = []
        self._collector = SpanCollector(self._add)
        self._lock = forks.fork_safe(threading.Lock())
        loop = BackgroundLoop("tritonnb-otlp")
        try:
            self._transport, self.port = loop.run(_listen(self, host, port))
        except OSError as error:
            loop.stop()
            raise UnavailableError(
                f"OTLP receiver: port {port} of {host} cannot be opened ({error.strerror}): "
                "close the other receiver, or choose another port"
            ) from None
        except BaseException:  # such as an interrupt of the cell
            loop.stop()
            raise
        self._loop = loop
        stop = functools.partial(_stop, loop, self._transport, self.port)
        self._finalizer = forks.finalize(self, stop_unused, stop)

    def _not_copied(self) -> tuple[str, str]:
        return f"receiver {self.url}", "copy what it received (receiver.recording())"

    @property
    def url(self) -> str:
        """The URL for servers on this machine: ``--trace-config opentelemetry,url=…``."""
        return f"http://{self.host}:{self.port}{PATH}"

    @property
    def alive(self) -> bool:
        """True if it has not been closed."""
        return self._loop.alive

    def receive(self, content: bytes, content_type: str, encoding: str = "") -> None:
        """Add the spans of one message.

        Parameters
        ----------
        content : bytes
        content_type : str
            ``application/json``, or protobuf.
        encoding : str
            ``gzip``, or empty.

        Raises
        ------
        InvalidArgumentError
            If it is not an OTLP trace message.
        """
        message = _decompressed(content, encoding)
        spans = spans_of_json(message) if "json" in content_type else spans_of_protobuf(message)
        with self._lock:
            for span in spans:
                self._collector.add(span)

    def subscribe(self, on_request: OnRequest) -> None:
        """Call a function with each request that is received, on the receiver's thread.

        Parameters
        ----------
        on_request : callable
            Called with a `TracedRequest`.
        """
        self._listeners.append(on_request)

    def unsubscribe(self, on_request: OnRequest) -> None:
        """Stop calling a function.

        Parameters
        ----------
        on_request : callable
            A function that was passed to `subscribe`.
        """
        self._listeners.remove(on_request)

    def flush(self) -> None:
        """Add the requests whose execution was not received: those of ensembles, and those that were not executed."""
        with self._lock:
            self._collector.flush()

    def recording(self, config: Configs = None, *, trace_rate: int | None = None) -> Recording:
        """Return a recording of everything that was received.

        Parameters
        ----------
        config, trace_rate
            As for `Recording.from_trace`.

        Raises
        ------
        InvalidArgumentError
            If the configuration cannot be read.
        """
        self.flush()
        requests = list(self.requests)
        return recording_of(requests, configs_of(config, requests), trace_rate)

    def close(self) -> None:
        """Close the port and end the thread; the received requests stay. A second call has no effect."""
        if self._finalizer.detach() is not None:
            _stop(self._loop, self._transport, self.port)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: object, error: object, trace: object) -> None:
        self.close()

    def __repr__(self) -> str:
        state = f"at {self.url}" if self.alive else "closed"
        return f"<OtlpReceiver {state}: {len(self.requests)} requests>"

    def _add(self, request: TracedRequest) -> None:
        self.requests.append(request)
        for listener in self._listeners:
            listener(request)


@with_short_traceback
@with_checked_types
def otlp_receiver(port: int = PORT, *, host: str = "127.0.0.1") -> OtlpReceiver:
    """Receive traces over OTLP/HTTP: ``POST /v1/traces``, in protobuf or JSON, compressed with gzip or not.

    Start the server with ``--trace-config mode=opentelemetry --trace-config opentelemetry,url=URL``, where URL is the
    `url` of the receiver.

    Parameters
    ----------
    port : int, optional
        0 for any free port.
    host : str, optional
        Address to listen on; ``"0.0.0.0"`` for servers on other machines.

    Returns
    -------
    OtlpReceiver
        Close it with `close`, or use it in a ``with`` statement.

    Raises
    ------
    InvalidArgumentError
        If the port is not from 0 to 65535.
    UnavailableError
        If the port is in use.

    Examples
    --------
    >>> with otlp_receiver(port=0) as receiver:
    ...     len(receiver.requests)
    0
    """
    return OtlpReceiver(port, host)


class _Traces(web.RequestHandler):
    def initialize(self, receiver: weakref.ref[OtlpReceiver]) -> None:
        self._receiver = receiver

    def post(self) -> None:
        content_type = self.request.headers.get("Content-Type", "")
        is_json = "json" in content_type
        self.set_header("Content-Type", "application/json" if is_json else "application/x-protobuf")
        receiver = self._receiver()
        try:
            if receiver is not None:
                receiver.receive(self.request.body, content_type, self.request.headers.get("Content-Encoding", ""))
        except InvalidArgumentError as error:
            self.set_status(400)
            self.set_header("Content-Type", "text/plain")
            self.finish(error.message)
            return
        self.finish(b"{}" if is_json else b"")


async def _listen(receiver: OtlpReceiver, host: str, port: int) -> tuple[HttpServer, int]:
    routes = [(PATH, _Traces, {"receiver": weakref.ref(receiver)})]
    application = web.Application(routes, log_function=lambda handler: None)
    transport = HttpServer(start_in(application), max_body_size=_MAX_MESSAGE, body_remedy="export in smaller batches")
    port = await transport.start(host, port)
    forks.ports[port] += 1
    return transport, port


def _stop(loop: BackgroundLoop, transport: HttpServer, port: int) -> None:
    if not loop.alive:
        return
    try:
        loop.run(transport.stop(0))
    finally:
        forks.ports.subtract([port])
        loop.stop()


def _decompressed(content: bytes, encoding: str) -> bytes:
    if encoding in ("", "identity"):
        return content
    if encoding != "gzip":
        raise InvalidArgumentError(f"expected the content encoding gzip or none, got '{encoding}'")
    try:
        with gzip.GzipFile(fileobj=io.BytesIO(content)) as file:
            message = file.read(_MAX_MESSAGE + 1)
    except (OSError, EOFError, zlib.error) as error:
        raise InvalidArgumentError(f"expected a message compressed with gzip: {error}") from None
    if len(message) > _MAX_MESSAGE:
        raise InvalidArgumentError(f"expected at most {_MAX_MESSAGE} bytes after decompression")
    return message
