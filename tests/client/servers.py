"""Servers in their own processes: this project's, and a real Triton where there is one."""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import sysconfig
import urllib.error
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from tests.waiting import wait_for

PACKAGE = Path(__file__).parents[2]
#: A model that logs its batches: the ids of the requests of each execution.
MODEL = """
import json
import time

import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def initialize(self, args):
        parameters = json.loads(args["model_config"])["parameters"]
        self.log = open(parameters["log"]["string_value"], "a")

    def execute(self, requests):
        ids = [request.request_id() for request in requests]
        rows = [pb_utils.get_input_tensor_by_name(request, "X").as_numpy() for request in requests]
        self.log.write(json.dumps(ids) + "\\n")
        self.log.flush()
        time.sleep(0.004 + 0.0005 * sum(map(len, rows)))
        return [pb_utils.InferenceResponse([pb_utils.Tensor("Y", array)]) for array in rows]
"""
CONFIG = """
backend: "python"
max_batch_size: 8
input {{ name: "X" data_type: TYPE_FP32 dims: 1 }}
output {{ name: "Y" data_type: TYPE_FP32 dims: 1 }}
instance_group {{ count: {instances} kind: KIND_CPU }}
dynamic_batching {{ max_queue_delay_microseconds: {delay_us} }}
parameters {{ key: "log" value {{ string_value: "{log}" }} }}
"""


@dataclass
class ServerProcess:
    """A server that runs in its own process."""

    http: str
    grpc: str
    process: subprocess.Popen[bytes]
    trace_file: Path
    repository: Path
    is_triton: bool

    def kill(self) -> None:
        """End it and the processes of its models at once, as a crash of the machine does."""
        os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()

    def stop(self) -> None:
        """End it and wait."""
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
            try:
                self.process.wait(20)
            except subprocess.TimeoutExpired:
                self.kill()

    def logged(self, model: str) -> list[list[str]]:
        """The batches that a model logged."""
        return [json.loads(line) for line in (self.repository / f"{model}.log").read_text().splitlines()]


def write_model(repository: Path, name: str, instances: int = 1, delay_us: int = 0) -> None:
    """Write a model that logs its batches."""
    (repository / name / "1").mkdir(parents=True)
    (repository / name / "1" / "model.py").write_text(MODEL)
    config = CONFIG.format(instances=instances, delay_us=delay_us, log=repository / f"{name}.log")
    (repository / name / "config.pbtxt").write_text(config)


def triton_command() -> list[str] | None:
    """The command of a real Triton; None where there is none.

    ``TRITON_PREFIX`` names the virtual environment with nvidia-pytriton.
    """
    prefix = os.environ.get("TRITON_PREFIX")
    binaries = sorted(Path(prefix or ".").glob("lib/python*/site-packages/pytriton/tritonserver/bin/tritonserver"))
    return [str(binaries[0])] if binaries else None


def _triton_environment(binary: Path) -> dict[str, str]:
    root = binary.parents[1]
    packages = root.parents[1]
    prefix = packages.parents[2]
    stub = root / "python_backend_stubs" / "3.11" / "triton_python_backend_stub"
    target = root / "backends" / "python" / stub.name
    if not target.exists():
        shutil.copy(stub, target)
    libraries = [str(root / "external_libs"), sysconfig.get_config_var("LIBDIR"), os.environ.get("LD_LIBRARY_PATH", "")]
    return {
        **os.environ,
        "LD_LIBRARY_PATH": ":".join(libraries),
        "PATH": f"{prefix / 'bin'}:{os.environ['PATH']}",
        "PYTHONPATH": str(packages),
    }


@contextmanager
def start(
    repository: Path, *, triton: bool = False, trace: Sequence[str] = (), control: str = "explicit"
) -> Iterator[ServerProcess]:
    """Start a server with the models of a repository, and stop it at the end."""
    http, grpc, metrics = _free_ports(3)
    trace_file = repository.parent / f"{repository.name}-trace.json"
    arguments = [
        *(f"--model-repository={repository}", f"--http-port={http}", f"--grpc-port={grpc}"),
        *(f"--metrics-port={metrics}", f"--model-control-mode={control}"),
        *(["--load-model=*"] if control == "explicit" else []),
        *(f"--trace-config={option}" for option in (trace or [f"triton,file={trace_file}"])),
    ]
    environment = {**os.environ, "PYTHONPATH": str(PACKAGE)}
    if triton:
        command = triton_command()
        assert command is not None
        binary = Path(command[0])
        environment = _triton_environment(binary)
        command += [f"--backend-directory={binary.parents[1] / 'backends'}", "--http-address=127.0.0.1"]
        command += ["--exit-timeout-secs=5", *arguments]
    else:
        command = [sys.executable, "-m", "tritonnb", "serve", "--http-address=127.0.0.1", *arguments]
    with (repository.parent / "server.log").open("ab") as log:
        process = subprocess.Popen(command, env=environment, stdout=log, stderr=log, start_new_session=True)
    server = ServerProcess(
        f"http://127.0.0.1:{http}", f"grpc://127.0.0.1:{grpc}", process, trace_file, repository, triton
    )
    try:
        wait_for(lambda: _is_ready(server))
        yield server
    finally:
        server.stop()


def _is_ready(server: ServerProcess) -> bool:
    assert server.process.poll() is None, "the server ended: see server.log"
    try:
        with urllib.request.urlopen(f"{server.http}/v2/health/ready", timeout=1):
            return True
    except (urllib.error.URLError, OSError):
        return False


def _free_ports(count: int) -> list[int]:
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    try:
        return [opened.getsockname()[1] for opened in sockets]
    finally:
        for opened in sockets:
            opened.close()
