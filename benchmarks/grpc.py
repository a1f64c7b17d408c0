"""gRPC against a real Triton's Python backend, one identity model, one load generator."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path

from benchmarks import servers
from benchmarks.grpc_load import grpc_load
from benchmarks.http import INLINE, identity_repository, inline, report
from benchmarks.load import Measured

CLIENTS = (1, 8, 32)


def grpc(scratch: Path, seconds: int, rounds: int) -> dict[str, object]:
    """1x16 FP32 over 1, 8 and 32 connections: target 2x Triton."""
    repository = identity_repository(scratch, 16)
    starts: dict[str, Callable[[int], AbstractContextManager[str]]] = {
        "triton": lambda port: servers.triton(repository, scratch, grpc=port),
        "tritonnb": lambda port: servers.tritonnb(repository, "identity_fp32", grpc=port),
        INLINE: lambda port: servers.tritonnb(inline(repository), "identity_fp32", grpc=port),
    }
    runs: dict[tuple[str, int], list[Measured]] = {}
    for number in range(rounds):
        for name, start in starts.items():
            port = servers.free_port()
            with start(port):
                grpc_load("127.0.0.1", port, "identity_fp32", 8, 2)  # warm up
                for count in CLIENTS:
                    measured = grpc_load("127.0.0.1", port, "identity_fp32", count, seconds)
                    runs.setdefault((name, count), []).append(measured)
                    print(f"  round {number + 1}: {name} at {count}: {measured.rate:.0f}/s", flush=True)
    return report("1x16 FP32 identity over gRPC", list(starts), CLIENTS, runs)
