"""The server as a user holds it: in cells, in scripts, in event loops."""

from __future__ import annotations

import asyncio
import gc
import http.client
import logging
import socket
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tritonclient.http as httpclient

import tritonnb as tnb
from tests.server.conftest import EXAMPLES, python_model
from tritonnb.core.errors import InvalidArgumentError, NotFoundError, TritonError, UnavailableError
from tritonnb.inprocess.array_requests import make_request
from tritonnb.inprocess.inference import infer
from tritonnb.server.server import Server
from tritonnb.telemetry.log_settings import LogHandler, LogSettings

X = np.array([[1, 2, 3, 4]], np.float32)


def server_threads() -> set[str]:
    return {thread.name for thread in threading.enumerate() if thread.name.startswith("tritonnb")}


# --- inference ------------------------------------------------------------------------------------


def test_in_process_inference_takes_and_gives_numpy_arrays(server: Server) -> None:
    outputs = server["add_sub"](INPUT0=X, INPUT1=X)
    np.testing.assert_array_equal(outputs["OUTPUT0"], 2 * X)
    np.testing.assert_array_equal(outputs["OUTPUT1"], 0 * X)


def test_lists_become_arrays_of_the_inputs_datatype(server: Server) -> None:
    assert server["add_sub"](INPUT0=[[1, 2, 3, 4]], INPUT1=[[1, 1, 1, 1]])["OUTPUT0"].dtype == np.float32
    assert server["string_upper"](TEXT=[["grüße"]])["UPPER"].tolist() == [["GRÜSSE".encode()]]


def test_only_the_wanted_outputs_come(server: Server) -> None:
    assert list(server["add_sub"]({"INPUT0": X, "INPUT1": X}, outputs=["OUTPUT1"])) == ["OUTPUT1"]


@pytest.mark.slow
def test_the_official_client_in_another_process_gets_the_same_answer(server: Server) -> None:
    script = f"""
import numpy as np, tritonclient.http as http
client = http.InferenceServerClient("127.0.0.1:{server.port}")
inputs = [http.InferInput(name, [1, 4], "FP32") for name in ("INPUT0", "INPUT1")]
for tensor in inputs:
    tensor.set_data_from_numpy(np.array([[1, 2, 3, 4]], np.float32))
print(client.infer("add_sub", inputs).as_numpy("OUTPUT0").tolist())
"""
    process = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert process.stdout.strip() == str(server["add_sub"](INPUT0=X, INPUT1=X)["OUTPUT0"].tolist())


def test_many_requests_of_one_event_loop_share_batches(server: Server) -> None:
    async def ask() -> list[Any]:
        return await asyncio.gather(*(server["add_sub"].infer_async(INPUT0=X * k, INPUT1=X) for k in range(50)))

    with server.record() as rec:
        answers = asyncio.run(ask())
    for k, outputs in enumerate(answers):
        np.testing.assert_array_equal(outputs["OUTPUT0"], X * k + X)
    assert len(rec.requests) == 50
    assert len(rec.batches) < 50
    assert all(batch.why for batch in rec.batches)


def test_recent_events_are_available_without_record(server: Server) -> None:
    with server.record() as rec:
        server["add_sub"](INPUT0=X, INPUT1=X)
    recent = server.recent().for_model("add_sub")
    assert recent.batches[-1] == rec.batches[-1]
    assert recent.requests[-1].id == rec.requests[-1].id


