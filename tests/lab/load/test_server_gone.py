"""A load whose server goes away: it ends soon, says so, and its result has every request."""

from __future__ import annotations

import threading
from typing import Any

import pytest

import tritonnb as tnb
from tritonnb.lab.load import targets
from tritonnb.lab.load.running_load import Load
from tritonnb.server.server import Server

WORKLOADS: list[dict[str, Any]] = [{"clients": 2}, {"rate": 200}, {"clients": 2, "requests": 10_000_000}]


def address(server: Server, over: str) -> str:
    return f"grpc://127.0.0.1:{server.grpc_port}" if over == "grpc" else server.url


def wait_for_success(load: Load) -> None:
    before, pause = load.completed - load.failed, threading.Event()
    while load.completed - load.failed < before + 5:
        assert not load.done
        pause.wait(0.01)


def serve(**ports: Any) -> Server:
    server = Server(**ports)

    @server.model(max_batch_size=8)
    def double(X: tnb.FP32[1]) -> tnb.FP32[1]:
        return X * 2

    return server


@pytest.mark.parametrize("workload", WORKLOADS)
@pytest.mark.parametrize("over", ["http", "grpc", "process"])
def test_load_ends_after_its_server(over: str, workload: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(targets, "GONE_S", 0.2)
    server = serve(port=0, grpc_port=0)
    load = tnb.load(server["double"] if over == "process" else f"{address(server, over)}/v2/models/double", **workload)
    wait_for_success(load)
    server.stop()
    result = load.wait(timeout=60)
    assert result.requests == result.sent == load.sent
    assert result.failed < result.requests
    reason = "The server was stopped" if over == "process" else f"no server has responded at {address(server, over)}"
    assert reason in result.verdict()


@pytest.mark.parametrize("over", ["http", "grpc"])
def test_load_continues_on_a_restarted_server(over: str) -> None:
    server = serve(port=0, grpc_port=0)
    ports = {"port": server.port, "grpc_port": server.grpc_port}
    load = tnb.load(f"{address(server, over)}/v2/models/double", clients=2)
    wait_for_success(load)
    server.stop()
    with serve(**ports):
        wait_for_success(load)
        load.stop()
        result = load.wait(timeout=60)
    assert (result.requests, result.note) == (result.sent, "")
