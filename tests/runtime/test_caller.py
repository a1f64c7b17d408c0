"""A waiting in-process caller executes quick batches on its own thread; everything else is as on the instance's.

Each test runs twice: the event loop sends the batches, or callers do, with the lock of the event loop.
"""

from __future__ import annotations

import signal
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tritonnb.core.errors import InternalError, TritonError
from tritonnb.runtime.execution import caller as caller_module
from tritonnb.runtime.execution import instance as instance_module
from tritonnb.runtime.execution import loop_lock as loop_lock_module
from tritonnb.runtime.execution.caller import Caller
from tritonnb.server.server import Server

#: Returns its input and the thread that executes it. Some inputs interrupt this process, once or twice, or fail.
INTERRUPT, INTERRUPT_TWICE, FAIL = -1, -2, -3
MODEL = """
import signal
import threading

import numpy as np
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def execute(self, requests):
        inputs = [pb_utils.get_input_tensor_by_name(request, "X").as_numpy() for request in requests]
        lowest = min(array.min() for array in inputs)
        if lowest == -3:
            raise ValueError("input -3")
        for _ in range(-min(lowest, 0)):
            signal.raise_signal(signal.SIGINT)
        return [
            pb_utils.InferenceResponse(
                [
                    pb_utils.Tensor("Y", array),
                    pb_utils.Tensor("THREAD", np.full(array.shape, threading.get_ident(), np.int64)),
                ]
            )
            for array in inputs
        ]
"""
CONFIG = """
backend: "python"
max_batch_size: 8
input { name: "X" data_type: TYPE_INT32 dims: 1 }
output { name: "Y" data_type: TYPE_INT32 dims: 1 }
output { name: "THREAD" data_type: TYPE_INT64 dims: 1 }
instance_group { count: 1 kind: KIND_CPU }
parameters { key: "EXECUTE_ON_ANY_THREAD" value { string_value: "true" } }
"""


