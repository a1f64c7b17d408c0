"""Workloads, arrival by arrival."""

from __future__ import annotations

import re
from itertools import islice

import pytest

from tritonnb.core.errors import InvalidArgumentError
from tritonnb.simulation import Arrival, ClosedLoop, bursts, constant, poisson, sequences
from tritonnb.simulation.arrivals import arrivals_of, require_positive, times_us


def times(arrivals: list[Arrival]) -> list[float]:
    return [each.time_us for each in arrivals]


def test_a_constant_rate_fills_the_duration() -> None:
    assert times(constant(rate=1000, duration=0.0041)) == [0, 1000, 2000, 3000]
    assert {each.size for each in constant(100, 0.1, size=3)} == {3}


def test_bursts_come_every_so_often_within_the_duration() -> None:
    assert times(bursts(2, every_ms=10, duration=0.03)) == [0, 0, 10_000, 10_000, 20_000, 20_000]
    assert len(bursts(1, every_ms=1, duration=2)) == 2000
    assert len(bursts(1, every_ms=0.1, duration=0.0007)) == 7
    assert {each.size for each in bursts(1, 1, 0.01, size=3)} == {3}


def test_independent_clients_send_at_their_rate_within_the_duration_as_the_seed_says() -> None:
    arrivals = poisson(rate=1000, duration=2, seed=1, size=3)
    assert len(arrivals) == pytest.approx(2000, rel=0.1)
    assert 1.9e6 < arrivals[-1].time_us < 2e6
    assert {each.size for each in arrivals} == {3}
    assert arrivals == poisson(rate=1000, duration=2, seed=1, size=3)
    assert arrivals != poisson(rate=1000, duration=2, seed=2, size=3)


@pytest.mark.parametrize(
    ("process", "first"), [("constant", [0, 100, 200, 300, 400]), ("burst", [0, 0, 200, 200, 400])]
)
def test_an_open_loop_has_no_end(process: str, first: list[float]) -> None:
    assert list(islice(times_us(process, rate=10_000, burst=2), 5)) == first


def test_a_burst_is_one_request_unless_said() -> None:
    assert list(islice(times_us("burst", rate=10_000), 2)) == [0, 100]


def test_requests_of_a_sequence_come_at_equal_distances_between_start_and_end() -> None:
    arrivals = sequences([2, 1, 3], every_us=10, stagger_us=4)
    assert [(each.sequence_id, each.time_us, each.sequence_start, each.sequence_end) for each in arrivals] == [
        (1, 0, True, False),
        (2, 4, True, True),
        (3, 8, True, False),
        (1, 10, False, True),
        (3, 18, False, False),
        (3, 28, False, True),
    ]


def test_an_arrival_is_one_row_and_asks_for_nothing_special() -> None:
    assert Arrival(7) == Arrival(7, 1, 0, 0, 0, False, False, None, None)


def test_pairs_of_time_and_rows_are_arrivals_too() -> None:
    assert list(arrivals_of([(5, 2), Arrival(7)])) == [Arrival(5, 2), Arrival(7, 1)]
    for wrong in ((1, 2, 3), 5, {0, 1}):
        with pytest.raises(InvalidArgumentError, match=f"got {re.escape(str(wrong))}"):
            list(arrivals_of([wrong]))
    with pytest.raises(InvalidArgumentError, match="arrivals are a list"):
        list(arrivals_of(5))


@pytest.mark.parametrize(
    ("time_us", "size"), [(-1, 1), (float("inf"), 1), (float("nan"), 1), (0, 0), (0, 1.5), ("0", 1)]
)
def test_an_arrival_has_a_time_and_rows(time_us: float, size: int) -> None:
    with pytest.raises(InvalidArgumentError, match="an arrival has a time"):
        Arrival(time_us, size)


@pytest.mark.parametrize(
    ("make", "name"),
    [
        (lambda: ClosedLoop(0, 1), "clients"),
        (lambda: ClosedLoop(1, 0), "requests"),
        (lambda: ClosedLoop(1, 1, size=0), "size"),
        (lambda: constant(0, 1), "rate"),
        (lambda: constant(1, 0), "duration"),
        (lambda: poisson(0, 1, seed=0), "rate"),
        (lambda: poisson(1, 0, seed=0), "duration"),
        (lambda: bursts(0, 1, 1), "requests"),
        (lambda: bursts(1, 0, 1), "every_ms"),
        (lambda: bursts(1, 1, 0), "duration"),
        (lambda: sequences([1, 0], every_us=1), "length"),
        (lambda: require_positive(other="text"), "other"),
    ],
)
def test_what_is_not_positive_is_named(make, name: str) -> None:
    with pytest.raises(InvalidArgumentError, match=f"^{name} must be positive"):
        make()


def test_no_time_to_think_is_fine_and_less_is_not() -> None:
    assert ClosedLoop(1, 1, think_us=0).size == 1
    with pytest.raises(InvalidArgumentError, match="think_us must not be negative"):
        ClosedLoop(1, 1, think_us=-1)
    require_positive(rate=None, duration=0.1)


def test_lengths_that_are_no_list_are_refused() -> None:
    with pytest.raises(InvalidArgumentError, match="lengths are a list"):
        sequences(3, every_us=1)
