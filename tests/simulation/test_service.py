"""Service-time models, in nanoseconds."""

from __future__ import annotations

import pytest

from tritonnb.core.errors import InvalidArgumentError
from tritonnb.simulation import fixed, jittered, linear, measured, table
from tritonnb.simulation.service import seeded


def test_times_follow_their_models() -> None:
    assert [fixed(0.5)(rows) for rows in (1, 8)] == [500_000, 500_000]
    assert [linear(alpha_ms=2, tau0_ms=3)(rows) for rows in (1, 4)] == [5_000_000, 11_000_000]


@pytest.mark.parametrize(("rows", "ms"), [(1, 6), (2, 8), (3, 10), (4, 11), (6, 13), (8, 15), (10, 17)])
def test_between_the_points_of_a_table_lines_are_straight_and_beyond_them_they_go_on(rows: int, ms: float) -> None:
    assert table({8: 15, 2: 8, 3: 10})(rows) == ms * 1_000_000


def test_no_line_goes_below_nothing() -> None:
    assert table({2: 1, 4: 9})(1) == 0


def test_one_point_is_the_time_of_every_batch() -> None:
    assert [table({2: 5})(rows) for rows in (1, 2, 9)] == [5_000_000] * 3


def test_a_table_needs_points_and_statistics_an_execution() -> None:
    for nothing in ({}, 5):
        with pytest.raises(InvalidArgumentError, match="at least one batch size"):
            table(nothing)
    for unused in ({}, {"batch_stats": []}):
        with pytest.raises(InvalidArgumentError, match="no execution"):
            measured(unused)


def test_statistics_give_the_mean_time_of_each_batch_size() -> None:
    def entry(size: int, count: int, *totals_ns: int) -> dict:
        parts = zip(("compute_input", "compute_infer", "compute_output"), totals_ns, strict=True)
        return {"batch_size": size, **{name: {"count": count, "ns": ns} for name, ns in parts}}

    service = measured({"batch_stats": [entry(1, 2, 2_000_000, 8_000_000, 4_000_000), entry(3, 1, 0, 9_000_000, 0)]})
    assert [service(rows) for rows in (1, 2, 3)] == [7_000_000, 8_000_000, 9_000_000]


def test_a_random_factor_comes_from_the_seed_and_has_median_one() -> None:
    model = jittered(fixed(10), sigma=0.5)
    assert model(1) == 10_000_000
    first, same, other = (seeded(model, seed) for seed in (1, 1, 2))
    times = [first(1) for _ in range(999)]
    assert times == [same(1) for _ in range(999)]
    assert times != [other(1) for _ in range(999)]
    assert sorted(times)[499] == pytest.approx(10_000_000, rel=0.1)
    assert seeded(jittered(fixed(10), sigma=0), 1)(1) == 10_000_000


def test_without_a_random_factor_the_seed_changes_nothing() -> None:
    service = fixed(10)
    assert seeded(service, 5) is service
