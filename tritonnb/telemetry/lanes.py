"""Intervals that overlap in time: the lanes in which a timeline draws them, and how many there are at each time."""

from __future__ import annotations

import heapq
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from itertools import accumulate


def assign_lanes(intervals: Iterable[tuple[float, float]]) -> list[int]:
    """Assign to each interval the lowest lane that is free when it begins.

    Parameters
    ----------
    intervals : iterable of (float, float)
        Begin and end, ascending by begin. An interval does not contain its end: another may begin there
        in the same lane.

    Returns
    -------
    list of int
        The lane of each interval, from 0.

    Examples
    --------
    >>> assign_lanes([(0, 5), (1, 2), (3, 4), (4, 6)])
    [0, 1, 1, 1]
    """
    lanes = Lanes()
    assigned = []
    for begin, end in intervals:
        assigned.append(lanes.take_lane(begin))
        lanes.free_lane(assigned[-1], end)
    return assigned


class Lanes:
    """Lanes that are taken and left, in the order of time."""

    def __init__(self) -> None:
        self._count = 0
        self._free: list[int] = []
        self._leaving: list[tuple[float, int]] = []  # a heap: when, and which lane

    def take_lane(self, time: float) -> int:
        """Take the lowest lane that is free at a time."""
        while self._leaving and self._leaving[0][0] <= time:
            self.free(heapq.heappop(self._leaving)[1])
        if self._free:
            return heapq.heappop(self._free)
        self._count += 1
        return self._count - 1

    def free_lane(self, lane: int, time: float) -> None:
        """Leave a lane at a time, which may be in the future."""
        heapq.heappush(self._leaving, (time, lane))

    def free(self, lane: int) -> None:
        """Leave a lane now."""
        heapq.heappush(self._free, lane)


def count_overlaps(intervals: Iterable[tuple[int, int | None]]) -> tuple[list[int], list[int]]:
    """Count the intervals that contain each time; an interval does not contain its end.

    Parameters
    ----------
    intervals : iterable of (int, int or None)
        Begin and end; None for an interval that does not end.

    Returns
    -------
    tuple of (list of int, list of int)
        The times at which intervals begin or end, ascending, and the number from each of them on.

    Examples
    --------
    >>> count_overlaps([(0, 5), (1, 2), (2, None)])
    ([0, 1, 2, 5], [1, 2, 2, 1])
    """
    changes: dict[int, int] = {}
    for begin, end in intervals:
        changes[begin] = changes.get(begin, 0) + 1
        if end is not None:
            changes[end] = changes.get(end, 0) - 1
    times = sorted(changes)
    return times, list(accumulate(changes[time] for time in times))


class BusyTime:
    """The times at which every instance of a set executes a batch.

    Parameters
    ----------
    begins_ns : sequence of int
        When each batch was sent.
    ends_ns : sequence of int or None
        When its instance was idle again; None if that is outside the recording.
    instances : int
        Size of the set.

    Examples
    --------
    >>> list(BusyTime([10, 20], [30, 40], 2).split(0, 50, 45))
    [(False, 20), (True, 30), (False, 45), (False, 50)]
    """

    def __init__(self, begins_ns: Sequence[int], ends_ns: Sequence[int | None], instances: int) -> None:
        self._times: list[int] = []  # at each of them the state changes, first to busy
        for time_ns, running in zip(*count_overlaps(zip(begins_ns, ends_ns, strict=True)), strict=True):
            if (running >= instances) != len(self._times) % 2:
                self._times.append(time_ns)

    def split(self, begin_ns: int, end_ns: int, also_at_ns: int) -> Iterator[tuple[bool, int]]:
        """Yield the parts of an interval, cut at ``also_at_ns``: whether all instances are busy, and the end."""
        place = bisect_right(self._times, begin_ns)
        now = begin_ns
        while now < end_ns:
            until = self._times[place] if place < len(self._times) else end_ns
            if now < also_at_ns < until:
                yield place % 2 == 1, min(also_at_ns, end_ns)
                now = min(also_at_ns, end_ns)
                continue
            now = min(until, end_ns)
            yield place % 2 == 1, now
            place += 1
