"""The dynamic batcher asked by hand: payloads in line, new settings, other instances, stopping, and reasons."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.scheduling.harness import MS, Arrival, Play, members
from tests.scheduling.test_dynamic_batcher import DELAY, EIGHT, FOUR, ONE, policy, waits
from tritonnb.core.errors import InvalidArgumentError, UnavailableError
from tritonnb.core.schedulable import Schedulable
from tritonnb.scheduling.dynamic_batcher import DynamicBatcher
from tritonnb.scheduling.policy import DynamicBatcherSettings, QueueSettings
from tritonnb.scheduling.reasons import FULL, explain


def test_two_full_payloads_wait_for_one_instance_and_the_rest_stays_in_the_queue() -> None:
    scheduler = DynamicBatcher(EIGHT, 1)
    scheduler.instance_idle(0, 0)
    for index in range(5):
        scheduler.enqueue(Schedulable(f"r{index}", batch_size=8), 0)
    scheduler.form_deferred(0)
    assert [request.id for payload in scheduler.payloads for request in payload.requests] == ["r1", "r2"]
    assert scheduler.queue.size == 2
    assert scheduler.queue_depth() == 4


def test_stopped_scheduler_serves_waiting_requests_and_admits_none() -> None:
    scheduler = DynamicBatcher(waits(), 1)
    scheduler.instance_idle(0, 0)
    scheduler.enqueue(Schedulable("a"), 0)
    scheduler.stop()
    with pytest.raises(UnavailableError, match=r"\[request id: b\] Server is stopping, scheduler for model"):
        scheduler.enqueue(Schedulable("b"), 1)
    assert [members(decision) for decision in scheduler.wake(DELAY)] == ["a"]


def test_new_settings_apply_immediately_and_lose_no_waiting_request() -> None:
    scheduler = DynamicBatcher(waits(), 1)
    scheduler.instance_idle(0, 0)
    requests = [Schedulable("low", priority=2), Schedulable("high", priority=1)]
    for request in requests:
        scheduler.enqueue(request, 0)
    levels = QueueSettings(priority_levels=2, default_priority_level=2)
    assert not scheduler.reconfigure(replace(waits(), queue=levels), 10)
    assert scheduler.next_wake_ns == DELAY
    decisions = scheduler.reconfigure(replace(EIGHT, queue=levels), 20)
    assert [members(decision) for decision in decisions] == ["high low"]


def test_shorter_delay_sends_requests_that_have_waited_longer() -> None:
    scheduler = DynamicBatcher(waits(), 1)
    scheduler.instance_idle(0, 0)
    scheduler.enqueue(Schedulable("a"), 0)
    assert not scheduler.reconfigure(waits(delay_ms=100), 50 * MS)
    assert scheduler.next_wake_ns == 100 * MS
    assert [members(decision) for decision in scheduler.reconfigure(waits(delay_ms=40), 60 * MS)] == ["a"]


def test_removed_instance_receives_no_batches_and_a_new_one_does() -> None:
    scheduler = DynamicBatcher(ONE, 1)
    scheduler.instance_idle(0, 0)
    assert scheduler.enqueue(Schedulable("a"), 0)
    scheduler.enqueue(Schedulable("b"), 1)
    scheduler.set_instances([1], 2)
    assert not scheduler.uses(0)
    assert scheduler.uses(1)
    assert not scheduler.instance_idle(0, 3)
    assert [decision.instance for decision in scheduler.instance_idle(1, 4)] == [1]


def test_reason_is_one_sentence_with_its_numbers() -> None:
    scheduler = DynamicBatcher(waits(FOUR, delay_ms=5), 1)
    scheduler.instance_idle(0, 2_900_000)
    for index in range(3):
        scheduler.enqueue(Schedulable(f"r{index}"), 3_000_000)
    (decision,) = scheduler.wake(8_000_000)
    assert explain(decision.reason) == (
        "3 requests, 3 rows: the oldest had waited 5.0 ms >= max_queue_delay 5.0 ms; "
        "preferred 4 not reached; instance 0 idle for 5.1 ms"
    )


def test_reason_names_the_first_request_that_did_not_fit() -> None:
    line = [Arrival("B", 0, 8, run=200), Arrival("a", 50, 3), Arrival("b", 60, 2), Arrival("c", 70, 4)]
    play = Play(DynamicBatcher(waits(policy(FOUR, max_queue_size=9)), 1), line)
    assert explain(play.time.batches[1].decision.reason).startswith(
        "1 request, 3 rows: the next request's 2 rows would go beyond preferred 4;"
    )


def test_whole_queue_is_sent_after_the_delay_even_beyond_the_preferred_size() -> None:
    line = [Arrival(name, 0, 8, run=100) for name in "BCD"] + [
        Arrival(*fields) for fields in (("a", 50, 3), ("b", 60, 2), ("c", 70))
    ]
    (*_, last) = Play(DynamicBatcher(waits(FOUR, delay_ms=20), 1), line).time.batches
    assert (members(last.decision), last.decision.reason.rule) == ("a b c", FULL)
    assert last.decision.reason.facts["merged"] == 0, "it was formed at once"


def test_request_delayed_on_a_lower_level_is_sent_with_all_before_it() -> None:
    levels = QueueSettings(priority_levels=2, default_priority_level=2)
    line = [Arrival("B", 0, 8, run=400), Arrival("old", 50), Arrival("a", 300, 3, priority=1)]
    play = Play(DynamicBatcher(replace(waits(FOUR), queue=levels), 1), [*line, Arrival("b", 310, 2, priority=1)])
    assert play.batches == [("B", 0), ("a b old", 400)]


def test_full_payload_stays_full_under_new_settings() -> None:
    scheduler = DynamicBatcher(FOUR, 1)
    scheduler.instance_idle(0, 0)
    for name in ("B", "a", "b", "c", "d"):
        scheduler.enqueue(Schedulable(name), 0)
    assert [payload.rows for payload in scheduler.payloads] == [4]
    scheduler.reconfigure(replace(FOUR, preferred_batch_sizes=(4, 8)), 1)
    scheduler.enqueue(Schedulable("e"), 2)
    assert [payload.rows for payload in scheduler.payloads] == [4, 1]


def test_request_cancelled_before_arrival_is_not_queued() -> None:
    scheduler = DynamicBatcher(EIGHT, 1)
    scheduler.instance_idle(0, 0)
    request = Schedulable("a")
    request.cancelled = True
    (refused,) = scheduler.enqueue(request, 5)
    assert (refused.request.id, refused.counted_as, refused.reason.facts) == ("a", "CANCELED", {"waited_ns": 0})
    assert scheduler.queue_depth() == 0


def test_next_wake_is_for_the_first_timeout_even_of_a_request_that_starts_no_pass() -> None:
    scheduler = DynamicBatcher(waits(policy(EIGHT, default_timeout_ns=200 * MS, allow_timeout_override=True)), 1)
    scheduler.instance_idle(0, 0)
    scheduler.enqueue(Schedulable("a"), 0)
    assert scheduler.next_wake_ns == 200 * MS + 1
    scheduler.enqueue(Schedulable("b", timeout_us=50_000), 10 * MS)
    assert scheduler.next_wake_ns == 60 * MS + 1


@pytest.mark.parametrize("settings", [waits(), policy(waits(), default_timeout_ns=900 * MS)])
def test_waking_before_the_deadline_changes_nothing(settings: DynamicBatcherSettings) -> None:
    scheduler = DynamicBatcher(settings, 1)
    scheduler.instance_idle(0, 0)
    scheduler.enqueue(Schedulable("a"), 0)
    scheduler.enqueue(Schedulable("odd", batch_key="odd"), MS)  # a pass would send the first at once
    assert not scheduler.wake(DELAY - 1)
    assert scheduler.next_wake_ns == DELAY


def test_timeouts_continue_under_new_settings_with_the_same_queue_policy() -> None:
    before = policy(waits(), default_timeout_ns=100 * MS)
    scheduler = DynamicBatcher(before, 1)
    scheduler.enqueue(Schedulable("a"), 0)
    scheduler.reconfigure(replace(before, max_queue_delay_ns=0), 50 * MS)
    assert scheduler.next_wake_ns == 100 * MS + 1
    scheduler.reconfigure(policy(waits(), default_timeout_ns=200 * MS), 60 * MS)
    assert scheduler.next_wake_ns == 260 * MS + 1


def test_reason_of_a_cancellation_has_the_wait_and_no_request_is_executed_twice() -> None:
    scheduler = DynamicBatcher(waits(), 1)
    request = Schedulable("a")
    scheduler.enqueue(request, 3)
    (refused,) = scheduler.cancel(request, 10)
    assert refused.reason.facts == {"waited_ns": 7}
    with pytest.raises(InvalidArgumentError):
        scheduler.reschedule(request, 11)
