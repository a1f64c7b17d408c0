"""Late merging: what joins the payload that an instance takes."""

from __future__ import annotations

from collections import deque
from dataclasses import replace
from typing import Any

import pytest

from tests.scheduling.harness import MS, Arrival, Play
from tritonnb.core.schedulable import Schedulable
from tritonnb.scheduling.dynamic_batcher import DynamicBatcher
from tritonnb.scheduling.payload import Payload
from tritonnb.scheduling.policy import DynamicBatcherSettings

EIGHT = DynamicBatcherSettings(max_batch_size=8, preferred_batch_sizes=(8,), max_queue_delay_ns=5 * MS)


def payload(*rows: int, oldest_ms: int = 0, key: Any = None, closed: bool = False) -> Payload:
    formed = Payload(oldest_ms * MS)
    formed.add([Schedulable(f"{size}", batch_size=size, batch_key=key) for size in rows], oldest_ms * MS)
    formed.closed = closed
    return formed


def merged(first: Payload, *others: Payload, now_ns: int = 20 * MS) -> tuple[int, int, int]:
    """The number of requests that joined the first, its rows then, and the number of those left."""
    followers = deque(others)
    count = first.merge(followers, EIGHT, now_ns)
    assert first.rows == sum(request.batch_size for request in first.requests)
    return count, first.rows, len(followers)


def test_payloads_join_up_to_max_batch_size_until_one_does_not_fit() -> None:
    assert merged(payload(1, 1), payload(3), payload(2, 1)) == (2, 8, 0)
    assert merged(payload(4), payload(2), payload(3), payload(1)) == (1, 6, 2)


def test_payload_joins_once_its_oldest_request_exceeds_the_delay() -> None:
    assert merged(payload(1), payload(1, oldest_ms=10), now_ns=15 * MS) == (0, 1, 1)
    assert merged(payload(1), payload(1, oldest_ms=10), now_ns=15 * MS + 1) == (1, 2, 0)


def test_payloads_are_not_merged_without_a_delay() -> None:
    followers = deque([payload(1)])
    assert payload(1).merge(followers, replace(EIGHT, max_queue_delay_ns=0), 20 * MS) == 0


@pytest.mark.parametrize("other", [{"key": "other"}, {"closed": True}])
def test_payloads_with_differing_inputs_are_not_merged(other: dict[str, Any]) -> None:
    assert merged(payload(1), payload(1, **other), payload(1)) == (0, 1, 2)


def test_payload_that_ended_because_inputs_differ_does_not_grow() -> None:
    assert merged(payload(1, closed=True), payload(1)) == (0, 1, 1)


def test_differing_inputs_within_a_possible_batch_prevent_merging() -> None:
    """``a`` is sent since ``b`` goes beyond the preferred size, but its pass met ``odd``, too."""
    settings = DynamicBatcherSettings(16, preferred_batch_sizes=(4,), max_queue_delay_ns=300 * MS)
    line = [Arrival("B", 0, 16, run=1000), Arrival("p", 10, 4, key="p"), Arrival("q", 20, 4, key="q", run=400)]
    line += [Arrival(name, 900 + index, 3, key="same") for index, name in enumerate("abc")]
    play = Play(DynamicBatcher(settings, 1), line)
    assert [who for who, _ in play.batches] == ["B", "p", "q", "a b", "c"]
    play = Play(DynamicBatcher(settings, 1), [*line, Arrival("odd", 910, key="odd")])
    assert [who for who, _ in play.batches] == ["B", "p", "q", "a", "b", "c", "odd"]


def test_payload_that_ended_because_inputs_differ_stays_closed_after_a_cancellation() -> None:
    settings = replace(EIGHT, max_queue_delay_ns=5 * MS)
    line = [Arrival("B", 0, 8, run=100), Arrival("a", 20), Arrival("odd", 30, key="odd", cancel_at=32)]
    play = Play(DynamicBatcher(settings, 1), [*line, Arrival("b", 50)])
    assert [who for who, _ in play.batches] == ["B", "a", "b"]


def test_payload_that_did_not_fit_into_the_previous_one_does_not_grow() -> None:
    settings = replace(EIGHT, max_queue_delay_ns=300 * MS)
    line = [Arrival("B", 0, 8, run=1500), Arrival("a", 50, 6, run=600), Arrival("b", 100, 3), Arrival("x", 1950, 5)]
    play = Play(DynamicBatcher(settings, 1), line)
    assert play.batches == [("B", 0), ("a", 1500), ("b", 2100), ("x", 2250)]


@pytest.mark.parametrize(
    ("later", "expected"),
    [
        ([Arrival("b", 360), Arrival("c", 370)], [("a", 600), ("b c", 660)]),
        ([Arrival("b", 360), Arrival("c", 370, 3)], [("a b c", 600)]),
    ],
)
def test_waiting_payload_takes_later_arrivals_once_they_reach_the_next_preferred_size(
    later: list[Arrival], expected: list[tuple[str, float]]
) -> None:
    settings = replace(EIGHT, preferred_batch_sizes=(4, 8), max_queue_delay_ns=300 * MS)
    line = [Arrival("B", 0, 8, run=600), Arrival("a", 50), *later]
    assert Play(DynamicBatcher(settings, 1), line).batches == [("B", 0), *expected]


def test_waiting_payload_of_a_preferred_size_grows_only_to_the_next() -> None:
    settings = replace(EIGHT, preferred_batch_sizes=(2, 8), max_queue_delay_ns=300 * MS)
    line = [Arrival("B", 0, 8, run=100), Arrival("a", 10), Arrival("b", 20), Arrival("c", 30)]
    assert Play(DynamicBatcher(settings, 1), line).batches == [("B", 0), ("a b", 100), ("c", 330)]
    play = Play(DynamicBatcher(settings, 1), [*line, Arrival("d", 40, 5)])
    assert play.batches == [("B", 0), ("a b c d", 100)]
