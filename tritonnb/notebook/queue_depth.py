"""How many requests wait, over time: every change of few, of many the deepest moment of each hundredth second."""

from __future__ import annotations

#: Moments of one delivery that are told as they are, and how long one of the others stands for.
_MOST, _APART_NS = 50, 10_000_000


class QueueDepth:
    """Follows the depth of a queue.

    Parameters
    ----------
    depth : int
    since_ns : int
    sample : bool
        Whether more may change than can be drawn.

    Attributes
    ----------
    now : int
        Requests that wait.
    changes : list of tuple of int
        When it changed since the last delivery, in ns, and to what.
    """

    def __init__(self, depth: int, since_ns: int, sample: bool) -> None:
        self.now = depth
        self.changes: list[tuple[int, int]] = []
        self._changed_ns = since_ns
        self._next_ns = 0
        self._sample = sample

    def more(self, time_ns: int) -> None:
        """One request came."""
        self.now += 1
        self._changed_ns = time_ns
        if not self._sample or len(self.changes) < _MOST:
            self.changes.append((time_ns, self.now))

    def less(self, time_ns: int, count: int) -> None:
        """So many requests left."""
        before = self.now
        self.now -= count
        self._changed_ns = time_ns
        changes = self.changes
        if not self._sample or len(changes) < _MOST:
            changes.append((time_ns, self.now))
        elif time_ns >= self._next_ns:
            self._next_ns = time_ns + _APART_NS
            changes.append((time_ns, before))  # before some leave it is deepest
        elif before > changes[-1][1]:
            changes[-1] = time_ns, before

    def delivered(self) -> list[tuple[int, int]]:
        """The changes since the last time, up to now."""
        changes, self.changes = self.changes, []
        if changes and changes[-1][1] != self.now:
            changes.append((self._changed_ns, self.now))
        return changes
