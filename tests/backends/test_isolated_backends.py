"""Backends in child processes, without any change to the backends."""

from __future__ import annotations

import socket
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest

from tests.backends.models import Loaded, config_of, request, rows, write_identity
from tritonnb.backends.contract import ModelContext
from tritonnb.backends.isolation.channel import Channel, Message
from tritonnb.backends.isolation.codec import decode_error
from tritonnb.backends.isolation.model_calls import ChildCalls
from tritonnb.backends.registry import BackendRegistry
from tritonnb.core.errors import InternalError, InvalidArgumentError, UnsupportedError
from tritonnb.telemetry.custom_metrics import CustomMetrics


@pytest.mark.slow
@pytest.mark.parametrize("backend", ["python", "onnxruntime", "pytorch"])
def test_backend_runs_a_batch_in_a_child(backend: str, tmp_path: Path) -> None:
    write_identity(backend, tmp_path)
    loaded = Loaded(config_of(backend), tmp_path, isolated=True)
    first, second = loaded.run(request(IN0=rows(1, 2)), request(IN0=rows(3)))
    assert first is not None
    assert second is not None
    assert [answer.outputs[0].array.ravel().tolist() for answer in (first, second)] == [[1, 2], [3]]
    loaded.instance.finalize()


OTHER = """
import os

from tritonnb.backend import Backend, BackendModel, BackendModelInstance, ModelSpec, gather, scatter
from tritonnb.errors import NotFoundError


class Instance(BackendModelInstance):
    def __init__(self, model):
        self.model = model

    def execute(self, execution):
        x = gather(execution, "IN0")
        execution.compute_started()
        y = x * 0 + os.getpid() % 1000 if self.model.context.settings["answer"] == "process" else x
        execution.compute_ended()
        scatter(execution, {"OUT0": (self.model.spec.outputs["OUT0"], y)}, batching=True)
        for index, request in enumerate(execution.requests):
            if (request.inputs["IN0"].array < 0).any():
                execution.responses[index] = None
                execution.fail(index, NotFoundError("a negative input", hint="make it positive"))

    def memory_usage(self):
        return {("CPU", 0): 77}


class Model(BackendModel):
    def initialize(self):
        self.spec = ModelSpec.from_config(self.context.config)

    def create_instance(self, spec):
        return Instance(self)


class Other(Backend):
    name = "other"

    def default_instance_count(self, kind):
        return 3 if kind == "KIND_CPU" else 1

    def create_model(self, context):
        return Model(context)
"""


def test_backend_of_another_package_runs_unchanged_in_a_child(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    metadata = tmp_path / "site" / "other-1.0.dist-info"
    metadata.mkdir(parents=True)
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: other\nVersion: 1.0\n")
    (metadata / "entry_points.txt").write_text("[tritonnb.backends]\nother = other_backend:Other\n")
    (tmp_path / "site" / "other_backend.py").write_text(OTHER)
    monkeypatch.syspath_prepend(str(tmp_path / "site"))
    loaded = Loaded(config_of("other"), tmp_path, {"answer": "process"}, isolated=True)
    good, bad = loaded.run(request(IN0=rows(1)), request(IN0=rows(-1)))
    assert good is not None
    assert bad is not None
    assert good.outputs[0].array.item() == np.float32(loaded.instance.process_id % 1000)
    assert (bad.error.message, bad.error.status.label, bad.error.hint) == (
        "a negative input",
        "Not found",
        "make it positive",
    )
    assert loaded.instance.memory_usage() == {("CPU", 0): 77}
    loaded.instance.finalize()
    assert "other_backend" not in sys.modules


def test_error_creating_an_isolated_backend_equals_that_in_process(tmp_path: Path) -> None:
    registry = BackendRegistry(lambda backend: {})
    with pytest.raises(InvalidArgumentError, match="unable to find backend library for backend 'nosuch'"):
        registry.isolated(ModelContext("m", 1, config_of("nosuch"), tmp_path))
    with pytest.raises(UnsupportedError, match="backend 'dali' is not available"):
        registry.isolated(ModelContext("m", 1, config_of("dali"), tmp_path))


class BrokenServer:
    """A server that has metrics, and fails otherwise."""

    def __init__(self) -> None:
        self.metrics = CustomMetrics()

    def is_model_ready(self, name: str, version: int) -> bool:
        raise RuntimeError("broken")


@pytest.fixture
def call_from_child() -> Iterator[Callable[..., Any]]:
    """A function that handles a message of a child, and returns the value of the reply or raises its error."""
    ours, theirs = (Channel(end) for end in socket.socketpair())
    calls = ChildCalls("m_0", cast("Any", BrokenServer()), ours)

    def call(*header: Any, has_reply: bool = True) -> Any:
        calls.handle(Message(list(header), np.empty(0, np.uint8), None))
        if not has_reply:
            return None
        message = theirs.receive()
        assert message is not None
        _, _, value, error = message.header
        if error is not None:
            raise decode_error(error)
        return value

    yield call
    calls.close()
    ours.close()
    theirs.close()


def test_metrics_of_a_child_end_with_their_family(call_from_child: Callable[..., Any]) -> None:
    call = call_from_child
    numbers = []
    for family in ("closed", "open"):
        call("open_family", 1, family, "", "gauge")
        numbers.append(call("create_metric", 2, family, [["label", "x"]], None))
    call("close_family", "closed", has_reply=False)
    for number in numbers:
        # That of the closed family may have been sent before on the other channel.
        call("change_metric", number, "set", 3.0, has_reply=False)
    closed, kept = numbers
    assert call("metric_value", 3, kept) == 3
    with pytest.raises(InternalError):
        call("metric_value", 4, closed)


def test_failure_of_the_server_is_not_one_of_user_code(call_from_child: Callable[..., Any]) -> None:
    with pytest.raises(InternalError, match=r"^RuntimeError: broken$") as caught:
        call_from_child("is_model_ready", 1, "m", 1)
    assert caught.value.model_error is None
