"""Exact counters of a model for each interval of time at any rate, and their merging into longer intervals.

A view draws single batches only where they are wide enough to be seen. Elsewhere it draws columns, and a column shows
what these counters hold for its interval: busy time, number of batches, rows and largest batch of each instance, and
the deepest queue. Sums and maxima of short intervals give the sums and maxima of long intervals, so nothing is
sampled. The numbers of a dashboard are counted in `tritonnb.notebook.activity`. `QueueDepth` counts the depth of a
queue.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from typing import Any

from tritonnb.core.json_types import Json

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


class Counters:
    """Counters of one period: by name of a lane, and in each by the index of an interval, the values in order.

    Parameters
    ----------
    begin_ns, width_ns : int
        The begin of the first interval, and the length of each. Time before the begin is not counted.

    Examples
    --------
    >>> counters = Counters(begin_ns=100, width_ns=10)
    >>> counters.add_execution("m_0", 104, 112, rows=3)
    >>> counters.add_execution("m_0", 112, 115, rows=5)
    >>> counters.lanes
    {'m_0': {0: [6, 1, 3, 3], 1: [5, 1, 5, 5]}}
    """

    def __init__(self, begin_ns: int, width_ns: int) -> None:
        self.begin_ns = begin_ns
        self.width_ns = width_ns
        self.lanes: dict[str, dict[int, list[int]]] = {}
        self.slots: dict[str, dict[int, list[int]]] = {}
        self.queue: dict[int, list[int]] = {}

    def add_execution(self, instance: str, start_ns: int, end_ns: int, rows: int) -> None:
        """Count a batch that was executed."""
        width = self.width_ns
        start, end = self._since_begin(start_ns), end_ns - self.begin_ns
        lane = self.lanes.get(instance)
        if lane is None:
            lane = self.lanes[instance] = {}
        at = start // width
        values = lane.get(at)
        if values is None:
            values = lane[at] = [0, 0, 0, 0]
        values[1] += 1
        values[2] += rows
        if rows > values[3]:
            values[3] = rows
        next_at = (at + 1) * width
        if end <= next_at:  # most executions are in one interval
            values[0] += end - start
            return
        values[0] += next_at - start
        for later in range(at + 1, (end - 1) // width + 1):
            values = lane.setdefault(later, [0, 0, 0, 0])
            values[0] += min(end, (later + 1) * width) - later * width
            values[3] = max(values[3], rows)

    def add_slot(self, instance: str, slot: int, start_ns: int, end_ns: int, null: bool) -> None:
        """Count the execution of a request, or a null request, in a batch slot."""
        width = self.width_ns
        counted = self.slots.setdefault(f"{instance} {slot}", {})
        start, end = self._since_begin(start_ns), end_ns - self.begin_ns
        for at in range(start // width, (end - 1) // width + 1):
            counted.setdefault(at, [0, 0])[null] += min(end, (at + 1) * width) - max(start, at * width)

    def add_depth(self, depth: int, since_ns: int, until_ns: int) -> None:
        """Count a queue depth that lasted from one time to another, which may be the same."""
        if not depth:
            return
        width = self.width_ns
        since, until = self._since_begin(since_ns), until_ns - self.begin_ns
        at = since // width
        values = self._queue_at(at)
        if depth > values[0]:
            values[0] = depth
        next_at = (at + 1) * width
        if until <= next_at:  # most are in one interval
            values[1] += depth * (until - since)
            return
        values[1] += depth * (next_at - since)
        for later in range(at + 1, (until - 1) // width + 1):
            values = self._queue_at(later)
            values[0] = max(values[0], depth)
            values[1] += depth * (min(until, (later + 1) * width) - later * width)

    def add_refusal(self, time_ns: int) -> None:
        """Count a request that was refused."""
        self._queue_at((time_ns - self.begin_ns) // self.width_ns)[2] += 1

    def add_wait(self, time_ns: int, wait_ns: int) -> None:
        """Count a batch that was sent: how long its oldest request had waited."""
        values = self._queue_at((time_ns - self.begin_ns) // self.width_ns)
        if wait_ns > values[3]:
            values[3] = wait_ns

    def _since_begin(self, time_ns: int) -> int:
        return time_ns - self.begin_ns if time_ns > self.begin_ns else 0

    def _queue_at(self, at: int) -> list[int]:
        values = self.queue.get(at)
        if values is None:
            values = self.queue[at] = [0, 0, 0, 0]
        return values


def merge_into(target: dict[int, list[Any]], at: int, values: list[Any], merges: Sequence[Merge]) -> None:
    """Merge the counters of an interval into a table by index."""
    known = target.get(at)
    target[at] = values if known is None else [merge(*pair) for merge, *pair in zip(merges, known, values, strict=True)]


class MergedIntervals:
    """Counters of the intervals since the begin: short for the newest, longer for older intervals.

    Level ``n`` has intervals of 2ⁿ widths; each level keeps from ``keep`` to twice as many, so an hour takes about
    twice the memory of a minute, not 60 times.

    Parameters
    ----------
    counters : dict
        How the values of each counter are merged, by its name.
    keep : int

    Examples
    --------
    >>> intervals = MergedIntervals({"busy": operator.add}, keep=2)
    >>> for at in range(7):
    ...     intervals.add({at: [1]})
    >>> intervals.encode()
    [{'from': [4], 'at': [4, 5, 6], 'busy': [1, 1, 1]}, {'from': [0], 'at': [0, 1], 'busy': [2, 2]}]
    """

    def __init__(self, counters: dict[str, Merge], keep: int) -> None:
        self._names = list(counters)
        self._merges = list(counters.values())
        self._keep = keep
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

    def _promote(self, level: int, newest: int) -> None:
        if newest - self._from[level] < 2 * self._keep:
            return
        start = self._from[level] = (newest - self._keep) & ~1
        here = self._levels[level]
        old = {at: here.pop(at) for at in [at for at in here if at < start]}
        if level + 1 == len(self._levels):
            self._levels.append({})
            self._from.append(0)
        for at, values in old.items():
            merge_into(self._levels[level + 1], at >> 1, values, self._merges)
        self._promote(level + 1, start >> 1)

    def encode(self) -> list[Columns]:
        """Return one list per counter for each level."""
        levels = zip(self._from, self._levels, strict=True)
        return [{"from": [start], **encode_columns(self._names, level)} for start, level in levels]


def encode_columns(names: Sequence[str], counted: dict[int, list[int]]) -> Columns:
    """Encode counters by index as one list per counter, and the list ``at`` of the indices."""
    ordered = sorted(counted.items())
    columns = zip(*(values for _, values in ordered), strict=True) if ordered else [()] * len(names)
    return {
        "at": [at for at, _ in ordered],
        **{name: list(column) for name, column in zip(names, columns, strict=True)},
    }


class QueueDepth:
    """The depth of a queue, counted over time, and its changes.

    Parameters
    ----------
    depth : int
        The initial depth.
    since_ns : int
        The time of ``depth``.
    most : int, optional
        How many changes are recorded between two calls of `take_changes`; by default all.

    Attributes
    ----------
    now : int
        The current number of waiting requests.
    changes : list of tuple of int
        The changes since the last call of `take_changes`: time in ns and depth.
    """

    def __init__(self, depth: int, since_ns: int, most: int | None = None) -> None:
        self.now = depth
        self.changes: list[tuple[int, int]] = []
        self._most = most
        self._since_ns = since_ns
        self._before = since_ns, depth

    def change(self, time_ns: int, difference: int, counters: Counters) -> None:
        """Record that requests came or left the queue, and count the time until then."""
        self._count_until(time_ns, counters)
        self.now += difference
        if self._most is None or len(self.changes) < self._most:
            self.changes.append((time_ns, self.now))

    def take_changes(self, now_ns: int, counters: Counters) -> list[tuple[int, int]]:
        """Count the time until now, and return the depth at the time of the last call and the changes since then."""
        self._count_until(now_ns, counters)
        changes = [self._before, *self.changes]
        self._before, self.changes = (now_ns, self.now), []
        return changes

    def _count_until(self, time_ns: int, counters: Counters) -> None:
        if time_ns < self._since_ns:  # events of several threads are not quite in order
            time_ns = self._since_ns
        counters.add_depth(self.now, self._since_ns, time_ns)
        self._since_ns = time_ns


class ModelIntervals:
    """The counters of a model for each interval since ``begin_ns``.

    Parameters
    ----------
    begin_ns, width_ns : int
    keep : int
        How many intervals of each length are kept; see `MergedIntervals`.
    """

    def __init__(self, begin_ns: int, width_ns: int, keep: int) -> None:
        self.begin_ns = begin_ns
        self.width_ns = width_ns
        self._keep = keep
        self._queue = MergedIntervals(QUEUE_COUNTERS, self._keep)
        self._lanes: dict[str, MergedIntervals] = {}
        self._slots: dict[str, MergedIntervals] = {}

    def counters(self) -> Counters:
        """Return counters for the next period, all zero; `add` adds them."""
        return Counters(self.begin_ns, self.width_ns)

    def add(self, counted: Counters) -> None:
        """Add the counters of a period."""
        self._queue.add(counted.queue)
        for name, lane in counted.lanes.items():
            self._lanes.setdefault(name, MergedIntervals(LANE_COUNTERS, self._keep)).add(lane)
        for name, slot in counted.slots.items():
            self._slots.setdefault(name, MergedIntervals(SLOT_COUNTERS, self._keep)).add(slot)

    def encode(self) -> Json:
        """Return all counters of the picture, with longer intervals where they are old."""
        return {
            "queue": self._queue.encode(),
            "lanes": {name: lane.encode() for name, lane in self._lanes.items()},
            "slots": {name: slot.encode() for name, slot in self._slots.items()},
        }


def encode_counters(counted: Counters) -> Json:
    """Return counters of the picture encoded."""
    return {
        "queue": encode_columns(list(QUEUE_COUNTERS), counted.queue),
        "lanes": {name: encode_columns(list(LANE_COUNTERS), lane) for name, lane in counted.lanes.items()},
        "slots": {name: encode_columns(list(SLOT_COUNTERS), slot) for name, slot in counted.slots.items()},
    }
