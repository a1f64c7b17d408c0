"""Servers for the tests of connections: this project's in its own process, and a real Triton."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

import tritonnb as tnb
from tests.client.servers import ServerProcess, start, triton_command, write_model

needs_triton = pytest.mark.skipif(triton_command() is None, reason="no Triton server: set TRITON_PREFIX")


@pytest.fixture(scope="module", params=["tritonnb", pytest.param("triton", marks=[needs_triton, pytest.mark.slow])])
def remote_server(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    """A server with the models ``one`` (no delay), ``delay`` (2 ms), and ``two`` (two instances, 3 ms)."""
    repository: Path = tmp_path_factory.mktemp(request.param) / "repository"
    write_model(repository, "one")
    write_model(repository, "delay", delay_us=2000)
    write_model(repository, "two", instances=2, delay_us=3000)
    with start(repository, triton=request.param == "triton") as server:
        yield server


@pytest.fixture(params=["http", "grpc"])
def remote(request: pytest.FixtureRequest, remote_server: ServerProcess) -> Iterator[tnb.Remote]:
    with tnb.connect(getattr(remote_server, request.param)) as connection:
        yield connection
