"""The HTTP/2 codec of the gRPC endpoint, compared with the package ``h2``: CPU time of a unary call, in memory.

``python -m benchmarks.http2_codec [--rounds 9]``, with ``h2`` installed beside this package's dependencies.

Both codecs get the same bytes of a client and send the same response to each call: header block, message, trailers.
It opens no sockets and executes nothing. The codecs are measured in turn.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import statistics
import struct
import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, cast

import h2.config
import h2.connection
import h2.events
import h2.settings
from hpack import Encoder

from tritonnb.endpoints.back_pressure import SlowReaders, Turns
from tritonnb.endpoints.grpc.transport.framing import (
    DATA,
    DEFAULT_WINDOW,
    END_HEADERS,
    END_STREAM,
    HEADERS,
    INITIAL_WINDOW,
    LARGEST_WINDOW,
    SETTINGS,
    WINDOW_UPDATE,
    Call,
    Headers,
    frame,
    literal,
)
from tritonnb.endpoints.grpc.transport.http2 import PREFACE, Http2Connection

#: Fields that grpcio's client sends with each call, and those of a response.
_REQUEST = [
    (":method", "POST"),
    (":scheme", "http"),
    (":path", "/inference.GRPCInferenceService/ModelInfer"),
    (":authority", "localhost:8001"),
    ("te", "trailers"),
    ("content-type", "application/grpc"),
    ("user-agent", "grpc-python/1.76.0 grpc-c/51.0.0 (linux; chttp2)"),
    ("grpc-accept-encoding", "identity, deflate, gzip"),
]
_RESPONSE = [
    (":status", "200"),
    ("content-type", "application/grpc"),
    ("grpc-accept-encoding", "identity, deflate, gzip"),
]
_TRAILERS = [("grpc-status", "0")]
_HEAD = b"\x88" + b"".join(literal(name, value.encode()) for name, value in _RESPONSE[1:])
_DONE = literal("grpc-status", b"0")
_MESSAGE_SIZE = 150  # of a small tensor with its description

Codec = Callable[[bytes, Sequence[bytes]], int]


def client_bytes(calls: int, per_read: int) -> tuple[bytes, list[bytes]]:
    """Encode the preface and the calls of a client, some of them in each read."""
    windows = frame(SETTINGS, 0, 0, struct.pack(">HI", INITIAL_WINDOW, LARGEST_WINDOW))
    windows += frame(WINDOW_UPDATE, 0, 0, struct.pack(">I", LARGEST_WINDOW - DEFAULT_WINDOW))
    encoder = Encoder()
    body = struct.pack(">BI", 0, _MESSAGE_SIZE) + bytes(_MESSAGE_SIZE)
    sent = [
        frame(HEADERS, END_HEADERS, stream, encoder.encode(_REQUEST)) + frame(DATA, END_STREAM, stream, body)
        for stream in range(1, 2 * calls, 2)
    ]
    return PREFACE + windows, [b"".join(sent[at : at + per_read]) for at in range(0, calls, per_read)]


class _Transport:
    """A transport that counts bytes."""

    def __init__(self) -> None:
        self.written = 0

    def write(self, data: bytes | memoryview) -> None:
        self.written += len(data)

    def writelines(self, parts: Sequence[bytes | memoryview]) -> None:
        self.written += sum(map(len, parts))

    def is_closing(self) -> bool:
        return False

    def pause_reading(self) -> None:
        pass

    def resume_reading(self) -> None:
        pass


class _Echo:
    """A call that sends its message back when it is complete."""

    def __init__(self, connection: Http2Connection, stream: int) -> None:
        self.stream = stream
        self.window = self.received = 0
        self.outgoing: deque[memoryview] = deque()
        self.trailers: bytes | None = None
        self.half_closed = self.is_full = False
        self._connection = connection
        self._message = b""

    def headers_received(self) -> None:
        pass

    def data(self, chunk: bytes | bytearray | memoryview) -> None:
        self._message = bytes(chunk)

    def body_received(self) -> None:
        self._connection.send(self, _HEAD, [self._message], _DONE)

    def cancelled(self) -> None:
        raise AssertionError("no call is cancelled")

    def drained(self) -> None:
        pass

    def start(self) -> None:
        raise AssertionError("no call waits")


class _Server:
    def __init__(self) -> None:
        self.connections: set[Http2Connection] = set()
        self.stopping = False
        loop = asyncio.get_running_loop()
        self.turns, self.slow_readers = Turns(loop), SlowReaders(loop, 1 << 30)

    def call(self, connection: Http2Connection, stream: int, headers: Headers) -> Call:
        assert headers[":method"] == "POST"
        return _Echo(connection, stream)


def ours(hello: bytes, reads: Sequence[bytes]) -> int:
    """This package's codec; the number of bytes that were sent."""
    connection, transport = Http2Connection(_Server()), _Transport()
    connection.connection_made(cast(asyncio.BaseTransport, transport))
    connection.data_received(hello)
    for data in reads:
        connection.data_received(data)
        while connection._has_frames:
            connection.take_turn()
    assert not connection.calls
    return transport.written


