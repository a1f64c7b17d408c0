"""An engine on a background loop, and a driver for the thread of the test."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Iterator
from concurrent.futures import Future
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import pytest

from tests.engine.gated import CheckedBackend, Checkpoints, Gate, GatedBackend, gated_config
from tritonnb.core.datatypes import INT32
from tritonnb.core.errors import TritonError
from tritonnb.core.messages import InferRequest, InferResponse, Tensor
from tritonnb.engine.engine import Engine
from tritonnb.engine.execution.loop import BackgroundLoop
from tritonnb.engine.options import EngineOptions
from tritonnb.engine.repository.directories import ModelSource

T = TypeVar("T")


class Answer(Future[InferResponse]):
    """The final response to a request."""

    request: InferRequest


class Driver:
    """An engine, driven from outside its loop."""

    def __init__(self, **options: Any) -> None:
        self.background = BackgroundLoop()
        self.engine = Engine(EngineOptions(**options))
        self.background.run(self.engine.start())

    def serve(self, gate: Gate, extra: str = "dynamic_batching { }", name: str = "m", **config: int) -> None:
        """Load a gated model."""
        source = ModelSource(name, Path(), gated_config(name, extra, **config), (1,), GatedBackend(gate))
        self.background.run(self.engine.load_source(source))

    def start(self, coroutine: Coroutine[Any, Any, T]) -> Future[T]:
        """Begin to run a coroutine on the loop; cancelling the future cancels it."""
        return asyncio.run_coroutine_threadsafe(coroutine, self.background.loop)

    def begin_load(self, checkpoints: Checkpoints, extra: str = "", name: str = "m", **config: int) -> Future[None]:
        """Begin to load a model whose backend stops at the checkpoints."""
        source = ModelSource(name, Path(), gated_config(name, extra, **config), (1,), CheckedBackend(checkpoints))
        return self.start(self.engine.load_source(source))

    def send(self, *rows: int, model: str = "m", **options: Any) -> Answer:
        """Submit a request of some rows; the future is its final response."""
        answer = answer_of(rows, model, **options)
        self.background.call(self.submit, answer.request)
        return answer

    def submit(self, request: InferRequest) -> None:
        """Submit a request; called on the loop."""
        self.engine.model(request.model_name, request.model_version).submit(request)

    def send_at_once(self, *requests: tuple[int, ...]) -> list[Answer]:
        """Submit requests with nothing between them, however slow the machine."""
        answers = [answer_of(rows) for rows in requests]
        self.background.call(self._submit_all, [answer.request for answer in answers])
        return answers

    def _submit_all(self, requests: list[InferRequest]) -> None:
        for request in requests:
            self.submit(request)

    def cancel(self, answer: Answer) -> None:
        self.background.call(answer.request.cancel)

    def stats(self, model: str = "m") -> Any:
        return self.background.call(self.engine.statistics, model)["model_stats"][0]

    def close(self) -> None:
        try:
            self.background.run(self.engine.stop())
        finally:
            self.background.stop()


def answer_of(rows: tuple[int, ...], model: str = "m", **options: Any) -> Answer:
    """A request that is not sent yet, and its final response."""
    array = np.array(rows, np.int32).reshape(-1, 1)
    answer = Answer()

    def respond(request: InferRequest, response: InferResponse) -> None:
        answer.set_result(response)

    answer.request = InferRequest(model, {"X": Tensor("X", INT32, array)}, respond, **options)
    return answer


@pytest.fixture
def driver() -> Iterator[Driver]:
    driver = Driver()
    yield driver
    driver.close()


def outputs(answer: Answer) -> list[int]:
    """The rows of an answer; raises its error."""
    response = answer.result(timeout=30)
    if response.error is not None:
        raise response.error
    return [int(element) for element in response.outputs[0].array.ravel()]


def error_of(answer: Answer) -> TritonError:
    error = answer.result(timeout=30).error
    assert error is not None
    return error
