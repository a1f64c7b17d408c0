"""gRPC against a real Triton's Python backend, one identity model, one load generator."""

from __future__ import annotations

import statistics
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

from benchmarks import servers
from benchmarks.grpc_load import grpc_load
from benchmarks.load import Measured

CLIENTS = (1, 8, 32)


def grpc(scratch: Path, seconds: int, rounds: int) -> dict[str, Any]:
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
    return _report(runs)


def _report(runs: dict[tuple[str, int], list[Measured]]) -> dict[str, Any]:
    print(f"\n{'connections':>12} {'server':>10} {'requests/s':>11} {'p50 ms':>8} {'p99 ms':>8}  ours is")
    found: dict[str, Any] = {}
    for count in CLIENTS:
        medians = {
            name: [
                statistics.median(getattr(each, field) for each in runs[name, count]) for field in Measured.__slots__
            ]
            for name in ("triton", "tritonnb")
        }
        ratio = medians["tritonnb"][0] / medians["triton"][0]
        for name, (rate, p50, p99) in medians.items():
            shown = f"{ratio:.2f}x" if name == "triton" else ""
            print(f"{count:>12} {name:>10} {rate:>11.0f} {p50:>8.2f} {p99:>8.2f}  {shown}")
            found[f"{name} at {count}"] = {"rate": rate, "p50_ms": p50, "p99_ms": p99, "ratio": ratio}
    return found
