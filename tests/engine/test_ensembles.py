"""Ensembles in real time: every step is scheduled by its own model."""

from __future__ import annotations

import logging
import threading
from pathlib import Path
from queue import SimpleQueue
from typing import NoReturn

import pytest

from tests.engine.conftest import Driver, error_of, outputs
from tests.engine.ensembles import (
    DECOUPLED,
    TENSORS,
    counting,
    plus,
    recorded,
    responses,
    serve_ensemble,
    serve_function,
    y,
)
from tests.engine.gated import Gate
from tritonnb.backends.execution import ResponseSender
from tritonnb.core.errors import InvalidArgumentError, NotFoundError, Status, TritonError, UnsupportedError
from tritonnb.core.events import EnsembleExecuted, RequestArrived, StepSent
from tritonnb.core.messages import InferRequest, InferResponse, Tensor
from tritonnb.core.packed_events import unpack
from tritonnb.scheduling.reasons import INPUTS_READY


def test_ensemble_passes_tensors_between_steps(driver: Driver) -> None:
    serve_function(driver, "a", plus(1))
    serve_function(driver, "b", plus(10))
    serve_ensemble(driver, "b: mid -> Y", "a: X -> mid")
    assert outputs(driver.send(1, 2, model="e")) == [12, 13]


def test_order_of_outputs_does_not_depend_on_the_request(driver: Driver) -> None:
    serve_function(driver, "a", plus(1))
    tensors = TENSORS + 'output { name: "Z" data_type: TYPE_INT32 dims: 1 }'
    serve_ensemble(driver, "a: X -> Y", "a: X -> Z", tensors=tensors)
    for requested in (None, ("Y", "Z"), ("Z", "Y")):
        (answer,) = responses(driver, "e", 1, requested_outputs=requested)
        assert [output.name for output in answer.outputs] == ["Z", "Y"]


def test_output_that_its_step_does_not_write_is_missing_and_logged(
    driver: Driver, caplog: pytest.LogCaptureFixture
) -> None:
    serve_function(driver, "a", plus(1))
    serve_function(driver, "nothing", lambda request: ([],))
    tensors = TENSORS + 'output { name: "Z" data_type: TYPE_INT32 dims: 1 }'
    serve_ensemble(driver, "a: X -> Y", "nothing: X -> Z", tensors=tensors)
    with caplog.at_level(logging.DEBUG):
        (answer,) = responses(driver, "e", 1)
    assert [output.name for output in answer.outputs] == ["Y"]
    assert caplog.messages == ["Composing models did not output tensor Z"]


def test_every_response_contains_its_sequence(driver: Driver) -> None:
    serve_function(driver, "a", plus(1))
    serve_ensemble(driver, "a: X -> mid", "a: mid -> Y")
    (answer,) = responses(driver, "e", 1, correlation_id=7, flags=1)
    assert answer.parameters == {"sequence_id": 7, "sequence_start": True, "sequence_end": False}


def test_large_sequence_id_is_written_as_a_signed_integer_with_the_same_bits(driver: Driver) -> None:
    seen: SimpleQueue[InferRequest] = SimpleQueue()
    serve_function(driver, "a", plus(1))
    serve_function(driver, "b", recorded(seen))
    serve_ensemble(driver, "a: X -> Y", name="inner")
    serve_ensemble(driver, "inner: X -> mid", "b: mid -> Y")
    (answer,) = responses(driver, "e", 1, correlation_id=2**64 - 3)
    assert answer.parameters is not None
    assert answer.parameters["sequence_id"] == -3
    assert seen.get(timeout=30).correlation_id == 2**64 - 3


def test_steps_share_batches_with_other_requests(driver: Driver) -> None:
    gate = Gate()
    driver.serve(gate, name="a")
    serve_ensemble(driver, "a: X -> Y")
    answers = [driver.send(1, model="a")]
    gate.wait_begun()
    answers += [driver.send(2, model="e"), driver.send(3, model="a"), driver.send(4, model="e")]
    gate.open()
    assert [outputs(answer) for answer in answers] == [[1], [2], [3], [4]]
    assert gate.batches == [[1], [2, 3, 4]]


def test_first_response_of_a_batch_starts_the_next_step_alone(driver: Driver) -> None:
    first, second = Gate(), Gate(opened=True)
    driver.serve(first, name="a")
    driver.serve(second, name="b")
    serve_ensemble(driver, "a: X -> mid", "b: mid -> Y")
    alone = driver.send(1, model="e")
    first.wait_begun()
    others = [driver.send(number, model="e") for number in (2, 3, 4)]
    first.let_through()
    assert outputs(alone) == [1]  # the second model is idle again
    first.let_through()
    assert [outputs(answer) for answer in others] == [[2], [3], [4]]
    assert (first.batches, second.batches) == ([[1], [2, 3, 4]], [[1], [2], [3, 4]])


