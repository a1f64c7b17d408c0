"""The transport of gRPC, frame by frame: what any client may do, and what none may."""

from __future__ import annotations

import asyncio
import struct
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager, suppress
from typing import Any

import numpy as np
import pytest
from hpack import Decoder, Encoder
from hypothesis import given, settings
from hypothesis import strategies as st
from tritonclient.grpc import service_pb2 as pb

from tests.endpoints.served import OneModel
from tritonnb.endpoints.grpc.fast_server import FastServer
from tritonnb.endpoints.grpc.frames import (
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
    PUSH_PROMISE,
    RST_STREAM,
    SETTINGS,
    WINDOW_UPDATE,
    frame,
)  # fmt: skip
from tritonnb.endpoints.grpc.header_blocks import literal
from tritonnb.endpoints.grpc.http2 import PREFACE
from tritonnb.endpoints.grpc.options import GrpcOptions
from tritonnb.endpoints.grpc.rpcs import Rpcs

INFER = "/inference.GRPCInferenceService/ModelInfer"
STREAM = "/inference.GRPCInferenceService/ModelStreamInfer"
HELLO = PREFACE + frame(SETTINGS, 0, 0, b"")


def message(*values: int, id: str = "") -> bytes:
    """A request for the echo model, as gRPC frames it."""
    request = pb.ModelInferRequest(model_name="echo", id=id)
    request.inputs.add(name="X", datatype="INT32", shape=[1, len(values)])
    request.raw_input_contents.append(np.array(values, "<i4").tobytes())
    data = request.SerializeToString()
    return struct.pack(">BI", 0, len(data)) + data


