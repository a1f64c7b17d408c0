"""Lanes of a timeline: intervals that overlap in time are drawn in different lanes."""

from __future__ import annotations

import heapq
from collections.abc import Iterable


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
    busy: list[tuple[float, int]] = []
    free: list[int] = []
    lanes: list[int] = []
    for begin, end in intervals:
        while busy and busy[0][0] <= begin:
            heapq.heappush(free, heapq.heappop(busy)[1])
        lane = heapq.heappop(free) if free else len(busy)  # no lane is free: all those below this one are busy
        heapq.heappush(busy, (end, lane))
        lanes.append(lane)
    return lanes
