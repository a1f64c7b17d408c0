"""The times at which all instances of a set are busy."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Sequence


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
        changes: dict[int, int] = {}
        for begin, end in zip(begins_ns, ends_ns, strict=True):
            changes[begin] = changes.get(begin, 0) + 1
            if end is not None:
                changes[end] = changes.get(end, 0) - 1
        self._times: list[int] = []  # at each of them the state changes, first to busy
        running = 0
        for time_ns in sorted(changes):
            was_busy = running >= instances
            running += changes[time_ns]
            if (running >= instances) != was_busy:
                self._times.append(time_ns)

    def split(self, begin_ns: int, end_ns: int, also_at_ns: int) -> Iterator[tuple[bool, int]]:
        """Whether all instances are busy, and until when, from one time to another; split at a third one, too."""
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
