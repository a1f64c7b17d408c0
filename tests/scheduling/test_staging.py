"""Batches that a rate limiter holds back: they have their instance and go on growing until they may run."""

from __future__ import annotations

from typing import Any

import pytest

from tests.scheduling.harness import MS, START, members
from tests.scheduling.invariants import check_invariants
from tritonnb.core.schedulable import Schedulable
from tritonnb.scheduling.dynamic_batcher import DynamicBatcher
from tritonnb.scheduling.policy import DynamicBatcherSettings, QueuePolicy, QueueSettings
from tritonnb.scheduling.sequence_batcher import SequenceBatcher
from tritonnb.scheduling.sequence_strategies import OldestSettings, SequenceBatcherSettings
from tritonnb.scheduling.virtual_time import VirtualTime


class HeldBack:
    """Virtual time in which staged batches run when `grant` says so; executions take 10 ms."""

    def __init__(self, scheduler: Any, instances: int = 1) -> None:
        self.waiting: list[int] = []
        self.scheduler = scheduler
        self.driver = VirtualTime(
            scheduler, lambda decision: 10 * MS, [0] * instances, check=check_invariants, staged=self.waiting.append
        )

    def grant(self, at: float, instance: int | None = None) -> None:
        """The rate limiter lets a staged batch run (at a time in ms), the first one unless said."""
        self.driver.run(int(at * MS))
        chosen = self.waiting.pop(0) if instance is None else instance
        self.driver.apply(lambda now: self.scheduler.execute_staged(chosen, now))

    def batches_of(self) -> list[str]:
        return [members(batch.decision) for batch in self.driver.batches]


def batcher(count: int = 1, **settings: Any) -> HeldBack:
    preferred = settings.pop("preferred", (4,))
    return HeldBack(DynamicBatcher(DynamicBatcherSettings(4, preferred, rate_limited=True, **settings), count), count)


def arrive(time: HeldBack, *names: str, at: float = 0, **facts: Any) -> list[Schedulable]:
    requests = [Schedulable(name, **facts) for name in names]
    for request in requests:
        time.driver.arrive(int(at * MS), request)
    return requests


@pytest.mark.parametrize("settings", [{}, {"enforce_equal_shape": True}, {"preferred": (3, 4)}])
def test_staged_batch_grows_until_it_may_run(settings: dict[str, Any]) -> None:
    time = batcher(**settings)
    arrive(time, "a")
    arrive(time, "b", at=1)
    arrive(time, "c", at=2)
    time.grant(3)
    assert time.batches_of() == ["a b c"]


def test_requests_after_the_start_of_a_batch_join_the_next() -> None:
    time = batcher()
    arrive(time, "a")
    arrive(time, "b", "c", at=2)
    time.grant(1)
    assert time.batches_of() == ["a"]
    time.grant(12)
    assert time.batches_of() == ["a", "b c"]


def test_requests_that_do_not_fit_form_another_batch_and_only_the_last_grows() -> None:
    time = batcher()
    arrive(time, *"abc")
    arrive(time, "D", at=1, batch_size=2)
    arrive(time, *"ef", at=2)
    arrive(time, *"gh", at=3)
    time.grant(4)
    time.grant(20)
    time.grant(30)
    assert time.batches_of() == ["a b c", "D e f", "g h"]


def test_differing_inputs_end_a_staged_batch() -> None:
    time = batcher(enforce_equal_shape=True)
    arrive(time, "a")
    arrive(time, "B", at=1, batch_key="other")
    arrive(time, "c", at=2)
    time.grant(3)
    assert time.batches_of() == ["a"]


@pytest.mark.parametrize(("later", "expected"), [(1, "a"), (2, "a b0")])
def test_delayed_batch_is_staged_at_the_delay_and_fills_a_preferred_size(later: int, expected: str) -> None:
    time = batcher(max_queue_delay_ns=5 * MS, preferred=(2, 4))
    arrive(time, "a")
    arrive(time, *[f"b{index}" for index in range(later)], at=7)
    time.driver.run(int(4 * MS))
    assert time.waiting == []
    time.grant(8)
    assert time.batches_of() == [expected]


