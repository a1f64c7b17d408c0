"""Load over gRPC: one request, sent repeatedly over several connections, with one request in flight on each.

The client of grpcio takes more processor time than the servers that it measures. This client implements only as much of
HTTP/2 as is needed to send an encoded request and to check the status of the response. It runs in its own process:
``python -m benchmarks.grpc_load HOST PORT MODEL CONNECTIONS SECONDS``.
"""

from __future__ import annotations

import asyncio
import json
import statistics
import struct
import subprocess
import sys
import time
from typing import cast

import numpy as np
from tritonclient.grpc import service_pb2 as pb

from benchmarks.load import Measured

_DATA, _HEADERS, _RST, _SETTINGS, _PING, _GOAWAY, _WINDOW = 0, 1, 3, 4, 6, 7, 8
_END_STREAM, _END_HEADERS, _ACK = 1, 4, 1
_BIG_WINDOW = 2**31 - 1


def encoded_request(model: str) -> bytes:
    """Return a gRPC message with one FP32 tensor of shape [1, 16]."""
    request = pb.ModelInferRequest(model_name=model)
    tensor = request.inputs.add(name="INPUT0", datatype="FP32")
    tensor.shape.extend([1, 16])
    request.outputs.add(name="OUTPUT0")
    request.raw_input_contents.append(np.arange(16, dtype=np.float32).tobytes())
    message: bytes = request.SerializeToString()
    return struct.pack(">BI", 0, len(message)) + message


class _Client(asyncio.Protocol):
    """One connection with one request in flight."""

    def __init__(self, authority: str, body: bytes, latencies: list[float]) -> None:
        self._headers = b"".join(
            _literal(name, value)
            for name, value in (
                (":method", "POST"),
                (":scheme", "http"),
                (":path", "/inference.GRPCInferenceService/ModelInfer"),
                (":authority", authority),
                ("content-type", "application/grpc"),
                ("te", "trailers"),
            )
        )
        self._body = body
        self._latencies = latencies
        self._buffer = b""
        self._stream = -1
        self._received = 0
        self._sent_s = 0.0
        self.failure = ""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)  # uvloop's do not inherit from it
        settings = struct.pack(">HI", 4, _BIG_WINDOW) + struct.pack(">HI", 1, 0)  # no dynamic table
        window = struct.pack(">I", _BIG_WINDOW - 65535)
        self._transport.write(
            b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + _frame(_SETTINGS, 0, 0, settings) + _frame(_WINDOW, 0, 0, window)
        )
        self._send()

    def _send(self) -> None:
        self._stream += 2
        self._sent_s = time.perf_counter()
        head = _frame(_HEADERS, _END_HEADERS, self._stream, self._headers)
        self._transport.write(head + _frame(_DATA, _END_STREAM, self._stream, self._body))

    def data_received(self, data: bytes) -> None:
        buffer = self._buffer + data
        position = 0
        while len(buffer) - position >= 9:
            length = int.from_bytes(buffer[position : position + 3], "big")
            if len(buffer) - position < 9 + length:
                break
            kind, flags = buffer[position + 3], buffer[position + 4]
            self._frame_received(kind, flags, buffer[position + 9 : position + 9 + length])
            position += 9 + length
        self._buffer = buffer[position:]

    def _frame_received(self, kind: int, flags: int, payload: bytes) -> None:
        if kind == _DATA:
            self._received += len(payload)
            if self._received > 2**30:
                self._transport.write(_frame(_WINDOW, 0, 0, struct.pack(">I", self._received)))
                self._received = 0
        elif kind == _HEADERS and flags & _END_STREAM:
            self._latencies.append(time.perf_counter() - self._sent_s)
            if b"grpc-status\x010" not in payload:
                self.failure = repr(payload)
            self._send()
        elif kind == _SETTINGS and not flags & _ACK:
            self._transport.write(_frame(_SETTINGS, _ACK, 0, b""))
        elif kind == _PING and not flags & _ACK:
            self._transport.write(_frame(_PING, _ACK, 0, payload))
        elif kind in (_GOAWAY, _RST):
            self.failure = repr(payload)


def _frame(kind: int, flags: int, stream: int, payload: bytes) -> bytes:
    return len(payload).to_bytes(3, "big") + struct.pack(">BBI", kind, flags, stream) + payload


def _literal(name: str, value: str) -> bytes:
    """Return a header field that is not added to the dynamic table (RFC 7541, 6.2.2)."""
    return b"\x00" + bytes([len(name)]) + name.encode() + bytes([len(value)]) + value.encode()


async def _run(host: str, port: int, body: bytes, connections: int, seconds: float) -> dict[str, float]:
    loop = asyncio.get_running_loop()
    latencies: list[float] = []
    connections_and_clients = [
        await loop.create_connection(lambda: _Client(f"{host}:{port}", body, latencies), host, port)
        for _ in range(connections)
    ]
    latencies.clear()
    start = time.perf_counter()
    await asyncio.sleep(seconds)
    elapsed, count = time.perf_counter() - start, len(latencies)
    for transport, client in connections_and_clients:
        transport.abort()
        if client.failure:
            raise RuntimeError(f"requests failed: {client.failure}")
    cuts = statistics.quantiles(latencies, n=100)
    return {"rate": count / elapsed, "p50": cuts[49] * 1e3, "p99": cuts[98] * 1e3}


def grpc_load(host: str, port: int, model: str, connections: int, seconds: float) -> Measured:
    """Run this module in another process."""
    command = [sys.executable, "-m", "benchmarks.grpc_load", host, str(port), model, str(connections), str(seconds)]
    printed = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    return Measured(**json.loads(printed))


if __name__ == "__main__":
    import uvloop

    arguments = sys.argv[1:]
    request = encoded_request(arguments[2])
    figures = uvloop.run(_run(arguments[0], int(arguments[1]), request, int(arguments[3]), float(arguments[4])))
    print(json.dumps(figures))
