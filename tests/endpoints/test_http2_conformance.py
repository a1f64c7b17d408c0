"""HTTP/2 section by section: the sections of RFC 9113 and RFC 7541 that a server must enforce, as a table.

Each row is what a client sends after the preface, and what the server must do: answer a PING, reset the stream with an
error, or close the connection with GOAWAY and an error. A row that ends a stream must leave the connection usable.
"""

from __future__ import annotations

import struct

from hpack import Encoder

from tests.endpoints.http2_client import INFER, Running, cases, message, with_server
from tritonnb.endpoints.grpc.transport.framing import (
    ACK,
    COMPRESSION_ERROR,
    CONTINUATION,
    DATA,
    END_HEADERS,
    END_STREAM,
    FLOW_CONTROL_ERROR,
    FRAME_SIZE_ERROR,
    GOAWAY,
    HAS_PRIORITY,
    HEADERS,
    INITIAL_WINDOW,
    MAX_FRAME_SIZE,
    PADDED,
    PING,
    PRIORITY,
    PROTOCOL_ERROR,
    PUSH_PROMISE,
    RST_STREAM,
    SETTINGS,
    STREAM_CLOSED,
    WINDOW_UPDATE,
    frame,
)  # fmt: skip

FIELDS = {":method": "POST", ":scheme": "http", ":path": INFER, "content-type": "application/grpc", "te": "trailers"}


def block(**changes: str | None) -> bytes:
    """A header block that does not refer to others; None leaves a field out."""
    fields = {**FIELDS, **changes}
    encoded: bytes = Encoder().encode([(name, value, True) for name, value in fields.items() if value is not None])
    return encoded


def setting(identifier: int, value: int) -> bytes:
    return frame(SETTINGS, 0, 0, struct.pack(">HI", identifier, value))


def headers(stream: int = 1, flags: int = END_HEADERS, payload: bytes | None = None) -> bytes:
    return frame(HEADERS, flags, stream, block() if payload is None else payload)


CLOSED = headers(1, END_HEADERS | END_STREAM)
NUMBER, LARGEST = struct.pack(">I", 1), struct.pack(">I", 2**31 - 1)

ACCEPTED = [
    ("3.5 the preface is followed by SETTINGS", b""),
    ("4.1 a frame of an unknown type is ignored", frame(0x20, 0xFF, 0, b"unknown")),
    ("4.1 unknown flags are ignored", frame(PING, 0xFE, 0, bytes(8))),
    ("4.1 the reserved bit of a stream is ignored", frame(WINDOW_UPDATE, 0, 1 << 31, NUMBER)),
    ("4.2 a frame of 2^14 bytes is accepted", headers() + frame(DATA, 0, 1, bytes(1 << 14))),
    ("5.1 idle: PRIORITY", frame(PRIORITY, 0, 5, NUMBER + b"\x10")),
    ("5.1 closed: PRIORITY", CLOSED + frame(PRIORITY, 0, 1, bytes(4) + b"\x10")),
    ("5.1 closed: WINDOW_UPDATE", CLOSED + frame(WINDOW_UPDATE, 0, 1, NUMBER)),
    ("5.1 closed: RST_STREAM", CLOSED + frame(RST_STREAM, 0, 1, bytes(4))),
    ("6.1 padding", headers() + frame(DATA, PADDED, 1, b"\x03" + bytes(3))),
    ("6.2 padding", headers(1, END_HEADERS | PADDED, b"\x02" + block() + b"\0\0")),
    ("6.2 a priority", headers(1, END_HEADERS | HAS_PRIORITY, bytes(5) + block())),
    ("6.5 an unknown setting is ignored", setting(0xFF, 1)),
    ("6.5 the acknowledgement of SETTINGS", frame(SETTINGS, ACK, 0, b"")),
    ("6.5.2 the largest window", setting(INITIAL_WINDOW, 2**31 - 1)),
    ("6.5.2 the largest frame size", setting(MAX_FRAME_SIZE, 2**24 - 1)),
    ("6.7 the acknowledgement of a PING is not answered", frame(PING, ACK, 0, b"not mine")),
    ("6.9 a window of 2^31-1", frame(WINDOW_UPDATE, 0, 0, struct.pack(">I", 2**31 - 1 - 65_535))),
    ("6.10 CONTINUATION frames", headers(1, 0, block()[:4]) + frame(CONTINUATION, END_HEADERS, 1, block()[4:])),
    ("6.10 an empty CONTINUATION frame", headers(1, 0) + frame(CONTINUATION, END_HEADERS, 1, b"")),
    ("7541 4.2 a size update at the beginning of a block", headers(1, END_HEADERS, b"\x20" + block())),
]  # fmt: skip