def test_many_threads_get_their_own_answers(server: Server) -> None:
    wrong: list[int] = []

    def ask(k: int) -> None:
        for step in range(20):
            value = np.full((1, 4), k * 100 + step, np.float32)
            if not (server["add_sub"](INPUT0=value, INPUT1=0 * X)["OUTPUT0"] == value).all():
                wrong.append(k)

    threads = [threading.Thread(target=ask, args=(k,)) for k in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []


def test_a_cancelled_task_cancels_its_request(server: Server) -> None:
    async def ask() -> None:
        task = asyncio.create_task(server["add_sub"].infer_async(INPUT0=X, INPUT1=X))
        await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(ask())
    assert server["add_sub"](INPUT0=X, INPUT1=X)["OUTPUT0"].shape == (1, 4)


@pytest.mark.parametrize(
    ("inputs", "complaint"),
    [
        ({"INPUT0": X.astype("f8"), "INPUT1": X}, "'INPUT0' of model 'add_sub' is FP32.*got an array of float64"),
        ({"INPUT0": X, "OTHER": X}, "unexpected inference input 'OTHER' for model 'add_sub'"),
        ({"INPUT0": X}, "missing required input.*'INPUT1'"),
        ({"INPUT0": X[0], "INPUT1": X[0]}, r"Expected \[-1,4\], got \[4\]"),
        ({"INPUT0": "a", "INPUT1": X}, "model 'add_sub': input 'INPUT0' expected FP32 values, got 'a'"),
    ],
)
def test_a_bad_request_names_the_model_and_the_tensor(server: Server, inputs: dict[str, Any], complaint: str) -> None:
    with pytest.raises(InvalidArgumentError, match=complaint):
        server["add_sub"](inputs)


# --- models ---------------------------------------------------------------------------------------


def test_an_unknown_model_is_not_found(server: Server) -> None:
    with pytest.raises(NotFoundError, match="unknown model: 'nosuch' is not found"):
        server["nosuch"]


def test_a_failing_model_is_reported_and_the_others_are_served(
    write_model: Callable[..., Path], capsys: pytest.CaptureFixture[str]
) -> None:
    write_model("good", python_model("x + 1"))
    write_model("broken", "raise RuntimeError('not today')")
    repository = write_model("misspelt", python_model("x"), config="max_batch_sise: 3")
    server = tnb.serve(repository, port=0)
    try:
        assert set(server.load_errors) == {"broken", "misspelt"}
        printed = capsys.readouterr().out
        assert "not today" in printed
        assert 'no field named "max_batch_sise"' in printed
        assert server["good"](X=[[1.0]])["Y"].tolist() == [[2.0]]
        reasons = {row["name"]: row.get("reason", "") for row in server.index()}
        assert "not today" in reasons["broken"]
        assert "max_batch_sise" in reasons["misspelt"]
        assert not server.ready()
    finally:
        server.stop()


def test_a_model_is_reloaded_while_it_serves(write_model: Callable[..., Path]) -> None:
    repository = write_model("m", python_model("x + 1"))
    with Server(repository, port=0) as server:
        assert server["m"](X=[[1.0]])["Y"].tolist() == [[2.0]]
        write_model("m", python_model("x + 10"))
        server["m"].reload()
        assert server["m"](X=[[1.0]])["Y"].tolist() == [[11.0]]


def test_a_failed_reload_leaves_the_old_model_serving(write_model: Callable[..., Path]) -> None:
    repository = write_model("m", python_model("x + 1"))
    with Server(repository, port=0) as server:
        write_model("m", "syntax error here")
        with pytest.raises(InvalidArgumentError, match=r"load failed for model 'm'.*SyntaxError"):
            server["m"].reload()
        assert server["m"](X=[[1.0]])["Y"].tolist() == [[2.0]]
        assert server.index() == [{"name": "m", "version": "1", "state": "READY"}]


def test_every_version_that_the_policy_selects_is_served(write_model: Callable[..., Path]) -> None:
    write_model("m", python_model("x + 1"), version=1)
    repository = write_model("m", python_model("x + 2"), config="version_policy { all { } }", version=2)
    with Server(repository, port=0) as server:
        assert server["m"].metadata()["versions"] == ["1", "2"]
        assert server["m"](X=[[0.0]])["Y"].tolist() == [[2.0]]
        client = httpclient.InferenceServerClient(f"127.0.0.1:{server.port}")
        tensor = httpclient.InferInput("X", [1, 1], "FP32")
        tensor.set_data_from_numpy(np.zeros((1, 1), np.float32))
        assert client.infer("m", [tensor], model_version="1").as_numpy("Y").tolist() == [[1.0]]


# --- configuration --------------------------------------------------------------------------------


def test_a_change_of_scheduling_is_applied_in_place(server: Server) -> None:
    config = server["add_sub"].config
    config.dynamic_batching.max_queue_delay_microseconds = 2000
    assert "+  max_queue_delay_microseconds: 2000" in config.diff()
    assert config.apply() == "in place"
    assert server["add_sub"].config.dynamic_batching.max_queue_delay_microseconds == 2000
    assert server["add_sub"](INPUT0=X, INPUT1=X)["OUTPUT0"].shape == (1, 4)


def test_any_other_change_reloads_the_model(server: Server) -> None:
    config = server["add_sub"].config
    config.max_batch_size = 4
    config.dynamic_batching.preferred_batch_size[:] = []
    assert config.apply() == "reloaded"
    with pytest.raises(InvalidArgumentError, match="batch-size must be <= 4"):
        server["add_sub"](INPUT0=np.tile(X, (5, 1)), INPUT1=np.tile(X, (5, 1)))


def test_a_refused_change_changes_nothing(server: Server) -> None:
    config = server["add_sub"].config
    config.dynamic_batching.preferred_batch_size[:] = [9]
    with pytest.raises(InvalidArgumentError, match="preferred size must be <= max batch size for add_sub"):
        config.apply()
    config.revert()
    assert config.diff() == ""
    assert config.apply() == "unchanged"


# --- life -----------------------------------------------------------------------------------------


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


def test_serving_the_same_repository_again_replaces_the_server(write_model: Callable[..., Path]) -> None:
    repository = write_model("m", python_model("x"))
    first = tnb.serve(repository, port=0)
    second = tnb.serve(repository, port=0)
    try:
        assert repr(first) == "<Server: stopped>"
        assert second["m"](X=[[3.0]])["Y"].tolist() == [[3.0]]
    finally:
        second.stop()


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
def test_a_server_that_cannot_start_does_not_stop_the_one_it_replaces(
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


def test_nor_does_a_taken_port_or_a_repository_that_has_gone(write_model: Callable[..., Path]) -> None:
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


def test_a_server_without_references_stops(write_model: Callable[..., Path]) -> None:
    server = tnb.serve(write_model("m", python_model("x")), port=0)
    port = server.port
    del server
    gc.collect()
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", port))


def test_a_requested_port_that_is_in_use_is_an_error() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        with pytest.raises(UnavailableError, match="in use"):
            Server(port=taken.getsockname()[1])


def test_the_next_free_port_is_used_by_default_and_printed(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        monkeypatch.setattr("tritonnb.endpoints.listeners.DEFAULT_PORT", port)
        server = tnb.serve()
        try:
            assert port < server.port < port + 100
            assert f"port {port} is in use" in capsys.readouterr().out
        finally:
            server.stop()


def test_a_missing_repository_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidArgumentError, match="nowhere"):
        Server(tmp_path / "nowhere", port=0)


def test_it_works_as_an_asynchronous_context_manager() -> None:
    async def main() -> list[Any]:
        async with Server(EXAMPLES, port=0, model_control_mode="explicit", load_models=["add_sub"]) as server:
            return (await server["add_sub"].infer_async(INPUT0=X, INPUT1=X))["OUTPUT0"].tolist()

    assert asyncio.run(main()) == (2 * X).tolist()


@pytest.mark.slow
def test_a_script_may_end_without_stopping_its_server() -> None:
    script = f"""
import tritonnb as tnb
server = tnb.serve({str(EXAMPLES)!r}, port=0, model_control_mode="explicit", load_models=["add_sub"])
print(server["add_sub"](INPUT0=[[1, 2, 3, 4]], INPUT1=[[1, 1, 1, 1]])["OUTPUT0"].tolist())
"""
    process = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=False)
    assert (process.returncode, process.stderr) == (0, "")
    assert process.stdout.strip() == "[[2.0, 3.0, 4.0, 5.0]]"


@pytest.mark.slow
def test_a_script_that_exports_spans_may_end_so_too() -> None:
    pytest.importorskip("opentelemetry.exporter.otlp.proto.http", reason="the extra opentelemetry is not installed")
    script = """
import tritonnb as tnb
server = tnb.Server(port=0, trace=tnb.TraceOptions(mode="opentelemetry"))
"""
    process = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=False)
    assert (process.returncode, process.stderr) == (0, "")


