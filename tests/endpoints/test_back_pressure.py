"""A client that sends much and reads little delays nobody, and fills no memory."""

from __future__ import annotations

import logging
import struct
from collections.abc import Iterator

import pytest
from hpack import Encoder

from tests.endpoints.http1_peer import Loop
from tests.endpoints.http2_client import HELLO, INFER, message
from tests.endpoints.in_memory import Connection, Endpoints
from tritonnb.endpoints import back_pressure
from tritonnb.endpoints.back_pressure import SlowReaders, Turns
from tritonnb.endpoints.grpc.transport import framing, http2
from tritonnb.endpoints.grpc.transport.framing import (
    DATA,
    END_HEADERS,
    END_STREAM,
    HEADERS,
    INITIAL_WINDOW,
    RST_STREAM,
    SETTINGS,
    WINDOW_UPDATE,
    frame,
)

_CONFIG = (
    'name: "echo" max_batch_size: 8 input { name: "X" data_type: TYPE_INT32 dims: [ -1 ] } '
    'output { name: "X" data_type: TYPE_INT32 dims: [ -1 ] }'
)
_FIELDS = {":method": "POST", ":scheme": "http", ":path": INFER, "content-type": "application/grpc", "te": "trailers"}
_CLOSED_WINDOW = frame(SETTINGS, 0, 0, struct.pack(">HI", INITIAL_WINDOW, 0))
_DONE = framing.literal("grpc-status", b"0")
_HTTP = (
    b"POST /v2/models/echo/infer HTTP/1.1\r\nHost: localhost\r\nContent-Length: 69\r\n\r\n"
    b'{"inputs":[{"name":"X","datatype":"INT32","shape":[1,1],"data":[7]}]}'
)


@pytest.fixture
def endpoints(loop: Loop) -> Endpoints:
    endpoints = Endpoints(loop)
    endpoints.models.load(_CONFIG)
    return endpoints


@pytest.fixture
def short_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each turn is over at the first look at the clock."""
    for module in (back_pressure, http2):
        monkeypatch.setattr(module, "TURN", -1.0)
    monkeypatch.setattr(back_pressure, "PASS", -1.0)


def _calls(count: int, first: int = 0, size: int = 1) -> Iterator[bytes]:
    encoder = Encoder()
    for number in range(first, first + count):
        stream, body = 2 * number + 1, message(*range(size))
        yield frame(HEADERS, END_HEADERS, stream, encoder.encode(list(_FIELDS.items())))
        yield frame(DATA, END_STREAM, stream, body)


def _open_window(size: int, *streams: int) -> bytes:
    return b"".join(frame(WINDOW_UPDATE, 0, stream, struct.pack(">I", size)) for stream in streams)


def _run(connection: Connection, loop: Loop) -> None:
    while connection.protocol._waits:
        loop.pass_time(0)


def test_many_calls_do_not_delay_another_client(loop: Loop, endpoints: Endpoints, short_turns: None) -> None:
    flooding, other = endpoints.connect_grpc(), endpoints.connect_grpc()
    flooding.feed(HELLO + b"".join(_calls(1000)))
    assert not flooding.wire.reading
    other.feed(HELLO + b"".join(_calls(1)))
    assert other.wire.sent.count(_DONE) == 1
    assert flooding.wire.sent.count(_DONE) < 500
    _run(flooding, loop)
    assert flooding.wire.sent.count(_DONE) == 1000
    assert flooding.wire.reading


def test_calls_wait_while_the_client_reads_no_responses(
    loop: Loop, endpoints: Endpoints, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(framing, "MAX_UNREAD", 10_000)
    connection = endpoints.connect_grpc()
    connection.feed(HELLO + _CLOSED_WINDOW + b"".join(_calls(100, size=500)))
    _run(connection, loop)
    started = len(endpoints.models.accepted)
    assert 4 <= started < 10
    streams = range(1, 200, 2)
    connection.feed(_open_window(1 << 20, 0), *(_open_window(1 << 20, stream) for stream in streams))
    _run(connection, loop)
    assert len(endpoints.models.accepted) == 100
    assert connection.wire.sent.count(_DONE) == 100
    sender = connection.protocol._sender
    assert (connection.protocol.calls, sender.unread, sender.running) == ({}, 0, set())


def test_a_few_calls_run_however_much_a_client_has_not_read(
    loop: Loop, endpoints: Endpoints, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The client may need them before it goes on reading."""
    monkeypatch.setattr(framing, "MAX_UNREAD", -1)
    connection = endpoints.connect_grpc()
    connection.feed(HELLO + b"".join(_calls(50)))
    _run(connection, loop)
    assert connection.wire.sent.count(_DONE) == 50


