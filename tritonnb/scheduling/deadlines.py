"""Deadlines of many items: setting, removing and finding the next one are cheap."""

from __future__ import annotations

import heapq
from collections.abc import Iterator
from typing import Generic, TypeVar

Item = TypeVar("Item")


class Deadlines(Generic[Item]):
    """Items with their deadlines.

    The heap may contain outdated entries of items whose deadline was removed or postponed. They are corrected when they
    reach the top, and removed when they are many, so that the heap does not grow with the traffic.
    """

    def __init__(self) -> None:
        self._due: dict[Item, int] = {}
        self._heap: list[tuple[int, int, Item]] = []
        self._count = 0

    def __len__(self) -> int:
        return len(self._due)

    def __iter__(self) -> Iterator[Item]:
        return iter(self._due)

    def set(self, item: Item, due: int) -> None:
        """Set or replace the deadline of an item."""
        previous = self._due.get(item)
        self._due[item] = due
        if previous is None or due < previous:
            self._push(item, due)
            if len(self._heap) > 2 * len(self._due) + 64:
                self._sweep()

    def forget(self, item: Item) -> None:
        """Remove the deadline of an item, if it has one."""
        self._due.pop(item, None)

    def next(self) -> int | None:
        """The earliest deadline, or None."""
        while self._heap:
            due, _, item = self._heap[0]
            actual = self._due.get(item)
            if actual == due:
                return due
            heapq.heappop(self._heap)
            if actual is not None:
                self._push(item, actual)
        return None

    def pop_due(self, now: int) -> Iterator[Item]:
        """Remove the items whose deadline has passed and yield them in order."""
        while (due := self.next()) is not None and due <= now:
            item = heapq.heappop(self._heap)[2]
            del self._due[item]
            yield item

    def _push(self, item: Item, due: int) -> None:
        self._count += 1
        heapq.heappush(self._heap, (due, self._count, item))

    def _sweep(self) -> None:
        self._heap = [(due, number, item) for number, (item, due) in enumerate(self._due.items())]
        heapq.heapify(self._heap)