def h2_codec(**config: Any) -> Codec:
    """Measure the same server on `h2.connection.H2Connection`."""

    def run(hello: bytes, reads: Sequence[bytes]) -> int:
        connection = h2.connection.H2Connection(h2.config.H2Configuration(client_side=False, **config))
        connection.update_settings({h2.settings.SettingCodes.INITIAL_WINDOW_SIZE: LARGEST_WINDOW})
        connection.initiate_connection()
        connection.increment_flow_control_window(LARGEST_WINDOW - DEFAULT_WINDOW)
        connection.receive_data(hello)
        written = len(connection.data_to_send())
        messages: dict[int, bytes] = {}
        for data in reads:
            for event in connection.receive_data(data):
                if isinstance(event, h2.events.DataReceived):
                    messages[event.stream_id] = event.data
                    connection.acknowledge_received_data(event.flow_controlled_length, event.stream_id)
                elif isinstance(event, h2.events.RequestReceived):
                    assert event.headers
                elif isinstance(event, h2.events.StreamEnded):
                    stream = event.stream_id
                    connection.send_headers(stream, _RESPONSE)
                    connection.send_data(stream, messages.pop(stream))
                    connection.send_headers(stream, _TRAILERS, end_stream=True)
            written += len(connection.data_to_send())
        assert not messages
        return written

    return run


CODECS: dict[str, Codec] = {
    "ours": ours,
    "h2": h2_codec(header_encoding="utf-8"),
    "h2 without header checks": h2_codec(
        header_encoding=None,
        validate_inbound_headers=False,
        normalize_inbound_headers=False,
        validate_outbound_headers=False,
        normalize_outbound_headers=False,
    ),
}


def cpu_us(codec: Codec, hello: bytes, reads: Sequence[bytes], calls: int) -> float:
    """Measure the CPU time of a call in microseconds."""
    gc.collect()
    started = time.process_time()
    written = codec(hello, reads)
    elapsed = time.process_time() - started
    assert written > calls * _MESSAGE_SIZE
    return elapsed / calls * 1e6


def main() -> None:
    """Measure the codecs in turn, and print medians and ratios."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--calls", type=int, default=5000)
    options = parser.parse_args()
    for per_read in (1, 8):
        hello, reads = client_bytes(options.calls, per_read)
        times: dict[str, list[float]] = {name: [] for name in CODECS}
        for number in range(options.rounds + 1):
            for name, codec in CODECS.items():
                elapsed = cpu_us(codec, hello, reads, options.calls)
                if number:  # the first round warms up
                    times[name].append(elapsed)
        print(f"{per_read} call(s) in a read, {options.calls} calls, {options.rounds} rounds:")
        for name, values in times.items():
            ratio = statistics.median(value / ours_us for value, ours_us in zip(values, times["ours"], strict=True))
            median = statistics.median(values)
            print(f"  {name:26} {median:6.1f} us a call ({min(values):.1f} to {max(values):.1f}), {ratio:.2f} x ours")


if __name__ == "__main__":
    main()
