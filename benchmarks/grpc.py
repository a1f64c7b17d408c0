"""gRPC against a real Triton's Python backend: identity models, requests as users send them, one load generator."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path

from benchmarks import servers
from benchmarks.grpc_load import grpc_load
from benchmarks.http import CASES, INLINE, Runs, inline, measured_on, report, users_repository

_TITLES = ("64 bytes each way", "two models in turn", "two instances", "600 KB each way", "8 MB each way")
_CASES = {title: CASES[title] for title in _TITLES}


def grpc(scratch: Path, seconds: int, rounds: int) -> dict[str, object]:
    """Requests of two sizes to one and two models, and to one with two instances."""
    repository = users_repository(scratch)
    models = sorted({model for case in _CASES.values() for model in case.models})
    starts: dict[str, Callable[[int], AbstractContextManager[str]]] = {
        "triton": lambda port: servers.triton(repository, scratch, grpc=port),
        "tritonnb": lambda port: servers.tritonnb(repository, *models, grpc=port),
        INLINE: lambda port: servers.tritonnb(inline(repository), *models, grpc=port),
    }
    runs: dict[str, Runs] = {title: {} for title in _CASES}
    for number in range(rounds):
        for server, start in starts.items():
            port = servers.free_port()
            with start(port):
                for title, case in measured_on(server, _CASES).items():
                    grpc_load(port, case.models, case.values, 8, 1)  # warm up
                    for count in case.connections:
                        measured = grpc_load(port, case.models, case.values, count, seconds)
                        runs[title].setdefault((server, count), []).append(measured)
                        print(f"  round {number + 1}: {title}, {server} at {count}: {measured.rate:.0f}/s", flush=True)
    return {title: report(f"gRPC: {title}", runs[title]) for title in _CASES}
