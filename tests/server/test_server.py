"""The server as a user holds it: in cells, in scripts, in event loops."""

from __future__ import annotations

import asyncio
import http.client
import logging
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import tritonclient.http as httpclient

import tritonnb as tnb
from tests.server.conftest import SMALL, python_model
from tritonnb.core.errors import InvalidArgumentError, NotFoundError
from tritonnb.server.server import Server
from tritonnb.telemetry.log_settings import LogSettings

X = np.array([[1, 2, 3, 4]], np.float32)


# --- inference ------------------------------------------------------------------------------------


def test_in_process_inference_accepts_and_returns_numpy_arrays(server: Server) -> None:
    outputs = server["add_sub"](INPUT0=X, INPUT1=X)
    np.testing.assert_array_equal(outputs["OUTPUT0"], 2 * X)
    np.testing.assert_array_equal(outputs["OUTPUT1"], 0 * X)


def test_lists_become_arrays_of_the_inputs_datatype(server: Server) -> None:
    assert server["add_sub"](INPUT0=[[1, 2, 3, 4]], INPUT1=[[1, 1, 1, 1]])["OUTPUT0"].dtype == np.float32
    assert server["string_upper"](TEXT=[["grüße"]])["UPPER"].tolist() == [["GRÜSSE".encode()]]


def test_only_requested_outputs_are_returned(server: Server) -> None:
    assert list(server["add_sub"]({"INPUT0": X, "INPUT1": X}, outputs=["OUTPUT1"])) == ["OUTPUT1"]


@pytest.mark.slow
def test_official_client_in_another_process_gets_the_same_answer(server: Server) -> None:
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
    @server.model(max_batch_size=8, dynamic_batching={"max_queue_delay_microseconds": 60_000_000})
    def double(X: tnb.FP32[1]) -> tnb.FP32[1]:
        return X * 2

    async def ask() -> list[Any]:
        return await asyncio.gather(*(server["double"].infer_async(X=[[float(k)]]) for k in range(48)))

    with server.record() as rec:
        answers = asyncio.run(ask())
    assert [outputs["OUTPUT"].item() for outputs in answers] == [2.0 * k for k in range(48)]
    assert [len(batch.requests) for batch in rec.batches] == [8] * 6
    assert all(batch.why for batch in rec.batches)


def test_recent_events_are_available_without_record(server: Server) -> None:
    with server.record() as rec:
        server["add_sub"](INPUT0=X, INPUT1=X)
    recent = server.recent().for_model("add_sub")
    assert recent.batches[-1] == rec.batches[-1]
    assert recent.requests[-1].id == rec.requests[-1].id


def test_many_threads_receive_their_own_responses(server: Server) -> None:
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


def test_cancelled_task_cancels_its_request(server: Server) -> None:
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
def test_bad_request_names_the_model_and_the_tensor(server: Server, inputs: dict[str, Any], complaint: str) -> None:
    with pytest.raises(InvalidArgumentError, match=complaint):
        server["add_sub"](inputs)


# --- models ---------------------------------------------------------------------------------------


def test_unknown_model_is_not_found(server: Server) -> None:
    with pytest.raises(NotFoundError, match="unknown model: 'nosuch' is not found"):
        server["nosuch"]


