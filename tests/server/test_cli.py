"""``tritonnb serve`` as a process: tritonserver's flags, signals, exit status."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
import threading
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest
import tritonclient.grpc as grpcclient
import tritonclient.http as httpclient

from tests.server.conftest import EXAMPLES, python_model

SLOW = """
import time
import triton_python_backend_utils as pb_utils

class TritonPythonModel:
    def execute(self, requests):
        pb_utils.Logger.log_info("executing")
        time.sleep(0.5)
        return [pb_utils.InferenceResponse([pb_utils.Tensor("Y", each.inputs()[0].as_numpy())]) for each in requests]
"""


FREE_PORTS = ["--http-port", "0", "--grpc-port", "0", "--metrics-port", "0"]


class Process:
    """A running ``tritonnb serve``."""

    def __init__(self, *arguments: str) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tritonnb", "serve", *FREE_PORTS, *arguments],
            stderr=subprocess.PIPE,
            text=True,
        )
        self.log = ""

    def wait_for(self, pattern: str) -> re.Match[str]:
        """Read the log until a line matches."""
        assert self._process.stderr is not None
        for line in self._process.stderr:
            self.log += line
            if found := re.search(pattern, line):
                return found
        raise AssertionError(f"{pattern!r} is not in the log:\n{self.log}")

    def client(self) -> httpclient.InferenceServerClient:
        """A client, as soon as the server listens."""
        port = self.wait_for(r"Started HTTPService at 127\.0\.0\.1:(\d+)").group(1)
        return httpclient.InferenceServerClient(f"127.0.0.1:{port}")

    def end(self, number: int = signal.SIGTERM) -> int:
        """Send a signal and wait for the exit status."""
        self._process.send_signal(number)
        return self.exit_status()

    def exit_status(self) -> int:
        """Wait for the exit status."""
        _, rest = self._process.communicate(timeout=30)
        self.log += rest
        return self._process.returncode

    def kill(self) -> None:
        """Leave nothing behind."""
        self._process.kill()
        self._process.wait()


@contextmanager
def serving(*arguments: str) -> Iterator[Process]:
    process = Process(*arguments)
    try:
        yield process
    finally:
        process.kill()


def x_input() -> httpclient.InferInput:
    given = httpclient.InferInput("X", [1, 1], "FP32")
    given.set_data_from_numpy(np.ones((1, 1), np.float32))
    return given


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_it_after_the_accepted_requests_are_answered(write_model: Callable[..., Path], number: int):
    repository = write_model("slow", SLOW)
    with serving("--model-repository", str(repository)) as process:
        client = process.client()
        answers: list = []
        asking = threading.Thread(target=lambda: answers.append(client.infer("slow", [x_input()]).as_numpy("Y")))
        asking.start()
        process.wait_for("executing")
        assert process.end(number) == 0
        asking.join()
    assert answers[0].tolist() == [[1.0]]


def test_explicit_mode_loads_what_it_is_told_and_lets_clients_load():
    with serving(f"--model-repository={EXAMPLES}", "--model-control-mode=explicit", "--load-model=add_sub") as process:
        client = process.client()
        assert client.is_model_ready("add_sub")
        assert not client.is_model_ready("string_upper")
        client.load_model("string_upper")
        assert client.is_model_ready("string_upper")
        client.unload_model("string_upper")
        assert not client.is_model_ready("string_upper")


def test_a_failing_model_ends_it_unless_told_otherwise(write_model: Callable[..., Path]):
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


def test_a_missing_repository_is_an_error():
    with serving("--model-repository=/nowhere") as process:
        assert process.exit_status() == 1
    assert "'/nowhere' is not a directory" in process.log


def test_backend_settings_reach_the_backend(write_model: Callable[..., Path]):
    with serving("--model-repository", str(write_model("m", python_model("x"))), "--backend-config=oops") as process:
        assert process.exit_status() == 1
    assert "--backend-config option format is" in process.log


def test_strict_configuration_requires_a_file(write_model: Callable[..., Path]):
    repository = write_model("m", python_model("x"))
    (repository / "m" / "config.pbtxt").unlink()
    with serving("--model-repository", str(repository), "--disable-auto-complete-config") as process:
        assert process.exit_status() == 1
    assert "Poll failed for model directory 'm': failed to open text file for read" in process.log


def test_every_endpoint_and_its_flags(write_model: Callable[..., Path], tmp_path: Path):
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
        "--reuse-grpc-port=true",
    ]
    with serving(*arguments) as process:
        grpc_port = process.wait_for(r"Started GRPCInferenceService at 127\.0\.0\.1:(\d+)").group(1)
        metrics_port = process.wait_for(r"Started Metrics Service at 127\.0\.0\.1:(\d+)").group(1)
        given = grpcclient.InferInput("X", [1, 1], "FP32")
        given.set_data_from_numpy(np.ones((1, 1), np.float32))
        with grpcclient.InferenceServerClient(f"127.0.0.1:{grpc_port}") as client:
            assert client.infer("m", [given]).as_numpy("Y").tolist() == [[1.0]]
            with pytest.raises(Exception, match="expecting header 'triton-grpc-protocol-key'"):
                client.get_inference_statistics("m")
        with urllib.request.urlopen(f"http://127.0.0.1:{metrics_port}/metrics") as answer:
            text = answer.read().decode()
        assert re.search(r'nv_inference_request_summary_us\{model="m",version="1",quantile="0.75"\} \d+', text)
        assert process.end() == 0
    assert re.search(r"^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ I \d+ ", process.log, re.M)
    stamps = [each["name"] for entry in json.loads(trace.read_text()) for each in entry.get("timestamps", ())]
    assert {"GRPC_SEND_END", "COMPUTE_START"} <= set(stamps)


@pytest.mark.parametrize(
    ("flag", "complaint"),
    [
        ("--metrics-config=oops=1", "Invalid metrics configuration key 'oops' specified"),
        ("--trace-config=level=TIMESTAMPS", "trace file name is not given"),
        ("--trace-config=mode=zipkin", "invalid value for trace mode option: zipkin"),
        ("--trace-config=opentelemetry,oops=1", "trace setting 'opentelemetry,oops=1' is not supported"),
        ("--grpc-restricted-protocol=oops:a=b", "unknown restricted protocol 'oops'"),
        ("--grpc-use-ssl=true", "cannot read the files for TLS"),
    ],
)
def test_a_flag_that_cannot_be_is_an_error(write_model: Callable[..., Path], flag: str, complaint: str):
    with serving(f"--model-repository={write_model('m', python_model('x'))}", flag) as process:
        assert process.exit_status() in (1, 2)
    assert complaint in process.log
