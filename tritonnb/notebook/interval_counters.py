"""Exact counters of a model for each interval of time, whatever its rate, and their merging into longer intervals.

A view draws single batches only where they are wide enough to be seen. Elsewhere it draws columns, and a column shows
what these counters hold for its interval: busy time, number of batches, rows and largest batch of each instance, and
the deepest queue. Sums and maxima of short intervals give those of long ones, so nothing is sampled. A dashboard
counts in the same way, in intervals of a second.
"""

from __future__ import annotations

import operator
from array import array
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

#: How two values of a counter are merged.
Merge = Callable[[Any, Any], Any]
#: What is encoded: for each level a first index and the columns ``at``, then one per counter.
Columns = dict[str, list[int]]

#: The counters of an instance: ns executed, batches and rows whose execution began, rows of the largest batch executed.
LANE_COUNTERS: dict[str, Merge] = {
    "busy": operator.add, "batches": operator.add, "rows": operator.add, "largest": max,
}  # fmt: skip
#: The counters of a batch slot: ns executed with a request, and with a null request.
SLOT_COUNTERS: dict[str, Merge] = {"busy": operator.add, "nulls": operator.add}
#: The counters of the queue: its maximum depth, request-ns waited, requests refused, and the longest wait (ns) of the
#: requests that were sent.
QUEUE_COUNTERS: dict[str, Merge] = {"depth": max, "waited": operator.add, "refused": operator.add, "wait": max}
#: The counters of the requests that succeeded, when they end: their number, ns waited and ns executed, and their
#: latencies (ns) as an array.
REQUEST_COUNTERS: dict[str, Merge] = {
    "requests": operator.add, "queue": operator.add, "compute": operator.add, "latencies": operator.add,
}  # fmt: skip


@dataclass(slots=True)
class Execution:
    """A batch that was executed, in ns since the begin of the intervals.

    ``slots`` are its batch slots with whether a null request is in each; empty if the model is stateless.
    """

    instance: str
    start: int
    end: int
    rows: int
    slots: Sequence[tuple[int, bool]] = ()


@dataclass(slots=True)
class Counters:
    """Counters of one period: by name of a lane, and in each by the index of an interval, the values in order."""

    lanes: dict[str, dict[int, list[int]]] = field(default_factory=dict)
    slots: dict[str, dict[int, list[int]]] = field(default_factory=dict)
    queue: dict[int, list[int]] = field(default_factory=dict)
    requests: dict[int, list[Any]] = field(default_factory=dict)


