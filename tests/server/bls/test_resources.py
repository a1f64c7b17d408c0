"""Models that call one another, and need resources of the rate limiter: a call that could never end fails."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest

import tritonnb as tnb
from tests.engine.ensembles import serve_ensemble
from tests.server.test_caller_laws import Served
from tritonnb.core.errors import TritonError, UnavailableError

LACKS = "hold the resource 'r' that it needs: increase --rate-limit-resource"


class Calls:
    """A server whose models add 1 to the answer of the model that they call; a barrier holds the callers together."""

    def __init__(self, count: int, device: int | None = None) -> None:
        resources = [tnb.Resource("r", count)] if count else []
        self.server = tnb.Server(port=0, rate_limit="execution_count", rate_limit_resources=resources)
        self.barrier: threading.Barrier | None = None

    def add(
        self, name: str, calls: str = "", needs: int = 0, count: int = 1, priority: int = 0, is_global: bool = False
    ) -> None:
        def function(X: Any) -> Any:
            if not calls:
                return {"Y": X}
            if self.barrier is not None:
                self.barrier.wait(30)
            return {"Y": self.server[calls](X=X)["Y"] + 1}

        function.__annotations__ = {"X": tnb.INT32[1], "return": {"Y": tnb.INT32[1]}}
        resources = [{"name": "r", "count": needs, "global": is_global}] if needs else []
        group: dict[str, Any] = {"count": count, "rate_limiter": {"resources": resources, "priority": priority}}
        self.server.model(name=name, instance_group=[group], max_batch_size=1)(function)

    def __call__(self, name: str, x: int = 5) -> int:
        return int(self.server[name](X=np.array([[x]], np.int32))["Y"][0, 0])

    def at_once(self, name: str, count: int) -> list[int | str]:
        def call(x: int) -> int | str:
            try:
                return self(name, x)
            except TritonError as error:
                return str(error)

        with ThreadPoolExecutor(count) as pool:
            return list(pool.map(call, range(count)))


@pytest.fixture
def calls() -> Any:
    made: list[Calls] = []

    def make(count: int) -> Calls:
        made.append(Calls(count))
        return made[-1]

    yield make
    for each in made:
        each.server.stop()


@pytest.mark.parametrize("is_global", [False, True])
def test_call_of_a_model_that_needs_what_the_caller_holds_fails(calls: Callable[[int], Calls], is_global: bool) -> None:
    server = calls(1)
    server.add("inner", needs=1, is_global=is_global)
    server.add("outer", "inner", needs=1, is_global=is_global)
    with pytest.raises(UnavailableError, match=f"model 'inner' cannot be executed: .*{LACKS}"):
        server("outer")
    assert server("inner") == 5


def test_implicit_limit_is_that_of_the_most_demanding_instance(calls: Callable[[int], Calls]) -> None:
    server = calls(0)
    server.add("inner", needs=2)
    server.add("outer", "inner", needs=1)
    with pytest.raises(UnavailableError, match=LACKS):
        server("outer")


def test_resource_that_suffices_for_both_lets_the_call_through(calls: Callable[[int], Calls]) -> None:
    server = calls(2)
    server.add("inner", needs=1)
    server.add("outer", "inner", needs=1)
    assert server("outer") == 6


def test_call_through_a_model_without_resources_fails(calls: Callable[[int], Calls]) -> None:
    server = calls(1)
    server.add("c", needs=1)
    server.add("b", "c")
    server.add("a", "b", needs=1)
    with pytest.raises(UnavailableError, match=f"model 'c' cannot be executed: .*{LACKS}"):
        server("a")
    assert server("b") == 6


def test_call_of_an_ensemble_fails_if_a_step_needs_what_the_caller_holds(calls: Callable[[int], Calls]) -> None:
    server = calls(1)
    server.add("free")
    server.add("inner", needs=1)
    serve_ensemble(Served(server.server), "free: X -> mid", "inner: mid -> Y", batch=1)  # type: ignore[arg-type]
    server.add("outer", "e", needs=1)
    with pytest.raises(UnavailableError, match=f"model 'e' cannot be executed: .*{LACKS}"):
        server("outer")
    assert server("e") == 5


def test_two_callers_that_hold_one_of_two_do_not_wait_for_ever(calls: Callable[[int], Calls]) -> None:
    server = calls(2)
    server.add("inner", needs=1)
    server.add("outer", "inner", needs=1, count=2)
    server.barrier = threading.Barrier(2)
    outcomes = server.at_once("outer", 2)
    assert sum(isinstance(outcome, int) for outcome in outcomes) == 1
    (error,) = [outcome for outcome in outcomes if isinstance(outcome, str)]
    assert LACKS in error


@pytest.mark.parametrize("priority", [1, 5])
def test_called_model_overtakes_batches_that_wait_for_the_caller(calls: Callable[[int], Calls], priority: int) -> None:
    """They come first by their number of executions, but their resource is released only after the response."""
    server = calls(1)
    server.add("inner", priority=priority)
    server.add("outer", "inner", needs=1, count=2)
    for _ in range(5):
        server("inner")
    for _ in range(3):
        assert server.at_once("outer", 6) == [x + 1 for x in range(6)]
