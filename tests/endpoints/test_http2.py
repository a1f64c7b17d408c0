"""The transport of gRPC, frame by frame: what any client may do, and what none may."""

from __future__ import annotations

import asyncio
import struct
from contextlib import suppress
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tritonclient.grpc import service_pb2 as pb

from tests.endpoints.http2_client import HELLO, STREAM, Client, Running, cases, message, running, values, with_server
from tests.laws import law
from tritonnb.endpoints.grpc.options import GrpcOptions
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
    PUSH_PROMISE,
    RST_STREAM,
    SETTINGS,
    WINDOW_UPDATE,
    frame,
)  # fmt: skip
from tritonnb.endpoints.grpc.transport.http2 import PREFACE


@with_server
async def test_requests_on_one_connection_are_answered(server: Running) -> None:
    client = await server.connect()
    for number in range(3):
        client.send(client.request(2 * number + 1, number, number))
        assert await client.answer() == (2 * number + 1, [number, number])


@with_server
async def test_overlapping_requests_are_answered_as_they_complete(server: Running) -> None:
    server.echo.hold = True
    client = await server.connect()
    client.send(client.request(1, 1), client.request(3, 3))
    first, second = await server.echo.held.get(), await server.echo.held.get()
    server.echo.answer(second)
    server.echo.answer(first)
    assert [await client.answer() for _ in range(2)] == [(3, [3]), (1, [1])]


@with_server
async def test_body_may_arrive_byte_by_byte(server: Running) -> None:
    client = await server.connect(b"")
    for byte in HELLO + client.request(1, 5, 6):
        client.send(bytes([byte]))
        await asyncio.sleep(0)
    assert await client.answer() == (1, [5, 6])


cuts = st.lists(st.integers(1, 200), min_size=1, max_size=12)


async def send_in_parts(client: Client, data: bytes, sizes: list[int]) -> None:
    for size in sizes:
        client.send(data[:size])
        await asyncio.sleep(0)
        data = data[size:]
    client.send(data)


@law(40)
@given(cuts)
def test_requests_may_be_split_at_any_byte(sizes: list[int]) -> None:
    async def main() -> None:
        async with running() as server:
            client = await server.connect(b"")
            await send_in_parts(client, HELLO + client.request(1, 1) + client.request(3, 2), sizes)
            assert sorted([(await client.answer())[0], (await client.answer())[0]]) == [1, 3]

    asyncio.run(main())


@law(40)
@given(cuts)
def test_frame_with_several_messages_of_a_stream_may_arrive_in_parts(sizes: list[int]) -> None:
    async def main() -> None:
        async with running() as server:
            client = await server.connect()
            body = message(1) + message(2, 3) + message(4)
            await send_in_parts(client, client.headers(1, path=STREAM) + frame(DATA, END_STREAM, 1, body), sizes)
            await client.until(HEADERS, END_STREAM)
            assert streamed(client.bodies[1]) == [[1], [2, 3], [4]]

    asyncio.run(main())


def streamed(body: bytes) -> list[list[int]]:
    """The values of the responses of a stream."""
    found = []
    while body:
        end = 5 + int.from_bytes(body[1:5], "big")
        response = pb.ModelStreamInferResponse.FromString(body[5:end]).infer_response
        found.append(np.frombuffer(response.raw_output_contents[0], "<i4").tolist())
        body = body[end:]
    return found


@law(60)
@given(st.binary(max_size=200), st.integers(0, 9), st.integers(0, 255), st.integers(0, 7))
def test_server_survives_arbitrary_frames(payload: bytes, kind: int, flags: int, stream: int) -> None:
    async def main() -> None:
        async with running() as server:
            client = await server.connect()
            client.send(client.headers(1), frame(kind, flags, stream, payload))
            client.writer.write_eof()
            async with asyncio.timeout(30):
                with suppress(ConnectionResetError):
                    await client.reader.read()
            other = await server.connect()
            other.send(other.request(1, 7))
            assert await other.answer() == (1, [7])

    asyncio.run(main())