@cases("case", of=ACCEPTED)
async def test_parser_accepts_valid_requests(server: Running, case: tuple[str, bytes]) -> None:
    client = await server.connect()
    client.send(case[1], frame(PING, 0, 0, b"question"))
    while (await client.until(PING, ACK))[1] != b"question":
        pass


STREAM_ERRORS = [
    ("8.3.1 no method", b"", headers(1, END_HEADERS, block(**{":method": None})), PROTOCOL_ERROR),
    ("6.9 an increment of 0 on a stream", headers(), frame(WINDOW_UPDATE, 0, 1, bytes(4)), PROTOCOL_ERROR),
    ("6.9.1 a window above 2^31-1", headers(), frame(WINDOW_UPDATE, 0, 1, LARGEST), FLOW_CONTROL_ERROR),
    ("8.1 trailers that do not end the stream", headers(), headers(1, END_HEADERS, b"\x00\x01x\x01y"), PROTOCOL_ERROR),
    ("8.2.2 a connection header", b"", headers(1, END_HEADERS, block(connection="close")), PROTOCOL_ERROR),
    ("8.2.2 te other than trailers", b"", headers(1, END_HEADERS, block(te="gzip")), PROTOCOL_ERROR),
    ("8.3 a pseudo-header after a field", b"", headers(1, END_HEADERS, block(**{":authority": "x"})), PROTOCOL_ERROR),
    ("8.3 an unknown pseudo-header", b"", headers(1, END_HEADERS, b"\x00\x05:test\x01y" + block()), PROTOCOL_ERROR),
    ("8.3 one of responses", b"", headers(1, END_HEADERS, b"\x00\x07:status\x03200" + block()), PROTOCOL_ERROR),
    ("8.3.1 no scheme", b"", headers(1, END_HEADERS, block(**{":scheme": None})), PROTOCOL_ERROR),
    ("8.3.1 no path", b"", headers(1, END_HEADERS, block(**{":path": None})), PROTOCOL_ERROR),
    ("8.3.1 two methods", b"", headers(1, END_HEADERS, b"\x83" + block()), PROTOCOL_ERROR),
]  # fmt: skip


@cases("case", of=STREAM_ERRORS)
async def test_error_of_a_stream_ends_the_stream(server: Running, case: tuple[str, bytes, bytes, int]) -> None:
    _, before, violation, code = case
    client = await server.connect()
    client.send(before, violation)
    assert await client.until(RST_STREAM) == (1, struct.pack(">I", code))
    client.send(headers(3), frame(DATA, END_STREAM, 3, message(7)))
    assert await client.answer() == (3, [7])


