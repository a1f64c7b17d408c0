"""NVIDIA's own client examples, run unchanged against this server.

They come from a checkout of the repository *triton-inference-server/client*, whose path is in the environment
variable ``TRITON_CLIENT_CHECKOUT``. The models are those that the examples want, in Python.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tritonnb.server.server import Server

HERE = Path(__file__).parent
CHECKOUT = os.environ.get("TRITON_CLIENT_CHECKOUT", "")
EXAMPLES = Path(CHECKOUT) / "src" / "python" / "examples"
DYNA = ("simple_grpc_sequence_stream_infer_client.py", "simple_grpc_aio_sequence_stream_infer_client.py",
        "simple_grpc_sequence_sync_infer_client.py", "simple_http_sequence_sync_infer_client.py")  # fmt: skip
pytestmark = pytest.mark.skipif(not CHECKOUT, reason="TRITON_CLIENT_CHECKOUT names no checkout of NVIDIA's client")


def scripts() -> list[tuple[str, ...]]:
    """Each example with the arguments it is run with."""
    if not CHECKOUT:
        return []
    examples = sorted([*EXAMPLES.glob("simple_*.py"), *EXAMPLES.glob("grpc_explicit_*.py")])
    names = [example.name for example in examples if "cudashm" not in example.name]
    return [*((name,) for name in names), *((name, "-d") for name in DYNA), ("reuse_infer_objects_client.py",)]


@pytest.fixture(scope="module")
def servers() -> Iterator[dict[str, Server]]:
    """Two, since the model control examples count the models: seven over HTTP, eight over gRPC."""
    explicit: dict[str, Any] = {
        "model_control_mode": "explicit",
        "load_models": ["*"],
        "grpc_port": 0,
        "allow_file_override": True,
    }
    with Server(HERE / "models", port=0, **explicit) as seven:
        with Server([HERE / "models", HERE / "eighth"], port=0, **explicit) as eight:
            assert not {**seven.load_errors, **eight.load_errors}
            yield {"http": seven, "grpc": eight}


@pytest.mark.parametrize("command", scripts(), ids=" ".join)
def test_nvidias_client_example_passes(servers: dict[str, Server], command: tuple[str, ...], tmp_path: Path) -> None:
    name, *arguments = command
    protocol = "grpc" if "grpc" in name else "http"
    server = servers[protocol]
    server.load("simple")  # the model control examples leave it unloaded
    port = server.grpc_port if protocol == "grpc" else server.port
    run = [sys.executable, str(EXAMPLES / name), *arguments, "-u", f"127.0.0.1:{port}"]
    ran = subprocess.run(run, cwd=tmp_path, capture_output=True, text=True, timeout=60)
    assert ran.returncode == 0, ran.stdout[-2000:] + ran.stderr[-2000:]
