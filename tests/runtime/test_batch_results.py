"""Which requests of an executed_event batch failed, and what those get that were not answered."""

from __future__ import annotations

from dataclasses import dataclass

import pytest

from tritonnb.backends.contract import Execution
from tritonnb.core.errors import InternalError, InvalidArgumentError
from tritonnb.core.messages import InferRequest, InferResponse
from tritonnb.runtime.models.batch_results import complete_responses, executed_event

RAISED = InvalidArgumentError("raised")
NOTHING = "model 'm', instance 'm_0_0': no response to the request"


@dataclass
class Batch:
    """A batch of requests, and the error texts of what was sent through response senders."""

    execution: Execution
    sent: list[str]

    def complete_responses(
        self, raised: InvalidArgumentError | None = None, decoupled: bool = False, errors_fail: bool = True
    ) -> list[str]:
        return complete_responses("m", "m_0_0", self.execution, raised, decoupled, errors_fail)

    @property
    def answers(self) -> list[str | None]:
        """For each request its error, empty for success, None where there is no answer."""
        responses = self.execution.responses
        return [None if response is None else str(response.error or "") for response in responses]


def batch(count: int = 1) -> Batch:
    sent: list[str] = []
    requests = [InferRequest("m", {}, lambda *answer: None) for _ in range(count)]
    return Batch(Execution(requests, count, lambda request, response: sent.append(str(response.error or ""))), sent)


def test_what_the_backend_answered_stays_and_who_has_no_answer_gets_an_error() -> None:
    made = batch(3)
    made.execution.respond(0, [])
    made.execution.fail(1, InternalError("its own"))
    assert made.complete_responses() == ["", "BACKEND", "BACKEND"]
    assert made.answers == ["", "its own", NOTHING]


def test_a_response_with_an_error_may_count_as_success() -> None:
    made = batch(2)
    made.execution.fail(0, InternalError("its own"))
    assert made.complete_responses(errors_fail=False) == ["", "BACKEND"]


def test_an_error_that_the_backend_raised_answers_those_who_have_no_answer() -> None:
    made = batch(2)
    made.execution.respond(0, [])
    assert made.complete_responses(RAISED) == ["", "BACKEND"]
    assert made.answers == ["", "raised"]


def test_a_request_runs_again_unless_its_execution_failed() -> None:
    made = batch()
    made.execution.reschedule(0)
    assert (made.complete_responses(), made.answers) == ([""], [None])
    assert (made.complete_responses(RAISED), made.answers) == (["BACKEND"], ["raised"])
    assert not made.execution.rescheduled


@pytest.mark.parametrize("decoupled", [False, True])
def test_responses_go_their_own_way_where_there_is_a_sender(decoupled: bool) -> None:
    made = batch()
    made.execution.sender(0)
    assert (made.complete_responses(decoupled=decoupled), made.answers, made.sent) == ([""], [None], [])


def test_a_decoupled_request_without_a_response_may_get_one_later() -> None:
    made = batch()
    assert (made.complete_responses(decoupled=True), made.answers, made.sent) == ([""], [None], [])


def test_of_a_decoupled_model_the_sender_tells_what_was_raised_unless_the_last_response_has_gone() -> None:
    made = batch(3)
    made.execution.sender(1).send(InferResponse())
    made.execution.sender(2).send(InferResponse(final=False))
    assert made.complete_responses(RAISED, decoupled=True) == ["BACKEND"] * 3
    assert made.sent == ["", "", "raised", "raised"]
    assert made.answers == [None] * 3


def test_a_backend_that_does_not_tell_when_it_computed_has_computed_all_the_time() -> None:
    made = batch()
    made.execution.exec_start_ns, made.execution.exec_end_ns = 10, 40
    event = executed_event("m", 1, "m_0_0", made.execution, [""], now=50)
    assert (event.compute_start_ns, event.compute_end_ns) == (10, 40)
    made.execution.compute_start_ns, made.execution.compute_end_ns = 20, 30
    event = executed_event("m", 1, "m_0_0", made.execution, [""], now=50)
    assert (event.exec_start_ns, event.compute_start_ns, event.compute_end_ns, event.exec_end_ns) == (10, 20, 30, 40)


def test_null_requests_are_not_counted() -> None:
    made = batch(2)
    made.execution.requests[0].is_null = True
    made.execution.requests[1].serial = 7
    event = executed_event("m", 1, "m_0_0", made.execution, ["", "BACKEND"], now=50)
    assert [(serial, failed) for serial, *_, failed in event.requests] == [(7, "BACKEND")]
