"""Counters of intervals: their sums and maxima are those of what happened, at every length of the intervals."""

from __future__ import annotations

from typing import NamedTuple

from hypothesis import given
from hypothesis import strategies as st

import tritonnb as tnb
from tritonnb.core.packed_events import pack
from tritonnb.notebook.activity import Activity
from tritonnb.notebook.interval_counters import (
    LANE_COUNTERS,
    Counters,
    MergedIntervals,
    QueueDepth,
    merge_into,
)
from tritonnb.notebook.view_session import ViewSession

WIDTH = 10


class Execution(NamedTuple):
    start: int
    end: int
    rows: int


def counters_of(batches: list[Execution]) -> Counters:
    counters = Counters(0, WIDTH)
    for batch in batches:
        counters.add_execution("m_0", batch.start, batch.end, batch.rows)
    return counters


executions = st.lists(
    st.builds(
        lambda start, length, rows: Execution(start, start + length, rows),
        st.integers(0, 500),
        st.integers(1, 60),
        st.integers(1, 8),
    ),
    max_size=30,
)
#: Differences of times, and depths after each.
changes = st.lists(st.tuples(st.integers(0, 25), st.integers(0, 9)), max_size=30)


def at_times(steps: list[tuple[int, int]]) -> list[tuple[int, int]]:
    now = 0
    return [(now := now + step, depth) for step, depth in steps]


@given(executions)
def test_sums_and_maxima_of_executions_are_kept(batches: list[Execution]) -> None:
    lane = counters_of(batches).lanes.get("m_0", {})
    assert sum(values[0] for values in lane.values()) == sum(batch.end - batch.start for batch in batches)
    assert sum(values[1] for values in lane.values()) == len(batches)
    assert sum(values[2] for values in lane.values()) == sum(batch.rows for batch in batches)
    for at, (_, _, _, largest) in lane.items():
        inside = [batch.rows for batch in batches if batch.start < (at + 1) * WIDTH and batch.end > at * WIDTH]
        assert largest == max(inside)


@given(changes, st.integers(0, 9))
def test_queue_depths_are_exact_at_every_time(steps: list[tuple[int, int]], before: int) -> None:
    path = at_times(steps)
    end = (path[-1][0] if path else 0) + 7
    counters, queue = Counters(0, WIDTH), QueueDepth(before, 0)
    for time, now in path:
        queue.change(time, now - queue.now, counters)
    assert queue.take_changes(end, counters) == [(0, before), *path]
    counted = counters.queue
    depths = [before] * end  # at each moment
    for time, depth in path:
        depths[time:] = [depth] * (end - time)
    for at in range(end // WIDTH + 1):
        moments = depths[at * WIDTH : (at + 1) * WIDTH]
        most, waited, *_ = counted.get(at, [0, 0, 0, 0])
        assert waited == sum(moments)
        instants = [depth for time, depth in [(0, before), *path] if at * WIDTH <= time < (at + 1) * WIDTH]
        assert most == max([*moments, *instants], default=0)


@given(executions, st.integers(1, 8), st.integers(1, 6))
def test_merged_intervals_equal_the_sum_of_their_parts(batches: list[Execution], keep: int, parts: int) -> None:
    merged = MergedIntervals(LANE_COUNTERS, keep)
    whole: dict[int, list[int]] = {}
    for part in range(parts):
        for lane in counters_of(batches[part::parts]).lanes.values():
            merged.add(lane)
            for at, values in lane.items():
                merge_into(whole, at, values, list(LANE_COUNTERS.values()))
    levels = merged.encode()
    for name, position in (("busy", 0), ("batches", 1), ("rows", 2)):
        assert sum(sum(level[name]) for level in levels) == sum(values[position] for values in whole.values())
    assert max((max(level["largest"], default=0) for level in levels), default=0) == max(
        (values[3] for values in whole.values()), default=0
    )
    for level, columns in enumerate(levels):
        assert all(at >= columns["from"][0] for at in columns["at"])
        assert len(columns["at"]) <= 2 * keep + 2, level


def test_slots_are_counted_with_requests_and_with_null_requests() -> None:
    counters = Counters(0, WIDTH)
    counters.add_slot("m_0", 0, 5, 15, null=False)
    counters.add_slot("m_0", 1, 5, 15, null=True)
    counters.add_slot("m_0", 1, 15, 20, null=False)
    assert counters.slots == {
        "m_0 0": {0: [5, 0], 1: [5, 0]},
        "m_0 1": {0: [0, 5], 1: [5, 5]},
    }


def test_refusals_and_waits_are_counted_when_they_end() -> None:
    counters = Counters(100, WIDTH)
    for time in (103, 104, 117):
        counters.add_refusal(time)
    for wait in (30, 20):
        counters.add_wait(109, wait)
    assert counters.queue == {0: [0, 0, 2, 30], 1: [0, 0, 1, 0]}


def test_time_before_the_first_event_is_not_counted() -> None:
    counters = Counters(100, WIDTH)
    counters.add_execution("m_0", 95, 108, rows=2)
    counters.add_slot("m_0", 0, 95, 108, null=False)
    counters.add_depth(3, 90, 105)
    assert (counters.lanes, counters.slots) == ({"m_0": {0: [8, 1, 2, 2]}}, {"m_0 0": {0: [8, 0]}})
    assert counters.queue == {0: [3, 15, 0, 0]}


def test_dashboard_and_view_have_equal_counts() -> None:
    config = 'name: "m" max_batch_size: 8 dynamic_batching { }'
    rec = tnb.simulate(config, tnb.poisson(300, 3, seed=1), tnb.linear(2, 1))
    begin, end = rec.span_ns
    packed = list(map(pack, rec.events))
    activity = Activity(begin)
    activity.fold(packed)
    seconds = activity.last("m", activity.number_at(end) + 1, activity.number_at(end) + 1)
    session = ViewSession("m", rec.configs["m"], begin)
    session.tracker.fold(packed)
    lanes = session.flush(end)["counters"]["lanes"].values()
    for name, of_activity in (("busy", "busy_ns"), ("batches", "batches"), ("rows", "rows")):
        assert sum(sum(lane[name]) for lane in lanes) == sum(getattr(second, of_activity) for second in seconds), name
    assert sum(second.requests for second in seconds) == len(rec.requests)
