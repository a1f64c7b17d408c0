"""The number of waiting requests over time."""

from __future__ import annotations


class QueueDepth:
    """Records every change of the depth of a queue.

    Parameters
    ----------
    depth : int
        The initial depth.
    since_ns : int
        The time of ``depth``.

    Attributes
    ----------
    now : int
        The current number of waiting requests.
    changes : list of tuple of int
        The changes since the last delivery: time in ns and depth.
    """

    def __init__(self, depth: int, since_ns: int) -> None:
        self.now = depth
        self.changes: list[tuple[int, int]] = []
        self._before = since_ns, depth

    def increment(self, time_ns: int) -> None:
        """Record the arrival of a request."""
        self.now += 1
        self.changes.append((time_ns, self.now))

    def decrease(self, time_ns: int, count: int) -> None:
        """Record that ``count`` requests left the queue."""
        self.now -= count
        self.changes.append((time_ns, self.now))

    def take_changes(self, now_ns: int) -> tuple[tuple[int, int], list[tuple[int, int]]]:
        """Return time and depth of the last call, and the changes since then."""
        before, self._before = self._before, (now_ns, self.now)
        changes, self.changes = self.changes, []
        return before, changes
