"""Load over gRPC: requests with their own IDs and data, over several connections with one request in flight on each.

The client of grpcio takes more processor time than the servers that it measures. This client implements only as much of
HTTP/2 as is needed to send an encoded request and to check the status of the response. It runs in its own process:
``python -m benchmarks.grpc_load PORT MODELS VALUES CONNECTIONS SECONDS``.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import statistics
import struct
import subprocess
import sys
import time
from collections.abc import Iterator
from typing import cast

from benchmarks.load import Measured, floats, permutations
from tritonnb.core.protobuf import service_pb2 as pb
from tritonnb.endpoints.grpc.transport.framing import (
    ACK,
    DATA,
    DEFAULT_FRAME_LIMIT,
    DEFAULT_WINDOW,
    END_HEADERS,
    END_STREAM,
    GOAWAY,
    HEADERS,
    INITIAL_WINDOW,
    LARGEST_WINDOW,
    PING,
    RST_STREAM,
    SETTINGS,
    WINDOW_UPDATE,
    frame,
    frame_head,
    literal,
)

#: The fewest requests of a measurement, which may take longer for it.
_LEAST = 10


def messages(models: tuple[str, ...], values: int) -> Iterator[bytes]:
    """Yield gRPC messages with an FP32 input of shape [1, values], without end; each has its own ID and data."""
    tensors = pb.ModelInferRequest()
    tensors.inputs.add(name="INPUT0", datatype="FP32", shape=[1, values])
    tensors.outputs.add(name="OUTPUT0")
    encoded_tensors = tensors.SerializeToString()
    names = [pb.ModelInferRequest(model_name=model).SerializeToString() for model in models]
    raws = [
        pb.ModelInferRequest(raw_input_contents=[array.tobytes()]).SerializeToString()
        for array in permutations(floats(values))
    ]
    for number in itertools.count():
        # Encoded parts of a message can be joined; this is the order in which clients write them.
        encoded_id = pb.ModelInferRequest(id=str(number)).SerializeToString()
        parts = names[number % len(names)], encoded_id, encoded_tensors, raws[number % len(raws)]
        message = b"".join(parts)
        yield struct.pack(">BI", 0, len(message)) + message


class _Client(asyncio.Protocol):
    """One connection with one request in flight."""

    def __init__(self, authority: str, bodies: Iterator[bytes], latencies: list[float]) -> None:
        self._headers = b"".join(
            literal(name, value.encode())
            for name, value in (
                (":method", "POST"),
                (":scheme", "http"),
                (":path", "/inference.GRPCInferenceService/ModelInfer"),
                (":authority", authority),
                ("content-type", "application/grpc"),
                ("te", "trailers"),
            )
        )
        self._bodies = bodies
        self._latencies = latencies
        self._buffer = b""
        self._stream = -1
        self._unsent = memoryview(b"")
        self._initial_window = self._window = self._stream_window = DEFAULT_WINDOW
        self._received = 0
        self._sent_s = 0.0
        self.failure = ""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)  # uvloop's do not inherit from it
        settings = struct.pack(">HI", INITIAL_WINDOW, LARGEST_WINDOW) + struct.pack(">HI", 1, 0)  # no dynamic table
        window = struct.pack(">I", LARGEST_WINDOW - DEFAULT_WINDOW)
        self._transport.write(
            b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + frame(SETTINGS, 0, 0, settings) + frame(WINDOW_UPDATE, 0, 0, window)
        )
        self._send()

    def _send(self) -> None:
        body = next(self._bodies, None)
        if body is None:
            return
        self._stream += 2
        self._sent_s = time.perf_counter()
        self._unsent = memoryview(body)
        self._stream_window = self._initial_window
        self._send_data(frame(HEADERS, END_HEADERS, self._stream, self._headers))

    def _send_data(self, head: bytes = b"") -> None:
        """Send as much of the message as the windows of the connection and the stream permit, in one write."""
        frames: list[bytes | memoryview] = [head]
        position, end = 0, min(len(self._unsent), self._window, self._stream_window)
        while position < end:
            piece = self._unsent[position : min(end, position + DEFAULT_FRAME_LIMIT)]
            position += len(piece)
            flags = END_STREAM if position == len(self._unsent) else 0
            frames += (frame_head(len(piece), DATA, flags, self._stream), piece)
        self._window -= position
        self._stream_window -= position
        self._unsent = self._unsent[position:]
        self._transport.write(b"".join(frames))

    def data_received(self, data: bytes) -> None:
        buffer = self._buffer + data
        position = 0
        while len(buffer) - position >= 9:
            length = int.from_bytes(buffer[position : position + 3], "big")
            if len(buffer) - position < 9 + length:
                break
            kind, flags, stream = struct.unpack_from(">BBI", buffer, position + 3)
            self._frame_received(kind, flags, stream, buffer[position + 9 : position + 9 + length])
            position += 9 + length
        self._buffer = buffer[position:]

    def _frame_received(self, kind: int, flags: int, stream: int, payload: bytes) -> None:
        if kind == DATA:
            self._received += len(payload)
            if self._received > 2**30:
                self._transport.write(frame(WINDOW_UPDATE, 0, 0, struct.pack(">I", self._received)))
                self._received = 0
        elif kind == HEADERS and flags & END_STREAM:
            self._latencies.append(time.perf_counter() - self._sent_s)
            if b"grpc-status\x010" not in payload:
                self.failure = repr(payload)
            self._send()
        elif kind == SETTINGS and not flags & ACK:
            self._transport.write(frame(SETTINGS, ACK, 0, b""))
            for name, value in struct.iter_unpack(">HI", payload):
                if name == INITIAL_WINDOW:
                    self._stream_window += value - self._initial_window
                    self._initial_window = value
            self._send_unsent()
        elif kind == WINDOW_UPDATE:
            (increment,) = struct.unpack(">I", payload)
            if stream == 0:
                self._window += increment
            elif stream == self._stream:
                self._stream_window += increment
            self._send_unsent()
        elif kind == PING and not flags & ACK:
            self._transport.write(frame(PING, ACK, 0, payload))
        elif kind in (GOAWAY, RST_STREAM):
            self.failure = repr(payload)

    def _send_unsent(self) -> None:
        if self._unsent:
            self._send_data()


_Connections = list[tuple[asyncio.BaseTransport, _Client]]


async def _connect(port: int, bodies: Iterator[bytes], connections: int, latencies: list[float]) -> _Connections:
    loop = asyncio.get_running_loop()
    return [
        await loop.create_connection(lambda: _Client(f"127.0.0.1:{port}", bodies, latencies), "127.0.0.1", port)
        for _ in range(connections)
    ]


async def _await_responses(count: int, latencies: list[float], connections: _Connections) -> None:
    while len(latencies) < count and not any(client.failure for _, client in connections):
        await asyncio.sleep(0.02)


def _close(connections: _Connections) -> None:
    for transport, client in connections:
        cast("asyncio.Transport", transport).abort()
        if client.failure:
            raise RuntimeError(f"requests failed: {client.failure}")


async def send_all(port: int, bodies: Iterator[bytes], count: int, connections: int) -> None:
    """Send ``count`` messages of `messages`, and await the responses.

    Raises
    ------
    RuntimeError
        If a request failed.
    """
    latencies: list[float] = []
    opened = await _connect(port, bodies, connections, latencies)
    await _await_responses(count, latencies, opened)
    _close(opened)


async def _run(port: int, bodies: Iterator[bytes], connections: int, seconds: float) -> dict[str, float]:
    latencies: list[float] = []
    opened = await _connect(port, bodies, connections, latencies)
    latencies.clear()
    start = time.perf_counter()
    await asyncio.sleep(seconds)
    await _await_responses(_LEAST, latencies, opened)
    elapsed, count = time.perf_counter() - start, len(latencies)
    _close(opened)
    cuts = statistics.quantiles(latencies, n=100)
    return {"rate": count / elapsed, "p50": cuts[49] * 1e3, "p99": cuts[98] * 1e3}


def grpc_load(port: int, models: tuple[str, ...], values: int, connections: int, seconds: float) -> Measured:
    """Run this module in another process."""
    arguments = (str(port), ",".join(models), str(values), str(connections), str(seconds))
    command = [sys.executable, "-m", "benchmarks.grpc_load", *arguments]
    printed = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True).stdout  # its errors are shown
    return Measured(**json.loads(printed))


if __name__ == "__main__":
    import uvloop

    port, models, values, connections, seconds = sys.argv[1:]
    bodies = messages(tuple(models.split(",")), int(values))
    print(json.dumps(uvloop.run(_run(int(port), bodies, int(connections), float(seconds)))))
