"""Violations of RFC 9113, and floods: a call or the connection ends, and the server continues."""

from __future__ import annotations

import asyncio
import struct
import zlib
from contextlib import suppress
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.endpoints.http2_client import INFER, Running, cases, message, running, with_server
from tests.laws import law
from tritonnb.endpoints.grpc.transport import http2
from tritonnb.endpoints.grpc.transport.framing import (
    ACK,
    CONTINUATION,
    DATA,
    END_HEADERS,
    END_STREAM,
    GOAWAY,
    HAS_PRIORITY,
    HEADERS,
    INITIAL_WINDOW,
    PADDED,
    PING,
    PRIORITY,
    RST_STREAM,
    SETTINGS,
    WINDOW_UPDATE,
    FloodLimit,
    frame,
    literal,
)  # fmt: skip
from tritonnb.endpoints.grpc.transport.http2 import PREFACE


def plain(*fields: tuple[str, str]) -> bytes:
    """A header block as a client of no good will writes it."""
    return b"".join(literal(name, value.encode("latin-1")) for name, value in fields)


GOOD = ((":method", "POST"), (":scheme", "http"), (":path", INFER), ("content-type", "application/grpc"))


@cases(
    "fields", of=[
        (*GOOD, ("UPPER", "x")),
        (*GOOD, ("", "x")),
        (*GOOD, ("a b", "x")),
        (*GOOD, ("x", "a\nb")),
        (*GOOD, ("x", "a\0b")),
        (*GOOD, (":authority", "x")),
        (*GOOD[:3], (":path", "/twice"), GOOD[3]),
        (*GOOD[:3], (":status", "200"), GOOD[3]),
        (*GOOD, ("connection", "close")),
        (*GOOD, ("transfer-encoding", "chunked")),
        (*GOOD, ("te", "gzip")),
        GOOD[1:],
        (GOOD[0], GOOD[2], GOOD[3]),
        (GOOD[0], GOOD[1], GOOD[3]),
        (),
    ],
)  # fmt: skip
async def test_headers_without_a_valid_request_end_the_call(server: Running, fields: Any) -> None:
    client = await server.connect()
    for stream in (1, 3):  # the second time the block is known
        client.send(frame(HEADERS, END_HEADERS | END_STREAM, stream, plain(*fields)))
        assert await client.until(RST_STREAM) == (stream, struct.pack(">I", 1))
    client.send(client.request(5, 7))
    assert await client.answer() == (5, [7])


@cases(
    "frames", "code", of=[
        (frame(DATA, 0, 1, message(1)), 5),
        (frame(HEADERS, END_HEADERS | END_STREAM, 1, plain(("x", "y"))), 5),
        (frame(WINDOW_UPDATE, 0, 1, bytes(4)), 1),
        (frame(WINDOW_UPDATE, 0, 1, struct.pack(">I", 2**31 - 1)), 3),
    ],
)  # fmt: skip
async def test_protocol_violation_in_a_call_ends_the_call(server: Running, frames: bytes, code: int) -> None:
    server.echo.hold = True
    client = await server.connect()
    client.send(client.request(1, 1))
    held = await server.echo.held.get()
    client.send(frames)
    assert await client.until(RST_STREAM) == (1, struct.pack(">I", code))
    assert await server.echo.cancelled.get() is held
    server.echo.hold = False
    client.send(client.request(3, 3))
    assert await client.answer() == (3, [3])


@with_server
async def test_client_trailers_half_close_the_stream(server: Running) -> None:
    client = await server.connect()
    client.send(client.headers(1), frame(DATA, 0, 1, message(4)))
    client.send(frame(HEADERS, END_HEADERS | END_STREAM, 1, plain(("x", "y"))))
    assert await client.answer() == (1, [4])
    assert (await client.until(RST_STREAM))[0] == 1  # it was answered before
    client.send(client.headers(3), frame(HEADERS, END_HEADERS, 3, plain(("x", "y"))))
    assert await client.until(RST_STREAM) == (3, struct.pack(">I", 1))


@with_server
async def test_trailers_after_the_end_of_a_call_are_ignored(server: Running) -> None:
    client = await server.connect()
    client.send(client.headers(1, path="/no/such"))
    await client.until(RST_STREAM)
    client.send(frame(HEADERS, END_HEADERS | END_STREAM, 1, plain(("x", "y"))), client.request(3, 3))
    assert await client.answer() == (3, [3])


