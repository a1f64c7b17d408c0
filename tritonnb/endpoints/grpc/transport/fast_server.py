"""gRPC on our own HTTP/2 transport: an inference takes a few function calls on the loop and one write.

grpcio's asyncio server spends several times as much on a call. This one implements what clients need of *gRPC over
HTTP/2*: unary and streaming calls, compression, deadlines, and cancellation. TLS and the keep-alive options need
`grpcio_server`.
"""

from __future__ import annotations

import asyncio
import re
import struct
import zlib
from collections import deque
from collections.abc import AsyncIterator
from contextlib import aclosing
from urllib.parse import quote_from_bytes

from tritonnb.core.errors import InvalidArgumentError, Status, TritonError
from tritonnb.core.messages import InferResponse
from tritonnb.endpoints.back_pressure import SlowReaders, Turns
from tritonnb.endpoints.compression import compress, is_long
from tritonnb.endpoints.endpoint import close_connections, listen
from tritonnb.endpoints.grpc.dispatch import RpcDispatcher
from tritonnb.endpoints.grpc.inference import Inference
from tritonnb.endpoints.grpc.options import LARGEST_DECOMPRESSED, LARGEST_MESSAGE, GrpcOptions
from tritonnb.endpoints.grpc.rpcs import INFER, RPC_NAMES, STREAM_INFER, Serialized, status_text
from tritonnb.endpoints.grpc.transport.framing import Headers, literal
from tritonnb.endpoints.grpc.transport.http2 import Http2Connection
from tritonnb.engine.submission import as_triton_error

OK, DEADLINE_EXCEEDED, RESOURCE_EXHAUSTED, UNIMPLEMENTED, INTERNAL = 0, 4, 8, 12, 13
_NOT_COMPRESSED = "Exception deserializing request!"
_PREFIX = struct.Struct(">BI")
#: Parts of a message with fewer bytes are joined when they come.
_SMALL_PART = 4096
_SUCCESS = b"\x88" + literal("content-type", b"application/grpc")  # 0x88 is ":status: 200" (RFC 7541, A)
_HEAD = _SUCCESS + literal("grpc-accept-encoding", b"identity, deflate, gzip")
_HEAD_GZIP = _HEAD + literal("grpc-encoding", b"gzip")
_DONE = literal("grpc-status", b"0")
_NOT_GRPC = literal(":status", b"415")
_TIMEOUT = re.compile(r"(\d{1,8})([HMSmun])")
_UNITS = {"H": 3600.0, "M": 60.0, "S": 1.0, "m": 1e-3, "u": 1e-6, "n": 1e-9}
_PRINTABLE = bytes(byte for byte in range(0x20, 0x7F) if byte != ord("%"))
_NOT_METADATA = re.compile(r":.*|grpc-.*|te|content-type|.*-bin")


#: Bytes of messages that a stream holds, and the bytes that a message takes in addition to its contents.
_MAX_HELD, _MESSAGE_OVERHEAD = 1 << 24, 256


class Http2Server:
    """A transport for the RPCs of an endpoint.

    Attributes
    ----------
    connections : set of Http2Connection
    stopping : bool
    """

    def __init__(self, rpcs: RpcDispatcher, options: GrpcOptions) -> None:
        self.rpcs = rpcs
        self.connections: set[Http2Connection] = set()
        self.stopping = False
        self._reuse_port = options.reuse_port
        self._max_unread_size = options.max_unread_size
        self.compress = options.infer_response_compression_level != "none"

    async def start(self, host: str, port: int) -> int:
        """Listen, and return the port; the system chooses one if it is 0.

        Raises
        ------
        OSError
            If the port is taken.
        """
        self.run_on(asyncio.get_running_loop())
        self._listener, port = await listen(lambda: Http2Connection(self), host, port, reuse_port=self._reuse_port)
        return port

    def run_on(self, loop: asyncio.AbstractEventLoop) -> None:
        """Prepare for connections on a loop."""
        self.loop = loop
        self.turns = Turns(loop)
        self.slow_readers = SlowReaders(loop, self._max_unread_size)

    async def stop(self, drain: float) -> None:
        """Accept no more requests; requests in progress have ``drain`` seconds."""
        self.stopping = True
        self._listener.close()
        # Streams first: GOAWAY refuses new calls only, and a stream would go on as long as its client sends.
        self.rpcs.finish_streams()
        for connection in self.connections:
            connection.go_away()
        await close_connections(self.connections, lambda connection: bool(connection.calls), drain)

    def call(self, connection: Http2Connection, stream: int, headers: Headers) -> _Call:
        """Make the call of a new stream."""
        name = RPC_NAMES.get(headers.get(":path", ""), "")
        # An unknown path gets a call, since gRPC answers it with a status and not with a reset.
        return _KINDS.get(name, _Call)(self, connection, stream, headers, name)


