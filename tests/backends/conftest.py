"""Fixtures for models of the Python backend, which every test gets in this process and in their own processes."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from google.protobuf import text_format
from tritonclient.grpc import model_config_pb2 as pb

from tests.backends.models import TENSORS, Loaded
from tests.backends.python_models import Load, load_model, write_model
from tritonnb.backends.contract import ModelContext
from tritonnb.backends.registry import BackendRegistry

Complete = Callable[[Path, str, str], pb.ModelConfig | None]


@pytest.fixture(params=[False, True], ids=["in_process", "isolated"])
def isolated(request: pytest.FixtureRequest) -> bool:
    """Return whether models run in their own processes."""
    return bool(request.param)


@pytest.fixture
def load(isolated: bool) -> Iterator[Load]:
    """Load models in this process, and in their own processes."""
    with contextlib.ExitStack() as processes:

        def load(directory: Path, body: str, tensors: str = TENSORS, **config: Any) -> Loaded:
            loaded = load_model(directory, body, tensors, isolated=isolated, **config)
            if isolated:
                processes.callback(loaded.instance.finalize)
            return loaded

        yield load


@pytest.fixture
def complete(isolated: bool) -> Complete:
    """Let the text of a *model.py* complete a configuration; None if it has not."""

    def complete(directory: Path, body: str, config: str) -> pb.ModelConfig | None:
        write_model(directory, body)
        parsed = text_format.Parse(f'name: "m" backend: "python" {config}', pb.ModelConfig())
        context = ModelContext("m", 1, parsed, directory)
        registry = BackendRegistry(lambda backend: {})
        if not isolated:
            return registry.get("python").auto_complete(context)
        child = registry.isolated(context)
        try:
            return child.auto_complete(context)
        finally:
            child.finalize()

    return complete