# --- looking --------------------------------------------------------------------------------------


def test_the_repr_shows_endpoint_models_and_counts(server: Server) -> None:
    server["add_sub"](INPUT0=X, INPUT1=X)
    assert server.url in repr(server)
    assert [line.split() for line in repr(server).splitlines()[1:3]] == [
        ["model", "version", "rows", "executions", "state"],
        ["add_sub", "1", "1", "1", "READY"],
    ]
    assert "not loaded: accumulator" in repr(server)
    assert ">add_sub</td>" in server._repr_html_()
    assert "INPUT0: FP32 [-1, 4]" in repr(server["add_sub"])
    assert ">INPUT0</td>" in server["add_sub"]._repr_html_()


def test_statistics_are_those_of_the_endpoint(server: Server) -> None:
    server["add_sub"](INPUT0=X, INPUT1=X)
    client = httpclient.InferenceServerClient(f"127.0.0.1:{server.port}")
    assert client.get_inference_statistics("add_sub")["model_stats"] == [server["add_sub"].stats()]


def test_the_doctor_names_versions() -> None:
    assert "tritonclient" in repr(tnb.doctor())


def test_a_stopped_server_says_so_to_every_caller() -> None:
    server = Server(EXAMPLES, port=0, model_control_mode="explicit", load_models=["add_sub"])
    model = server["add_sub"]
    request = make_request(server.engine.model("add_sub").spec, -1, {"INPUT0": X, "INPUT1": X})
    server.stop()
    for _ in range(2):
        with pytest.raises(tnb.TritonError, match="the server has been stopped"):
            infer(server.submitter, request)
    assert repr(server) == "<Server: stopped>"
    with pytest.raises(tnb.TritonError):
        model(INPUT0=X, INPUT1=X)


