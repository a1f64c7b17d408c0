"""The scheduler of models without a batcher: one request after the other, whatever may be asked of it."""

from __future__ import annotations

import pytest

from tests.scheduling.harness import MS, members
from tritonnb.core.errors import InvalidArgumentError, UnavailableError
from tritonnb.core.schedulable import Schedulable
from tritonnb.scheduling.default_scheduler import DefaultScheduler
from tritonnb.scheduling.reasons import explain


def test_reason_of_a_batch_of_one_has_the_waits_of_request_and_instance() -> None:
    scheduler = DefaultScheduler(2)
    scheduler.enqueue(Schedulable("a", batch_size=3), 4 * MS)
    (waited,) = scheduler.instance_idle(0, 6 * MS)
    assert explain(waited.reason) == (
        "1 request, 3 rows: executed alone, without a batcher; had waited 2.0 ms; instance 0 idle from the start"
    )
    scheduler.instance_idle(1, 10 * MS)
    (idled,) = scheduler.enqueue(Schedulable("b"), 15 * MS)
    assert explain(idled.reason).endswith("instance 1 idle for 5.0 ms")


def test_stopped_scheduler_serves_waiting_requests_and_admits_none() -> None:
    scheduler = DefaultScheduler(1)
    scheduler.enqueue(Schedulable("a"), 0)
    scheduler.stop()
    with pytest.raises(UnavailableError, match=r"^\[request id: b\] Server is stopping"):
        scheduler.enqueue(Schedulable("b"), 1)
    assert [members(decision) for decision in scheduler.instance_idle(0, 2)] == ["a"]
    assert scheduler.queue_depth() == 0


def test_cancelled_request_is_refused_when_its_turn_comes() -> None:
    scheduler = DefaultScheduler(1)
    cancelled, request = Schedulable("a"), Schedulable("b")
    for one in (cancelled, request):
        scheduler.enqueue(one, 0)
    cancelled.cancelled = True
    assert not scheduler.cancel(cancelled, 1)
    refused, execute = scheduler.instance_idle(0, 2)
    assert (refused.request, refused.counted_as, refused.reason.facts) == (cancelled, "CANCELED", {"waited_ns": 2})
    assert members(execute) == "b"


def test_no_request_is_executed_twice() -> None:
    with pytest.raises(InvalidArgumentError):
        DefaultScheduler(1).reschedule(Schedulable("a"), 3)


def test_removed_instance_receives_no_batches_and_a_new_one_does() -> None:
    scheduler = DefaultScheduler(1)
    scheduler.instance_idle(0, 0)
    scheduler.set_instances([1], 1)
    assert (scheduler.uses(0), scheduler.uses(1)) == (False, True)
    assert not scheduler.enqueue(Schedulable("a"), 2)
    assert [decision.instance for decision in scheduler.instance_idle(1, 3)] == [1]
