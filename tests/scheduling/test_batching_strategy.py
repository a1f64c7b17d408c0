"""Custom batching: what a strategy excludes, when it is asked, and that every batch ends."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.scheduling.harness import MS, Arrival, Play
from tritonnb.core.schedulable import Schedulable
from tritonnb.scheduling.dynamic_batcher import DynamicBatcher
from tritonnb.scheduling.policy import DynamicBatcherSettings

EIGHT = DynamicBatcherSettings(max_batch_size=8, preferred_batch_sizes=(8,), max_queue_delay_ns=10 * MS)
A = Arrival


@dataclass
class AtMost:
    """Batches of at most ``limit`` requests; every batch is remembered."""

    limit: int
    open: int = 0
    begun: int = 0
    asked: list[str] = field(default_factory=list)

    def begin_batch(self) -> object:
        self.open += 1
        self.begun += 1
        return []

    def include(self, request: Schedulable, batch: object) -> bool:
        assert isinstance(batch, list)
        self.asked.append(request.id)
        if len(batch) >= self.limit:
            return False
        batch.append(request.id)
        return True

    def end_batch(self, batch: object) -> None:
        self.open -= 1

    def close(self) -> None:
        pass


class ByFirstLetter(AtMost):
    """Batches of requests whose ids begin with the same letter."""

    def include(self, request: Schedulable, batch: object) -> bool:
        assert isinstance(batch, list)
        if batch and batch[0][0] != request.id[0]:
            return False
        return super().include(request, batch)


def play(strategy: AtMost, arrivals: list[Arrival], settings: DynamicBatcherSettings = EIGHT) -> Play:
    batcher = DynamicBatcher(settings, 1)
    batcher.use_strategy(strategy)
    return Play(batcher, arrivals)


def test_batch_ends_before_a_request_that_the_strategy_excludes() -> None:
    # With variable shapes every arrival is looked at, otherwise the batcher looks when the delay is exceeded.
    played = play(AtMost(2), [A(id, 0) for id in "abcde"], replace(EIGHT, enforce_equal_shape=True))
    assert [members for members, _ in played.batches] == ["a b", "c d", "e"]
    assert played.rules == ["excluded", "excluded", "delay_exceeded"]
    played = play(AtMost(2), [A(id, 0) for id in "abcde"])
    assert played.batches == [("a b", 10.0), ("c d", 11.0), ("e", 12.0)]


def test_requests_keep_their_order() -> None:
    played = play(ByFirstLetter(8), [A(id, 0) for id in ("a1", "a2", "b1", "a3", "a4")])
    assert [members for members, _ in played.batches] == ["a1 a2", "b1", "a3 a4"]


def test_request_that_is_always_excluded_is_executed_alone() -> None:
    played = play(AtMost(0), [A(id, 0) for id in "ab"])
    assert [members for members, _ in played.batches] == ["a", "b"]


def test_batching_strategy_sees_every_request_that_joins() -> None:
    # B runs for 50 ms; a and b are ready after 10 ms and wait, c and d arrive before B ends.
    strategy = AtMost(3)
    played = play(strategy, [A("B", 0, run=50), *(A(id, 15) for id in "ab"), *(A(id, 30) for id in "cd")])
    assert played.batches[0] == ("B", 10.0)
    assert all(len(members.split()) <= 3 for members, _ in played.batches)
    assert strategy.open <= 1


@pytest.mark.parametrize("prefetching", [True, False])
@given(
    limit=st.integers(0, 5),
    arrivals=st.lists(st.tuples(st.integers(0, 40), st.integers(1, 4), st.integers(1, 20)), max_size=12),
    preferred=st.sampled_from([(8,), (2, 4), (4,)]),
    delay=st.sampled_from([0, 5, 20]),
)
def test_no_batch_has_more_requests_than_the_strategy_admits(
    prefetching: bool, limit: int, arrivals: list[tuple[int, int, int]], preferred: tuple[int, ...], delay: int
) -> None:
    settings = replace(EIGHT, preferred_batch_sizes=preferred, max_queue_delay_ns=delay * MS)
    if not prefetching:
        settings = replace(settings, queue=replace(settings.queue, priority_levels=2, default_priority_level=1))
    strategy = AtMost(limit)
    requests = [A(f"r{index}", at, size, run) for index, (at, size, run) in enumerate(sorted(arrivals))]
    played = play(strategy, requests, settings)
    batches = [members.split() for members, _ in played.batches]
    assert sorted(id for batch in batches for id in batch) == sorted(request.id for request in requests)
    assert all(len(batch) <= max(1, limit) for batch in batches)
    assert strategy.open <= 1