class Client:
    """Speaks frames over a socket."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader, self.writer = reader, writer
        self.encoder, self.decoder = Encoder(), Decoder()
        self.bodies: dict[int, bytes] = {}

    def headers(self, stream: int, *, path: str = INFER, flags: int = END_HEADERS, **more: str) -> bytes:
        return frame(HEADERS, flags, stream, self.block(path, **more))

    def block(self, path: str = INFER, **more: str) -> bytes:
        fields = {":method": "POST", ":scheme": "http", ":path": path, ":authority": "x"}
        fields |= {"content-type": "application/grpc", "te": "trailers"}
        return self.encoder.encode({**fields, **{name.replace("_", "-"): each for name, each in more.items()}})

    def request(self, stream: int, *values: int, **more: str) -> bytes:
        return self.headers(stream, **more) + frame(DATA, END_STREAM, stream, message(*values))

    def send(self, *frames: bytes) -> None:
        self.writer.write(b"".join(frames))

    async def next(self) -> tuple[int, int, int, bytes]:
        """The next frame: kind, flags, stream, payload."""
        async with asyncio.timeout(10):
            head = await self.reader.readexactly(9)
            payload = await self.reader.readexactly(int.from_bytes(head[:3], "big"))
        return head[3], head[4], int.from_bytes(head[5:], "big"), payload

    async def until(self, kind: int, flags: int = 0) -> tuple[int, bytes]:
        """The next frame of a kind that has some flags; bodies on the way are kept."""
        while True:
            found, given, stream, payload = await self.next()
            if found == DATA:
                self.bodies[stream] = self.bodies.get(stream, b"") + payload
            if found == HEADERS and (kind, flags) != (HEADERS, 0):
                fields = dict(self.decoder.decode(payload)) if given & END_HEADERS else {}
                if found == kind and given & flags == flags:
                    return stream, repr(fields).encode()
                continue
            if found == kind and given & flags == flags:
                return stream, payload

    async def answer(self) -> tuple[int, list[int]]:
        """The next complete answer: its stream, and the values echoed."""
        stream, fields = await self.until(HEADERS, END_STREAM)
        assert b"'grpc-status': '0'" in fields, fields
        return stream, values(self.bodies[stream])

    async def closed(self, code: int) -> None:
        """The server says goodbye with a code, and closes."""
        _, payload = await self.until(GOAWAY)
        assert struct.unpack(">II", payload[:8])[1] == code
        async with asyncio.timeout(10):
            with suppress(ConnectionResetError):
                assert await self.reader.read() == b""


def values(body: bytes) -> list[int]:
    response = pb.ModelInferResponse.FromString(body[5:])
    return np.frombuffer(response.raw_output_contents[0], "<i4").tolist()


class Running:
    """A server and the model behind it."""

    def __init__(self, server: FastServer, engine: OneModel, port: int) -> None:
        self.server, self.echo, self._port = server, engine.echo, port
        self._writers: list[asyncio.StreamWriter] = []

    async def connect(self, *hello: bytes) -> Client:
        reader, writer = await asyncio.open_connection("127.0.0.1", self._port)
        self._writers.append(writer)
        writer.write(b"".join(hello or (HELLO,)))
        return Client(reader, writer)

    def disconnect(self) -> None:
        for writer in self._writers:
            writer.close()


@asynccontextmanager
async def running() -> AsyncIterator[Running]:
    engine: Any = OneModel()
    server = FastServer(Rpcs(engine, GrpcOptions()), GrpcOptions())
    found = Running(server, engine, await server.start("127.0.0.1", 0))
    try:
        yield found
    finally:
        found.disconnect()
        await server.stop(0)


def with_server(test: Callable[..., Coroutine[Any, Any, None]]) -> Callable[..., None]:
    """Run a test on a loop with a server; pytest sees its other arguments."""

    def run(**arguments: Any) -> None:
        async def main() -> None:
            async with running() as server:
                await test(server, **arguments)

        asyncio.run(main())

    run.__name__, run.__doc__ = test.__name__, test.__doc__
    return run


def cases(*names: str, of: list[Any]) -> Callable[..., Any]:
    """Parametrize a test that `with_server` runs."""

    def decorate(test: Callable[..., Coroutine[Any, Any, None]]) -> Callable[..., None]:
        inner = with_server(test)
        scope: dict[str, Any] = {"inner": inner}
        listed = ", ".join(names)
        passed = ", ".join(f"{each}={each}" for each in names)
        exec(f"def {test.__name__}({listed}):\n    inner({passed})\n", scope)
        return pytest.mark.parametrize(names if len(names) > 1 else names[0], of)(scope[test.__name__])

    return decorate


@with_server
async def test_requests_on_one_connection_are_answered(server: Running):
    client = await server.connect()
    for number in range(3):
        client.send(client.request(2 * number + 1, number, number))
        assert await client.answer() == (2 * number + 1, [number, number])


@with_server
async def test_requests_may_overlap_and_answers_come_as_they_are_ready(server: Running):
    server.echo.hold = True
    client = await server.connect()
    client.send(client.request(1, 1), client.request(3, 3))
    first, second = await server.echo.held.get(), await server.echo.held.get()
    server.echo.answer(second)
    server.echo.answer(first)
    assert [await client.answer() for _ in range(2)] == [(3, [3]), (1, [1])]


@with_server
async def test_bytes_may_come_one_by_one(server: Running):
    client = await server.connect(b"")
    for byte in HELLO + client.request(1, 5, 6):
        client.send(bytes([byte]))
        await asyncio.sleep(0)
    assert await client.answer() == (1, [5, 6])


@settings(max_examples=40)
@given(st.lists(st.integers(1, 200), min_size=1, max_size=12))
def test_requests_may_be_cut_anywhere(cuts: list[int]):
    async def main() -> None:
        async with running() as server:
            client = await server.connect(b"")
            data = HELLO + client.request(1, 1) + client.request(3, 2)
            for cut in cuts:
                client.send(data[:cut])
                await asyncio.sleep(0)
                data = data[cut:]
            client.send(data)
            assert sorted([(await client.answer())[0], (await client.answer())[0]]) == [1, 3]

    asyncio.run(main())


@settings(max_examples=60)
@given(st.binary(max_size=200), st.integers(0, 9), st.integers(0, 255), st.integers(0, 7))
def test_no_frame_breaks_the_server(payload: bytes, kind: int, flags: int, stream: int):
    async def main() -> None:
        async with running() as server:
            client = await server.connect()
            client.send(client.headers(1), frame(kind, flags, stream, payload))
            client.writer.write_eof()
            async with asyncio.timeout(10):
                with suppress(ConnectionResetError):
                    await client.reader.read()
            other = await server.connect()
            other.send(other.request(1, 7))
            assert await other.answer() == (1, [7])

    asyncio.run(main())


@with_server
async def test_headers_may_be_continued_padded_and_have_a_priority(server: Running):
    client = await server.connect()
    block = client.block()
    payload = bytes([3]) + bytes(5) + block[:10] + bytes(3)
    client.send(
        frame(HEADERS, PADDED | HAS_PRIORITY, 1, payload),
        frame(CONTINUATION, 0, 1, block[10:20]),
        frame(CONTINUATION, END_HEADERS, 1, block[20:]),
        frame(DATA, PADDED | END_STREAM, 1, bytes([2]) + message(4) + bytes(2)),
    )
    assert await client.answer() == (1, [4])


@with_server
async def test_an_answer_waits_for_the_windows_of_the_client(server: Running):
    settings_frame = frame(SETTINGS, 0, 0, struct.pack(">HI", INITIAL_WINDOW, 10))
    client = await server.connect(PREFACE, settings_frame)
    client.send(client.request(1, *range(20)))
    received = 0
    while True:
        kind, flags, _stream, payload = await client.next()
        if kind == DATA:
            assert len(payload) <= 10
            received += len(payload)
            client.bodies[1] = client.bodies.get(1, b"") + payload
            client.send(frame(WINDOW_UPDATE, 0, 1, struct.pack(">I", len(payload))))
        elif kind == HEADERS and flags & END_STREAM:
            break
    assert values(client.bodies[1]) == list(range(20))


@with_server
async def test_a_larger_initial_window_reaches_streams_that_wait(server: Running):
    client = await server.connect(PREFACE, frame(SETTINGS, 0, 0, struct.pack(">HI", INITIAL_WINDOW, 0)))
    client.send(client.request(1, 1, 2))
    await client.until(HEADERS)
    client.send(frame(SETTINGS, 0, 0, struct.pack(">HI", INITIAL_WINDOW, 1000)))
    client.bodies[1] = (await client.until(DATA))[1]
    assert values(client.bodies[1]) == [1, 2]


@with_server
async def test_large_messages_pass_in_frames_both_ways(server: Running):
    client = await server.connect()
    numbers = tuple(range(60_000))
    body = message(*numbers)
    client.send(frame(WINDOW_UPDATE, 0, 0, struct.pack(">I", 1 << 24)), client.headers(1))
    client.send(frame(WINDOW_UPDATE, 0, 1, struct.pack(">I", 1 << 24)))
    for at in range(0, len(body), 16_384):
        client.send(frame(DATA, END_STREAM if at + 16_384 >= len(body) else 0, 1, body[at : at + 16_384]))
    assert await client.answer() == (1, list(numbers))


@with_server
async def test_a_reset_cancels_the_request(server: Running):
    server.echo.hold = True
    client = await server.connect()
    client.send(client.request(1, 1))
    held = await server.echo.held.get()
    client.send(frame(RST_STREAM, 0, 1, struct.pack(">I", 8)))
    assert await server.echo.cancelled.get() is held
    server.echo.answer(held)  # nobody hears it
    server.echo.hold = False
    client.send(client.request(3, 3))
    assert await client.answer() == (3, [3])


@with_server
async def test_a_lost_connection_cancels_its_requests(server: Running):
    server.echo.hold = True
    client = await server.connect()
    client.send(client.request(1, 1))
    held = await server.echo.held.get()
    client.writer.close()
    assert await server.echo.cancelled.get() is held


@with_server
async def test_a_deadline_that_passes_ends_the_call(server: Running):
    server.echo.hold = True
    client = await server.connect()
    client.send(client.request(1, 1, grpc_timeout="10m"))
    _, fields = await client.until(HEADERS, END_STREAM)
    assert b"'grpc-status': '4'" in fields
    assert await server.echo.cancelled.get() is await server.echo.held.get()


@with_server
async def test_pings_and_settings_are_acknowledged(server: Running):
    client = await server.connect()
    client.send(frame(PING, 0, 0, b"12345678"), frame(PING, ACK, 0, b"ignored!"))
    assert (await client.until(SETTINGS, ACK))[1] == b""
    assert (await client.until(PING, ACK))[1] == b"12345678"


@with_server
async def test_frames_that_nobody_knows_are_ignored(server: Running):
    client = await server.connect()
    client.send(frame(99, 255, 1, b"?"), client.request(1, 1))
    assert await client.answer() == (1, [1])


@with_server
async def test_streams_carry_messages_as_they_come(server: Running):
    client = await server.connect()
    client.send(client.headers(1, path=STREAM))
    for number in range(3):
        client.send(frame(DATA, 0, 1, message(number, id=str(number))))
        _, payload = await client.until(DATA)
        response = pb.ModelStreamInferResponse.FromString(payload[5:])
        assert response.infer_response.id == str(number)
    client.send(frame(DATA, END_STREAM, 1, b""))
    assert b"'grpc-status': '0'" in (await client.until(HEADERS, END_STREAM))[1]


@with_server
async def test_a_stream_that_is_reset_while_its_answers_wait_cancels_what_is_left(server: Running):
    client = await server.connect(PREFACE, frame(SETTINGS, 0, 0, struct.pack(">HI", INITIAL_WINDOW, 0)))
    client.send(client.headers(1, path=STREAM), frame(DATA, 0, 1, message(1)))
    await client.until(HEADERS)  # the first answer waits for the window
    server.echo.hold = True
    client.send(frame(DATA, 0, 1, message(2)))
    held = await server.echo.held.get()
    client.send(frame(RST_STREAM, 0, 1, struct.pack(">I", 8)))
    assert await server.echo.cancelled.get() is held


@with_server
async def test_a_unary_call_has_one_message(server: Running):
    server.echo.hold = True
    client = await server.connect()
    client.send(client.headers(1), frame(DATA, END_STREAM, 1, message(1) + message(2)))
    assert b"'grpc-status': '13'" in (await client.until(HEADERS, END_STREAM))[1]
    assert await server.echo.cancelled.get() is await server.echo.held.get()


@with_server
async def test_a_call_that_is_no_grpc_is_refused(server: Running):
    client = await server.connect()
    client.send(client.headers(1, flags=END_HEADERS | END_STREAM, content_type="text/html"))
    assert b"'415'" in (await client.until(HEADERS, END_STREAM))[1]


@cases(
    "body", "code", of=[
        (b"", 13),
        (struct.pack(">BI", 0, 4) + b"\xff\xff\xff\xff", 13),
        (struct.pack(">BI", 1, 4) + b"nope", 13),
        (struct.pack(">BI", 0, 0xFFFFFFFF), 8),
    ],
)  # fmt: skip
async def test_a_body_that_is_no_message_is_an_error(server: Running, body: bytes, code: int):
    client = await server.connect()
    client.send(client.headers(1, grpc_encoding="gzip"), frame(DATA, END_STREAM, 1, body))
    assert f"'grpc-status': '{code}'".encode() in (await client.until(HEADERS, END_STREAM))[1]


@with_server
async def test_an_unknown_compression_is_unimplemented(server: Running):
    client = await server.connect()
    client.send(client.headers(1, grpc_encoding="br"), frame(DATA, END_STREAM, 1, b"\1\0\0\0\1x"))
    assert b"'grpc-status': '12'" in (await client.until(HEADERS, END_STREAM))[1]


@with_server
async def test_an_early_error_tells_the_client_to_send_no_more(server: Running):
    client = await server.connect()
    client.send(client.headers(1, path="/no/such"))
    assert b"'grpc-status': '12'" in (await client.until(HEADERS, END_STREAM))[1]
    assert (await client.until(RST_STREAM))[1] == bytes(4)
    client.send(frame(DATA, END_STREAM, 1, message(1)), client.request(3, 3))
    assert await client.answer() == (3, [3])


@cases(
    "data", "code", of=[
        (frame(DATA, 0, 0, b""), 1),
        (frame(DATA, 0, 5, b""), 1),
        (frame(HEADERS, END_HEADERS, 2, b""), 1),
        (frame(HEADERS, END_HEADERS, 1, b"\xff\xff\xff\xff\xff\xff"), 9),
        (frame(HEADERS, 0, 1, b"") + frame(PING, 0, 0, bytes(8)), 1),
        (frame(CONTINUATION, END_HEADERS, 1, b""), 1),
        (frame(PUSH_PROMISE, 0, 1, b""), 1),
        (frame(PING, 0, 0, b"short"), 6),
        (frame(SETTINGS, 0, 0, b"short"), 6),
        (frame(SETTINGS, 0, 1, b""), 1),
        (frame(SETTINGS, 0, 0, struct.pack(">HI", INITIAL_WINDOW, 2**31)), 3),
        (frame(WINDOW_UPDATE, 0, 0, bytes(4)), 1),
        (frame(WINDOW_UPDATE, 0, 0, struct.pack(">I", 2**31 - 1)), 3),
        (frame(RST_STREAM, 0, 1, b""), 6),
        (b"\xff\xff\xff" + bytes(6), 6),
        (frame(HEADERS, 0, 1, b"") + frame(CONTINUATION, 0, 1, bytes(1 << 16)) * 2, 11),
    ],
)  # fmt: skip
async def test_what_no_client_may_do_ends_the_connection(server: Running, data: bytes, code: int):
    client = await server.connect()
    client.send(data)
    await client.closed(code)


@with_server
async def test_a_client_of_another_protocol_is_sent_away(server: Running):
    client = await server.connect(b"GET / HTTP/1.1\r\n\r\n")
    await client.closed(1)


@with_server
async def test_a_server_that_stops_finishes_its_calls_and_takes_no_more(server: Running):
    server.echo.hold = True
    client = await server.connect()
    client.send(client.request(1, 1))
    held = await server.echo.held.get()
    stopping = asyncio.create_task(server.server.stop(10))
    await client.until(GOAWAY)
    client.send(client.request(3, 3))
    assert (await client.until(RST_STREAM))[0] == 3
    server.echo.answer(held)
    assert await client.answer() == (1, [1])
    await stopping


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
async def test_headers_that_make_no_request_end_the_call(server: Running, fields: Any):
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
async def test_what_no_client_may_do_in_a_call_ends_the_call(server: Running, frames: bytes, code: int):
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
async def test_trailers_of_a_client_end_its_side(server: Running):
    client = await server.connect()
    client.send(client.headers(1), frame(DATA, 0, 1, message(4)))
    client.send(frame(HEADERS, END_HEADERS | END_STREAM, 1, plain(("x", "y"))))
    assert await client.answer() == (1, [4])
    assert (await client.until(RST_STREAM))[0] == 1  # it was answered before
    client.send(client.headers(3), frame(HEADERS, END_HEADERS, 3, plain(("x", "y"))))
    assert await client.until(RST_STREAM) == (3, struct.pack(">I", 1))


@with_server
async def test_trailers_of_a_call_that_is_over_are_ignored(server: Running):
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
async def test_what_no_client_may_do_after_a_call_ends_the_connection(server: Running, frames: bytes, code: int):
    client = await server.connect()
    client.send(client.request(1, 1))
    await client.answer()
    client.send(frames)
    await client.closed(code)


@with_server
async def test_a_window_that_settings_make_too_large_ends_the_connection(server: Running):
    client = await server.connect(PREFACE, frame(SETTINGS, 0, 0, struct.pack(">HI", INITIAL_WINDOW, 0)))
    client.send(client.request(1, 1), frame(WINDOW_UPDATE, 0, 1, struct.pack(">I", 2**31 - 100)))
    server.echo.hold = True
    client.send(client.request(3, 1), frame(WINDOW_UPDATE, 0, 3, struct.pack(">I", 2**31 - 1)))
    client.send(frame(SETTINGS, 0, 0, struct.pack(">HI", INITIAL_WINDOW, 1)))
    await client.closed(3)


@cases("first", of=[frame(PING, 0, 0, bytes(8)), frame(SETTINGS, ACK, 0, b"")])
async def test_settings_come_first(server: Running, first: bytes):
    client = await server.connect(PREFACE, first)
    await client.closed(1)


@with_server
async def test_streams_that_are_blocked_by_the_connection_take_turns(server: Running):
    client = await server.connect(PREFACE, frame(SETTINGS, 0, 0, struct.pack(">HI", INITIAL_WINDOW, 1 << 20)))
    count, numbers = 4, tuple(range(10_000))
    client.send(*(client.request(2 * each + 1, *numbers) for each in range(count)))
    for _ in range(400):
        client.send(frame(WINDOW_UPDATE, 0, 0, struct.pack(">I", 1000)))
    assert sorted([await client.answer() for _ in range(count)]) == [
        (2 * each + 1, list(numbers)) for each in range(count)
    ]


@with_server
async def test_a_thousand_calls_on_one_connection_are_in_progress_at_once(server: Running):
    server.echo.hold = True
    client = await server.connect()
    client.send(*(client.request(2 * each + 1, each) for each in range(1000)))
    held = [await server.echo.held.get() for _ in range(1000)]
    for request in held:
        server.echo.answer(request)
    assert sorted([await client.answer() for _ in range(1000)]) == [(2 * each + 1, [each]) for each in range(1000)]


@with_server
async def test_more_calls_than_may_be_are_refused(server: Running):
    server.echo.hold = True
    client = await server.connect()
    client.send(*(client.headers(2 * each + 1) for each in range(4097)))
    assert await client.until(RST_STREAM) == (8193, struct.pack(">I", 7))


@with_server
async def test_calls_that_are_begun_and_reset_leave_nothing(server: Running):
    server.echo.hold = True
    client = await server.connect(PREFACE, frame(SETTINGS, 0, 0, struct.pack(">HI", INITIAL_WINDOW, 0)))
    for each in range(3000):
        stream = 2 * each + 1
        client.send(client.request(stream, 1), frame(RST_STREAM, 0, stream, struct.pack(">I", 8)))
    server.echo.hold = False
    client.send(
        client.request(6001, 1), frame(RST_STREAM, 0, 6001, struct.pack(">I", 8)), frame(PING, 0, 0, b"that all")
    )
    await client.until(PING, ACK)
    (connection,) = server.server.connections
    assert not connection.calls


@with_server
async def test_a_client_that_does_not_read_is_not_listened_to(server: Running):
    client = await server.connect()
    client.send(frame(PING, 0, 0, bytes(8)))
    await client.until(PING, ACK)
    (connection,) = server.server.connections
    connection.pause_writing()
    assert not connection._transport.is_reading()
    client.send(client.request(1, 1))
    connection.resume_writing()
    assert await client.answer() == (1, [1])


@settings(max_examples=60)
@given(st.data())
def test_no_stream_of_frames_breaks_the_server(data: st.DataObject):
    pieces = data.draw(st.lists(st.tuples(st.sampled_from(range(11)), st.sampled_from([0, 1, 4, 5, 8, 32, 37, 44]),
                                          st.sampled_from([0, 1, 3, 5]), st.binary(max_size=30)), max_size=12))  # fmt: skip
    cut = data.draw(st.integers(0, 400))

    async def main() -> None:
        problems: list[Any] = []
        asyncio.get_running_loop().set_exception_handler(lambda loop, context: problems.append(context))
        async with running() as server:
            client = await server.connect()
            stream = client.request(1, 1) + b"".join(frame(*each) for each in pieces) + client.request(7, 2)
            client.send(stream[:cut])
            await asyncio.sleep(0)
            client.send(stream[cut:])
            client.writer.write_eof()
            async with asyncio.timeout(10):
                with suppress(ConnectionResetError):
                    await client.reader.read()
            other = await server.connect()
            other.send(other.request(1, 7))
            assert await other.answer() == (1, [7])
        assert not problems, problems

    asyncio.run(main())