def count(
    width: int,
    executions: Iterable[Execution],
    refusals: Iterable[int] = (),
    waits: Iterable[tuple[int, int]] = (),
    requests: Iterable[tuple[int, int, int, int]] = (),
) -> Counters:
    """Count what happened in intervals of ``width`` ns.

    Parameters
    ----------
    width : int
    executions : iterable of Execution
    refusals : iterable of int
        The time of each refusal.
    waits : iterable of tuple of int
        When a batch was sent, and how long its oldest request had waited.
    requests : iterable of tuple of int
        When a request succeeded, its latency, and the part of it that it waited and was executed.

    Examples
    --------
    >>> count(10, [Execution("m_0", 4, 12, rows=3), Execution("m_0", 12, 15, rows=5)]).lanes
    {'m_0': {0: [6, 1, 3, 3], 1: [5, 1, 5, 5]}}
    """
    counters = Counters()
    lanes = counters.lanes
    for execution in executions:
        start, end, rows = execution.start, execution.end, execution.rows
        lane = lanes.get(execution.instance)
        if lane is None:
            lane = lanes[execution.instance] = {}
        at = start // width
        values = lane.get(at)
        if values is None:
            values = lane[at] = [0, 0, 0, 0]
        values[1] += 1
        values[2] += rows
        if rows > values[3]:
            values[3] = rows
        if end <= (at + 1) * width:  # most executions are in one interval
            values[0] += end - start
        else:
            values[0] += (at + 1) * width - start
            _count_later(lane, at + 1, end, rows, width)
        for slot, null in execution.slots:
            _count_slot(counters.slots.setdefault(f"{execution.instance} {slot}", {}), start, end, null, width)
    for time in refusals:
        counters.queue.setdefault(time // width, [0, 0, 0, 0])[2] += 1
    for time, wait in waits:
        values = counters.queue.setdefault(time // width, [0, 0, 0, 0])
        values[3] = max(values[3], wait)
    for time, latency, queue, compute in requests:
        counted = counters.requests.setdefault(time // width, [0, 0, 0, array("q")])
        counted[0] += 1
        counted[1] += queue
        counted[2] += compute
        counted[3].append(latency)
    return counters


def _count_later(lane: dict[int, list[int]], first: int, end: int, rows: int, width: int) -> None:
    """Count an execution in the intervals after the one in which it began."""
    for at in range(first, (end - 1) // width + 1):
        values = lane.setdefault(at, [0, 0, 0, 0])
        values[0] += min(end, (at + 1) * width) - at * width
        values[3] = max(values[3], rows)


def _count_slot(slot: dict[int, list[int]], start: int, end: int, null: bool, width: int) -> None:
    for at in range(start // width, (end - 1) // width + 1):
        slot.setdefault(at, [0, 0])[null] += min(end, (at + 1) * width) - max(start, at * width)


def count_depths(
    width: int, changes: Sequence[tuple[int, int]], before: tuple[int, int], now: int, begin: int = 0
) -> dict[int, list[int]]:
    """Count the queue depth in intervals of ``width`` ns; values are those of `QUEUE_COUNTERS`.

    Parameters
    ----------
    width : int
    changes : sequence of tuple of int
        The time of each change and the depth after it, in order.
    before : tuple of int
        Time and depth before the first change.
    now : int
        The end of the period.
    begin : int, optional
        The begin of the intervals: other times are of the same clock.

    Examples
    --------
    >>> count_depths(10, [(4, 1), (12, 3), (14, 0)], before=(0, 0), now=30)
    {0: [1, 6, 0, 0], 1: [3, 8, 0, 0]}
    """
    counted: dict[int, list[int]] = {}
    time, depth = before[0] - begin, before[1]
    end = max(now, changes[-1][0] if changes else now)
    for changed, next_depth in (*changes, (end, 0)):
        until = changed - begin
        if until < time:
            until = time
        if depth:
            at = time // width
            values = counted.get(at)
            if values is None:
                values = counted[at] = [0, 0, 0, 0]
            if depth > values[0]:
                values[0] = depth
            if until <= (at + 1) * width:  # most are in one interval
                values[1] += depth * (until - time)
            else:
                values[1] += depth * ((at + 1) * width - time)
                _count_deep(counted, at + 1, until, depth, width)
        time, depth = until, next_depth
    return counted


def _count_deep(counted: dict[int, list[int]], first: int, until: int, depth: int, width: int) -> None:
    """Count a depth in the intervals after the one in which it began."""
    for at in range(first, (until - 1) // width + 1):
        values = counted.setdefault(at, [0, 0, 0, 0])
        values[0] = max(values[0], depth)
        values[1] += depth * (min(until, (at + 1) * width) - at * width)


def merge_into(target: dict[int, list[Any]], at: int, values: list[Any], merges: Sequence[Merge]) -> None:
    """Merge the counters of an interval into a table by index."""
    known = target.get(at)
    target[at] = values if known is None else [merge(*pair) for merge, *pair in zip(merges, known, values, strict=True)]


class MergedIntervals:
    """Counters of the intervals since the begin: short intervals for the newest, longer ones the older they are.

    Level ``n`` has intervals of 2ⁿ widths; each level keeps from ``keep`` to twice as many, so an hour takes about
    twice the memory of a minute, not 60 times.

    Parameters
    ----------
    counters : dict
        How the values of each counter are merged, by its name.
    keep : int
    levels : int, optional
        How many levels are kept: of 1, old intervals are forgotten. By default all.

    Examples
    --------
    >>> intervals = MergedIntervals({"busy": operator.add}, keep=2)
    >>> for at in range(7):
    ...     intervals.add({at: [1]})
    >>> intervals.encode()
    [{'from': [4], 'at': [4, 5, 6], 'busy': [1, 1, 1]}, {'from': [0], 'at': [0, 1], 'busy': [2, 2]}]
    """

    def __init__(self, counters: dict[str, Merge], keep: int, levels: int | None = None) -> None:
        self._names = list(counters)
        self._merges = list(counters.values())
        self._keep = keep
        self._most_levels = levels
        self._levels: list[dict[int, list[Any]]] = [{}]
        self._from = [0]  # the first index of each level

    def add(self, counted: dict[int, list[Any]]) -> None:
        """Add counters by index of the shortest interval."""
        for at, values in counted.items():
            level = 0
            while level < len(self._from) and at < self._from[level]:
                at, level = at >> 1, level + 1
            if level < len(self._from):
                merge_into(self._levels[level], at, values, self._merges)
        if counted:
            self._promote(0, max(counted))

    def at(self, index: int) -> list[Any] | None:
        """Return the counters of one of the shortest intervals, None if nothing happened or it is not kept."""
        return self._levels[0].get(index)

    def _promote(self, level: int, newest: int) -> None:
        if newest - self._from[level] < 2 * self._keep:
            return
        start = self._from[level] = (newest - self._keep) & ~1
        here = self._levels[level]
        old = {at: here.pop(at) for at in [at for at in here if at < start]}
        if level + 1 == self._most_levels:
            return
        if level + 1 == len(self._levels):
            self._levels.append({})
            self._from.append(0)
        for at, values in old.items():
            merge_into(self._levels[level + 1], at >> 1, values, self._merges)
        self._promote(level + 1, start >> 1)

    def encode(self) -> list[Columns]:
        """Return one list per counter for each level."""
        encoded: list[Columns] = []
        for start, level in zip(self._from, self._levels, strict=True):
            encoded.append({"from": [start], **encode_columns(self._names, level)})
        return encoded


def encode_columns(names: Sequence[str], counted: dict[int, list[int]]) -> Columns:
    """Encode counters by index as one list per counter, and the list ``at`` of the indices."""
    ordered = sorted(counted.items())
    columns = zip(*(values for _, values in ordered), strict=True) if ordered else [()] * len(names)
    return {
        "at": [at for at, _ in ordered],
        **{name: list(column) for name, column in zip(names, columns, strict=True)},
    }
