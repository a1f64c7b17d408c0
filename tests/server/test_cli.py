"""``tritonnb serve`` as a process: tritonserver's flags, signals, exit status."""

from __future__ import annotations

import json
import os
import re
import signal
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
import tritonclient.grpc as grpcclient
import tritonclient.http as httpclient
from tritonclient.utils import InferenceServerException

from tests.server.conftest import EXAMPLES, python_model
from tests.server.serve_process import FREE_PORTS, Process, serving, write_held, x_input
from tritonnb.cli import serve
from tritonnb.cli.main import main
from tritonnb.server.server import Server

pytestmark = pytest.mark.slow


@pytest.fixture
def refused(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> Callable[..., tuple[int, str]]:
    """Run ``tritonnb serve`` in this process until it refuses to serve; return its exit status and what it wrote."""
    monkeypatch.setattr(serve, "_stop_signals", lambda: None)
    monkeypatch.setattr(serve, "write_log", lambda settings: None)

    def run(*arguments: str) -> tuple[int, str]:
        try:
            status = main(["serve", *FREE_PORTS, *arguments])
        except SystemExit as end:  # of the parser
            status = int(end.code or 0)
        return status, capsys.readouterr().err + caplog.text

    return run


STOPS = """
import signal, threading
import triton_python_backend_utils as pb_utils

class TritonPythonModel:
    def execute(self, requests):
        signal.pthread_kill(threading.get_ident(), signal.SIGTERM)
        arrays = [request.inputs()[0].as_numpy() for request in requests]
        return [pb_utils.InferenceResponse([pb_utils.Tensor("Y", array)]) for array in arrays]
"""


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_signal_stops_serve_after_accepted_requests(write_model: Callable[..., Path], number: int) -> None:
    repository = write_held(write_model)
    with serving("--model-repository", str(repository)) as process:
        client = process.client()
        answers: list[Any] = []
        asking = threading.Thread(target=lambda: answers.append(client.infer("held", [x_input()]).as_numpy("Y")))
        asking.start()
        process.wait_for("executing")
        process.tell(number)
        process.wait_for("Waiting for in-flight requests to complete")
        (repository / "gate").write_text("")
        assert process.exit_status() == 0
        asking.join()
    assert answers[0].tolist() == [[1.0]]


def test_explicit_mode_loads_the_named_models_and_accepts_load_requests() -> None:
    with serving(f"--model-repository={EXAMPLES}", "--model-control-mode=explicit", "--load-model=add_sub") as process:
        client = process.client()
        assert client.is_model_ready("add_sub")
        assert not client.is_model_ready("string_upper")
        client.load_model("string_upper")
        assert client.is_model_ready("string_upper")
        client.unload_model("string_upper")
        assert not client.is_model_ready("string_upper")


def test_failing_model_ends_the_server_by_default(write_model: Callable[..., Path]) -> None:
    write_model("good", python_model("x"))
    repository = write_model("broken", "raise RuntimeError('not today')")
    with serving("--model-repository", str(repository)) as process:
        assert process.exit_status() == 1
    assert "not today" in process.log
    assert "failed to load all models" in process.log
    assert re.search(r"^\| broken +\| 1 +\| UNAVAILABLE: .*not today", process.log, re.MULTILINE)
    assert re.search(r"^\| good +\| 1 +\| READY +\|$", process.log, re.MULTILINE)
    with serving("--model-repository", str(repository), "--exit-on-error=false") as process:
        assert process.client().infer("good", [x_input()]).as_numpy("Y").tolist() == [[1.0]]


def test_missing_repository_is_an_error(refused: Callable[..., tuple[int, str]]) -> None:
    status, log = refused("--model-repository=/nowhere")
    assert status == 1
    assert "'/nowhere' is not a directory" in log


def test_backend_settings_reach_the_backend(
    write_model: Callable[..., Path], refused: Callable[..., tuple[int, str]]
) -> None:
    status, log = refused("--model-repository", str(write_model("m", python_model("x"))), "--backend-config=oops")
    assert status == 1
    assert "--backend-config option format is" in log


CRASHES = """
import os
import numpy as np
import triton_python_backend_utils as pb_utils

class TritonPythonModel:
    def execute(self, requests):
        x = requests[0].inputs()[0].as_numpy()
        if x[0, 0]:
            os._exit(3)
        return [pb_utils.InferenceResponse([pb_utils.Tensor("Y", x)]) for _ in requests]
"""


def test_crash_of_a_model_isolated_by_flag_fails_only_its_request(write_model: Callable[..., Path]) -> None:
    repository = write_model("crashes", CRASHES)
    with serving("--model-repository", str(repository), "--isolate-models=crashes") as process:
        client = process.client()
        for value in (0.0, 1.0, 0.0):
            tensor = httpclient.InferInput("X", [1, 1], "FP32")
            tensor.set_data_from_numpy(np.full((1, 1), value, np.float32))
            if value:
                with pytest.raises(InferenceServerException, match="Stub process 'crashes_0' is not healthy"):
                    client.infer("crashes", [tensor])
            else:
                assert client.infer("crashes", [tensor]).as_numpy("Y").tolist() == [[0.0]]


def test_strict_configuration_requires_a_file(
    write_model: Callable[..., Path], refused: Callable[..., tuple[int, str]]
) -> None:
    repository = write_model("m", python_model("x"))
    (repository / "m" / "config.pbtxt").unlink()
    status, log = refused("--model-repository", str(repository), "--disable-auto-complete-config")
    assert status == 1
    assert "Poll failed for model directory 'm': failed to open text file for read" in log


@pytest.mark.parametrize("options", [(), ("--isolate-models=m",)])
def test_models_do_not_see_the_arguments_of_the_server(
    write_model: Callable[..., Path], options: tuple[str, ...]
) -> None:
    """A model may parse ``sys.argv``, as some of NVIDIA's do by `unittest.main`; Triton's stub has no arguments."""
    repository = write_model("m", python_model("x * 0 + len(__import__('sys').argv)"))
    with serving(f"--model-repository={repository}", *options) as process:
        port = process.wait_for(r"Started GRPCInferenceService at 127\.0\.0\.1:(\d+)").group(1)
        tensor = grpcclient.InferInput("X", [1, 1], "FP32")
        tensor.set_data_from_numpy(np.ones((1, 1), np.float32))
        with grpcclient.InferenceServerClient(f"127.0.0.1:{port}") as client:
            assert client.infer("m", [tensor]).as_numpy("Y").tolist() == [[1.0]]


def test_arguments_of_a_program_that_calls_serve_remain(
    refused: Callable[..., tuple[int, str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.argv", ["program", "its", "own"])
    assert refused("--model-repository=missing")[0] == 1
    assert sys.argv == ["program", "its", "own"]


def test_every_endpoint_is_started_with_its_flags(write_model: Callable[..., Path], tmp_path: Path) -> None:
    trace = tmp_path / "trace.json"
    arguments = [
        f"--model-repository={write_model('m', python_model('x'))}",
        "--grpc-restricted-protocol=statistics,logging:key=secret",
        "--grpc-infer-response-compression-level=low",
        "--grpc-keepalive-time=60000",
        "--metrics-config=summary_latencies=true",
        "--metrics-config=summary_quantiles=0.5:0.05,0.75:0.01",
        "--trace-config=level=TIMESTAMPS",
        "--trace-config=rate=1",
        f"--trace-config=triton,file={trace}",
        "--log-format=ISO8601",
        "--reuse-http-port=true",
        "--log-warn=false",  # as with getopt_long, a flag may be cut short
        "--reuse-grpc-port=true",
    ]
    with serving(*arguments) as process:
        grpc_port = process.wait_for(r"Started GRPCInferenceService at 127\.0\.0\.1:(\d+)").group(1)
        metrics_port = process.wait_for(r"Started Metrics Service at 127\.0\.0\.1:(\d+)").group(1)
        tensor = grpcclient.InferInput("X", [1, 1], "FP32")
        tensor.set_data_from_numpy(np.ones((1, 1), np.float32))
        with grpcclient.InferenceServerClient(f"127.0.0.1:{grpc_port}") as client:
            assert client.infer("m", [tensor]).as_numpy("Y").tolist() == [[1.0]]
            with pytest.raises(Exception, match="expecting header 'triton-grpc-protocol-key'"):
                client.get_inference_statistics("m")
        with urllib.request.urlopen(f"http://127.0.0.1:{metrics_port}/metrics") as answer:
            text = answer.read().decode()
        assert re.search(r'nv_inference_request_summary_us\{model="m",version="1",quantile="0.75"\} \d+', text)
        assert process.end() == 0
    assert re.search(r"^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ I \d+ ", process.log, re.M)
    stamps = [stamp["name"] for entry in json.loads(trace.read_text()) for stamp in entry.get("timestamps", ())]
    assert {"GRPC_SEND_END", "COMPUTE_START"} <= set(stamps)


@pytest.mark.parametrize(
    ("flag", "complaint"),
    [
        ("--metrics-config=oops", "--metrics-config option format is <setting>=<value>. Got oops"),
        ("--trace-config=level=TIMESTAMPS", "trace file name is not given"),
        ("--trace-config=mode=zipkin", "invalid value for trace mode option: zipkin"),
        ("--trace-config=triton,log-frequency=x", 'Bad option: "--trace-config triton,log-frequency".'),
        ("--trace-config=opentelemetry,oops=1", "trace setting 'opentelemetry,oops=1' is not supported"),
        ("--grpc-restricted-protocol=oops:a=b", "unknown restricted protocol 'oops'"),
        ("--grpc-use-ssl=true", "cannot read the files for TLS"),
    ],
)
def test_invalid_flag_value_is_an_error(
    write_model: Callable[..., Path], refused: Callable[..., tuple[int, str]], flag: str, complaint: str
) -> None:
    status, log = refused(f"--model-repository={write_model('m', python_model('x'))}", flag)
    assert status in (1, 2)
    assert complaint in log


def test_server_without_its_repository_can_continue_but_is_not_live(tmp_path: Path) -> None:
    with serving(f"--model-repository={tmp_path / 'nowhere'}", "--exit-on-error=false") as process:
        client = process.client()
        assert not client.is_server_live()
        assert not client.is_server_ready()
        assert client.get_server_metadata()["name"] == "triton"


def test_taken_port_is_named_with_its_service(tmp_path: Path, refused: Callable[..., tuple[int, str]]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        status, log = refused(f"--model-repository={tmp_path}", f"--grpc-port={port}")
    assert status == 1
    assert f"failed to start GRPC service: Unavailable - Socket '127.0.0.1:{port}' already in use" in log


FLAKY = """
import os
class TritonPythonModel:
    def initialize(self, args):
        path = os.path.join(args["model_repository"], "tried")
        if not os.path.exists(path):
            open(path, "w").close()
            raise RuntimeError("not yet")
    def execute(self, requests):
        pass
"""


def test_load_is_retried_as_often_as_configured(write_model: Callable[..., Path]) -> None:
    repository = write_model("m", FLAKY)
    with Server(repository, port=0) as server:
        assert "not yet" in str(server.load_errors["m"])
    (repository / "m" / "tried").unlink()
    with Server(repository, port=0, model_load_retries=1) as server:
        assert list(server) == ["m"]


def test_signal_that_any_thread_receives_ends_the_server(write_model: Callable[..., Path]) -> None:
    with serving("--model-repository", str(write_model("m", STOPS))) as process:
        client = process.client()
        process.wait_for("Started Metrics Service")  # which is the last that it does before it waits
        assert client.infer("m", [x_input()]).as_numpy("Y").tolist() == [[1.0]]
        assert process.exit_status() == 0


def grpc_input() -> grpcclient.InferInput:
    tensor = grpcclient.InferInput("X", [1, 1], "FP32")
    tensor.set_data_from_numpy(np.ones((1, 1), np.float32))
    return tensor


def grpc_client(process: Process) -> grpcclient.InferenceServerClient:
    port = process.wait_for(r"Started GRPCInferenceService at 127\.0\.0\.1:(\d+)").group(1)
    return grpcclient.InferenceServerClient(f"127.0.0.1:{port}")


def test_stopping_server_answers_accepted_requests_and_accepts_no_more(write_model: Callable[..., Path]) -> None:
    repository = write_held(write_model)
    with serving("--model-repository", str(repository)) as process:
        with grpc_client(process) as client:
            answered = threading.Event()
            client.async_infer("held", [grpc_input()], lambda result, error: answered.set())
            process.wait_for("executing")
            process.tell(signal.SIGTERM)
            process.wait_for(r"Model 'held' \(version 1\) has 1 in-flight inferences")
            with pytest.raises(InferenceServerException, match="Connection refused"):
                client.infer("held", [grpc_input()])
            assert not answered.is_set()
            (repository / "gate").write_text("")
            assert answered.wait(30)
        assert process.exit_status() == 0


def test_stopping_server_waits_for_sequences_until_they_were_idle_for_too_long(
    write_model: Callable[..., Path],
) -> None:
    repository = write_model("m", python_model("x"), "sequence_batching { max_sequence_idle_microseconds: 1000000 }")
    with serving("--model-repository", str(repository)) as process:
        with grpc_client(process) as client:
            client.infer("m", [grpc_input()], sequence_id=1, sequence_start=True)
            process.tell(signal.SIGTERM)
            process.wait_for(r"Model 'm' \(version 1\) has 1 in-flight inferences")
            with pytest.raises(InferenceServerException, match="Connection refused"):
                client.infer("m", [grpc_input()], sequence_id=1, sequence_end=True)
        assert process.exit_status() == 0
        assert "successfully unloaded 'm' version 1" in process.log


@pytest.mark.parametrize("arguments", [["doctor"], ["--version"], ["serve", "--help"], ["models", "{}", "add_sub"]])
def test_closed_output_pipe_exits_without_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, arguments: list[str]
) -> None:
    """As in ``tritonnb doctor | head -1``; what is in a buffer is noticed at the end only."""
    monkeypatch.delenv("PYTHONUNBUFFERED", raising=False)
    reading, writing = os.pipe()
    os.close(reading)
    command = [sys.executable, "-m", "tritonnb", *(argument.format(tmp_path) for argument in arguments)]
    ended = subprocess.run(command, stdout=writing, stderr=subprocess.PIPE, text=True, timeout=60)
    os.close(writing)
    assert ended.stderr == ""