@cases(
    "frames", "code", of=[
        (frame(RST_STREAM, 0, 0, bytes(4)), 1),
        (frame(RST_STREAM, 0, 3, bytes(4)), 1),
        (frame(WINDOW_UPDATE, 0, 3, struct.pack(">I", 1)), 1),
        (frame(PING, 0, 1, bytes(8)), 1),
        (frame(GOAWAY, 0, 1, bytes(8)), 1),
        (frame(PRIORITY, 0, 0, bytes(5)), 1),
        (frame(PRIORITY, 0, 1, bytes(4)), 6),
        (frame(HEADERS, END_HEADERS | HAS_PRIORITY, 3, bytes(4)), 6),
        (frame(HEADERS, END_HEADERS, 1, plain(*GOOD)), 1),
        (frame(HEADERS, 0, 3, b"") + frame(CONTINUATION, 0, 3, b"") * 100, 11),
        (frame(HEADERS, END_HEADERS, 3, b"\x3f\xe2\x1f"), 9),
        (frame(HEADERS, END_HEADERS, 3, plain(*GOOD, ("x", "a" * 70_000))), 9),
        (frame(SETTINGS, 0, 0, struct.pack(">HI", INITIAL_WINDOW, 1)) * 101, 11),
        (frame(SETTINGS, ACK, 0, b"123456"), 6),
        (frame(SETTINGS, 0, 0, struct.pack(">HI", 5, 100)), 1),
        (frame(DATA, PADDED, 3, b""), 1),
    ],
)  # fmt: skip
async def test_protocol_violation_after_a_call_ends_the_connection(server: Running, frames: bytes, code: int) -> None:
    client = await server.connect()
    client.send(client.request(1, 1))
    await client.answer()
    client.send(frames)
    await client.closed(code)


@with_server
async def test_settings_that_overflow_a_window_end_the_connection(server: Running) -> None:
    client = await server.connect(PREFACE, frame(SETTINGS, 0, 0, struct.pack(">HI", INITIAL_WINDOW, 0)))
    client.send(client.request(1, 1), frame(WINDOW_UPDATE, 0, 1, struct.pack(">I", 2**31 - 100)))
    server.echo.hold = True
    client.send(client.request(3, 1), frame(WINDOW_UPDATE, 0, 3, struct.pack(">I", 2**31 - 1)))
    client.send(frame(SETTINGS, 0, 0, struct.pack(">HI", INITIAL_WINDOW, 1)))
    await client.closed(3)


@cases("first", of=[frame(PING, 0, 0, bytes(8)), frame(SETTINGS, ACK, 0, b"")])
async def test_settings_frame_is_sent_first(server: Running, first: bytes) -> None:
    client = await server.connect(PREFACE, first)
    await client.closed(1)


@with_server
async def test_streams_blocked_by_the_connection_window_take_turns(server: Running) -> None:
    client = await server.connect(PREFACE, frame(SETTINGS, 0, 0, struct.pack(">HI", INITIAL_WINDOW, 1 << 20)))
    count, numbers = 4, tuple(range(10_000))
    client.send(*(client.request(2 * number + 1, *numbers) for number in range(count)))
    for _ in range(400):
        client.send(frame(WINDOW_UPDATE, 0, 0, struct.pack(">I", 1000)))
    assert sorted([await client.answer() for _ in range(count)]) == [
        (2 * number + 1, list(numbers)) for number in range(count)
    ]


@with_server
async def test_one_connection_can_have_a_thousand_calls_in_progress(server: Running) -> None:
    server.echo.hold = True
    client = await server.connect()
    client.send(*(client.request(2 * number + 1, number) for number in range(1000)))
    held = [await server.echo.held.get() for _ in range(1000)]
    for request in held:
        server.echo.answer(request)
    assert sorted([await client.answer() for _ in range(1000)]) == [
        (2 * number + 1, [number]) for number in range(1000)
    ]


@with_server
async def test_calls_beyond_the_limit_are_refused(server: Running) -> None:
    server.echo.hold = True
    client = await server.connect()
    client.send(*(client.headers(2 * number + 1) for number in range(4097)))
    assert await client.until(RST_STREAM) == (8193, struct.pack(">I", 7))


@with_server
async def test_reset_calls_leave_no_state(server: Running) -> None:
    server.echo.hold = True
    client = await server.connect(PREFACE, frame(SETTINGS, 0, 0, struct.pack(">HI", INITIAL_WINDOW, 0)))
    for number in range(3000):
        stream = 2 * number + 1
        client.send(client.request(stream, 1), frame(RST_STREAM, 0, stream, struct.pack(">I", 8)))
    server.echo.hold = False
    client.send(
        client.request(6001, 1), frame(RST_STREAM, 0, 6001, struct.pack(">I", 8)), frame(PING, 0, 0, b"that all")
    )
    await client.until(PING, ACK)
    (connection,) = server.server.connections
    assert not connection.calls


