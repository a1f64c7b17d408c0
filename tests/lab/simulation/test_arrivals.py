"""Workloads, arrival by arrival."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from dataclasses import fields, replace
from itertools import islice
from typing import Any

import pytest

from tritonnb.core.arguments import require_positive
from tritonnb.core.errors import InvalidArgumentError
from tritonnb.lab.simulation.arrivals import (
    ClosedLoop,
    arrival_times_us,
    as_arrivals,
    bursts,
    constant,
    poisson,
    sequences,
)
from tritonnb.recording.arrivals import Arrival


def times(arrivals: list[Arrival]) -> list[float]:
    return [arrival.time_us for arrival in arrivals]


def test_constant_rate_fills_the_duration() -> None:
    assert times(constant(rate=1000, duration=0.0041)) == [0, 1000, 2000, 3000]
    assert {arrival.rows for arrival in constant(100, 0.1, rows=3)} == {3}


def test_bursts_arrive_at_equal_intervals_within_the_duration() -> None:
    assert times(bursts(2, every_ms=10, duration=0.03)) == [0, 0, 10_000, 10_000, 20_000, 20_000]
    assert len(bursts(1, every_ms=1, duration=2)) == 2000
    assert len(bursts(1, every_ms=0.1, duration=0.0007)) == 7
    assert {arrival.rows for arrival in bursts(1, 1, 0.01, rows=3)} == {3}


def test_poisson_arrivals_have_the_rate_and_follow_the_seed() -> None:
    arrivals = poisson(rate=1000, duration=2, seed=1, rows=3)
    assert len(arrivals) == pytest.approx(2000, rel=0.1)
    assert 1.9e6 < arrivals[-1].time_us < 2e6
    assert {arrival.rows for arrival in arrivals} == {3}
    assert arrivals == poisson(rate=1000, duration=2, seed=1, rows=3)
    assert arrivals != poisson(rate=1000, duration=2, seed=2, rows=3)


@pytest.mark.parametrize(
    ("process", "first"), [("constant", [0, 100, 200, 300, 400]), ("burst", [0, 0, 200, 200, 400])]
)
def test_open_loop_generator_is_endless(process: str, first: list[float]) -> None:
    assert list(islice(arrival_times_us(process, rate=10_000, burst=2), 5)) == first


def test_burst_has_one_request_by_default() -> None:
    assert list(islice(arrival_times_us("burst", rate=10_000), 2)) == [0, 100]


def test_requests_of_a_sequence_are_equidistant_between_start_and_end() -> None:
    arrivals = sequences([2, 1, 3], every_ms=10, stagger_ms=4)
    assert [
        (arrival.sequence_id, arrival.time_us / 1000, arrival.sequence_start, arrival.sequence_end)
        for arrival in arrivals
    ] == [
        (1, 0, True, False),
        (2, 4, True, True),
        (3, 8, True, False),
        (1, 10, False, True),
        (3, 18, False, False),
        (3, 28, False, True),
    ]


def test_arrival_has_the_documented_defaults() -> None:
    assert Arrival(7) == Arrival(7, 1, 0, 0, 0, False, False, None, None)


def test_positional_time_is_in_microseconds() -> None:
    assert Arrival(ms=17, rows=2) == Arrival(us=17_000, rows=2) == Arrival(17_000, 2)
    assert Arrival(ms=0.5).time_us == 500
    assert replace(Arrival(ms=1, priority=3), time_us=2) == Arrival(2, priority=3)


@pytest.mark.parametrize(("times", "number"), [({}, 0), ({"ms": 1, "us": 1000}, 2), ({"time_us": 0, "ms": 0}, 2)])
def test_arrival_with_several_times_or_none_is_refused(times: dict[str, Any], number: int) -> None:
    with pytest.raises(InvalidArgumentError, match=rf"one time, got {number}; write Arrival\(ms=17\)"):
        Arrival(**times)


@pytest.mark.parametrize("wrong", [-1, math.inf, "5"])
def test_invalid_time_is_reported_in_its_unit(wrong: float) -> None:
    with pytest.raises(
        InvalidArgumentError, match=re.escape(f"a time in ms of at least 0, and rows of at least 1, got {wrong!r}")
    ):
        Arrival(ms=wrong)


def test_pairs_of_time_and_rows_are_accepted_as_arrivals() -> None:
    assert list(as_arrivals([(5, 2), Arrival(7)])) == [Arrival(5, 2), Arrival(7, 1)]
    for wrong in ((1, 2, 3), 5, {0, 1}):
        with pytest.raises(InvalidArgumentError, match=f"got {re.escape(str(wrong))}"):
            list(as_arrivals([wrong]))  # type: ignore[list-item]
    with pytest.raises(InvalidArgumentError, match="arrivals expected a list"):
        list(as_arrivals(5))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("time_us", "size"), [(-1, 1), (float("inf"), 1), (float("nan"), 1), (0, 0), (0, 1.5), ("0", 1)]
)
def test_arrival_has_a_time_and_rows(time_us: float, size: int) -> None:
    with pytest.raises(InvalidArgumentError, match="Arrival expected a time"):
        Arrival(time_us, size)


@pytest.mark.parametrize(
    ("make", "name"),
    [
        (lambda: ClosedLoop(0, 1), "clients"),
        (lambda: ClosedLoop(1, 0), "requests"),
        (lambda: ClosedLoop(1, 1, rows=0), "rows"),
        (lambda: constant(0, 1), "rate"),
        (lambda: constant(1, 0), "duration"),
        (lambda: poisson(0, 1, seed=0), "rate"),
        (lambda: poisson(1, 0, seed=0), "duration"),
        (lambda: bursts(0, 1, 1), "requests"),
        (lambda: bursts(1, 0, 1), "every_ms"),
        (lambda: bursts(1, 1, 0), "duration"),
        (lambda: sequences([1, 0], every_ms=0.001), "length"),
        (lambda: require_positive(other="text"), "other"),  # type: ignore[arg-type]
    ],
)
def test_error_names_the_nonpositive_argument(make: Callable[..., Any], name: str) -> None:
    with pytest.raises(InvalidArgumentError, match=f"^{name} must be positive"):
        make()


def test_think_time_of_zero_is_valid_and_a_negative_one_is_not() -> None:
    assert ClosedLoop(1, 1, think_ms=0).rows == 1
    with pytest.raises(InvalidArgumentError, match="think_ms must not be negative"):
        ClosedLoop(1, 1, think_ms=-1)
    require_positive(rate=None, duration=0.1)


def test_sequence_lengths_must_be_a_list() -> None:
    with pytest.raises(InvalidArgumentError, match="lengths expected a list"):
        sequences(3, every_ms=0.001)  # type: ignore[arg-type]


def test_arrival_at_another_time_differs_only_in_its_times() -> None:
    arrival = Arrival(1000, 2, 3, 4, "sequence", True, True, "shape", 1500, 6, {"net": 3}, {"net": "other"})
    usual = Arrival(1000)
    assert [field.name for field in fields(Arrival) if getattr(arrival, field.name) == getattr(usual, field.name)] == [
        "time_us"
    ]
    assert arrival.at(5000) == replace(arrival, time_us=5000, cancel_us=5500)
    assert usual.at(0) == Arrival(0)