class _Incoming:
    """The bytes of a message that is not complete, joined once: a buffer that grows copies its content again and again.

    Attributes
    ----------
    size : int
        In bytes.
    """

    __slots__ = ("_parts", "size")

    def __init__(self) -> None:
        self.size = 0
        self._parts: list[bytes | bytearray] = []

    def add(self, chunk: bytes | bytearray | memoryview) -> None:
        """Add bytes, which do not change any more; a view is copied."""
        self.size += len(chunk)
        last = self._parts[-1] if self._parts else b""
        # An object for each of many small chunks would take forty times their memory.
        if isinstance(last, bytearray) and len(last) < _SMALL_PART:
            last += chunk
        elif len(chunk) < _SMALL_PART:
            self._parts.append(bytearray(chunk))
        else:
            self._parts.append(bytes(chunk) if isinstance(chunk, memoryview) else chunk)

    def take(self) -> bytearray:
        """Return all bytes, and forget them."""
        joined = bytearray().join(self._parts)
        self._parts.clear()
        self.size = 0
        return joined


class _Call:
    """One RPC; this class handles RPCs with one request and one response."""

    _streaming = _compresses = False
    is_full = False

    def __init__(
        self, server: Http2Server, connection: Http2Connection, stream: int, headers: Headers, name: str
    ) -> None:
        self.stream = stream
        self.window = self.received = 0
        self.outgoing: deque[memoryview] = deque()
        self.trailers: bytes | None = None
        self.half_closed = False
        self._server = server
        self._connection = connection
        self._headers = headers
        self._name = name  # of the RPC; empty if there is none at the path
        self._incoming = _Incoming()
        self._awaited = _PREFIX.size  # as many bytes make the next message complete, or tell how long it is
        self._message: Serialized = b""  # the request of a call that waits until there is room for it
        self._task: asyncio.Task[None] | None = None
        self._deadline: asyncio.TimerHandle | None = None
        self._begun = False
        self._head_sent = False
        self._over = False

    # --- called by the connection -----------------------------------------------------------------

    def headers_received(self) -> None:
        """Called when the headers have arrived."""
        headers = self._headers
        # The gRPC specification wants 415 for another content type, so that a browser or a probe sees an HTTP error and
        # not a success.
        if headers.get(":method") != "POST" or not headers.get("content-type", "").startswith("application/grpc"):
            self._over = True
            self._connection.send(self, b"", (), _NOT_GRPC)
        elif not self._name:
            self._finish(UNIMPLEMENTED)
        elif "grpc-timeout" in headers:
            timeout = _TIMEOUT.fullmatch(headers["grpc-timeout"])
            if timeout is not None:
                # A malformed timeout is ignored: the call then has no deadline, which only concerns its client.
                seconds = int(timeout.group(1)) * _UNITS[timeout.group(2)]
                self._deadline = self._server.loop.call_later(seconds, self._expired)

    def data(self, chunk: bytes | bytearray | memoryview) -> None:
        """Called when a part of the body has arrived."""
        if self._over:
            return
        incoming = self._incoming
        # The common case, one complete message in one frame, is parsed where it lies and not copied.
        if not (incoming.size or self.is_full):
            at = self._receive_messages(chunk)
            if at < len(chunk):
                incoming.add(chunk[at:])
            return
        incoming.add(chunk)
        # Nothing is lost: the client may send as much as the stream's window, and the bytes wait here until there is
        # room.
        if not self.is_full and incoming.size >= self._awaited:
            self._receive_incoming()

    def _receive_incoming(self) -> None:
        received = self._incoming.take()
        size = len(received) - _PREFIX.size
        if size >= 0 and _PREFIX.unpack_from(received)[1] == size:
            # The message keeps the memory: large tensors are not copied.
            self._awaited = _PREFIX.size
            self._receive(memoryview(received)[_PREFIX.size :], received[0])
        else:
            del received[: self._receive_messages(received)]
            if received and not self._over:
                self._incoming.add(received)

    def _receive_messages(self, data: bytes | bytearray | memoryview) -> int:
        """Handle the messages that are complete, and return their size in bytes."""
        at, self._awaited = 0, _PREFIX.size
        while len(data) - at >= 5 and not (self._over or self.is_full):
            compressed, length = _PREFIX.unpack_from(data, at)
            # The limit is Triton's, and the status grpcio's.
            if length > LARGEST_MESSAGE:
                text = f"message: expected at most {LARGEST_MESSAGE} bytes, got {length}"
                self._abort(RESOURCE_EXHAUSTED, f"{text}: send fewer tensors at a time, or use shared memory")
                break
            start, stop = at + 5, at + 5 + length
            if len(data) < stop:
                self._awaited = stop - at
                break
            at = stop
            self._receive(data[start:stop], compressed)
        return at

    def body_received(self) -> None:
        """Called when the client has ended its side of the stream."""
        # A unary call without a message is an error of the client, while a stream may end without one.
        if not self._over and not self._begun:
            self._finish(INTERNAL, "expected one request message, got none")

    def cancelled(self) -> None:
        """Called when the client has cancelled the call or disconnected."""
        self._over = True
        self._incoming = _Incoming()
        self._message = b""
        if self._task is not None:
            self._task.cancel()
        if self._deadline is not None:
            self._deadline.cancel()

    def drained(self) -> None:
        """Called when everything that waited for the window has been sent."""

    def _expired(self) -> None:
        if not self._over:
            self._abort(DEADLINE_EXCEEDED, "Deadline Exceeded")

    # --- requests -------------------------------------------------------------------------------

    def _receive(self, message: Serialized, compressed: int) -> None:
        # A second message must not be executed as well: only the first would be answered.
        if self._begun and not self._streaming:
            self._abort(INTERNAL, "there is more than one request message")
            return
        self._begun = True
        # 64 MiB of zeros take 0.2 s to decompress, which every other client would wait if it ran on the event loop.
        if compressed and is_long(message):
            self._task = self._server.loop.create_task(self._decompress_and_begin(message))
        else:
            self._begin(message, compressed)

    async def _decompress_and_begin(self, message: Serialized) -> None:
        plain = await self._decompressed(message)
        if plain is not None and not self._over:
            self._begin(plain, 0)

    async def _decompressed(self, message: Serialized) -> bytes | None:
        """Decompress a message, a long one on another thread; None if the call ends with an error instead."""
        try:
            if not is_long(message):
                return _decompress(message, self._encoding)
            return await self._server.loop.run_in_executor(None, _decompress, message, self._encoding)
        except TritonError as error:
            self._fail(error)
            self.cancelled()
            return None

    @property
    def _encoding(self) -> str:
        return self._headers.get("grpc-encoding", "identity")

    def _begin(self, message: Serialized, compressed: int) -> None:
        """Start the call if there is room for it."""
        try:
            if compressed:
                message = _decompress(message, self._encoding)
            if self._connection.may_start(self):
                self._run(message)
            else:
                self._message = message
        except Exception as error:
            self._fail(as_triton_error(error))
            self.cancelled()

    def start(self) -> None:
        """Called when there is room for the call, which has waited for it."""
        # The call no longer needs the bytes, and a model may run for long.
        message, self._message = self._message, b""
        try:
            self._run(message)
        except Exception as error:
            self._fail(as_triton_error(error))
            self.cancelled()

    def _run(self, message: Serialized) -> None:
        self._task = self._server.loop.create_task(self._call(message))

    async def _call(self, message: Serialized) -> None:
        try:
            self._respond([await self._server.rpcs.call(self._name, message, self._metadata())])
        except Exception as error:
            self._fail(as_triton_error(error))

    def _metadata(self) -> Headers:
        # Binary metadata is left out as grpcio's transport does: it cannot become a request parameter.
        return {name: value for name, value in self._headers.items() if not _NOT_METADATA.fullmatch(name)}

    # --- responses ------------------------------------------------------------------------------

    def _respond(self, message: list[bytes | memoryview]) -> None:
        """Send the only response, a message in parts."""
        if self._over:
            return
        self._over = True
        if self._deadline is not None:
            self._deadline.cancel()
        head, body = self._framed(message)
        self._connection.send(self, head, body, _DONE)

    def _framed(self, message: list[bytes | memoryview]) -> tuple[bytes, list[bytes | memoryview]]:
        """Return the header block of the response, and the message with its prefix."""
        # Level 1: the client waits for the compression, and most tensors are floating-point numbers, which compress
        # badly at any level.
        if self._compresses and self._server.compress and "gzip" in self._headers.get("grpc-accept-encoding", ""):
            compressed = compress(b"".join(message), "gzip", 1)
            return _HEAD_GZIP, [_PREFIX.pack(1, len(compressed)), compressed]
        return _HEAD, [_PREFIX.pack(0, sum(map(len, message))), *message]

    def _fail(self, error: TritonError) -> None:
        self._finish(error.status.grpc, status_text(error))

    def _abort(self, code: int, text: str) -> None:
        """End the call with a status, and cancel its request."""
        self._finish(code, text)
        self.cancelled()

    def _finish(self, code: int, text: str = "") -> None:
        """End the call with a status."""
        if self._over:
            return
        self._over = True
        if self._deadline is not None:
            self._deadline.cancel()
        trailers = literal("grpc-status", str(code).encode())
        if text:
            # Printable ASCII as it is, the rest percent-encoded.
            encoded = quote_from_bytes(text.encode("utf-8", "replace"), safe=_PRINTABLE)
            trailers += literal("grpc-message", encoded.encode())
        # Without a head before, it is a "Trailers-Only" response in gRPC's words: one header block that also ends the
        # stream.
        self._connection.send(self, b"", (), trailers if self._head_sent else _SUCCESS + trailers)