def test_properties_of_the_request_are_passed_to_the_steps(driver: Driver) -> None:
    seen: SimpleQueue[InferRequest] = SimpleQueue()

    def look(request: InferRequest) -> tuple[list[Tensor]]:
        seen.put(request)
        return plus(0)(request)

    serve_function(driver, "a", look)
    serve_ensemble(driver, "a: X -> Y")
    options = {"id": "r", "priority": 2, "timeout_us": 9, "parameters": {"p": 1}, "correlation_id": 5}
    responses(driver, "e", 1, **options)
    request = seen.get(timeout=30)
    assert {name: getattr(request, name) for name in options} == options
    assert request.requested_outputs == ("Y",)


def test_step_may_change_the_sequence_of_the_steps_that_follow(driver: Driver) -> None:
    seen: SimpleQueue[InferRequest] = SimpleQueue()
    parameters = {"sequence_id": "s", "sequence_start": True}
    serve_function(driver, "a", lambda request: (*plus(1)(request), parameters))
    serve_function(driver, "b", recorded(seen))
    serve_ensemble(driver, "a: X -> mid", "b: mid -> Y")
    (answer,) = responses(driver, "e", 1, correlation_id=3)
    request = seen.get(timeout=30)
    assert (request.correlation_id, request.flags) == ("s", 1)
    assert answer.parameters is not None
    assert answer.parameters["sequence_id"] == "s"


def test_sequence_parameter_of_a_wrong_type_is_an_error(driver: Driver) -> None:
    serve_function(driver, "a", lambda request: (*plus(1)(request), {"sequence_start": 1}))
    serve_ensemble(driver, "a: X -> Y")
    assert error_of(driver.send(1, model="e")).message == (
        "in ensemble 'e', expect parameter 'sequence_start' to be TRITONSERVER_PARAMETER_BOOL"
    )


def test_failing_step_is_named_and_counted_twice_for_the_ensemble(driver: Driver) -> None:
    def refuse(request: InferRequest) -> NoReturn:
        raise UnsupportedError("boom")

    serve_function(driver, "a", refuse)
    serve_function(driver, "b", plus(1))
    serve_ensemble(driver, "a: X -> mid", "b: mid -> Y")
    error = error_of(driver.send(1, model="e"))
    assert (error.message, error.status) == ("in ensemble 'e', boom", Status.UNSUPPORTED)
    assert [driver.stats(model)["inference_stats"]["fail"]["count"] for model in "eab"] == [2, 1, 0]
    assert driver.stats("b")["execution_count"] == 0


def test_step_that_refuses_the_request_fails_the_ensemble(driver: Driver) -> None:
    serve_function(driver, "a", plus(1))
    serve_function(driver, "b", plus(1), extra="sequence_batching { }")
    serve_ensemble(driver, "a: X -> mid", "b: mid -> Y")
    assert "in ensemble 'e', inference request to model 'b' must specify a non-zero" in (
        error_of(driver.send(1, model="e")).message
    )


def test_times_of_an_ensemble_are_the_sums_of_its_steps(driver: Driver) -> None:
    serve_function(driver, "a", plus(1))
    serve_ensemble(driver, "a: X -> mid", "a: mid -> Y")
    outputs(driver.send(1, 2, model="e"))
    ensemble, step = driver.stats("e"), driver.stats("a")
    assert (ensemble["inference_count"], ensemble["execution_count"]) == (2, 1)
    assert [entry["batch_size"] for entry in ensemble["batch_stats"]] == [2]
    for name in ("compute_input", "compute_infer", "compute_output"):
        assert ensemble["inference_stats"][name] == {"count": 1, "ns": step["inference_stats"][name]["ns"]}


def test_steps_of_a_request_can_be_followed_in_the_event_stream(driver: Driver) -> None:
    serve_function(driver, "a", plus(1))
    serve_ensemble(driver, "a: X -> mid", "a: mid -> Y")
    outputs(driver.send(1, model="e"))
    events = [unpack(packed) for packed in driver.engine.stream.recent]
    steps = [event for event in events if isinstance(event, StepSent)]
    arrived = [event.serial for event in events if isinstance(event, RequestArrived) and event.model == "a"]
    (executed,) = (event for event in events if isinstance(event, EnsembleExecuted))
    assert len(set(arrived)) == 2
    assert steps == [
        StepSent(
            time_ns=steps[number].time_ns,
            model="e",
            version=1,
            serial=executed.serial,
            step=number,
            step_model="a",
            step_version=1,
            step_serial=arrived[number],
            iteration=0,
            rule=INPUTS_READY,
        )
        for number in range(2)
    ]