@with_server
async def test_continued_padded_and_prioritised_headers_are_read(server: Running) -> None:
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
async def test_response_waits_for_flow_control_windows(server: Running) -> None:
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
async def test_larger_initial_window_unblocks_waiting_streams(server: Running) -> None:
    client = await server.connect(PREFACE, frame(SETTINGS, 0, 0, struct.pack(">HI", INITIAL_WINDOW, 0)))
    client.send(client.request(1, 1, 2))
    await client.until(HEADERS)
    client.send(frame(SETTINGS, 0, 0, struct.pack(">HI", INITIAL_WINDOW, 1000)))
    client.bodies[1] = (await client.until(DATA))[1]
    assert values(client.bodies[1]) == [1, 2]


@with_server
async def test_settings_are_acknowledged_before_the_data_that_they_allow(server: Running) -> None:
    """A client counts data against the settings whose acknowledgement it has seen."""
    client = await server.connect(PREFACE, frame(SETTINGS, 0, 0, struct.pack(">HI", INITIAL_WINDOW, 0)))
    client.send(client.request(1, 1, 2))
    await client.until(SETTINGS, ACK)
    await client.until(HEADERS)
    client.send(frame(SETTINGS, 0, 0, struct.pack(">HI", INITIAL_WINDOW, 1000)))
    kinds = [(await client.next())[0] for _ in range(2)]
    assert kinds == [SETTINGS, DATA]


@with_server
async def test_large_messages_are_split_into_frames_in_both_directions(server: Running) -> None:
    client = await server.connect()
    numbers = tuple(range(60_000))
    body = message(*numbers)
    client.send(frame(WINDOW_UPDATE, 0, 0, struct.pack(">I", 1 << 24)), client.headers(1))
    client.send(frame(WINDOW_UPDATE, 0, 1, struct.pack(">I", 1 << 24)))
    for at in range(0, len(body), 16_384):
        client.send(frame(DATA, END_STREAM if at + 16_384 >= len(body) else 0, 1, body[at : at + 16_384]))
    assert await client.answer() == (1, list(numbers))


@with_server
async def test_reset_cancels_the_request(server: Running) -> None:
    server.echo.hold = True
    client = await server.connect()
    client.send(client.request(1, 1))
    held = await server.echo.held.get()
    client.send(frame(RST_STREAM, 0, 1, struct.pack(">I", 8)))
    assert await server.echo.cancelled.get() is held
    server.echo.answer(held)  # the client has cancelled it
    server.echo.hold = False
    client.send(client.request(3, 3))
    assert await client.answer() == (3, [3])


@with_server
async def test_lost_connection_cancels_its_requests(server: Running) -> None:
    server.echo.hold = True
    client = await server.connect()
    client.send(client.request(1, 1))
    held = await server.echo.held.get()
    client.writer.close()
    assert await server.echo.cancelled.get() is held


@with_server
async def test_call_ends_when_its_deadline_passes(server: Running) -> None:
    server.echo.hold = True
    client = await server.connect()
    client.send(client.request(1, 1, grpc_timeout="10m"))
    _, fields = await client.until(HEADERS, END_STREAM)
    assert b"'grpc-status': '4'" in fields
    assert await server.echo.cancelled.get() is await server.echo.held.get()


@with_server
async def test_pings_and_settings_are_acknowledged(server: Running) -> None:
    client = await server.connect()
    client.send(frame(PING, 0, 0, b"12345678"), frame(PING, ACK, 0, b"ignored!"))
    assert (await client.until(SETTINGS, ACK))[1] == b""
    assert (await client.until(PING, ACK))[1] == b"12345678"


@with_server
async def test_frames_of_unknown_types_are_ignored(server: Running) -> None:
    client = await server.connect()
    client.send(frame(99, 255, 1, b"?"), client.request(1, 1))
    assert await client.answer() == (1, [1])


@with_server
async def test_streams_pass_messages_immediately(server: Running) -> None:
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
async def test_stream_reset_while_responses_wait_cancels_the_rest(server: Running) -> None:
    client = await server.connect(PREFACE, frame(SETTINGS, 0, 0, struct.pack(">HI", INITIAL_WINDOW, 0)))
    client.send(client.headers(1, path=STREAM), frame(DATA, 0, 1, message(1)))
    await client.until(HEADERS)  # the first answer waits for the window
    server.echo.hold = True
    client.send(frame(DATA, 0, 1, message(2)))
    held = await server.echo.held.get()
    client.send(frame(RST_STREAM, 0, 1, struct.pack(">I", 8)))
    assert await server.echo.cancelled.get() is held


