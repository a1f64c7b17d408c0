"""Lanes of a timeline."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tritonnb.telemetry.lanes import assign_lanes

intervals = st.lists(st.tuples(st.integers(0, 50), st.integers(0, 20))).map(
    lambda pairs: sorted((begin, begin + duration) for begin, duration in pairs)
)


@pytest.mark.parametrize(
    ("spans", "lanes"),
    [
        ([], []),
        ([(0, 5)], [0]),
        ([(0, 5), (5, 6)], [0, 0]),
        ([(0, 5), (4, 6)], [0, 1]),
        ([(0, 9), (1, 3), (2, 9), (3, 4)], [0, 1, 2, 1]),
        ([(3, 3), (3, 3)], [0, 0]),
        ([(0.5, 1.5), (1.0, 2.0)], [0, 1]),
    ],
)
def test_interval_uses_the_lowest_free_lane(spans: list[tuple[int, int]], lanes: list[int]) -> None:
    assert assign_lanes(spans) == lanes


@given(intervals)
def test_intervals_in_one_lane_do_not_overlap(spans: list[tuple[int, int]]) -> None:
    ends: dict[int, float] = {}
    for (begin, end), lane in zip(spans, assign_lanes(spans), strict=True):
        assert ends.get(lane, begin) <= begin
        ends[lane] = end


@given(intervals)
def test_every_lower_lane_is_busy_when_an_interval_begins(spans: list[tuple[int, int]]) -> None:
    ends: dict[int, float] = {}
    for (begin, end), lane in zip(spans, assign_lanes(spans), strict=True):
        assert all(ends[lower] > begin for lower in range(lane))
        ends[lane] = end
