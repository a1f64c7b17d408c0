"""HTTP/2: gRPC connections with both ends in memory, and header blocks."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager

from hpack import HPACKError

from tests.endpoints.http1_peer import Loop
from tests.endpoints.in_memory import Endpoints
from tools.fuzz.http import MODELS
from tools.fuzz.targets import Try
from tools.fuzz.unexpected import UnexpectedErrors, require
from tritonnb.endpoints.grpc.transport.framing import SETTINGS, HeaderBlocks, Headers, MalformedHeadersError, frame
from tritonnb.endpoints.grpc.transport.http2 import PREFACE

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
    """Frames on four connections: the first byte is the size of the parts in which they arrive, or 255 for raw bytes.

    What is sent must not depend on the size of the parts, nor on what was received before.
    """
    with UnexpectedErrors() as errors:
        loop = Loop()
        errors.watch(loop)
        sides = [Endpoints(loop, caches=caches) for caches in (True, False)]
        for side in sides:
            for config in MODELS:
                side.models.load(config)

        def sent(side: Endpoints, *parts: bytes) -> bytes:
            connection = side.connect_grpc()
            connection.feed(*parts)
            connection.lose()
            loop.pass_time(1e9)  # deadlines of calls
            for _ in range(8):
                loop.pass_time(0)
            require(not (connection.protocol.calls or side.leftovers), "a call is left")
            require(not asyncio.all_tasks(loop), f"tasks are left: {asyncio.all_tasks(loop)}")
            errors.check()
            _check_frames(connection.wire.sent)
            return connection.wire.sent

        def run(data: bytes) -> None:
            first = data[0] if data else 0
            stream = data[1:] if first == _RAW else frames_of(data[1:])
            size = first if 0 < first < _RAW else max(1, len(stream))
            parts = [stream[at : at + size] for at in range(0, len(stream), size)]
            known, fresh = ([*(sent(side, stream) for _ in range(3)), sent(side, *parts)] for side in sides)
            require(known == fresh, f"with caches: {known!r}, without: {fresh!r}")
            require(known[3] == known[0], f"parts of {size} bytes: expected {known[0]!r}, got {known[3]!r}")
            accepted = [side.models.accepted[:] for side in sides]
            require(accepted[0] == accepted[1], f"requests with caches: {accepted[0]!r}, without: {accepted[1]!r}")
            for side in sides:
                side.models.accepted.clear()

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
        blocks, fresh = HeaderBlocks(), HeaderBlocks(limit=0)
        at = 0
        while at < len(data):
            block = data[at + 1 : at + 1 + data[at]]
            at += 1 + data[at]
            for _ in range(3):
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
