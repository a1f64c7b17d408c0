"""A client that sends much and reads little delays nobody, and fills no memory."""

from __future__ import annotations

import asyncio
import gzip
import logging
import socket
import struct
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from hpack import Encoder

import tritonnb as tnb
from tests.endpoints.http1_peer import Loop
from tests.endpoints.http2_client import HELLO, INFER, STREAM, message
from tests.endpoints.in_memory import Connection, Endpoints, Identity
from tritonnb.core.messages import InferRequest, InferResponse, Tensor
from tritonnb.endpoints import back_pressure, compression
from tritonnb.endpoints.back_pressure import SlowReaders, Turns
from tritonnb.endpoints.grpc import stream
from tritonnb.endpoints.grpc.transport import fast_server, framing, http2
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
from tritonnb.endpoints.http import inference
from tritonnb.endpoints.http.handlers.inference import PendingRequests

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
def in_turns(loop: Loop) -> Endpoints:
    """Endpoints on which each turn is over at the first look at the clock."""
    endpoints = Endpoints(loop, turn=-1.0)
    endpoints.models.load(_CONFIG)
    return endpoints


def _calls(count: int, first: int = 0, size: int = 1) -> Iterator[bytes]:
    encoder = Encoder()
    for number in range(first, first + count):
        number_of_stream, body = 2 * number + 1, message(*range(size))
        yield frame(HEADERS, END_HEADERS, number_of_stream, encoder.encode(list(_FIELDS.items())))
        yield frame(DATA, END_STREAM, number_of_stream, body)


def _open_window(size: int, *streams: int) -> bytes:
    return b"".join(frame(WINDOW_UPDATE, 0, number, struct.pack(">I", size)) for number in streams)


def _run(connection: Connection, loop: Loop) -> None:
    while connection.protocol._waits:
        loop.pass_time(0)


def test_many_calls_do_not_delay_another_client(loop: Loop, in_turns: Endpoints) -> None:
    flooding, other = in_turns.connect_grpc(), in_turns.connect_grpc()
    flooding.begin(HELLO + b"".join(_calls(1000)))
    assert not flooding.wire.reading
    other.begin(HELLO + b"".join(_calls(1)))
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
    connection.feed(_open_window(1 << 20, 0), _open_window(1 << 20, *streams))
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
    connection.feed(*(frame(RST_STREAM, 0, number, bytes(4)) for number in range(1, 20, 2)))
    _run(connection, loop)
    assert (len(sender.waiting), sender.unread, connection.protocol.calls) == (0, 0, {})


