"""The failures of an executed batch, and the responses to requests that the backend did not respond to."""

from __future__ import annotations

from dataclasses import dataclass

import pytest

from tritonnb.backends.execution import Execution, complete_responses, executed_requests
from tritonnb.core.errors import InternalError, InvalidArgumentError
from tritonnb.core.messages import InferRequest, InferResponse

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
        """For each request its error, empty for success, None without a response."""
        responses = self.execution.responses
        return [None if response is None else str(response.error or "") for response in responses]


def batch(count: int = 1) -> Batch:
    sent: list[str] = []
    requests = [InferRequest("m", {}, lambda *answer: None) for _ in range(count)]
    return Batch(Execution(requests, count, lambda request, response: sent.append(str(response.error or ""))), sent)


def test_requests_without_a_response_get_an_error() -> None:
    executed = batch(3)
    executed.execution.respond(0, [])
    executed.execution.fail(1, InternalError("its own"))
    assert executed.complete_responses() == ["", "BACKEND", "BACKEND"]
    assert executed.answers == ["", "its own", NOTHING]


def test_response_with_an_error_may_count_as_success() -> None:
    executed = batch(2)
    executed.execution.fail(0, InternalError("its own"))
    assert executed.complete_responses(errors_fail=False) == ["", "BACKEND"]


def test_requests_without_a_response_get_the_error_that_the_backend_raised() -> None:
    executed = batch(2)
    executed.execution.respond(0, [])
    assert executed.complete_responses(RAISED) == ["", "BACKEND"]
    assert executed.answers == ["", "raised"]


def test_rescheduled_request_runs_again_unless_its_execution_failed() -> None:
    executed = batch()
    executed.execution.reschedule(0)
    assert (executed.complete_responses(), executed.answers) == ([""], [None])
    assert (executed.complete_responses(RAISED), executed.answers) == (["BACKEND"], ["raised"])
    assert not executed.execution.rescheduled


@pytest.mark.parametrize("decoupled", [False, True])
def test_requests_with_a_response_sender_get_no_response_from_the_execution(decoupled: bool) -> None:
    executed = batch()
    executed.execution.sender(0)
    assert (executed.complete_responses(decoupled=decoupled), executed.answers, executed.sent) == ([""], [None], [])


def test_decoupled_request_may_be_answered_after_execution() -> None:
    executed = batch()
    assert (executed.complete_responses(decoupled=True), executed.answers, executed.sent) == ([""], [None], [])


def test_error_that_a_decoupled_model_raised_is_sent_unless_the_final_response_was_sent() -> None:
    executed = batch(3)
    executed.execution.sender(1).send(InferResponse())
    executed.execution.sender(2).send(InferResponse(final=False))
    assert executed.complete_responses(RAISED, decoupled=True) == ["BACKEND"] * 3
    assert executed.sent == ["", "", "raised", "raised"]
    assert executed.answers == [None] * 3


def test_execution_without_compute_times_counts_as_compute() -> None:
    executed = batch()
    execution = executed.execution
    execution.exec_start_ns, execution.exec_end_ns = 10, 40
    executed.complete_responses()
    assert (execution.compute_start_ns, execution.compute_end_ns) == (10, 40)
    execution.compute_start_ns, execution.compute_end_ns = 20, 30
    executed.complete_responses()
    assert (execution.compute_start_ns, execution.compute_end_ns) == (20, 30)


def test_null_requests_are_not_counted() -> None:
    executed = batch(2)
    executed.execution.requests[0].is_null = True
    executed.execution.requests[1].serial = 7
    requests = executed_requests(executed.execution, ["", "BACKEND"])
    assert [(serial, failed) for serial, *_, failed in requests] == [(7, "BACKEND")]
