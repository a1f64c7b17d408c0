"""``tritonnb serve`` as a process, and a model that holds its requests."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import tritonclient.http as httpclient

#: Executes only once somebody opens the pipe *gate* in the repository to write.
HELD = """
import os
import triton_python_backend_utils as pb_utils

class TritonPythonModel:
    def initialize(self, args):
        self.gate = os.path.join(os.path.dirname(args["model_repository"]), "gate")

    def execute(self, requests):
        pb_utils.Logger.log_info("executing")
        open(self.gate).close()
        arrays = [request.inputs()[0].as_numpy() for request in requests]
        return [pb_utils.InferenceResponse([pb_utils.Tensor("Y", array)]) for array in arrays]
"""


FREE_PORTS = ["--http-port", "0", "--grpc-port", "0", "--metrics-port", "0"]


class Process:
    """A running ``tritonnb serve``."""

    def __init__(self, *arguments: str, ports: Sequence[str] = FREE_PORTS) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tritonnb", "serve", *ports, *arguments],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        self.log = ""

    def wait_for(self, pattern: str) -> re.Match[str]:
        """Read the log until a line matches."""
        assert self._process.stdout is not None
        for line in self._process.stdout:
            self.log += line
            if match := re.search(pattern, line):
                return match
        raise AssertionError(f"{pattern!r} is not in the log:\n{self.log}")

    def client(self) -> httpclient.InferenceServerClient:
        """A client, as soon as the server listens."""
        port = self.wait_for(r"Started HTTPService at 127\.0\.0\.1:(\d+)").group(1)
        return httpclient.InferenceServerClient(f"127.0.0.1:{port}")

    def tell(self, number: int) -> None:
        """Send a signal."""
        self._process.send_signal(number)

    def end(self, number: int = signal.SIGTERM) -> int:
        """Send a signal and wait for the exit status."""
        self.tell(number)
        return self.exit_status()

    def exit_status(self) -> int:
        """Wait for the exit status."""
        rest, _ = self._process.communicate(timeout=60)
        self.log += rest
        return self._process.returncode

    def kill(self) -> None:
        """Leave nothing behind."""
        self._process.kill()
        self._process.wait()


@contextmanager
def serving(*arguments: str, ports: Sequence[str] = FREE_PORTS) -> Iterator[Process]:
    process = Process(*arguments, ports=ports)
    try:
        yield process
    finally:
        process.kill()


def write_held(write_model: Callable[..., Path]) -> Path:
    repository = write_model("held", HELD)
    os.mkfifo(repository / "gate")
    return repository


def x_input() -> httpclient.InferInput:
    tensor = httpclient.InferInput("X", [1, 1], "FP32")
    tensor.set_data_from_numpy(np.ones((1, 1), np.float32))
    return tensor
