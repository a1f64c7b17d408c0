"""gRPC against a real Triton's Python backend, one identity model, one load generator."""

from __future__ import annotations

from contextlib import AbstractContextManager
from pathlib import Path

from benchmarks import servers
from benchmarks.grpc_load import grpc_load
from benchmarks.http import report
from benchmarks.load import Measured

CLIENTS = (1, 8, 32)


def grpc(scratch: Path, seconds: int, rounds: int) -> dict[str, object]:
    """1x16 FP32 over 1, 8 and 32 connections: target 1.0x Triton."""
    repository = servers.ROOT / "model_repository"
    single = scratch / "grpc"
    single.mkdir(exist_ok=True)
    link = single / "identity_fp32"
    if not link.exists():
        link.symlink_to(repository / "identity_fp32")
    runs: dict[tuple[str, int], list[Measured]] = {}
    for number in range(rounds):
        for name in ("triton", "tritonnb"):
            port = servers.free_port()
            server: AbstractContextManager[str] = (
                servers.triton(single, scratch, grpc=port)
                if name == "triton"
                else servers.tritonnb(single, "identity_fp32", grpc=port)
            )
            with server:
                grpc_load("127.0.0.1", port, "identity_fp32", 8, 2)  # warm up
                for count in CLIENTS:
                    measured = grpc_load("127.0.0.1", port, "identity_fp32", count, seconds)
                    runs.setdefault((name, count), []).append(measured)
                    print(f"  round {number + 1}: {name} at {count}: {measured.rate:.0f}/s", flush=True)
    return report("1x16 FP32 identity over gRPC", ["triton", "tritonnb"], CLIENTS, runs)
