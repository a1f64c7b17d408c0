"""A server whose only model is a function that the tests can hold up, and recordings of a real Triton."""

from __future__ import annotations

import gzip
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import tritonnb as tnb
from tritonnb.lab.analysis import sustained
from tritonnb.lab.load import trial
from tritonnb.lab.prediction import plan_search
from tritonnb.server.server import Server

MODELS = Path(__file__).parents[1] / "models"
RECORDINGS = Path(__file__).parent / "recordings"
#: A batch of any size takes 10 ms: only batches make an instance faster.
FLAT: dict[str, Any] = {"service": tnb.fixed(10), "requests": 400}


class Gate:
    """A gate that blocks executions of the model ``held``; open at first."""

    def __init__(self) -> None:
        self.begun = threading.Event()
        self._open = threading.Event()
        self.open()

    def open(self) -> None:
        self._open.set()

    def close(self) -> None:
        self._open.clear()

    def enter(self) -> None:
        self.begun.set()
        assert self._open.wait(timeout=60)


@pytest.fixture
def gate() -> Gate:
    return Gate()


@pytest.fixture
def server(gate: Gate) -> Iterator[Server]:
    options: dict[str, Any] = {"model_control_mode": "explicit", "load_models": ["accumulate"]}
    with Server(MODELS, port=0, grpc_port=0, **options) as server:

        @server.model(max_batch_size=8, dynamic_batching={})
        def held(X: tnb.FP32[2]) -> tnb.FP32[2]:
            gate.enter()
            return X

        yield server
        gate.open()


@pytest.fixture
def short_searches(monkeypatch: pytest.MonkeyPatch) -> None:
    """Find rates with a fifth of the requests, in tests that do not judge how long a rate is sustained."""
    monkeypatch.setattr(trial, "_REQUESTS", (500, 500))
    monkeypatch.setattr(plan_search, "_LIMITS", (200, 40_000))
    monkeypatch.setattr(sustained, "_EXCEEDING_SHARE", 0)
    monkeypatch.setattr(sustained, "_EXCEEDING", 1)


@pytest.fixture
def few_samples(monkeypatch: pytest.MonkeyPatch) -> None:
    """Predict with the fewest simulations, in tests that do not judge the ranges."""
    monkeypatch.setattr("tritonnb.lab.prediction.twin.SAMPLES", 10)


@pytest.fixture(scope="session")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], tnb.Recording]:
    """Recordings of a real Triton, by name."""

    def read(name: str) -> tnb.Recording:
        path = tmp_path_factory.mktemp("recordings") / f"{name}.jsonl"
        path.write_bytes(gzip.decompress((RECORDINGS / f"{name}.jsonl.gz").read_bytes()))
        return tnb.Recording.load(path)

    return read
