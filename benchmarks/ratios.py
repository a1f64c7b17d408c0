"""The rates that the project aims at, against a real Triton: what the page of performance leads with.

Each request has its own ID and data. Both servers run at the same time and are measured in turn, in several rounds;
with ``--seconds 3 --rounds 6``, it takes about eleven minutes.
"""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from functools import partial
from pathlib import Path

from benchmarks import servers
from benchmarks.grpc import grpc_port, measure_grpc
from benchmarks.http import IDENTITY, IMAGE, Case, ensemble_repository, measure_cases, measure_http

_HTTP: Mapping[str, Case] = {
    "HTTP, 64 bytes each way": Case(),
    "HTTP, 64 bytes in JSON": Case(is_json=True),
    "HTTP, an ensemble of two": Case(("two_steps",)),
    "HTTP, 600 KB each way": Case(values=IMAGE, connections=(1, 8)),
}
_GRPC: Mapping[str, Case] = {
    "gRPC, 64 bytes each way": Case(),
    "gRPC, 600 KB each way": Case(values=IMAGE, connections=(1, 8)),
}
#: How many times the requests per second of Triton each row should reach.
TARGETS = {
    "HTTP, 64 bytes each way": 1.5,
    "HTTP, 64 bytes in JSON": 1.4,
    "HTTP, an ensemble of two": 1.3,
    "HTTP, 600 KB each way": 1.3,
    "gRPC, 64 bytes each way": 1.6,
    "gRPC, 600 KB each way": 1.3,
}


def ratios(scratch: Path, seconds: int, rounds: int) -> dict[str, object]:
    """The rows of the page's second table: requests per second and p99, divided by those of Triton."""
    repository = ensemble_repository(scratch)
    shutil.copytree(servers.ROOT / "model_repository" / IDENTITY, repository / IDENTITY, dirs_exist_ok=True)
    models = (IDENTITY, "two_steps")
    over_http = {
        "triton": servers.triton(repository, scratch),
        "tritonnb": servers.tritonnb(repository, *models),
    }
    over_grpc = {
        "triton": grpc_port(lambda port: servers.triton(repository, scratch, grpc=port)),
        "tritonnb": grpc_port(lambda port: servers.tritonnb(repository, *models, grpc=port)),
    }
    figures = measure_cases(_HTTP, over_http, rounds, partial(measure_http, scratch=scratch, seconds=seconds))
    figures |= measure_cases(_GRPC, over_grpc, rounds, partial(measure_grpc, seconds=seconds))
    return {**figures}
