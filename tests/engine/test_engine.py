"""The engine in real time: what happens to requests, batches, and models."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Callable
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import pytest

from tests.engine.conftest import Answer, Driver, answer_of, error_of, outputs
from tests.engine.gated import Gate, GatedBackend, GatedModel, gated_config, occupy
from tritonnb.backends.contract import BackendModel, BackendModelInstance, InstanceLostError, InstanceSpec, ModelContext
from tritonnb.core.errors import InvalidArgumentError, NotFoundError, Status, UnavailableError
from tritonnb.core.messages import InferResponse
from tritonnb.core.schedulable import SEQUENCE_START
from tritonnb.engine.engine import Engine
from tritonnb.engine.models.scheduler_driver import SchedulerDriver
from tritonnb.engine.options import EngineOptions
from tritonnb.engine.repository.directories import ModelSource


@pytest.fixture
def gate() -> Gate:
    return Gate()


def test_requests_that_wait_while_the_instance_is_busy_share_a_batch(driver: Driver, gate: Gate) -> None:
    driver.serve(gate)
    answers = [driver.send(1)]
    gate.wait_begun()
    answers += [driver.send(2), driver.send(3, 4)]
    gate.open()
    assert [outputs(answer) for answer in answers] == [[1], [2], [3, 4]]
    assert gate.batches == [[1], [2, 3]]
    stats = driver.stats()
    assert (stats["inference_count"], stats["execution_count"]) == (4, 2)
    assert [entry["batch_size"] for entry in stats["batch_stats"]] == [1, 3]


def test_requests_run_alone_without_a_batcher(driver: Driver) -> None:
    gate = Gate(opened=True)
    driver.serve(gate, extra="")
    assert [outputs(answer) for answer in [driver.send(1), driver.send(2)]] == [[1], [2]]
    assert gate.batches == [[1], [2]]


def test_two_instances_run_concurrently_and_each_runs_one_batch_at_a_time(driver: Driver, gate: Gate) -> None:
    driver.serve(gate, extra="instance_group { count: 2 kind: KIND_CPU }")
    answers = [driver.send(value) for value in (1, 2, 3)]
    assert sorted(gate.wait_begun() + gate.wait_begun()) == [1, 2]
    gate.open()
    assert [outputs(answer) for answer in answers] == [[1], [2], [3]]
    assert gate.overlaps == 0


def _longer_delay(driver: SchedulerDriver) -> None:
    driver.reconfigure(gated_config(extra="dynamic_batching { max_queue_delay_microseconds: 3600000000 }"))


def _lost_instance(driver: SchedulerDriver) -> None:
    (instance,) = driver.instances
    driver.instance_lost(instance, InstanceLostError("lost"))


@pytest.mark.parametrize(
    ("scheduling", "change", "options"),
    [
        ("dynamic_batching { max_queue_delay_microseconds: 1000 }", _longer_delay, {}),
        (
            "sequence_batching { direct { max_queue_delay_microseconds: 1000 minimum_slot_utilization: 0.6 } }",
            _lost_instance,
            {"correlation_id": 1, "flags": SEQUENCE_START},
        ),
    ],
    ids=["longer delay", "lost instance"],
)
def test_batch_that_was_due_is_sent_before_a_change(
    driver: Driver, scheduling: str, change: Callable[[SchedulerDriver], None], options: dict[str, Any]
) -> None:
    """The loop is busy while the delay of a request expires."""
    gate = Gate()
    driver.serve(gate, scheduling)

    def send_and_change() -> Answer:
        answer = answer_of((1,), **options)
        driver.submit(answer.request)
        occupy(2)
        served = driver.engine.model("m").driver
        assert isinstance(served, SchedulerDriver)
        change(served)
        return answer

    answer = driver.background.call(send_and_change)
    gate.wait_begun()
    assert driver.engine.model("m").open_sequences == bool(options), "a sequence ends after its running request"
    gate.open()
    assert outputs(answer) == [1]
    if options:
        with pytest.raises(InvalidArgumentError, match="must specify the START flag"):
            outputs(driver.send(2, correlation_id=1))


def test_exception_is_the_response_to_all_unanswered_requests_of_the_batch(driver: Driver, gate: Gate) -> None:
    driver.serve(gate)
    first = driver.send(0)
    gate.wait_begun()
    good, bad, after = driver.send(1), driver.send(-1), driver.send(2)
    gate.open()
    assert outputs(first) == [0]
    assert outputs(good) == [1]
    assert "negative" in str(error_of(bad))
    assert error_of(after).status is Status.INTERNAL
    assert driver.stats()["inference_stats"]["fail"]["count"] == 2


def test_cancelled_request_leaves_the_queue(driver: Driver, gate: Gate) -> None:
    driver.serve(gate, extra="dynamic_batching { default_queue_policy { max_queue_size: 9 } }")
    running = driver.send(1)
    gate.wait_begun()
    waiting = driver.send(2)
    driver.cancel(waiting)
    assert error_of(waiting).status is Status.CANCELLED
    gate.open()
    assert outputs(running) == [1]
    assert gate.batches == [[1]]


@pytest.mark.parametrize("extra", ["", "dynamic_batching { }"])
def test_request_that_was_cancelled_while_it_waited_for_an_instance_is_not_executed(
    driver: Driver, gate: Gate, extra: str
) -> None:
    driver.serve(gate, extra=extra)
    running = driver.send(1)
    gate.wait_begun()
    waiting = driver.send(2)
    driver.cancel(waiting)
    gate.open()
    assert error_of(waiting).status is Status.CANCELLED
    assert [outputs(running), outputs(driver.send(3))] == [[1], [3]]
    assert gate.batches == [[1], [3]]


def test_failed_instance_creation_leaves_the_model_unavailable(driver: Driver) -> None:
    class Unable(GatedModel):
        def create_instance(self, spec: InstanceSpec) -> BackendModelInstance:
            raise ValueError("no room")

    class UnableBackend(GatedBackend):
        def create_model(self, context: ModelContext) -> BackendModel:
            return Unable(context, Gate())

    source = ModelSource("m", Path(), gated_config("m", ""), (1,), UnableBackend(Gate()))
    with pytest.raises(InvalidArgumentError, match="version 1 is at UNAVAILABLE state: Internal: ValueError: no room"):
        driver.background.run(driver.engine.load_source(source))


def test_queued_request_can_be_cancelled_after_a_reload(driver: Driver, gate: Gate) -> None:
    queued = "dynamic_batching { default_queue_policy { max_queue_size: 9 } }"
    driver.serve(gate, extra=queued)
    running = driver.send(1)
    gate.wait_begun()
    waiting = driver.send(2)
    driver.serve(Gate(opened=True), extra=queued)
    driver.cancel(waiting)
    assert error_of(waiting).status is Status.CANCELLED
    gate.open()
    assert outputs(running) == [1]


def test_full_queue_refuses_requests_without_counting_them(driver: Driver, gate: Gate) -> None:
    driver.serve(gate, extra="dynamic_batching { default_queue_policy { max_queue_size: 1 } }", max_batch_size=1)
    accepted = [driver.send(1)]
    gate.wait_begun()
    accepted.append(driver.send(2))
    with pytest.raises(UnavailableError, match=r"^\[request id: r3\] Exceeds maximum queue size$"):
        driver.send(3, id="r3")
    gate.open()
    assert [outputs(answer) for answer in accepted] == [[1], [2]]
    assert driver.stats()["inference_stats"]["fail"]["count"] == 0


def test_request_expires_in_the_queue_while_the_instance_is_busy(driver: Driver, gate: Gate) -> None:
    policy = "default_queue_policy { default_timeout_microseconds: 1000 }"
    driver.serve(gate, extra=f"dynamic_batching {{ {policy} }}")
    running = driver.send(1)
    gate.wait_begun()
    assert str(error_of(driver.send(2))) == "Request timeout expired"
    gate.open()
    assert outputs(running) == [1]


def test_request_that_runs_immediately_does_not_expire(driver: Driver) -> None:
    policy = "default_queue_policy { default_timeout_microseconds: 1 }"
    driver.serve(Gate(opened=True), extra=f"dynamic_batching {{ {policy} }}")
    assert outputs(driver.send(1)) == [1]


def test_delayed_batch_is_sent_when_its_oldest_request_has_waited_long_enough(driver: Driver) -> None:
    gate = Gate(opened=True)
    driver.serve(gate, extra="dynamic_batching { max_queue_delay_microseconds: 50000 }")
    assert [outputs(answer) for answer in driver.send_at_once((1,), (2,))] == [[1], [2]]
    assert gate.batches == [[1, 2]]


def _append(order: list[int], value: int, answer: Future[InferResponse]) -> None:
    order.append(value)


def test_preserve_ordering_delays_an_early_response(driver: Driver, gate: Gate) -> None:
    driver.serve(
        gate,
        extra="dynamic_batching { preserve_ordering: true } instance_group { count: 2 kind: KIND_CPU }",
        max_batch_size=1,
    )
    order: list[int] = []
    answers = []
    for value in (1, 2):
        answer = driver.send(value)
        answer.add_done_callback(functools.partial(_append, order, value))
        answers.append(answer)
    gate.wait_begun()
    gate.wait_begun()
    gate.open()
    assert [outputs(answer) for answer in answers] == [[1], [2]]
    assert order == [1, 2]


def test_unloaded_model_completes_accepted_requests_and_refuses_others(driver: Driver, gate: Gate) -> None:
    driver.serve(gate)
    accepted = [driver.send(1)]
    gate.wait_begun()
    accepted.append(driver.send(2))
    driver.background.run(driver.engine.unload("m"))
    with pytest.raises(NotFoundError, match="'m' has no available versions"):
        driver.send(3)
    assert driver.background.run(driver.engine.index())[0]["state"] == "UNLOADING"
    gate.open()
    assert [outputs(answer) for answer in accepted] == [[1], [2]]


def test_reloaded_model_serves_while_the_old_one_completes_its_requests(driver: Driver, gate: Gate) -> None:
    driver.serve(gate)
    old = driver.send(1)
    gate.wait_begun()
    newer = Gate(opened=True)
    driver.serve(newer)
    assert outputs(driver.send(2)) == [2]
    gate.open()
    assert outputs(old) == [1]
    assert (gate.batches, newer.batches) == ([[1]], [[2]])


def test_stopping_waits_for_accepted_requests(gate: Gate) -> None:
    driver = Driver()
    driver.serve(gate)
    accepted = driver.send(1)
    gate.wait_begun()
    accepted.add_done_callback(lambda _: None)
    gate.open()
    driver.close()
    assert outputs(accepted) == [1]
    assert gate.finalized == ["m_0"]


def test_server_is_ready_after_its_models() -> None:
    engine = Engine(EngineOptions())
    assert not asyncio.run(engine.is_ready())
    asyncio.run(engine.start())
    assert asyncio.run(engine.is_ready())


def test_model_without_versions_is_logged_and_indexed(driver: Driver, caplog: pytest.LogCaptureFixture) -> None:
    source = ModelSource("m", Path(), gated_config("m", ""), ())
    with pytest.raises(InvalidArgumentError):
        driver.background.run(driver.engine.load_source(source))
    assert caplog.messages == [
        "failed to load model 'm': at least one version must be available under the version policy of model 'm'"
    ]
    for name, version, reason in [("m", -1, "has no available versions"), ("m", 1, "version 1 is not found")]:
        with pytest.raises(NotFoundError, match=f"Request for unknown model: '{name}' {reason}"):
            driver.background.call(driver.engine.model, name, version)


def test_model_without_configuration_is_refused_unless_the_backend_completes_it(driver: Driver) -> None:
    source = ModelSource("m", Path(), gated_config("m", ""), (1,), GatedBackend(Gate()), is_config_given=False)
    with pytest.raises(InvalidArgumentError, match="Not found: model configuration is not provided for model 'm';"):
        driver.background.run(driver.engine.load_source(source))
