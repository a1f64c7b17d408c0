"""Service-time models, in nanoseconds."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import pytest

from tritonnb.core.errors import InvalidArgumentError
from tritonnb.lab.simulation.service import (
    ExecutionTimes,
    Service,
    fixed,
    jittered,
    linear,
    measured,
    service_time,
    table,
)
from tritonnb.lab.simulation.simulate import simulate


def test_fixed_and_linear_service_times_have_the_specified_duration() -> None:
    assert [fixed(0.5)(rows) for rows in (1, 8)] == [500_000, 500_000]
    assert [linear(per_row_ms=2, base_ms=3)(rows) for rows in (1, 4)] == [5_000_000, 11_000_000]


@pytest.mark.parametrize(("unit", "expected"), [("ns", 50), ("us", 50_000), ("ms", 50_000_000), ("s", 50_000_000_000)])
def test_service_time_function_declares_its_unit(unit: str, expected: int) -> None:
    assert service_time(lambda rows: 25 * rows, unit=unit)(2) == expected


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: service_time(5, unit="ms"), "service_time expected a function from rows to a time, got 5"),  # type: ignore[arg-type]
        (
            lambda: service_time(lambda rows: 5, unit="min"),
            "service_time: unit expected one of ns, us, ms, s, got 'min'",
        ),
        (
            lambda: service_time(lambda rows: None, unit="ms")(2),  # type: ignore[arg-type, return-value]
            "expected a time in ms of at least 0 for 2 rows, got None",
        ),
        (lambda: fixed(-1)(1), "expected a time in ms of at least 0 for 1 row, got -1"),
    ],
)
def test_invalid_service_time_is_refused_in_its_unit(make: Callable[..., Any], words: str) -> None:
    with pytest.raises(InvalidArgumentError, match=words):
        make()


def five(rows: int) -> float:
    return 50


@pytest.mark.parametrize("service", [five, jittered(five, sigma=0)])
def test_function_without_a_unit_that_returns_less_than_a_microsecond_warns_once(service: Service) -> None:
    with pytest.warns(UserWarning, match=r"50 ns for 1 row; wrap it as tnb\.service_time\(five, unit='ms'\)") as warned:
        simulate("max_batch_size: 1", [(0, 1), (1, 1)], service)
    assert [warning.filename for warning in warned] == [__file__]


def test_warning_names_the_line_of_the_what_if_call() -> None:
    recording = simulate("max_batch_size: 1", [(0, 1)], fixed(1))
    with pytest.warns(UserWarning, match="50 ns for 1 row") as warned:
        recording.what_if(count=2, service=five)
    assert {warning.filename for warning in warned} == {__file__}


@pytest.mark.parametrize(
    "service",
    [fixed(0.0005), service_time(five, unit="ns"), lambda rows: 5_000_000, lambda rows: 0],
    ids=("fixed", "timed", "slow", "zero"),
)
def test_time_with_a_unit_or_a_plausible_one_does_not_warn(service: Service) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        simulate("max_batch_size: 1", [(0, 1)], service)


@pytest.mark.parametrize(("rows", "ms"), [(1, 6), (2, 8), (3, 10), (4, 11), (6, 13), (8, 15), (10, 17)])
def test_service_table_interpolates_and_extrapolates_linearly(rows: int, ms: float) -> None:
    assert table({8: 15, 2: 8, 3: 10})(rows) == ms * 1_000_000


def test_service_time_never_extrapolates_below_zero() -> None:
    assert table({2: 1, 4: 9})(1) == 0


def test_table_with_one_point_is_constant() -> None:
    assert [table({2: 5})(rows) for rows in (1, 2, 9)] == [5_000_000] * 3


def test_service_table_without_points_or_executions_is_refused() -> None:
    for nothing in ({}, 5):  # type: ignore[var-annotated]
        with pytest.raises(InvalidArgumentError, match="batch sizes to milliseconds with at least one entry"):
            table(nothing)  # type: ignore[arg-type]
    for unused in ({}, {"batch_stats": []}):  # type: ignore[var-annotated]
        with pytest.raises(InvalidArgumentError, match="at least one execution"):
            measured(unused)


def test_statistics_contain_the_mean_time_of_each_batch_size() -> None:
    def entry(size: int, count: int, *totals_ns: int) -> dict[str, Any]:
        parts = zip(("compute_input", "compute_infer", "compute_output"), totals_ns, strict=True)
        return {"batch_size": size, **{name: {"count": count, "ns": ns} for name, ns in parts}}

    service = measured({"batch_stats": [entry(1, 2, 2_000_000, 8_000_000, 4_000_000), entry(3, 1, 0, 9_000_000, 0)]})
    assert [service(rows) for rows in (1, 2, 3)] == [7_000_000, 8_000_000, 9_000_000]


def test_jitter_follows_the_seed_and_has_median_one() -> None:
    model = jittered(fixed(10), sigma=0.5)
    assert model(1) == 10_000_000
    first, same, other = (ExecutionTimes(model, seed) for seed in (1, 1, 2))
    times = [first(1) for _ in range(999)]
    assert times == [same(1) for _ in range(999)]
    assert times != [other(1) for _ in range(999)]
    assert sorted(times)[499] == pytest.approx(10_000_000, rel=0.1)
    assert ExecutionTimes(jittered(fixed(10), sigma=0), 1)(1) == 10_000_000


def test_seed_has_no_effect_without_jitter() -> None:
    assert [ExecutionTimes(fixed(10), seed)(1) for seed in (1, 5)] == [10_000_000] * 2