def begun_and_reset(stream: int) -> bytes:
    return frame(HEADERS, END_HEADERS, stream, plain(*GOOD)) + frame(RST_STREAM, 0, stream, bytes(4))


@cases(
    "flood", of=[
        frame(PING, ACK, 0, bytes(8)) * 101,
        frame(PRIORITY, 0, 1, bytes(5)) * 101,
        b"".join(begun_and_reset(stream) for stream in range(1, 203, 2)),
    ],
)  # fmt: skip
async def test_flood_of_empty_frames_ends_the_connection(server: Running, flood: bytes) -> None:
    client = await server.connect()
    client.send(frame(SETTINGS, 0, 0, b""))
    await client.until(SETTINGS, ACK)
    (connection,) = server.server.connections
    connection._controls = FloodLimit(100)
    client.send(flood)
    await client.closed(11)


@with_server
async def test_server_stops_reading_from_a_client_that_does_not_read(server: Running) -> None:
    client = await server.connect()
    client.send(frame(PING, 0, 0, bytes(8)))
    await client.until(PING, ACK)
    (connection,) = server.server.connections
    connection.pause_writing()
    assert not connection._transport.is_reading()
    client.send(client.request(1, 1))
    connection.resume_writing()
    assert await client.answer() == (1, [1])


@law(60)
@given(st.data())
def test_server_survives_arbitrary_frame_streams(data: st.DataObject) -> None:
    kinds, flags = st.sampled_from(range(11)), st.sampled_from([0, 1, 4, 5, 8, 32, 37, 44])
    frames = st.tuples(kinds, flags, st.sampled_from([0, 1, 3, 5]), st.binary(max_size=30))
    pieces = data.draw(st.lists(frames, max_size=12))
    cut = data.draw(st.integers(0, 400))

    async def main() -> None:
        problems: list[Any] = []
        asyncio.get_running_loop().set_exception_handler(lambda loop, context: problems.append(context))
        async with running() as server:
            client = await server.connect()
            stream = client.request(1, 1) + b"".join(frame(*piece) for piece in pieces) + client.request(7, 2)
            client.send(stream[:cut])
            await asyncio.sleep(0)
            client.send(stream[cut:])
            client.writer.write_eof()
            async with asyncio.timeout(30):
                with suppress(ConnectionResetError):
                    await client.reader.read()
            other = await server.connect()
            other.send(other.request(1, 7))
            assert await other.answer() == (1, [7])
        assert not problems, problems

    asyncio.run(main())


@pytest.mark.parametrize("beginning", [b"", PREFACE[:5], PREFACE])
def test_client_that_sends_no_preface_is_disconnected(beginning: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http2, "_HANDSHAKE", 0.01)

    async def main() -> None:
        async with running() as server:
            client = await server.connect(beginning)
            async with asyncio.timeout(30):
                with suppress(ConnectionResetError):
                    await client.reader.read()
            assert not server.server.connections

    asyncio.run(main())


@with_server
async def test_message_that_exceeds_the_limit_after_decompression_is_refused(server: Running) -> None:
    compressor = zlib.compressobj(9, wbits=31)
    zeros = bytes(1 << 20)
    bomb = b"".join(compressor.compress(zeros) for _ in range(65)) + compressor.flush()
    client = await server.connect()
    data = struct.pack(">BI", 1, len(bomb)) + bomb
    client.send(client.headers(1, grpc_encoding="gzip"), frame(DATA, END_STREAM, 1, data))
    _, fields = await client.until(HEADERS, END_STREAM)
    assert b"'grpc-status': '3'" in fields
    assert b"decompressed message expected at most 67108864 bytes" in fields
    client.send(client.request(3, 3))
    assert await client.answer() == (3, [3])


@with_server
async def test_message_that_is_longer_than_the_limit_is_refused_before_it_is_sent(server: Running) -> None:
    client = await server.connect()
    client.send(client.headers(1), frame(DATA, 0, 1, struct.pack(">BI", 0, 1 << 31)))
    _, fields = await client.until(HEADERS, END_STREAM)
    assert b"'grpc-status': '8'" in fields
    assert b"message: expected at most 2147483647 bytes, got 2147483648: send fewer tensors at a time" in fields
