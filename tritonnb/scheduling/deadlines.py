"""When each of many things is due: to set, to forget and to find the next are all cheap."""

from __future__ import annotations

import heapq
from collections.abc import Iterator
from typing import Generic, TypeVar

Item = TypeVar("Item")


class Deadlines(Generic[Item]):
    """Items, compared by identity or hash, each with the time at which it is due.

    The heap may hold items that have been forgotten, or put off, since. They are corrected when they
    come up, and swept out when they are many, so that it does not grow with the traffic.
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
        """An item is due at a time; a time it had before does not count any more."""
        before = self._due.get(item)
        self._due[item] = due
        if before is None or due < before:
            self._push(item, due)
            if len(self._heap) > 2 * len(self._due) + 64:
                self._sweep()

    def forget(self, item: Item) -> None:
        """An item is not due any more; it need not be known."""
        self._due.pop(item, None)

    def next(self) -> int | None:
        """The nearest due time, or None."""
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
        """Forget and give the items that are due, in order of their times."""
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
