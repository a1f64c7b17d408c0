"""Start and stop of a server: ports, threads, scripts, a server that replaces another."""

from __future__ import annotations

import asyncio
import gc
import json
import socket
import subprocess
import sys
import threading
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tritonnb as tnb
from tests.server.conftest import EXAMPLES, python_model
from tritonnb.client.array_requests import make_request
from tritonnb.core.errors import InvalidArgumentError, TritonError, UnavailableError
from tritonnb.server import background
from tritonnb.server.inference import infer
from tritonnb.server.server import Server

X = np.array([[1, 2, 3, 4]], np.float32)


def server_threads() -> set[str]:
    return {thread.name for thread in threading.enumerate() if thread.name.startswith("tritonnb")}


def test_stopping_frees_the_port_and_every_thread() -> None:
    before = server_threads()
    server = Server(EXAMPLES, port=0, model_control_mode="explicit", load_models=["add_sub"])
    port = server.port
    server.stop()
    server.stop()
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", port))
    assert {name for name in server_threads() - before if "load" not in name} == set()
    assert repr(server) == "<Server: stopped>"


def test_slowly_loading_model_is_named_while_others_are_served(
    write_model: Callable[..., Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    may_load = tmp_path / "may_load"
    write_model(
        "slow",
        f"""{python_model("x")}
    def initialize(self, args):
        import os, threading
        while not os.path.exists({str(may_load)!r}):
            threading.Event().wait(0.01)
""",
    )
    repository = write_model("quick", python_model("x"))
    printed: list[str] = []

    def answer_from_the_other_model(text: str) -> None:
        printed.append(text)
        if "quick" not in text:
            body = json.dumps({"inputs": [{"name": "X", "datatype": "FP32", "shape": [1, 1], "data": [3]}]}).encode()
            with urllib.request.urlopen(f"{text.split()[-1]}/v2/models/quick/infer", body) as response:
                assert json.load(response)["outputs"][0]["data"] == [3]
            may_load.touch()

    monkeypatch.setattr(background, "REPORT_LOADING_AFTER_S", 0)
    monkeypatch.setattr(background, "print", answer_from_the_other_model, raising=False)
    try:
        server = Server(repository, port=0)
    finally:
        may_load.touch()
    with server:
        assert server.ready()
        assert printed[-1] == f"still loading: slow; the models that are ready are served at {server.url}"


@pytest.mark.parametrize(
    "wrong",
    [
        {"port": 65_536},
        {"grpc_port": -1},
        {"model_control_mode": "sometimes"},
        {"no_such_option": 1},
        {"grpc": tnb.GrpcOptions(transport="pigeon")},
    ],
    ids=lambda wrong: next(iter(wrong)),
)
def test_failed_start_does_not_stop_the_replaced_server(
    write_model: Callable[..., Path], wrong: dict[str, Any]
) -> None:
    repository = write_model("m", python_model("x"))
    server = tnb.serve(repository, port=0, grpc_port=0)
    with pytest.raises((TritonError, TypeError)):
        tnb.serve(repository, **{"port": server.port, "grpc_port": server.grpc_port, **wrong})
    assert server["m"](X=[[3.0]])["Y"].tolist() == [[3.0]]
    again = tnb.serve(repository, port=server.port, grpc_port=server.grpc_port)
    assert not server.alive
    again.stop()


def test_taken_port_or_removed_repository_has_a_short_traceback(write_model: Callable[..., Path]) -> None:
    repository = write_model("m", python_model("x"))
    server = tnb.serve(repository, port=0)
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        with pytest.raises(UnavailableError, match="in use"):
            tnb.serve(repository, port=0, metrics_port=taken.getsockname()[1])
    assert server["m"](X=[[3.0]])["Y"].tolist() == [[3.0]]
    repository.rename(repository.with_name("elsewhere"))
    with pytest.raises(InvalidArgumentError, match="not a directory"):
        tnb.serve(repository, port=0)
    assert server["m"](X=[[3.0]])["Y"].tolist() == [[3.0]]
    server.stop()


def test_server_without_references_stops(write_model: Callable[..., Path]) -> None:
    server = tnb.serve(write_model("m", python_model("x")), port=0)
    port = server.port
    del server
    gc.collect()
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", port))


def test_server_that_a_thread_of_its_model_frees_answers_and_stops() -> None:
    """The garbage collector runs on any thread: there it must not wait until the thread has ended."""
    executing, unused = threading.Event(), threading.Event()
    server = Server(port=0, exit_timeout=5)

    @server.model
    def collect(X: tnb.INT32[1]) -> tnb.INT32[1]:
        executing.set()
        assert unused.wait(20)
        gc.collect()
        return X

    def ask(url: str) -> None:
        body = {"inputs": [{"name": "X", "datatype": "INT32", "shape": [1], "data": [7]}]}
        with urllib.request.urlopen(f"{url}/v2/models/collect/infer", json.dumps(body).encode()) as response:
            answers.append(json.load(response)["outputs"][0]["data"])

    answers: list[list[int]] = []
    client = threading.Thread(target=ask, args=[server.url])
    client.start()
    assert executing.wait(20)
    thread = server._background._thread
    cycle: list[object] = [server]
    cycle.append(cycle)
    del server, cycle
    unused.set()
    client.join(20)
    thread.join(20)
    assert answers == [[7]]
    assert not thread.is_alive()


def test_requested_port_that_is_in_use_is_an_error() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        with pytest.raises(UnavailableError, match="in use"):
            Server(port=taken.getsockname()[1])


def test_next_free_port_is_used_by_default_and_printed(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        monkeypatch.setattr("tritonnb.endpoints.endpoint_set.DEFAULT_PORTS", range(port, port + 100))
        server = tnb.serve()
        try:
            assert port < server.port < port + 100
            assert f"port {port} is in use" in capsys.readouterr().out
        finally:
            server.stop()


def test_missing_repository_is_refused_with_its_absolute_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "models").mkdir()
    (tmp_path / "notes").touch()
    monkeypatch.chdir(tmp_path)
    for name, reason in (
        ("model", "it does not exist; did you mean 'models'?"),
        ("notes", "it is a file"),
        ("no/where", "it does not exist"),
    ):
        with pytest.raises(InvalidArgumentError) as caught:
            Server(name, port=0)
        assert str(caught.value) == f"model repository '{tmp_path / name}' is not a directory: {reason}"


def test_server_is_an_asynchronous_context_manager() -> None:
    async def main() -> list[Any]:
        async with Server(EXAMPLES, port=0, model_control_mode="explicit", load_models=["add_sub"]) as server:
            return (await server["add_sub"].infer_async(INPUT0=X, INPUT1=X))["OUTPUT0"].tolist()

    assert asyncio.run(main()) == (2 * X).tolist()


@pytest.mark.slow
def test_script_can_exit_without_stopping_its_server() -> None:
    script = f"""
import tritonnb as tnb
server = tnb.serve({str(EXAMPLES)!r}, port=0, model_control_mode="explicit", load_models=["add_sub"])
print(server["add_sub"](INPUT0=[[1, 2, 3, 4]], INPUT1=[[1, 1, 1, 1]])["OUTPUT0"].tolist())
"""
    process = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=False)
    assert (process.returncode, process.stderr) == (0, "")
    assert process.stdout.strip() == "[[2.0, 3.0, 4.0, 5.0]]"


@pytest.mark.slow
def test_script_that_exports_spans_can_end_without_stopping_its_server() -> None:
    pytest.importorskip("opentelemetry.exporter.otlp.proto.http", reason="the extra opentelemetry is not installed")
    script = """
import tritonnb as tnb
server = tnb.Server(port=0, trace=tnb.TraceOptions(mode="opentelemetry"))
"""
    process = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=False)
    assert (process.returncode, process.stderr) == (0, "")


