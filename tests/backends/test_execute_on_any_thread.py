"""The event loop executes batches of a model only if the model has the parameter EXECUTE_ON_ANY_THREAD."""

from __future__ import annotations

import threading
import urllib.request
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.backends.models import TENSORS, write_identity
from tests.server.isolated import ISOLATED
from tritonnb.core.errors import InvalidArgumentError
from tritonnb.engine.execution import instance as instance_module
from tritonnb.server.server import Server

LONG_S = 60
PARAMETER = 'parameters { key: "EXECUTE_ON_ANY_THREAD" value { string_value: "%s" } }'
ON, OFF = PARAMETER % "true", PARAMETER % "false"

COROUTINE = """
import triton_python_backend_utils as pb_utils

class TritonPythonModel:
    async def execute(self, requests):
        return [
            pb_utils.InferenceResponse([pb_utils.Tensor("OUT0", request.inputs()[0].as_numpy())])
            for request in requests
        ]
"""
DECOUPLED = """
import triton_python_backend_utils as pb_utils

class TritonPythonModel:
    def execute(self, requests):
        for request in requests:
            tensor = pb_utils.Tensor("OUT0", request.inputs()[0].as_numpy())
            request.get_response_sender().send(
                pb_utils.InferenceResponse([tensor]), pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL
            )
"""


@pytest.fixture(autouse=True)
def every_execution_is_quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """However slow the machine is."""
    monkeypatch.setattr(instance_module, "QUICK_EXECUTION_NS", 10**18)


def write(repository: Path, backend: str, *, name: str = "m", extra: str = "", code: str = "") -> None:
    """Write an identity model with variable shapes and one instance."""
    write_identity(backend, repository / name)
    if code:
        (repository / name / "1" / "model.py").write_text(code)
    (repository / name / "config.pbtxt").write_text(
        f'backend: "{backend}" max_batch_size: 8 {TENSORS} instance_group {{ count: 1 kind: KIND_CPU }} {extra}'
    )


@contextmanager
def observed(server: Server, before: Callable[[Any], None]) -> Iterator[None]:
    """Call ``before(execution)`` where a batch of ``m`` is executed."""
    instance = next(iter(server["m"].served.instances)).backend_instance
    kind, execute = type(instance), type(instance).execute

    def observing(self: Any, execution: Any) -> None:
        if self is instance:
            before(execution)
        execute(self, execution)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(kind, "execute", observing)
        yield


def ask(server: Server, width: int, model: str = "m") -> int:
    """The width of the answer to a request of one row."""
    answer: np.ndarray = server[model](IN0=np.zeros((1, width), np.float32))["OUT0"]
    return answer.shape[1]


CASES = {
    "minimal": ("minimal", "", "", False),
    "onnxruntime": ("onnxruntime", "", "", False),
    "openvino": ("openvino", "", "", False),
    "python": ("python", "", "", False),
    "pytorch": ("pytorch", "", "", False),
    "python, parameter is false": ("python", OFF, "", False),
    "minimal with parameter": ("minimal", ON, "", True),
    "onnxruntime with parameter": ("onnxruntime", ON, "", True),
    "openvino with parameter": ("openvino", ON, "", True),
    "python with parameter": ("python", ON, "", True),
    "pytorch with parameter": ("pytorch", ON, "", False),
    "coroutine with parameter": ("python", ON, COROUTINE, False),
    "isolated with parameter": ("python", ON + ISOLATED, "", False),
    "decoupled with parameter": ("python", f"{ON} model_transaction_policy {{ decoupled: true }}", DECOUPLED, False),
}


@pytest.mark.parametrize(("backend", "extra", "code", "on_loop"), CASES.values(), ids=CASES)
def test_quick_batch_is_executed_on_event_loop_only_with_parameter(
    tmp_path: Path, backend: str, extra: str, code: str, on_loop: bool
) -> None:
    write(tmp_path, backend, extra=extra, code=code)
    threads: list[int] = []
    with (
        Server(tmp_path, port=None) as server,
        observed(server, lambda execution: threads.append(threading.get_ident())),
    ):
        assert [ask(server, width) for width in (1, 2, 3)] == [1, 2, 3]
        loop = server.call(threading.get_ident)
    assert [thread == loop for thread in threads] == [False, on_loop, on_loop]


@pytest.mark.parametrize("backend", ["minimal", "onnxruntime", "openvino", "python", "pytorch"])
def test_slow_batch_after_quick_ones_delays_neither_probe_nor_other_model(tmp_path: Path, backend: str) -> None:
    write(tmp_path, backend)
    write(tmp_path, backend, name="other")
    begun, probed = threading.Event(), threading.Event()

    def wait_if_wide(execution: Any) -> None:
        if execution.requests[0].inputs["IN0"].shape[1] == 4096:
            begun.set()
            assert probed.wait(LONG_S)

    with Server(tmp_path, port=0) as server, observed(server, wait_if_wide), ThreadPoolExecutor(1) as pool:
        assert [ask(server, 1) for _ in range(3)] == [1, 1, 1]
        slow = pool.submit(ask, server, 4096)
        assert begun.wait(LONG_S)
        try:
            with urllib.request.urlopen(f"{server.url}/v2/health/ready", timeout=LONG_S / 4) as probe:
                assert probe.status == 200
            assert ask(server, 2, "other") == 2
        finally:
            probed.set()
        assert slow.result(LONG_S) == 4096


def test_non_boolean_parameter_fails_the_load(tmp_path: Path) -> None:
    write(tmp_path, "minimal", extra=PARAMETER % "yes")
    with (
        Server(tmp_path, port=None, model_control_mode="explicit") as server,
        pytest.raises(
            InvalidArgumentError, match="parameter 'EXECUTE_ON_ANY_THREAD' expected 'true' or 'false', got 'yes'"
        ),
    ):
        server.load("m")
