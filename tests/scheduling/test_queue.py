"""The queue of the dynamic batcher: who counts, who leaves, and what new settings change."""

from __future__ import annotations

import pytest

from tests.scheduling.harness import MS
from tests.scheduling.invariants import check_queue
from tritonnb.core.errors import UnavailableError
from tritonnb.core.schedulable import Schedulable
from tritonnb.scheduling.policy import QueuePolicy, QueueSettings, TimeoutAction
from tritonnb.scheduling.queue import PriorityQueue

DELAYING = QueuePolicy(TimeoutAction.DELAY, default_timeout_ns=10 * MS)


def queue_of(policy: QueuePolicy, *arrivals: tuple[str, int]) -> tuple[PriorityQueue, list[Schedulable]]:
    queue = PriorityQueue(QueueSettings(default_queue_policy=policy))
    requests = [Schedulable(name) for name, _ in arrivals]
    for request, (_, at_ms) in zip(requests, arrivals, strict=True):
        queue.add(request, at_ms * MS)
    return queue, requests


def scanned(queue: PriorityQueue) -> list[str]:
    """Everyone in the order of scanning; all become pending."""
    while queue.candidate() is not None:
        queue.take_candidate()
    check_queue(queue)
    return [request.id for request in queue.pending]


def test_live_delayed_and_pending_requests_all_count_for_the_limit() -> None:
    policy = QueuePolicy(TimeoutAction.DELAY, default_timeout_ns=10 * MS, max_queue_size=3)
    queue, _ = queue_of(policy, ("delayed", 0), ("pending", 5))
    queue.expire(11 * MS)
    queue.take_candidate()
    queue.add(Schedulable("live"), 12 * MS)
    with pytest.raises(UnavailableError, match="Exceeds maximum queue size"):
        queue.add(Schedulable("too many"), 12 * MS)
    assert queue.size == 3


def test_delayed_request_can_be_cancelled() -> None:
    queue, (first, second) = queue_of(DELAYING, ("first", 0), ("second", 0))
    queue.expire(11 * MS)
    assert queue.remove(first)
    assert not queue.remove(first)
    assert scanned(queue) == ["second"]
    assert queue.remove(second)
    assert (queue.size, queue.rows, queue.candidate()) == (0, 0, None)


def test_reason_of_a_timeout_has_the_wait_and_the_limit() -> None:
    queue, _ = queue_of(QueuePolicy(default_timeout_ns=10 * MS), ("a", 3))
    (refused,) = queue.expire(15 * MS)
    assert refused.reason.facts == {"waited_ns": 12 * MS, "timeout_ns": 10 * MS}


def test_new_settings_keep_delayed_requests_delayed_and_delay_no_others() -> None:
    queue, _ = queue_of(DELAYING, ("delayed", 0), ("live", 5))
    queue.expire(11 * MS)
    queue.take_candidate()  # the live one, into the pending batch
    queue.reconfigure(QueueSettings(default_queue_policy=DELAYING), 12 * MS)
    queue.add(Schedulable("new"), 12 * MS)
    assert queue.next_expiry() == 22 * MS + 1
    assert scanned(queue) == ["live", "new", "delayed"]
    queue.restore()
    queue.expire(23 * MS)
    assert scanned(queue) == ["delayed", "live", "new"]


def test_emptied_queue_has_no_requests() -> None:
    queue, _ = queue_of(DELAYING, ("delayed", 0), ("a", 5), ("b", 5))
    queue.expire(11 * MS)
    queue.take_candidate()
    assert [request.id for request in queue.clear()] == ["a", "b", "delayed"]
    assert (queue.size, queue.rows, queue.next_expiry(), queue.candidate()) == (0, 0, None, None)
    check_queue(queue)