def test_batch_dimension_of_1_is_added_or_removed_between_models_that_batch_and_models_that_do_not(
    driver: Driver,
) -> None:
    seen: SimpleQueue[tuple[int, ...]] = SimpleQueue()

    def look(request: InferRequest) -> tuple[list[Tensor]]:
        seen.put(request.inputs["X"].shape)
        return plus(1)(request)

    vector = TENSORS.replace("dims: 1", "dims: [ -1, 1 ]")
    serve_function(driver, "single", look, batch=0)
    serve_function(driver, "batched", look)
    serve_function(driver, "whole", look, batch=0, tensors=vector)
    serve_ensemble(driver, "batched: X -> b", "single: b -> s", "batched: s -> b2", "whole: b2 -> Y")
    assert outputs(driver.send(1, model="e")) == [5]
    assert [seen.get(timeout=30) for _ in range(4)] == [(1, 1), (1,), (1, 1), (1, 1)]


def test_tensor_that_several_steps_read_cannot_be_changed_by_one_of_them(driver: Driver) -> None:
    def overwrite(request: InferRequest) -> tuple[list[Tensor]]:
        array = request.inputs["X"].array
        assert not array.flags.writeable
        return plus(0)(request)

    serve_function(driver, "a", overwrite)
    serve_ensemble(driver, "a: X -> mid", "a: mid -> Y")
    assert outputs(driver.send(3, model="e")) == [3]


def test_every_response_of_a_decoupled_step_runs_later_steps_once(driver: Driver) -> None:
    serve_function(driver, "d", counting, DECOUPLED)
    serve_function(driver, "a", plus(10))
    serve_ensemble(driver, "d: X -> mid", "a: mid -> Y")
    assert driver.background.call(driver.engine.model, "e").decoupled
    answers = responses(driver, "e", 3)
    assert sorted(int(response.outputs[0].array.flat[0]) for response in answers if response.outputs) == [10, 11, 12]
    assert [response.final for response in answers].count(True) == 1
    (alone,) = responses(driver, "e", 0)
    assert alone.empty


def test_limit_of_inflight_requests_is_logged(driver: Driver, caplog: pytest.LogCaptureFixture) -> None:
    serve_function(driver, "a", plus(1))
    with caplog.at_level(logging.INFO):
        serve_ensemble(driver, "a: X -> Y", name="limited", options="max_inflight_requests: 4")
        serve_ensemble(driver, "a: X -> Y", name="unlimited")
    logged = [message for message in caplog.messages if "max_inflight_requests" in message]
    assert logged == ["Ensemble model 'limited' configured with max_inflight_requests: 4"]


def test_decoupled_step_waits_for_the_steps_that_follow(driver: Driver) -> None:
    """With max_inflight_requests 1 no third response is sent before the first has been worked off."""
    sent: SimpleQueue[int | list[InferResponse]] = SimpleQueue()

    def count(request: InferRequest, sender: ResponseSender) -> None:
        for number in range(5):
            sender.send(InferResponse([y(number)], final=False))
            sent.put(number)
        sender.send(InferResponse(empty=True))

    gate = Gate()
    serve_function(driver, "d", count, DECOUPLED)
    driver.serve(gate, name="slow", extra="")
    serve_ensemble(driver, "d: X -> mid", "slow: mid -> Y", options="max_inflight_requests: 1")
    done = threading.Thread(target=lambda: sent.put(responses(driver, "e", 1)))
    done.start()
    for number in range(4):
        gate.wait_begun()
        assert sent.qsize() <= 3 + number
        gate.let_through()
    gate.open()
    done.join(timeout=30)
    assert gate.batches == [[0], [1], [2], [3], [4]]


def test_cancelling_an_ensemble_cancels_the_steps_that_wait(driver: Driver) -> None:
    gate = Gate()
    driver.serve(gate, name="a", extra="dynamic_batching { default_queue_policy { max_queue_size: 9 } }")
    serve_ensemble(driver, "a: X -> Y")
    running = driver.send(1, model="a")
    gate.wait_begun()
    waiting = driver.send(2, model="e")
    driver.cancel(waiting)
    assert error_of(waiting).status is Status.CANCELLED
    gate.open()
    assert outputs(running) == [1]
    assert gate.batches == [[1]]


