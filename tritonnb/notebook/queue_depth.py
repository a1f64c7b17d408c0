"""The number of waiting requests over time."""

from __future__ import annotations

from tritonnb.notebook.interval_counters import Counters


class QueueDepth:
    """Counts the depth of a queue, and records its changes.

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