@pytest.fixture(autouse=True, params=[0, 10**18], ids=["event loop", "caller"])
def every_execution_is_quick(monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> None:
    """However slow the machine is."""
    monkeypatch.setattr(instance_module, "QUICK_EXECUTION_NS", 10**18)
    monkeypatch.setattr(instance_module, "LOOP_EXECUTION_NS", 10**18)
    monkeypatch.setattr(loop_lock_module, "RAPID_NS", request.param)
    monkeypatch.setattr(loop_lock_module, "NEEDED_NS", 0)
    monkeypatch.setattr(caller_module, "TIMERS", [])  # the time limit of tests is one


def write(repository: Path, name: str, config: str) -> None:
    (repository / name / "1").mkdir(parents=True)
    (repository / name / "1" / "model.py").write_text(MODEL)
    (repository / name / "config.pbtxt").write_text(config)


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    write(tmp_path, "any", f"{CONFIG} dynamic_batching {{ }}")
    write(tmp_path, "own", f"{CONFIG.replace('true', 'false')} dynamic_batching {{ }}")
    write(tmp_path, "ordered", f"{CONFIG} dynamic_batching {{ preserve_ordering: true }}")
    write(tmp_path, "cached", f"{CONFIG} response_cache {{ enable: true }}")
    with Server(tmp_path, port=None, cache_config={"local": {"size": "1000000"}}) as server:
        for model in ("any", "own", "ordered", "cached"):
            thread_of(server, model, 7)  # then it is known to be quick
        yield server


def thread_of(server: Server, model: str, value: int = 0) -> int:
    return int(server[model](X=np.full((1, 1), value, np.int32))["THREAD"].item())


@pytest.mark.parametrize(("model", "is_caller"), [("any", True), ("own", False), ("ordered", False), ("cached", True)])
def test_which_batches_the_caller_executes(server: Server, model: str, is_caller: bool) -> None:
    assert (thread_of(server, model) == threading.get_ident()) is is_caller
    stats = server[model].stats()
    assert (stats["inference_count"], stats["execution_count"]) == (2, 2)


def test_a_long_execution_stays_on_the_thread_of_the_instance(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    assert thread_of(server, "any") == threading.get_ident()
    monkeypatch.setattr(instance_module, "QUICK_EXECUTION_NS", 0)
    assert thread_of(server, "any") != threading.get_ident()


def test_a_cached_response_is_the_one_of_the_first_request(server: Server) -> None:
    assert thread_of(server, "cached") == thread_of(server, "cached")
    assert server["cached"].stats()["inference_stats"]["cache_hit"]["count"] == 1


def test_a_failure_reaches_the_caller_with_the_traceback_of_the_model(server: Server) -> None:
    for _ in range(2):
        with pytest.raises(TritonError, match="input -3"):
            thread_of(server, "any", FAIL)
        assert thread_of(server, "any") == threading.get_ident()
    assert server["any"].stats()["inference_stats"]["fail"]["count"] == 2


def test_an_interrupt_takes_effect_after_the_execution(server: Server) -> None:
    with pytest.raises(KeyboardInterrupt):
        thread_of(server, "any", INTERRUPT)
    assert server["any"].stats()["inference_stats"]["success"]["count"] == 2
    assert thread_of(server, "any") == threading.get_ident()


def test_a_second_interrupt_is_raised_in_the_model(server: Server) -> None:
    with pytest.raises(KeyboardInterrupt):
        thread_of(server, "any", INTERRUPT_TWICE)
    assert server["any"].stats()["inference_stats"]["fail"]["count"] == 1
    assert thread_of(server, "any") == threading.get_ident()
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


class OwnThread:
    """An instance that notes what its own thread was to execute."""

    def __init__(self) -> None:
        self.executed: list[object] = []

    def execute_on_own_thread(self, execution: object) -> None:
        self.executed.append(execution)


class InterruptedCaller(Caller):
    """A caller that is interrupted just before it executes what was passed to it."""

    def _execute_offered(self, request: object) -> None:
        raise KeyboardInterrupt


def test_a_batch_that_was_passed_to_an_interrupted_caller_is_executed() -> None:
    cancelled: list[object] = []
    caller = InterruptedCaller(lambda request, response: None, cancelled.append)
    instance: Any = OwnThread()
    request: Any = type("Request", (), {})()
    caller.attach(request)
    assert caller.offer(instance, "batch")  # type: ignore[arg-type]
    with pytest.raises(KeyboardInterrupt):
        caller.wait(request)
    assert instance.executed == ["batch"]
    assert cancelled == [request]
    assert not caller.offer(instance, "later")  # type: ignore[arg-type]


@pytest.fixture(scope="module")
def both(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    repository = tmp_path_factory.mktemp("repository")
    write(repository, "any", f"{CONFIG} dynamic_batching {{ }}")
    write(repository, "own", f"{CONFIG.replace('true', 'false')} dynamic_batching {{ }}")
    with Server(repository, port=None) as server:
        yield server


values = st.lists(st.sampled_from([0, 1, 2, FAIL]), min_size=1, max_size=8)


@settings(max_examples=30, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(calls=st.lists(values, min_size=1, max_size=5))
def test_answers_statistics_reasons_and_events_do_not_depend_on_the_thread(
    both: Server, calls: list[list[int]]
) -> None:
    results = [
        observed(both, model, lambda name: [answer(both, name, call) for call in calls]) for model in ("any", "own")
    ]
    assert results[0] == results[1]
    assert [outcome is None for outcome in results[0][0]] == [FAIL in call for call in calls]


def observed(server: Server, model: str, run: Callable[[str], list[Any]]) -> tuple[Any, ...]:
    """What ``run(model)`` returns, what the statistics gain, sizes and rules of batches, and kinds of events."""
    before = server[model].stats()
    with server.record() as recording:
        outcomes = run(model)
    own = recording.for_model(model)
    reasons = [(batch.size, batch.reason and batch.reason.rule) for batch in own.batches]
    return outcomes, counts(server[model].stats()) - counts(before), reasons, [type(e).__name__ for e in own.events]


def counts(stats: Any) -> Counter[str]:
    """Requests by outcome, rows, executions, and executions by batch size."""
    numbers = {kind: entry["count"] for kind, entry in stats["inference_stats"].items()}
    sizes = {f"batch of {entry['batch_size']}": entry["compute_infer"]["count"] for entry in stats["batch_stats"]}
    return Counter(numbers | sizes | {key: stats[key] for key in ("inference_count", "execution_count")})


def answer(server: Server, model: str, call: list[int]) -> list[int] | None:
    """What the model returns; None for an error."""
    try:
        return list(server[model](X=np.array(call, np.int32)[:, None])["Y"].ravel())
    except InternalError:
        return None


def test_every_thread_gets_its_own_answers(both: Server) -> None:
    calls = [[number, number + 1] for number in range(400)]
    before = both["any"].stats()
    with ThreadPoolExecutor(8) as threads:
        assert list(threads.map(lambda call: answer(both, "any", call), calls)) == calls
    gained = counts(both["any"].stats()) - counts(before)
    assert (gained["success"], gained["inference_count"]) == (400, 800)
