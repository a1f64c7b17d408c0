"""Backends in child processes, without any change to the backends."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest

from tests.backends.models import Loaded, config_of, request, rows, write_identity
from tritonnb.backends.contract import ModelContext
from tritonnb.backends.registry import BackendRegistry
from tritonnb.core.errors import InvalidArgumentError, UnsupportedError


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