def test_reset_of_a_waiting_call_frees_it(loop: Loop, endpoints: Endpoints, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(framing, "MAX_UNREAD", 0)
    connection = endpoints.connect_grpc()
    connection.feed(HELLO + _CLOSED_WINDOW + b"".join(_calls(10)))
    assert len(endpoints.models.accepted) == 4
    sender = connection.protocol._sender
    assert len(sender.waiting) == 6
    connection.feed(*(frame(RST_STREAM, 0, stream, bytes(4)) for stream in range(1, 20, 2)))
    _run(connection, loop)
    assert (len(sender.waiting), sender.unread, connection.protocol.calls) == (0, 0, {})


def test_connections_share_the_room_for_calls(
    loop: Loop, endpoints: Endpoints, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(http2, "_ALL_STARTED", 100)
    monkeypatch.setattr(http2, "_LEAST_STARTED", 2)
    connections = [endpoints.connect_grpc() for _ in range(10)]
    for number, connection in enumerate(connections, 1):
        connection.feed(HELLO + _CLOSED_WINDOW + b"".join(_calls(30)))
        _run(connection, loop)
        assert len(endpoints.models.accepted) == 10 * number


def test_pipelined_requests_do_not_delay_another_client(loop: Loop, endpoints: Endpoints, short_turns: None) -> None:
    flooding, other = endpoints.connect_http(), endpoints.connect_http()
    flooding.feed(_HTTP * 1000)
    assert not flooding.wire.reading
    other.feed(_HTTP)
    assert other.wire.sent.startswith(b"HTTP/1.1 200 ")
    assert flooding.wire.sent.count(b"HTTP/1.1 200 ") < 500
    _run(flooding, loop)
    assert flooding.wire.sent.count(b"HTTP/1.1 200 ") == 1000
    assert flooding.wire.reading


def test_control_frames_do_not_delay_another_client(loop: Loop, endpoints: Endpoints, short_turns: None) -> None:
    flooding, other = endpoints.connect_grpc(), endpoints.connect_grpc()
    flooding.feed(HELLO + frame(framing.PING, 0, 0, bytes(8)) * 5000)
    other.feed(HELLO + b"".join(_calls(1)))
    assert other.wire.sent.count(_DONE) == 1
    assert flooding.wire.sent.count(frame(framing.PING, framing.ACK, 0, bytes(8))) < 5000
    _run(flooding, loop)
    assert flooding.wire.sent.count(frame(framing.PING, framing.ACK, 0, bytes(8))) == 5000


class _Reader:
    def __init__(self, unread: int) -> None:
        self.unread = unread
        self.aborted = False

    def abort(self) -> None:
        self.aborted = True


def test_stalled_readers_are_closed_beyond_the_limit(loop: Loop, caplog: pytest.LogCaptureFixture) -> None:
    readers = SlowReaders(loop, limit=120)
    largest, stalled, slow = _Reader(90), _Reader(30), _Reader(80)
    for reader in (largest, stalled, slow):
        readers.add(reader)
    with caplog.at_level(logging.WARNING):
        for _ in range(10):
            loop.pass_time(1)
            slow.unread -= 1  # it reads, and may take as long as it likes
    assert [reader.aborted for reader in (largest, stalled, slow)] == [True, False, False]
    assert "closed a connection whose client has not read 90 bytes" in caplog.text
    for reader in (stalled, slow):
        readers.discard(reader)
    loop.pass_time(1)
    assert readers._timer is None


def test_turns_go_on_after_an_error(loop: Loop) -> None:
    class Failing:
        def take_turn(self) -> None:
            raise ValueError("unexpected")

    class Working:
        turns = 0

        def take_turn(self) -> None:
            self.turns += 1

    failures: list[object] = []
    loop.set_exception_handler(lambda _, context: failures.append(context["exception"]))
    turns, working = Turns(loop), Working()
    turns.add(Failing())
    turns.add(working)
    for _ in range(3):
        loop.pass_time(0)
    assert (working.turns, len(failures)) == (1, 1)
