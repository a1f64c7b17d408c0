"""The lines on which a picture of a queue draws its requests: each on the topmost that is free all the while."""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Mapping

#: A request's arrival, its serial, and when it left; None if it still waits.
Wait = tuple[int, int, int | None]


class WaitingLines:
    """Gives lines to requests, delivery by delivery; who still waits keeps its line."""

    def __init__(self) -> None:
        self._of: dict[int, int] = {}  # of those who wait
        self._leaving: list[tuple[int, int]] = []  # when, and from which line
        self._free: list[int] = []
        self._count = 0

    def place(self, waits: Iterable[Wait]) -> Mapping[int, int]:
        """The line of each request by its serial; who is not named any more has left."""
        ordered = sorted(waits, key=lambda each: each[0])
        for gone in self._of.keys() - {serial for _, serial, _ in ordered}:
            heapq.heappush(self._free, self._of.pop(gone))
        lines = {}
        for arrived_ns, serial, left_ns in ordered:
            line = self._of.pop(serial, None)
            if line is None:
                line = self._topmost(arrived_ns)
            lines[serial] = line
            if left_ns is None:
                self._of[serial] = line
            else:
                heapq.heappush(self._leaving, (left_ns, line))
        return lines

    def _topmost(self, at_ns: int) -> int:
        while self._leaving and self._leaving[0][0] <= at_ns:
            heapq.heappush(self._free, heapq.heappop(self._leaving)[1])
        if self._free:
            return heapq.heappop(self._free)
        self._count += 1
        return self._count - 1
