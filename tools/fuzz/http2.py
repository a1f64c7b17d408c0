"""HTTP/2: a gRPC connection with both ends in memory, and header blocks."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, cast

from hpack import HPACKError

from tests.endpoints.http1_peer import Loop, Wire
from tools.fuzz.http import Models
from tools.fuzz.targets import Try
from tools.fuzz.unexpected import UnexpectedErrors, require
from tritonnb.endpoints.busy_poll import BusyPoller
from tritonnb.endpoints.grpc.dispatch import Rpcs
from tritonnb.endpoints.grpc.options import GrpcOptions
from tritonnb.endpoints.grpc.transport.fast_server import Http2Server
from tritonnb.endpoints.grpc.transport.frames import SETTINGS, frame
from tritonnb.endpoints.grpc.transport.header_blocks import HeaderBlocks, Headers, MalformedHeadersError
from tritonnb.endpoints.grpc.transport.http2 import PREFACE, Http2Connection

_RAW = 255


def frames_of(data: bytes) -> bytes:
    """Frames from a compact form: kind, flags, stream, size (one byte each), and the payload."""
    frames, at = bytearray(PREFACE + frame(SETTINGS, 0, 0, b"")), 0
    while len(data) - at >= 4:
        kind, flags, stream, size = data[at : at + 4]
        payload = data[at + 4 : at + 4 + size]
        frames += frame(kind % 12, flags, stream, payload)
        at += 4 + size
    return bytes(frames)


@contextmanager
def connections() -> Iterator[Try]:
    """Frames on a connection: the first byte is the size of the parts in which they arrive, or 255 for raw bytes.

    What is sent must not depend on the size of the parts.
    """
    with UnexpectedErrors() as errors:
        loop = Loop()
        errors.watch(loop)
        engine: Any = Models()
        options = GrpcOptions()
        server = Http2Server(Rpcs(engine, options), options)
        server.loop = loop
        server.busy_poller = BusyPoller(loop)

        def receive(connection: Http2Connection, wire: Wire, part: bytes) -> None:
            if wire.state == "open":  # a transport that is closed does not read
                connection.data_received(part)

        def sent(*parts: bytes) -> bytes:
            wire = Wire()
            connection = Http2Connection(server)
            loop.call_soon(connection.connection_made, cast(asyncio.BaseTransport, wire))
            for part in parts:
                loop.call_soon(receive, connection, wire, part)
            for _ in range(8):
                loop.pass_time(0)
            connection.connection_lost(None)
            loop.pass_time(1e9)  # deadlines of calls
            for _ in range(8):
                loop.pass_time(0)
            left = connection.calls or server.connections or server.streams
            require(not left, f"a call is left: {left}")
            require(not asyncio.all_tasks(loop), f"tasks are left: {asyncio.all_tasks(loop)}")
            errors.check()
            _check_frames(wire.sent)
            return wire.sent

        def run(data: bytes) -> None:
            first = data[0] if data else 0
            stream = data[1:] if first == _RAW else frames_of(data[1:])
            whole = sent(stream)
            if 0 < first < _RAW:
                parts = sent(*(stream[at : at + first] for at in range(0, len(stream), first)))
                require(parts == whole, f"parts of {first} bytes: expected {whole!r}, got {parts!r}")

        yield run
        loop.close()


def _check_frames(sent: bytes) -> None:
    """Check that whole frames were sent, none larger than the client accepts by default."""
    at = 0
    while at < len(sent):
        require(len(sent) - at >= 9, "a frame is cut off")
        size = int.from_bytes(sent[at : at + 3], "big")
        require(size <= 2**24, f"a frame of {size} bytes")
        at += 9 + size
    require(at == len(sent), "a frame is cut off")


@contextmanager
def header_blocks() -> Iterator[Try]:
    """Header blocks, each after its length in one byte; the cache must not change what is read."""

    def run(data: bytes) -> None:
        blocks, fresh = HeaderBlocks(), HeaderBlocks()
        at = 0
        while at < len(data):
            block = data[at + 1 : at + 1 + data[at]]
            at += 1 + data[at]
            for _ in range(2):
                fresh._cache.clear()
                expected, got = _read(fresh, block), _read(blocks, block)
                require(got == expected, f"expected {expected!r}, got {got!r}")
                if got == HPACKError.__name__:
                    return  # the connection is closed

    yield run


def _read(blocks: HeaderBlocks, block: bytes) -> Headers | str:
    try:
        return blocks.read(block)
    except MalformedHeadersError as error:
        return type(error).__name__
    except HPACKError:
        return HPACKError.__name__