def test_batches_whose_delay_has_passed_are_not_merged() -> None:
    time = batcher(max_queue_delay_ns=5 * MS, preferred=(2,))
    arrive(time, *"abcd")
    time.driver.run(6 * MS)
    time.grant(7)
    time.grant(20)
    assert time.batches_of() == ["a b c", "d"]


def test_number_of_batches_prepared_ahead_is_unlimited() -> None:
    time = batcher(max_queue_delay_ns=5 * MS)
    arrive(time, *"abcdefghijklmnop")
    for at in (3, 13, 23, 33):
        time.grant(at)
    assert time.batches_of() == ["a b c d", "e f g h", "i j k l", "m n o p"]


def test_staged_batch_starts_without_its_cancelled_requests_and_not_at_all_if_none_is_left() -> None:
    time = batcher()
    requests = arrive(time, *"abcdefgh")
    for request in requests[:5]:
        time.driver.cancel(2 * MS, request)
    time.grant(3)
    assert time.batches_of() == []
    time.grant(4)
    time.driver.run()
    assert time.batches_of() == ["f g h"]
    refused = [(response.request.id, response.time_ns) for response in time.driver.responses if response.error]
    assert refused == [*((id, 3 * MS) for id in "abcd"), ("e", 4 * MS)]


def test_cancelled_request_with_a_place_among_ordered_responses_is_executed() -> None:
    time = batcher(2, preserve_ordering=True)
    requests = arrive(time, *"abcde")
    time.driver.run(1 * MS)
    time.grant(2, instance=1)
    time.driver.cancel(3 * MS, requests[0])
    time.grant(14, instance=0)
    time.driver.run()
    assert time.batches_of() == ["e", "a b c d"]
    assert [response.request.id for response in time.driver.responses] == list("abcde")


def test_only_requests_outside_a_staged_batch_expire() -> None:
    policy = QueuePolicy(default_timeout_ns=5 * MS)
    time = batcher(queue=QueueSettings(default_queue_policy=policy))
    arrive(time, "a")
    arrive(time, "b", at=1)
    time.grant(20)
    time.driver.run()
    assert time.batches_of() == ["a"]
    assert [(response.request.id, response.error is None) for response in time.driver.responses] == [
        ("b", False),
        ("a", True),
    ]


def test_rate_limiter_may_run_a_later_batch_first_but_responses_stay_ordered() -> None:
    time = batcher(2, preserve_ordering=True)
    arrive(time, *"abcde")
    time.driver.run(1 * MS)
    time.grant(2, instance=1)
    time.driver.run(13 * MS)
    assert time.driver.responses == []
    time.grant(14, instance=0)
    time.driver.run()
    assert time.batches_of() == ["e", "a b c d"]
    assert [response.request.id for response in time.driver.responses] == list("abcde")


def test_new_settings_leave_a_staged_batch_to_grow() -> None:
    time = batcher()
    arrive(time, "a")
    arrive(time, "b", at=2)
    time.driver.run(1 * MS)
    time.driver.apply(lambda now: time.scheduler.reconfigure(DynamicBatcherSettings(4, (2, 4), rate_limited=True), now))
    time.grant(3)
    assert time.batches_of() == ["a b"]


def test_oldest_strategy_stages_its_batches() -> None:
    oldest = OldestSettings(4, DynamicBatcherSettings(4, (4,), rate_limited=True))
    time = HeldBack(SequenceBatcher(SequenceBatcherSettings("m", oldest), 1))
    arrive(time, "a", correlation_id=1, flags=START)
    arrive(time, "b", at=1, correlation_id=2, flags=START)
    time.grant(2)
    time.driver.run()
    assert time.batches_of() == ["a b"]
    assert time.driver.batches[0].decision.slots == (0, 1)