def test_cancelling_an_ensemble_whose_step_may_not_begin_yet_ends_it(driver: Driver) -> None:
    gate = Gate()
    driver.serve(gate, name="a", extra="")
    serve_ensemble(driver, "a: X -> Y", options="max_inflight_requests: 1")
    running = driver.send(1, model="e")
    gate.wait_begun()
    held = driver.send(2, model="e")
    driver.cancel(held)
    assert error_of(held).status is Status.CANCELLED
    gate.open()
    assert outputs(running) == [1]
    assert gate.batches == [[1]]


def test_request_in_flight_keeps_the_models_of_its_steps_loaded(driver: Driver) -> None:
    gate = Gate()
    driver.serve(gate, name="a", extra="")
    serve_function(driver, "b", plus(1))
    serve_ensemble(driver, "a: X -> mid", "b: mid -> Y")
    answer = driver.send(1, model="e")
    gate.wait_begun()
    driver.background.run(driver.engine.unload("b"))
    with pytest.raises(NotFoundError, match="'e' has no available versions"):
        driver.send(2, model="e")
    gate.open()
    assert outputs(answer) == [2]


def test_ensemble_output_without_labels_uses_the_labels_of_its_step(
    driver: Driver, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "labels.txt").write_text("cat\ndog\n")
    (tmp_path / "own.txt").write_text("Katze\nHund\n")

    def labelled(file: str) -> str:
        return TENSORS.replace('"Y"', f'"Y" label_filename: "{file}"')

    serve_function(driver, "a", plus(1), tensors=labelled("labels.txt"))
    serve_function(driver, "b", plus(1))
    serve_ensemble(driver, "b: X -> mid", "a: mid -> Y")
    serve_ensemble(driver, "e: X -> Y", name="outer")
    serve_ensemble(driver, "a: X -> Y", name="own", tensors=labelled("own.txt"))
    serve_ensemble(driver, "a: X -> mid", "b: mid -> Y", name="unlabelled")

    def labels(model: str) -> list[str] | None:
        return driver.background.call(lambda: driver.engine.model(model).output_labels.get("Y"))

    assert labels("e") == labels("outer") == ["cat", "dog"]
    assert labels("own") == ["Katze", "Hund"]
    assert labels("unlabelled") is None


def test_ensemble_is_unloaded_and_loaded_with_its_step_models(driver: Driver) -> None:
    serve_function(driver, "a", plus(1))
    serve_ensemble(driver, "a: X -> Y")
    serve_ensemble(driver, "e: X -> Y", name="outer")
    driver.background.run(driver.engine.unload("a"))
    assert not driver.background.call(driver.engine.is_loaded, "outer")
    serve_function(driver, "a", plus(2))
    assert outputs(driver.send(1, model="outer")) == [3]


def test_ensemble_incompatible_with_a_reloaded_step_is_unloaded(driver: Driver) -> None:
    serve_function(driver, "a", plus(1))
    serve_ensemble(driver, "a: X -> Y")
    serve_function(driver, "a", plus(1), tensors=TENSORS.replace("INT32", "FP32"))
    assert not driver.background.call(driver.engine.is_loaded, "e")


@pytest.mark.parametrize(
    ("steps", "complaint"),
    [
        (["missing: X -> Y"], "ensemble e contains models that are not available or ambiguous: missing"),
        (["e: X -> Y"], "circular dependency between ensembles: e -> ... -> e -> e"),
    ],
)
def test_ensemble_with_invalid_steps_does_not_load(driver: Driver, steps: list[str], complaint: str) -> None:
    with pytest.raises(InvalidArgumentError) as caught:
        serve_ensemble(driver, *steps)
    assert caught.value.message == f"load failed for model 'e': {complaint}\n"


def test_stopping_waits_for_all_steps_of_accepted_requests() -> None:
    driver = Driver()
    gate = Gate()
    driver.serve(gate, name="a", extra="")
    serve_function(driver, "b", plus(1))
    serve_ensemble(driver, "a: X -> mid", "b: mid -> Y")
    serve_ensemble(driver, "e: X -> Y", name="outer")
    answer = driver.send(1, model="outer")
    gate.wait_begun()
    gate.open()
    driver.close()
    assert outputs(answer) == [2]


def test_ensemble_keeps_the_status_of_a_custom_error(driver: Driver) -> None:
    def refuse(request: InferRequest) -> NoReturn:
        raise TritonError("no", Status.ALREADY_EXISTS)

    serve_function(driver, "a", refuse)
    serve_ensemble(driver, "a: X -> Y")
    assert error_of(driver.send(1, model="e")).status is Status.ALREADY_EXISTS
