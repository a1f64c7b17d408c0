"""The number of waiting requests over time: every change if there are few, else the maximum of each 10 ms."""

from __future__ import annotations

#: Changes of one delivery that are kept as they are, and the interval that one of the further ones stands for.
_EXACT_CHANGES, _INTERVAL_NS = 50, 10_000_000


class QueueDepth:
    """Records the depth of a queue.

    Parameters
    ----------
    depth : int
        The initial depth.
    since_ns : int
        The time of ``depth``.
    sample : bool
        Whether to keep only a part if there are more changes than can be drawn.

    Attributes
    ----------
    now : int
        The current number of waiting requests.
    changes : list of tuple of int
        The changes since the last delivery: time in ns and depth.
    """

    def __init__(self, depth: int, since_ns: int, sample: bool) -> None:
        self.now = depth
        self.changes: list[tuple[int, int]] = []
        self._changed_ns = since_ns
        self._next_ns = 0
        self._sample = sample

    def increment(self, time_ns: int) -> None:
        """Record the arrival of a request."""
        self.now += 1
        self._changed_ns = time_ns
        if not self._sample or len(self.changes) < _EXACT_CHANGES:
            self.changes.append((time_ns, self.now))

    def decrease(self, time_ns: int, count: int) -> None:
        """Record that ``count`` requests left the queue."""
        before = self.now
        self.now -= count
        self._changed_ns = time_ns
        changes = self.changes
        if not self._sample or len(changes) < _EXACT_CHANGES:
            changes.append((time_ns, self.now))
        elif time_ns >= self._next_ns:
            self._next_ns = time_ns + _INTERVAL_NS
            changes.append((time_ns, before))  # the maximum is reached just before requests leave
        elif before > changes[-1][1]:
            changes[-1] = time_ns, before

    def take_changes(self) -> list[tuple[int, int]]:
        """Return the changes since the last call, up to now."""
        changes, self.changes = self.changes, []
        if changes and changes[-1][1] != self.now:
            changes.append((self._changed_ns, self.now))
        return changes