CONNECTION_ERRORS = [
    ("4.2 a frame above the limit", b"\x10\x00\x01\x00\x00\x00\x00\x00\x01", FRAME_SIZE_ERROR),
    ("4.3 a block that cannot be decoded", headers(1, END_HEADERS, b"\xff\xff\xff\xff\xff\xff"), COMPRESSION_ERROR),
    ("4.3 another frame within a block", headers(1, 0) + frame(PRIORITY, 0, 1, bytes(5)), PROTOCOL_ERROR),
    ("4.3 another stream within a block", headers(1, 0) + frame(CONTINUATION, END_HEADERS, 3, b""), PROTOCOL_ERROR),
    ("5.1 idle: DATA", frame(DATA, END_STREAM, 1, b"x"), PROTOCOL_ERROR),
    ("5.1 idle: RST_STREAM", frame(RST_STREAM, 0, 1, bytes(4)), PROTOCOL_ERROR),
    ("5.1 idle: WINDOW_UPDATE", frame(WINDOW_UPDATE, 0, 1, NUMBER), PROTOCOL_ERROR),
    ("5.1 idle: CONTINUATION", frame(CONTINUATION, END_HEADERS, 1, block()), PROTOCOL_ERROR),
    ("5.1.1 a stream of the server", headers(2), PROTOCOL_ERROR),
    ("5.1.1 a smaller number than before", headers(5) + headers(3), PROTOCOL_ERROR),
    ("6.1 DATA on stream 0", frame(DATA, 0, 0, b"x"), PROTOCOL_ERROR),
    ("6.1 padding as long as the payload", headers() + frame(DATA, PADDED, 1, b"\x04" + bytes(3)), PROTOCOL_ERROR),
    ("6.2 HEADERS on stream 0", headers(0), PROTOCOL_ERROR),
    ("6.2 padding as long as the payload", headers(1, END_HEADERS | PADDED, b"\x05" + bytes(4)), PROTOCOL_ERROR),
    ("6.3 PRIORITY on stream 0", frame(PRIORITY, 0, 0, bytes(5)), PROTOCOL_ERROR),
    ("6.4 RST_STREAM on stream 0", frame(RST_STREAM, 0, 0, bytes(4)), PROTOCOL_ERROR),
    ("6.4 RST_STREAM of another length", headers() + frame(RST_STREAM, 0, 1, bytes(3)), FRAME_SIZE_ERROR),
    ("6.5 SETTINGS on a stream", frame(SETTINGS, 0, 1, b""), PROTOCOL_ERROR),
    ("6.5 SETTINGS of another length", frame(SETTINGS, 0, 0, bytes(5)), FRAME_SIZE_ERROR),
    ("6.5 an acknowledgement with a payload", frame(SETTINGS, ACK, 0, bytes(6)), FRAME_SIZE_ERROR),
    ("6.5.2 ENABLE_PUSH other than 0 and 1", setting(2, 2), PROTOCOL_ERROR),
    ("6.5.2 a window above 2^31-1", setting(INITIAL_WINDOW, 2**31), FLOW_CONTROL_ERROR),
    ("6.5.2 a frame size below 2^14", setting(MAX_FRAME_SIZE, 2**14 - 1), PROTOCOL_ERROR),
    ("6.5.2 a frame size above 2^24-1", setting(MAX_FRAME_SIZE, 2**24), PROTOCOL_ERROR),
    ("6.6 PUSH_PROMISE of a client", frame(PUSH_PROMISE, END_HEADERS, 1, NUMBER + block()), PROTOCOL_ERROR),
    ("6.7 PING on a stream", frame(PING, 0, 1, bytes(8)), PROTOCOL_ERROR),
    ("6.7 PING of another length", frame(PING, 0, 0, bytes(6)), FRAME_SIZE_ERROR),
    ("6.8 GOAWAY on a stream", frame(GOAWAY, 0, 1, bytes(8)), PROTOCOL_ERROR),
    ("6.8 GOAWAY of another length", frame(GOAWAY, 0, 0, bytes(7)), FRAME_SIZE_ERROR),
    ("6.9 WINDOW_UPDATE of another length", frame(WINDOW_UPDATE, 0, 0, bytes(3)), FRAME_SIZE_ERROR),
    ("6.9 an increment of 0 on the connection", frame(WINDOW_UPDATE, 0, 0, bytes(4)), PROTOCOL_ERROR),
    ("6.9.1 a window above 2^31-1", frame(WINDOW_UPDATE, 0, 0, LARGEST), FLOW_CONTROL_ERROR),
    ("6.10 CONTINUATION after a block", headers() + frame(CONTINUATION, END_HEADERS, 1, b""), PROTOCOL_ERROR),
    ("7541 2.3.3 an index beyond the table", headers(1, END_HEADERS, b"\xff\x10"), COMPRESSION_ERROR),
    ("7541 4.2 a size update above the limit", headers(1, END_HEADERS, b"\x3f\xe2\x1f" + block()), COMPRESSION_ERROR),
    ("7541 4.2 a size update after a field", headers(1, END_HEADERS, block() + b"\x20"), COMPRESSION_ERROR),
    ("7541 6.1 the index 0", headers(1, END_HEADERS, b"\x80"), COMPRESSION_ERROR),
]  # fmt: skip


@cases("case", of=CONNECTION_ERRORS)
async def test_error_of_the_connection_closes_it(server: Running, case: tuple[str, bytes, int]) -> None:
    _, violation, code = case
    client = await server.connect()
    client.send(violation)
    await client.closed(code)


@with_server
async def test_data_after_the_end_of_a_stream_is_ignored(server: Running) -> None:
    """5.1: the call of a client that goes on sending ends with STREAM_CLOSED, or has ended already."""
    server.echo.hold = True
    client = await server.connect()
    client.send(headers(), frame(DATA, END_STREAM, 1, message(1)), frame(DATA, 0, 1, b"more"))
    assert await client.until(RST_STREAM) == (1, struct.pack(">I", STREAM_CLOSED))
