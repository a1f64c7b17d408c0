"""Fixtures for the tests of the backends."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.backends.models import TENSORS, Loaded
from tests.backends.python_models import Load, load_in_process


@pytest.fixture(params=[False, True], ids=["in_process", "isolated"])
def load(request: pytest.FixtureRequest) -> Iterator[Load]:
    """Load models in this process, and in processes of their own."""
    with contextlib.ExitStack() as processes:

        def load(directory: Path, body: str, tensors: str = TENSORS, **config: Any) -> Loaded:
            loaded = load_in_process(directory, body, tensors, isolated=request.param, **config)
            if request.param:
                processes.callback(loaded.instance.finalize)
            return loaded

        yield load
