"""Exact counters of a model for each interval of time, whatever its rate, and their merging into longer intervals.

A view draws single batches only where they are wide enough to be seen. Elsewhere it draws columns, and a column shows
what these counters hold for its interval: busy time, number of batches, rows and largest batch of each instance, and
the deepest queue. Sums and maxima of short intervals give those of long ones, so nothing is sampled.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

Longs = npt.NDArray[np.int64]
#: How two values of a counter are merged.
Merge = Callable[[int, int], int]
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


def count(
    width: int,
    executions: Iterable[Execution],
    refusals: Iterable[int] = (),
    waits: Iterable[tuple[int, int]] = (),
) -> Counters:
    """Count executions, times of refusals, and longest waits by the time of their end in intervals of ``width`` ns.

    Examples
    --------
    >>> count(10, [Execution("m_0", 4, 12, rows=3), Execution("m_0", 12, 15, rows=5)]).lanes
    {'m_0': {0: [6, 1, 3, 3], 1: [5, 1, 5, 5]}}
    """
    counters = Counters()
    for execution in executions:
        start, end, rows = execution.start, execution.end, execution.rows
        lane = counters.lanes.setdefault(execution.instance, {})
        first = start // width
        for at in range(first, max(first, (end - 1) // width) + 1):
            values = lane.get(at)
            if values is None:
                values = lane[at] = [0, 0, 0, 0]
            begin = at * width
            values[0] += (end if end < begin + width else begin + width) - (start if start > begin else begin)
            values[3] = max(values[3], rows)
        lane[first][1] += 1
        lane[first][2] += rows
        for slot, null in execution.slots:
            _count_slot(counters.slots.setdefault(f"{execution.instance} {slot}", {}), start, end, null, width)
    for time in refusals:
        counters.queue.setdefault(time // width, [0, 0, 0, 0])[2] += 1
    for time, wait in waits:
        values = counters.queue.setdefault(time // width, [0, 0, 0, 0])
        values[3] = max(values[3], wait)
    return counters


def _count_slot(slot: dict[int, list[int]], start: int, end: int, null: bool, width: int) -> None:
    for at in range(start // width, (end - 1) // width + 1):
        slot.setdefault(at, [0, 0])[null] += min(end, (at + 1) * width) - max(start, at * width)


def count_depths(
    width: int, changes: Sequence[tuple[int, int]], before: tuple[int, int], now: int
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

    Examples
    --------
    >>> count_depths(10, [(4, 1), (12, 3), (14, 0)], before=(0, 0), now=30)
    {0: [1, 6, 0, 0], 1: [3, 8, 0, 0]}
    """
    if not before[1]:
        if not changes:
            return {}
        before = changes[0]  # an empty queue needs no intervals
    flat = np.array([before, *changes, (max(now, changes[-1][0] if changes else now), 0)], np.int64)
    times, depths = np.maximum.accumulate(flat[:, 0]), flat[:, 1]
    bounds = np.arange(times[0] // width + 1, times[-1] // width + 1, dtype=np.int64) * width
    at_bounds = depths[np.searchsorted(times, bounds, "right") - 1]
    order = np.argsort(np.concatenate([times[:-1], bounds]), kind="stable")
    begins = np.concatenate([times[:-1], bounds])[order]
    depth = np.concatenate([depths[:-1], at_bounds])[order]
    waited = depth * np.diff(begins, append=times[-1])
    index = begins // width
    starts = np.flatnonzero(np.diff(index, prepend=index[0] - 1))
    deepest, sums = np.maximum.reduceat(depth, starts), np.add.reduceat(waited, starts)
    filled = deepest > 0
    rows = zip(index[starts][filled].tolist(), deepest[filled].tolist(), sums[filled].tolist(), strict=True)
    return {at: [most, total, 0, 0] for at, most, total in rows}


def merge_into(target: dict[int, list[int]], at: int, values: list[int], merges: Sequence[Merge]) -> None:
    """Merge the counters of an interval into a table by index."""
    known = target.get(at)
    target[at] = values if known is None else [merge(*pair) for merge, *pair in zip(merges, known, values, strict=True)]


class MergedIntervals:
    """Counters of all intervals since the begin: short intervals for the newest, longer ones the older they are.

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
        self._levels: list[dict[int, list[int]]] = [{}]
        self._from = [0]  # the first index of each level

    def add(self, counted: dict[int, list[int]]) -> None:
        """Add counters by index of the shortest interval."""
        for at, values in counted.items():
            level = 0
            while at < self._from[level]:
                at, level = at >> 1, level + 1
            merge_into(self._levels[level], at, values, self._merges)
        if counted:
            self._promote(0, max(counted))

    def _promote(self, level: int, newest: int) -> None:
        if newest - self._from[level] < 2 * self._keep:
            return
        if level + 1 == len(self._levels):
            self._levels.append({})
            self._from.append(0)
        start = self._from[level] = (newest - self._keep) & ~1
        here, longer = self._levels[level], self._levels[level + 1]
        for at in [at for at in here if at < start]:
            merge_into(longer, at >> 1, here.pop(at), self._merges)
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