def test_failing_model_is_reported_and_the_others_are_served(
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


def test_model_serves_during_its_reload(write_model: Callable[..., Path]) -> None:
    repository = write_model("m", python_model("x + 1"))
    with Server(repository, port=0) as server:
        assert server["m"](X=[[1.0]])["Y"].tolist() == [[2.0]]
        write_model("m", python_model("x + 10"))
        server["m"].reload()
        assert server["m"](X=[[1.0]])["Y"].tolist() == [[11.0]]


def test_failed_reload_leaves_the_old_model_serving(write_model: Callable[..., Path]) -> None:
    repository = write_model("m", python_model("x + 1"))
    with Server(repository, port=0) as server:
        write_model("m", "syntax error here")
        with pytest.raises(InvalidArgumentError, match=r"load failed for model 'm'.*SyntaxError"):
            server["m"].reload()
        assert server["m"](X=[[1.0]])["Y"].tolist() == [[2.0]]
        assert server.index() == [{"name": "m", "version": "1", "state": "READY"}]


def test_every_version_selected_by_the_policy_is_served(write_model: Callable[..., Path]) -> None:
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


def test_change_of_scheduling_is_applied_in_place(server: Server) -> None:
    config = server["add_sub"].config
    config.dynamic_batching.max_queue_delay_microseconds = 2000
    assert "+  max_queue_delay_microseconds: 2000" in config.diff()
    assert config.apply() == "in place"
    assert server["add_sub"].config.dynamic_batching.max_queue_delay_microseconds == 2000
    assert server["add_sub"](INPUT0=X, INPUT1=X)["OUTPUT0"].shape == (1, 4)


def test_other_changes_reload_the_model(server: Server) -> None:
    config = server["add_sub"].config
    assert list(config.dynamic_batching.preferred_batch_size) == [8]
    config.max_batch_size = 4
    assert config.apply() == "reloaded"
    assert list(server["add_sub"].config.dynamic_batching.preferred_batch_size) == [4]
    with pytest.raises(InvalidArgumentError, match="batch-size must be <= 4"):
        server["add_sub"](INPUT0=np.tile(X, (5, 1)), INPUT1=np.tile(X, (5, 1)))


def test_refused_change_has_no_effect(server: Server) -> None:
    config = server["add_sub"].config
    config.dynamic_batching.preferred_batch_size[:] = [9]
    with pytest.raises(InvalidArgumentError, match="preferred size must be <= max batch size for add_sub"):
        config.apply()
    config.revert()
    assert config.diff() == ""
    assert config.apply() == "unchanged"


# --- looking --------------------------------------------------------------------------------------


def test_server_lists_ready_models(server: Server) -> None:
    assert list(server) == server.models
    assert sorted(server) == sorted(SMALL)
    assert len(server) == len(SMALL)
    assert "add_sub" in server
    assert "digits" not in server
    for name in SMALL:
        server.unload(name)
    assert (server.models, len(server), bool(server)) == ([], 0, True)


def test_repr_shows_endpoint_models_and_counts(server: Server) -> None:
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


def test_in_process_statistics_equal_the_endpoints(server: Server) -> None:
    server["add_sub"](INPUT0=X, INPUT1=X)
    client = httpclient.InferenceServerClient(f"127.0.0.1:{server.port}")
    assert client.get_inference_statistics("add_sub")["model_stats"] == [server["add_sub"].stats()]


def test_doctor_names_versions() -> None:
    assert "tritonclient" in repr(tnb.doctor())


def test_unexpected_error_while_submitting_is_raised_in_the_caller(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = server["add_sub"]
    lookups = [model.served]  # once, to check the inputs; not a second time, to submit
    monkeypatch.setattr(server.engine, "table", SimpleNamespace(get=lambda *_: lookups.pop()))
    with pytest.raises(tnb.TritonError, match="IndexError: pop from empty list"):
        model(INPUT0=X, INPUT1=X)


def test_refused_head_has_no_body(write_model: Callable[..., Path]) -> None:
    with Server(write_model("one", python_model("x + 1")), port=0) as server:
        connection = http.client.HTTPConnection("127.0.0.1", server.port)
        for method, status in (("HEAD", 405), ("GET", 200)):  # a body would be taken for the next answer
            connection.request(method, "/v2")
            answer = connection.getresponse()
            answer.read()
            assert answer.status == status
        connection.close()


def test_settings_leave_the_log_of_a_program_alone(caplog: pytest.LogCaptureFixture) -> None:
    handlers = [*logging.getLogger("tritonnb").handlers]
    with Server(port=0, log=LogSettings(log_info=False, log_error=False, log_format="ISO8601")):
        with caplog.at_level(logging.INFO, "tritonnb"):
            logging.getLogger("tritonnb.server.server").error("broken")
        assert caplog.messages == ["broken"]
        assert logging.getLogger("tritonnb").handlers == handlers
