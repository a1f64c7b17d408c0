"""The virtual clock itself: what happens at one moment, and how far time passes."""

from __future__ import annotations

from contextlib import nullcontext
from typing import Any

import pytest

from tests.scheduling.harness import MS, members
from tests.scheduling.invariants import check_invariants
from tritonnb.core.schedulable import Schedulable
from tritonnb.scheduling.default_scheduler import DefaultScheduler
from tritonnb.scheduling.dynamic_batcher import DynamicBatcher
from tritonnb.scheduling.policy import DynamicBatcherSettings, QueuePolicy, QueueSettings
from tritonnb.scheduling.virtual_time import FinalResponse, VirtualTime

TEN_MS = DynamicBatcherSettings(8, (8,), max_queue_delay_ns=10 * MS)


def ten_ms_each(scheduler: DefaultScheduler | DynamicBatcher, **options: Any) -> VirtualTime:
    return VirtualTime(scheduler, lambda decision: 10 * MS, check=check_invariants, **options)


def test_run_until_processes_all_events_up_to_and_including_that_time() -> None:
    time = ten_ms_each(DefaultScheduler(1))
    assert time.now == 0
    time.arrive(5 * MS, Schedulable("a"))
    time.arrive(6 * MS, Schedulable("b"))
    time.run(5 * MS)
    assert (time.now, len(time.batches)) == (5 * MS, 1)
    time.run(12 * MS)
    assert (time.now, len(time.responses)) == (12 * MS, 0)
    time.run(3 * MS)
    assert time.now == 12 * MS, "it does not run backwards"
    time.run()
    assert [(response.request.id, response.time_ns) for response in time.responses] == [("a", 15 * MS), ("b", 25 * MS)]
    assert time.now == 25 * MS, "nothing more can happen"


def test_simultaneous_events_are_ordered_as_ends_arrivals_cancellations() -> None:
    policy = QueueSettings(default_queue_policy=QueuePolicy(max_queue_size=1))
    time = ten_ms_each(DynamicBatcher(DynamicBatcherSettings(1, (1,), queue=policy), 1))
    first, second, third = Schedulable("first"), Schedulable("second"), Schedulable("third")
    time.cancel(10 * MS, third)
    time.arrive(10 * MS, third)
    time.arrive(0, first)
    time.arrive(0, second)
    time.run()
    assert [(response.request.id, response.time_ns / MS, response.error is None) for response in time.responses] == [
        ("first", 10, True),
        ("third", 10, False),
        ("second", 20, True),
    ]


def test_request_that_arrives_as_the_delay_ends_is_in_the_batch() -> None:
    time = ten_ms_each(DynamicBatcher(TEN_MS, 1))
    time.arrive(0, Schedulable("a"))
    time.arrive(10 * MS, Schedulable("b"))
    time.run()
    assert [(members(batch.decision), batch.start_ns) for batch in time.batches] == [("a b", 10 * MS)]


def test_requests_still_queued_are_counted_when_a_batch_starts() -> None:
    time = ten_ms_each(DefaultScheduler(1))
    for name in "abc":
        time.arrive(0, Schedulable(name))
    time.run()
    assert [batch.queue_depth for batch in time.batches] == [0, 1, 0]
    assert [batch.end_ns - batch.start_ns for batch in time.batches] == [10 * MS] * 3


def test_client_can_send_its_next_request_after_a_response() -> None:
    def send_again(answer: FinalResponse) -> None:
        if len(time.responses) < 3:
            time.arrive(answer.time_ns + MS, Schedulable("next"))

    time = ten_ms_each(DefaultScheduler(1), on_response=send_again)
    time.arrive(0, Schedulable("first"))
    time.run()
    assert [response.time_ns / MS for response in time.responses] == [10, 21, 32]


def test_staged_batch_runs_immediately_without_a_rate_limiter() -> None:
    time = ten_ms_each(DynamicBatcher(DynamicBatcherSettings(8, (8,), rate_limited=True), 1))
    time.arrive(3 * MS, Schedulable("a"))
    time.run()
    assert [(members(batch.decision), batch.start_ns) for batch in time.batches] == [("a", 3 * MS)]


def test_scheduler_starts_with_one_idle_instance_by_default() -> None:
    one, two = ten_ms_each(DefaultScheduler(2)), ten_ms_each(DefaultScheduler(2), first_idle_ns=[0, 0])
    for time in (one, two):
        for name in "ab":
            time.arrive(0, Schedulable(name))
        time.run(0)
    assert (len(one.batches), len(two.batches)) == (1, 2)


def test_scheduler_is_checked_after_every_stimulus() -> None:
    for check in (None, check_invariants):
        scheduler = DefaultScheduler(1)
        time = VirtualTime(scheduler, lambda decision: 1, check=check)
        scheduler._waiting.append(Schedulable("forgotten"))  # though an instance is idle
        with pytest.raises(AssertionError) if check else nullcontext():
            time.apply(lambda now: ())