@with_server
async def test_unary_call_with_several_messages_is_refused(server: Running) -> None:
    server.echo.hold = True
    client = await server.connect()
    client.send(client.headers(1), frame(DATA, END_STREAM, 1, message(1) + message(2)))
    assert b"'grpc-status': '13'" in (await client.until(HEADERS, END_STREAM))[1]
    assert await server.echo.cancelled.get() is await server.echo.held.get()


@with_server
async def test_non_grpc_call_is_refused(server: Running) -> None:
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
async def test_invalid_protobuf_body_is_an_error(server: Running, body: bytes, code: int) -> None:
    client = await server.connect()
    client.send(client.headers(1, grpc_encoding="gzip"), frame(DATA, END_STREAM, 1, body))
    assert f"'grpc-status': '{code}'".encode() in (await client.until(HEADERS, END_STREAM))[1]


@cases(
    "body", "code", of=[
        (struct.pack(">BI", 0, 0xFFFFFFFF), 8),
        (struct.pack(">BI", 1, 4) + b"nope", 13),
        (struct.pack(">BI", 1, 4) + b"nope", 12),
    ],
)  # fmt: skip
async def test_refused_stream_leaves_no_task(server: Running, body: bytes, code: int) -> None:
    client = await server.connect()
    encoding = {13: "gzip"}.get(code, "br")
    client.send(client.headers(1, path=STREAM, grpc_encoding=encoding), frame(DATA, 0, 1, body))
    assert f"'grpc-status': '{code}'".encode() in (await client.until(HEADERS, END_STREAM))[1]
    async with asyncio.timeout(30):
        while server.server.rpcs._streams:
            await asyncio.sleep(0)


@with_server
async def test_unknown_compression_is_unimplemented(server: Running) -> None:
    client = await server.connect()
    client.send(client.headers(1, grpc_encoding="br"), frame(DATA, END_STREAM, 1, b"\1\0\0\0\1x"))
    assert b"'grpc-status': '12'" in (await client.until(HEADERS, END_STREAM))[1]


@with_server
async def test_early_error_resets_the_stream(server: Running) -> None:
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
async def test_protocol_violation_ends_the_connection(server: Running, data: bytes, code: int) -> None:
    client = await server.connect()
    client.send(data)
    await client.closed(code)


@with_server
async def test_client_of_another_protocol_is_disconnected(server: Running) -> None:
    client = await server.connect(b"GET / HTTP/1.1\r\n\r\n")
    await client.closed(1)


@with_server
async def test_stopping_server_completes_its_calls_and_accepts_no_more(server: Running) -> None:
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


@with_server
async def test_reset_stream_cancels_all_its_requests(
    server: Running,
) -> None:
    def cancel(request: Any) -> None:
        server.echo.cancelled.put_nowait(request)
        server.echo.answer(request)

    server.echo.hold = True
    server.echo.cancel = cancel  # type: ignore[method-assign]
    client = await server.connect()
    client.send(client.headers(1, path=STREAM), *(frame(DATA, 0, 1, message(number)) for number in range(3)))
    held = [await server.echo.held.get() for _ in range(3)]
    client.send(frame(RST_STREAM, 0, 1, struct.pack(">I", 8)))
    cancelled = [await server.echo.cancelled.get() for _ in range(3)]
    assert {id(request) for request in cancelled} == {id(request) for request in held}


@with_server
async def test_every_ping_is_answered(server: Running) -> None:
    client = await server.connect()
    pings = [struct.pack(">Q", number) for number in range(50)]
    client.send(*(frame(PING, 0, 0, payload) for payload in pings), client.request(1, 1))
    assert [(await client.until(PING, ACK))[1] for _ in pings] == pings
    assert await client.answer() == (1, [1])


@pytest.mark.parametrize("level", ["low", "medium", "high"])
def test_every_compression_level_except_none_is_gzip(level: str) -> None:
    async def main() -> None:
        async with running(GrpcOptions(infer_response_compression_level=level)) as server:
            client = await server.connect()
            client.send(client.request(1, *range(1000), grpc_accept_encoding="identity, deflate, gzip"))
            _, fields = await client.until(HEADERS, END_HEADERS)
            assert b"'grpc-encoding': 'gzip'" in fields

    asyncio.run(main())