def test_every_call_of_a_stopped_server_gets_a_clear_error() -> None:
    server = Server(EXAMPLES, port=0, model_control_mode="explicit", load_models=["add_sub"])
    model = server["add_sub"]
    spec = server.engine.model("add_sub").spec
    server.stop()
    for _ in range(2):
        with pytest.raises(tnb.TritonError, match="the server has been stopped"):
            infer(server.engine, make_request(spec, -1, {"INPUT0": X, "INPUT1": X}))
    assert repr(server) == "<Server: stopped>"
    with pytest.raises(tnb.TritonError):
        model(INPUT0=X, INPUT1=X)


def test_server_can_run_without_http() -> None:
    with Server(port=0, allow_http=False, grpc_port=0) as server:
        assert server.grpc_port
        assert (server.url, repr(server)) == ("", "tritonnb server without HTTP")
        with pytest.raises(UnavailableError, match="expected an HTTP endpoint"):
            assert server.port


@pytest.mark.skipif(not hasattr(socket, "SO_REUSEPORT"), reason="this system cannot share ports")
def test_servers_with_reuse_port_share_a_port() -> None:
    http = tnb.HttpOptions(reuse_port=True)
    grpc = tnb.GrpcOptions(reuse_port=True)
    with Server(port=0, http=http, grpc_port=0, grpc=grpc) as first:
        ports: dict[str, Any] = {"port": first.port, "grpc_port": first.grpc_port}
        with Server(http=http, grpc=grpc, **ports) as second:
            assert (second.port, second.grpc_port) == (first.port, first.grpc_port)
        with pytest.raises(UnavailableError, match="GRPC service cannot listen"):
            Server(http=http, **ports)
        with pytest.raises(UnavailableError, match="HTTP service cannot listen"):
            Server(grpc=grpc, **ports)
