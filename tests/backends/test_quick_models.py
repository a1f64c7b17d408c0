"""Very quick batches need no change of threads: the event loop executes them, or moves to the instance's thread."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tritonnb.runtime.execution import instance as instance_module
from tritonnb.runtime.execution import movable_loop as movable_loop_module
from tritonnb.server.server import Server

MODELS = Path(__file__).parents[2] / "model_repository"
ALWAYS, NEVER = 10**18, 0
IMAGE = {"image": np.zeros((1, 8, 8), np.float32)}
#: A sequence of one request.
SEQUENCE = {"sequence_id": 7, "sequence_start": True, "sequence_end": True}
FIVE = np.full((1, 1), 5, np.int32)


@pytest.fixture(autouse=True)
def every_execution_is_quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """However slow the machine is; and an event loop that has moved stays where it is."""
    monkeypatch.setattr(instance_module, "LOOP_EXECUTION_NS", ALWAYS)
    monkeypatch.setattr(instance_module, "QUICK_EXECUTION_NS", NEVER)
    monkeypatch.setattr(instance_module, "RAPID_NS", ALWAYS)
    monkeypatch.setattr(movable_loop_module, "ALONE_NS", 0)
    monkeypatch.setattr(movable_loop_module, "LEFT_NS", ALWAYS)
    monkeypatch.setattr(movable_loop_module, "UNUSED_NS", ALWAYS)


@pytest.mark.parametrize(
    ("name", "request_", "is_on_any_thread"),
    [
        ("accumulator_onnx", {"INPUT": FIVE, **SEQUENCE}, True),
        ("digits_openvino", IMAGE, True),
        ("accumulator_torchscript", {"INPUT__0": FIVE, **SEQUENCE}, False),
        ("digits", IMAGE, False),
    ],
)
def test_the_event_loop_is_where_the_model_is_executed(
    name: str, request_: dict[str, Any], is_on_any_thread: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    threads: list[threading.Thread] = []
    with Server(MODELS, port=None, model_control_mode="explicit", load_models=[name]) as server:
        backend_instance = type(server[name].served.instances[0].backend_instance)
        execute = backend_instance.execute

        def noting(self: Any, execution: Any) -> None:
            threads.append(threading.current_thread())
            execute(self, execution)

        monkeypatch.setattr(backend_instance, "execute", noting)
        first, *others = [server[name](**request_) for _ in range(4)]
        assert threads[-1].ident == server.call(threading.get_ident)
    assert threads[0].name == f"tritonnb {name}_0_0"
    assert (threads[-1].name == "tritonnb") is is_on_any_thread
    for answer in others:
        for output, array in first.items():
            np.testing.assert_array_equal(answer[output], array)
