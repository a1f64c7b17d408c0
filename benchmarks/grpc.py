"""gRPC against a real Triton's Python backend: identity models, requests as users send them, one load generator."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from pathlib import Path

from benchmarks import servers
from benchmarks.grpc_load import grpc_load
from benchmarks.http import CASES, INLINE, Case, inline, measure_cases, users_repository
from benchmarks.load import Measured

_TITLES = ("64 bytes each way", "two models in turn", "two instances", "600 KB each way", "8 MB each way")
_CASES = {title: CASES[title] for title in _TITLES}


def grpc(scratch: Path, seconds: int, rounds: int) -> dict[str, object]:
    """Requests of two sizes to one and two models, and to one with two instances."""
    repository = users_repository(scratch)
    models = sorted({model for case in _CASES.values() for model in case.models})
    started = {
        "triton": grpc_port(lambda port: servers.triton(repository, scratch, grpc=port)),
        "tritonnb": grpc_port(lambda port: servers.tritonnb(repository, *models, grpc=port)),
        INLINE: grpc_port(lambda port: servers.tritonnb(inline(repository), *models, grpc=port)),
    }
    return {**measure_cases(_CASES, started, rounds, partial(measure_grpc, seconds=seconds), "gRPC: ")}


@contextmanager
def grpc_port(start: Callable[[int], AbstractContextManager[str]]) -> Iterator[str]:
    """Run a server with a free gRPC port; yields the port."""
    port = servers.free_port()
    with start(port):
        yield str(port)


def measure_grpc(port: str, case: Case, connections: int, *, seconds: int) -> Measured:
    """Warm up with 0 connections, or measure."""
    if not connections:
        return grpc_load(int(port), case.models, case.values, 8, 1)
    return grpc_load(int(port), case.models, case.values, connections, seconds)