class _Infer(_Call):
    """``ModelInfer``: needs no task, the response is sent by the model's callback."""

    _compresses = True
    _inference: Inference | None = None

    def _run(self, message: Serialized) -> None:
        rpcs = self._server.rpcs
        # Filtering costs a pass over all headers, and nearly no server forwards or restricts anything. The trace
        # context is found in either.
        metadata = self._metadata() if rpcs.needs_metadata else self._headers
        inference = rpcs.infer(message, metadata, self._responded)
        # Keeping an inference that is done would be a reference cycle with this call.
        if not inference.done:
            self._inference = inference

    def _responded(self, inference: Inference, response: InferResponse) -> None:
        self._inference = None
        try:
            message = inference.response_parts(response)
        except Exception as error:
            self._fail(as_triton_error(error))
        else:
            self._respond(message)
        inference.sent(final=True)

    def cancelled(self) -> None:
        """Called when the client has cancelled the call or disconnected."""
        super().cancelled()
        if self._inference is not None:
            self._inference.cancel()
            self._inference = None


class _StreamInfer(_Infer):
    """``ModelStreamInfer``."""

    _streaming = True
    _requests: asyncio.Queue[tuple[Serialized, int] | None]  # messages, and whether they are compressed
    _drained: asyncio.Event
    _held = 0  # bytes of the messages that are not taken yet
    _has_ended = False  # whether the client has ended its side of the stream

    def headers_received(self) -> None:
        """Called when the headers have arrived."""
        super().headers_received()
        self._requests = asyncio.Queue()
        self._drained = asyncio.Event()
        if not self._over:
            self._task = self._server.loop.create_task(self._run_stream())

    def _receive(self, message: Serialized, compressed: int) -> None:
        self._begun = True
        # Still compressed: messages are decompressed one by one when their turn comes, so a stream holds 16 MiB of what
        # was sent and not what it expands to.
        self._requests.put_nowait((message, compressed))
        self._held += len(message) + _MESSAGE_OVERHEAD
        self.is_full = self._held > _MAX_HELD

    def body_received(self) -> None:
        """Called when the client has ended its side of the stream."""
        self._has_ended = True
        # The end comes after the messages in the buffer, which are not in the queue yet.
        if not self.is_full:
            self._requests.put_nowait(None)

    def drained(self) -> None:
        """Called when everything that waited for the window has been sent."""
        self._drained.set()

    async def _messages_received(self) -> AsyncIterator[Serialized]:
        while (received := await self._requests.get()) is not None:
            message, compressed = received
            self._held -= len(message) + _MESSAGE_OVERHEAD
            # At half and not at the limit, so that the window is not replenished message by message.
            if self.is_full and self._held <= _MAX_HELD // 2:
                self._fill_up()
            if compressed:
                plain = await self._decompressed(message)
                if plain is None:
                    return
                message = plain
            yield message

    def _fill_up(self) -> None:
        """Take more messages, now that there is room."""
        self.is_full = False
        self._receive_incoming()
        if self.is_full or self._over:
            return
        self._connection.replenish(self)
        if self._has_ended:
            self._requests.put_nowait(None)

    async def _run_stream(self) -> None:
        try:
            async with aclosing(self._server.rpcs.stream(self._messages_received(), self._metadata())) as responses:
                async for message in responses:
                    await self._send(message)
        except Exception as error:
            self._fail(as_triton_error(error))
        else:
            # An empty stream is a success, so its headers are sent as for any other.
            if not self._head_sent and not self._over:
                self._head_sent = True
                self._connection.send(self, _HEAD, (), None)
            self._finish(OK)

    async def _send(self, message: bytes) -> None:
        head, body = self._framed([message])
        self._drained.clear()
        self._connection.send(self, b"" if self._head_sent else head, body, None)
        self._head_sent = True
        # Waiting here holds back the generator, so that only one serialized message of a stream waits for the window.
        if self.outgoing:
            await self._drained.wait()


#: By name of the RPC; all others have one request and one response.
_KINDS = {INFER: _Infer, STREAM_INFER: _StreamInfer}


def _decompress(message: Serialized, encoding: str) -> bytes:
    if encoding not in ("gzip", "deflate"):
        raise TritonError(f"compression algorithm '{encoding}' is not supported", Status.UNSUPPORTED)
    # gRPC names the format exactly, unlike HTTP on Triton, where the data decides.
    inflate = zlib.decompressobj(31 if encoding == "gzip" else 15)
    try:
        plain = inflate.decompress(message, LARGEST_DECOMPRESSED + 1)
    except zlib.error as error:
        raise TritonError(_NOT_COMPRESSED, Status.INTERNAL) from error
    if len(plain) > LARGEST_DECOMPRESSED:
        raise InvalidArgumentError(
            f"decompressed message expected at most {LARGEST_DECOMPRESSED} bytes, got more: send it without compression"
        )
    # A truncated stream raises nothing in zlib.
    if not inflate.eof:
        raise TritonError(_NOT_COMPRESSED, Status.INTERNAL)
    return plain