def test_an_unexpected_error_while_submitting_is_raised_in_the_caller(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = server["add_sub"]
    lookups = [model.served]  # once, to check the inputs; not a second time, to submit
    monkeypatch.setattr(server.engine, "model", lambda *_: lookups.pop())
    with pytest.raises(tnb.TritonError, match="IndexError: pop from empty list"):
        model(INPUT0=X, INPUT1=X)


def test_a_server_may_do_without_http() -> None:
    with Server(port=0, allow_http=False, grpc_port=0) as server:
        assert server.grpc_port
        assert (server.url, repr(server)) == ("", "tritonnb server without HTTP")
        with pytest.raises(UnavailableError, match="expected a server with an HTTP endpoint"):
            assert server.port


def test_a_refused_head_has_no_body(write_model: Callable[..., Path]) -> None:
    with Server(write_model("one", python_model("x + 1")), port=0) as server:
        connection = http.client.HTTPConnection("127.0.0.1", server.port)
        for method, status in (("HEAD", 405), ("GET", 200)):  # a body would be taken for the next answer
            connection.request(method, "/v2")
            answer = connection.getresponse()
            answer.read()
            assert answer.status == status
        connection.close()


@pytest.mark.skipif(not hasattr(socket, "SO_REUSEPORT"), reason="this system cannot share ports")
@pytest.mark.parametrize("transport", ["fast", "tornado"])
def test_servers_that_all_say_so_share_a_port(transport: str) -> None:
    http = tnb.HttpOptions(transport=transport, reuse_port=True)
    grpc = tnb.GrpcOptions(reuse_port=True)
    with Server(port=0, http=http, grpc_port=0, grpc=grpc) as first:
        ports: dict[str, Any] = {"port": first.port, "grpc_port": first.grpc_port}
        with Server(http=http, grpc=grpc, **ports) as second:
            assert (second.port, second.grpc_port) == (first.port, first.grpc_port)
        with pytest.raises(UnavailableError, match="GRPC service cannot listen"):
            Server(http=http, **ports)
        with pytest.raises(UnavailableError, match="HTTP service cannot listen"):
            Server(grpc=grpc, **ports)


def test_settings_leave_the_log_of_a_program_alone(caplog: pytest.LogCaptureFixture) -> None:
    with Server(port=0, log=LogSettings(log_info=False, log_error=False, log_format="ISO8601")):
        with caplog.at_level(logging.INFO, "tritonnb"):
            logging.getLogger("tritonnb.server.server").error("broken")
        assert caplog.messages == ["broken"]
        assert not any(isinstance(handler, LogHandler) for handler in logging.getLogger("tritonnb").handlers)
