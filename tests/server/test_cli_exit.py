"""The exit of ``tritonnb serve`` after a failure: work that hangs, a second signal, a crash."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from tests.server.serve_process import Process, serving, write_held, x_input

pytestmark = pytest.mark.slow

CRASHES = """
import ctypes

class TritonPythonModel:
    def execute(self, requests):
        ctypes.string_at(0)
"""


@contextmanager
def asking(process: Process, model: str) -> Iterator[None]:
    """Send a request whose answer may never come."""
    client = process.client()

    def ask() -> None:
        with suppress(Exception):
            client.infer(model, [x_input()])

    asker = threading.Thread(target=ask)
    asker.start()
    yield
    asker.join()


def test_exit_timeout_ends_the_server_with_tritons_message(write_model: Callable[..., Path]) -> None:
    repository = write_held(write_model)
    with serving(f"--model-repository={repository}", "--exit-timeout-secs=0") as process, asking(process, "held"):
        process.wait_for("executing")
        assert process.end() == 1
        assert '"Exit timeout expired. Exiting immediately."' in process.log.splitlines()[-1]


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_second_signal_ends_the_server_immediately(write_model: Callable[..., Path], number: int) -> None:
    repository = write_held(write_model)
    with serving("--model-repository", str(repository)) as process, asking(process, "held"):
        process.wait_for("executing")
        process.tell(signal.SIGTERM)
        process.wait_for("has 1 in-flight inferences")
        assert process.end(number) == 128 + number
        assert f"signal {int(number)} received while stopping: exiting immediately" in process.log


def test_crash_message_names_the_failing_line(write_model: Callable[..., Path]) -> None:
    with (
        serving("--model-repository", str(write_model("crash", CRASHES))) as process,
        asking(process, "crash"),
    ):
        assert process.exit_status() == -signal.SIGSEGV
        assert "Fatal Python error: Segmentation fault" in process.log
        assert 'model.py", line 6 in execute' in process.log