def test_connections_share_the_room_for_calls(
    loop: Loop, endpoints: Endpoints, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(http2, "ALL_STARTED", 100)
    monkeypatch.setattr(http2, "_LEAST_STARTED", 2)
    connections = [endpoints.connect_grpc() for _ in range(10)]
    for number, connection in enumerate(connections, 1):
        connection.feed(HELLO + _CLOSED_WINDOW + b"".join(_calls(30)))
        _run(connection, loop)
        assert len(endpoints.models.accepted) == 10 * number


def test_pipelined_requests_do_not_delay_another_client(loop: Loop, in_turns: Endpoints) -> None:
    flooding, other = in_turns.connect_http(), in_turns.connect_http()
    flooding.begin(_HTTP * 1000)
    assert not flooding.wire.reading
    other.begin(_HTTP)
    assert other.wire.sent.startswith(b"HTTP/1.1 200 ")
    assert flooding.wire.sent.count(b"HTTP/1.1 200 ") < 500
    _run(flooding, loop)
    assert flooding.wire.sent.count(b"HTTP/1.1 200 ") == 1000
    assert flooding.wire.reading


def test_control_frames_do_not_delay_another_client(loop: Loop, in_turns: Endpoints) -> None:
    flooding, other = in_turns.connect_grpc(), in_turns.connect_grpc()
    flooding.begin(HELLO + frame(framing.PING, 0, 0, bytes(8)) * 5000)
    other.begin(HELLO + b"".join(_calls(1)))
    assert other.wire.sent.count(_DONE) == 1
    assert flooding.wire.sent.count(frame(framing.PING, framing.ACK, 0, bytes(8))) < 5000
    _run(flooding, loop)
    assert flooding.wire.sent.count(frame(framing.PING, framing.ACK, 0, bytes(8))) == 5000


def _stream(*messages: bytes, closed: bool = False) -> bytes:
    fields = {**_FIELDS, ":path": STREAM}
    body = b"".join(messages)
    return (
        HELLO
        + (_CLOSED_WINDOW if closed else b"")
        + frame(HEADERS, END_HEADERS, 1, Encoder().encode(list(fields.items())))
        + b"".join(frame(DATA, 0, 1, body[at : at + (1 << 14)]) for at in range(0, len(body), 1 << 14))
        + frame(DATA, END_STREAM, 1, b"")
    )


def _run_until(loop: Loop, holds: Callable[[], bool]) -> None:
    for _ in range(10_000):
        if holds():
            return
        loop.pass_time(0)
    raise AssertionError("the loop has nothing more to do")


def test_stream_of_many_requests_does_not_delay_another_client(loop: Loop, in_turns: Endpoints) -> None:
    flooding, other = in_turns.connect_grpc(), in_turns.connect_grpc()
    flooding.begin(_stream(*[message(1)] * 500))
    other.begin(HELLO + b"".join(_calls(1)))
    assert other.wire.sent.count(_DONE) == 1
    assert len(in_turns.models.accepted) < 250
    _run_until(loop, lambda: _DONE in flooding.wire.sent)
    assert len(in_turns.models.accepted) == 501


def test_stream_begins_requests_while_there_is_room(
    loop: Loop, endpoints: Endpoints, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stream, "_MAX_PENDING", 10)
    connection = endpoints.connect_grpc()
    connection.feed(_stream(*[message(1)] * 100, closed=True))
    assert 10 <= len(endpoints.models.accepted) <= 12
    connection.feed(_open_window(1 << 20, 0, 1))
    _run_until(loop, lambda: _DONE in connection.wire.sent)
    assert len(endpoints.models.accepted) == 100


def test_window_of_a_full_stream_is_not_replenished(
    loop: Loop, endpoints: Endpoints, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stream, "_MAX_PENDING", 10)
    monkeypatch.setattr(fast_server, "_MAX_HELD", 10_000)
    monkeypatch.setattr(http2, "_REPLENISH_AFTER", 20_000)
    connection = endpoints.connect_grpc()
    connection.feed(_stream(*[message(1)] * 2000, closed=True))
    replenished = frame(WINDOW_UPDATE, 0, 1, b"")[3:9]
    (call,) = connection.protocol.calls.values()
    assert call.is_full
    assert call._requests.qsize() < 60
    assert replenished not in connection.wire.sent
    connection.feed(_open_window(1 << 24, 0, 1))
    _run_until(loop, lambda: _DONE in connection.wire.sent)
    assert len(endpoints.models.accepted) == 2000
    assert replenished in connection.wire.sent


_EVENTS = b'POST /v2/models/echo/generate_stream HTTP/1.1\r\nHost: localhost\r\nContent-Length: 7\r\n\r\n{"X":7}'


def _respond_often(monkeypatch: pytest.MonkeyPatch, count: int) -> list[InferRequest]:
    """Let the model answer many times, even if the request was cancelled; returns the cancelled requests."""
    cancelled: list[InferRequest] = []

    def answer(model: Identity, request: InferRequest) -> None:
        outputs = [Tensor(name, tensor.datatype, tensor.array) for name, tensor in request.inputs.items()]
        for number in range(count):
            request.answer(InferResponse(outputs, final=number == count - 1))

    monkeypatch.setattr(Identity, "answer", answer)
    monkeypatch.setattr(Identity, "cancel", lambda model, request: cancelled.append(request))
    return cancelled


def test_stream_with_too_many_unread_responses_ends_with_an_error(
    loop: Loop, endpoints: Endpoints, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(back_pressure, "MAX_UNREAD_OF_CALL", 100_000)
    endpoints.models.load(_CONFIG + " model_transaction_policy { decoupled: true }")
    cancelled = _respond_often(monkeypatch, 1000)
    connection = endpoints.connect_grpc()
    connection.feed(_stream(message(1), closed=True))
    assert len(cancelled) == 1
    connection.feed(_open_window(1 << 20, 0, 1))
    _run_until(loop, lambda: not connection.protocol.calls)
    assert framing.literal("grpc-status", b"14") in connection.wire.sent  # UNAVAILABLE
    assert b"ModelStreamInfer expected a client that reads its responses" in connection.wire.sent


def test_event_stream_with_too_many_unread_responses_ends_with_an_error(
    loop: Loop, endpoints: Endpoints, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(back_pressure, "MAX_UNREAD_OF_CALL", 100_000)
    endpoints.models.load(_CONFIG + " model_transaction_policy { decoupled: true }")
    cancelled = _respond_often(monkeypatch, 1000)
    connection = endpoints.connect_http()
    connection.feed(_EVENTS)
    _run_until(loop, lambda: connection.wire.sent.endswith(b"0\r\n\r\n"))
    assert len(cancelled) == 1
    assert connection.wire.sent.count(b"data: ") == 1
    assert b"generate_stream expected a client that reads its responses" in connection.wire.sent


def test_largest_of_too_many_unread_streams_ends_and_the_others_go_on(
    loop: Loop, endpoints: Endpoints, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(back_pressure, "MAX_UNREAD_OF_CALLS", 300_000)
    endpoints.models.load(_CONFIG + " model_transaction_policy { decoupled: true }")
    connections = []
    for count in (20, 50, 90, 20):  # beyond the limit with the third, 2 KB a response
        cancelled = _respond_often(monkeypatch, count)
        connections.append(endpoints.connect_grpc())
        connections[-1].feed(_stream(message(1), closed=True))
        assert len(cancelled) == (count == 90)
    for number, connection in enumerate(connections):
        connection.feed(_open_window(1 << 20, 0, 1))
        _run_until(loop, lambda connection=connection: not connection.protocol.calls)  # type: ignore[misc]
        assert (b"the most of the calls" in connection.wire.sent) == (number == 2)


def test_generate_keeps_one_response_of_a_decoupled_model(
    loop: Loop, endpoints: Endpoints, monkeypatch: pytest.MonkeyPatch
) -> None:
    endpoints.models.load(_CONFIG + " model_transaction_policy { decoupled: true }")
    sent: list[weakref.ref[Any]] = []

    def answer(model: Identity, request: InferRequest) -> None:
        for _ in range(3):
            array = request.inputs["X"].array.copy()
            sent.append(weakref.ref(array))
            request.answer(InferResponse([Tensor("X", request.inputs["X"].datatype, array)], final=False))

    monkeypatch.setattr(Identity, "answer", answer)
    connection = endpoints.connect_http()
    connection.feed(_EVENTS.replace(b"generate_stream", b"generate"))
    _run_until(loop, lambda: bool(sent) and sent[1]() is None)


def test_long_body_is_decompressed_on_another_thread(
    loop: Loop, endpoints: Endpoints, monkeypatch: pytest.MonkeyPatch
) -> None:
    threads: list[threading.Thread] = []

    def watched(body: bytes, encoding: str, limit: int) -> Any:
        threads.append(threading.current_thread())
        return compression.decompress(body, encoding, limit)

    monkeypatch.setattr(inference, "decompress", watched)
    connection = endpoints.connect_http()
    head, _, document = _HTTP.partition(b"\r\n\r\n")
    for padding, status in ((2 << 20, b"HTTP/1.1 200 "), (65 << 20, b"HTTP/1.1 400 ")):
        body = gzip.compress(document + b" " * padding, 1)
        sent = head.replace(b"69", b"%d\r\nContent-Encoding: gzip" % len(body)) + b"\r\n\r\n" + body
        connection.feed(sent)
        end = time.monotonic() + 30
        while not connection.wire.sent.endswith(b"}") and time.monotonic() < end:
            loop.pass_time(0)
        assert connection.wire.sent.startswith(status)
        connection.wire.sent = b""
    assert threading.main_thread() not in threads
    assert len(threads) == 2
    loop.run_until_complete(loop.shutdown_default_executor())


def test_long_message_is_decompressed_on_another_thread(
    loop: Loop, endpoints: Endpoints, monkeypatch: pytest.MonkeyPatch
) -> None:
    threads: list[threading.Thread] = []
    original = fast_server._decompress

    def watched(serialized: bytes, encoding: str) -> bytes:
        threads.append(threading.current_thread())
        return original(serialized, encoding)

    monkeypatch.setattr(fast_server, "_decompress", watched)
    packed = gzip.compress(message(*range(1 << 19))[5:], 1)
    framed = struct.pack(">BI", 1, len(packed)) + packed
    for path in (INFER, STREAM):
        fields = {**_FIELDS, ":path": path, "grpc-encoding": "gzip"}
        connection = endpoints.connect_grpc()
        connection.feed(HELLO + _open_window(1 << 24, 0))
        connection.feed(
            frame(HEADERS, END_HEADERS, 1, Encoder().encode(list(fields.items()))) + _open_window(1 << 24, 1)
        )
        connection.feed(*(frame(DATA, 0, 1, framed[at : at + (1 << 14)]) for at in range(0, len(framed), 1 << 14)))
        connection.feed(frame(DATA, END_STREAM, 1, b""))
        end = time.monotonic() + 30
        while _DONE not in connection.wire.sent and time.monotonic() < end:
            loop.pass_time(0)
        assert _DONE in connection.wire.sent
    assert threading.main_thread() not in threads
    assert len(endpoints.models.accepted) == 2
    loop.run_until_complete(loop.shutdown_default_executor())


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


@pytest.mark.parametrize("transport", ["fast", "grpcio"])
def test_both_grpc_transports_limit_the_calls_of_a_connection(transport: str) -> None:
    options = tnb.GrpcOptions(transport=transport)
    with (
        tnb.Server(port=0, grpc_port=0, grpc=options) as server,
        socket.create_connection(("127.0.0.1", server.grpc_port), 60) as client,
    ):
        client.sendall(http2.PREFACE + frame(SETTINGS, 0, 0, b""))
        received = client.makefile("rb")
        length, kind = struct.unpack(">I", b"\0" + received.read(3))[0], received.read(6)[0]
        settings = dict(struct.iter_unpack(">HI", received.read(length)))
    assert kind == SETTINGS
    assert settings[framing.MAX_CONCURRENT_STREAMS] == http2.MAX_CALLS


def test_responses_of_a_cancelled_request_are_not_kept() -> None:
    """Its client has gone, and the model goes on: only the end is passed on, for whoever waits for it."""

    served: Any = None  # nothing is submitted

    async def answers() -> list[bool]:
        pending = PendingRequests(served, lambda: [InferRequest("m", {})], back_pressure.StreamingCalls())
        pending.cancel()
        for _ in range(1000):
            pending._responded(0, InferResponse(final=False))
        pending._responded(0, InferResponse(empty=True))
        return [response.final async for _, response in pending.responses()]

    assert asyncio.run(answers()) == [True]
