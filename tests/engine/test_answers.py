"""Every request is answered once, whatever happens to it, and whatever happens at the same time."""

from __future__ import annotations

from concurrent.futures import Future, wait
from contextlib import suppress
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.engine.conftest import Driver, error_of
from tests.engine.ensembles import serve_function
from tests.engine.gated import Gate, gated_config
from tests.laws import law
from tritonnb.core.datatypes import INT32
from tritonnb.core.errors import InternalError, UnavailableError
from tritonnb.core.messages import InferRequest, InferResponse, Respond, Tensor


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(finals=st.lists(st.booleans(), max_size=8))
def test_request_passes_on_responses_up_to_the_final_one_and_logs_the_others(
    answered_twice: list[str], finals: list[bool]
) -> None:
    passed_on: list[InferResponse] = []
    request = InferRequest("m", {}, lambda request, response: passed_on.append(response))
    responses = [InferResponse(final=final) for final in finals]
    for response in responses:
        request.answer(response)
    count = finals.index(True) + 1 if True in finals else len(finals)
    assert passed_on == responses[:count]
    assert request.answered is (True in finals)
    assert len(answered_twice) == len(finals) - count
    answered_twice.clear()


#: What is done to a server with one instance: requests (a negative one fails), cancellations, ends of executions,
#: changes of the queue delay, and errors of the code that submits requests.
OPERATIONS = st.one_of(
    st.tuples(st.just("send"), st.sampled_from([1, 2, -1]), st.sampled_from([0, 1, 100_000])),
    st.tuples(st.just("cancel"), st.integers(0, 20), st.just(0)),
    st.tuples(st.just("end"), st.just(0), st.just(0)),
    st.tuples(st.just("delay"), st.sampled_from([0, 1, 50, 5000]), st.just(0)),
)
POLICY = """
dynamic_batching {
  max_queue_delay_microseconds: 1
  default_queue_policy { timeout_action: REJECT allow_timeout_override: true max_queue_size: 6 }
}
"""


@law(60)
@given(operations=st.lists(OPERATIONS, min_size=1, max_size=30))
def test_every_request_gets_one_final_response(operations: list[tuple[str, int, int]]) -> None:
    driver, gate = Driver(), Gate()
    finals: list[int] = []
    answers: list[Any] = []
    try:
        driver.serve(gate, POLICY)
        for name, value, timeout_us in operations:
            if name == "send":
                with suppress(UnavailableError):  # the queue is full: it is rejected, not answered
                    answers.append(driver.send(value, timeout_us=timeout_us))
                    answers[-1].add_done_callback(lambda answer: finals.append(answer.request.serial))
            elif name == "cancel" and answers:
                driver.cancel(answers[value % len(answers)])
            elif name == "end":
                gate.let_through()
            elif name == "delay":
                policy = POLICY.replace("microseconds: 1", f"microseconds: {value}")
                driver.background.run(driver.engine.apply("m", gated_config("m", policy)))
        gate.open()
        assert not wait(answers, 30).not_done
    finally:
        gate.open()
        driver.close()
    assert len(finals) == len(set(finals)) == len(answers)


def test_request_that_was_accepted_before_its_submission_failed_is_answered_once(
    driver: Driver, answered_twice: list[str]
) -> None:
    """Such as by an error of a timer: the caller gets the error, and the response that comes later is dropped."""
    gate = Gate()
    driver.serve(gate)
    responses: list[InferResponse] = []
    tensor = Tensor("X", INT32, np.ones((1, 1), np.int32))
    request = InferRequest("m", {"X": tensor}, lambda request, response: responses.append(response))

    def submit_and_fail() -> None:
        driver.submit(request)
        request.answer(InferResponse(error=InternalError("timer")))

    driver.background.call(submit_and_fail)
    gate.open()
    driver.background.run(driver.engine.model("m").wait_until_drained())
    assert [response.error and response.error.message for response in responses] == ["timer"]
    assert len(answered_twice) == 1
    answered_twice.clear()


def test_callback_that_raises_strands_no_request_of_its_batch(driver: Driver, answered_twice: list[str]) -> None:
    gate, answers = Gate(), [Future[InferResponse]() for _ in range(3)]
    driver.serve(gate)
    driver.send(0)
    gate.wait_begun()

    def respond_to(index: int) -> Respond:
        def respond(request: InferRequest, response: InferResponse) -> None:
            answers[index].set_result(response)
            if index == 0:
                raise SystemExit("a callback")

        return respond

    def observe(request: InferRequest, response: InferResponse) -> None:
        raise RuntimeError("an observer")

    for index in range(3):
        tensor = Tensor("X", INT32, np.full((1, 1), index, np.int32))
        request = InferRequest("m", {"X": tensor}, respond_to(index))
        request.observe_responses(observe)
        driver.background.call(driver.submit, request)
    gate.open()
    assert [int(answer.result(30).outputs[0].array[0, 0]) for answer in answers] == [0, 1, 2]
    assert driver.background.call(lambda: driver.engine.model("m").in_flight) == 0
    assert ["observer" in text for text in answered_twice] == [True, False, True, True]
    answered_twice.clear()


class _Hostile(Exception):
    """An exception of a model that fails wherever one looks at it."""

    def __str__(self) -> str:
        raise RuntimeError("str")

    __repr__ = __str__

    def __getattribute__(self, name: str) -> object:
        raise RuntimeError(name)

    def with_traceback(self, traceback: object) -> _Hostile:
        raise RuntimeError("with_traceback")


class _HostileTritonError(InternalError):
    def with_traceback(self, traceback: object) -> _HostileTritonError:
        raise SystemExit("with_traceback")

    def __setattr__(self, name: str, value: object) -> None:
        raise RuntimeError(name)


@pytest.mark.parametrize("kind", [_Hostile, _HostileTritonError, KeyboardInterrupt, GeneratorExit])
def test_batch_of_a_model_whose_exception_cannot_be_described_is_answered(
    driver: Driver, kind: type[BaseException]
) -> None:
    def fail(request: InferRequest) -> object:
        raise kind.__new__(kind, "text")

    serve_function(driver, "m", fail)
    for number in range(2):  # the instance goes on
        assert kind.__name__ in str(error_of(driver.send(number)))
