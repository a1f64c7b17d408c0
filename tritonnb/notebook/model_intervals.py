"""The counters of one model for each interval: of its queue, its instances and its batch slots."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from tritonnb.notebook.interval_counters import (
    LANE_COUNTERS,
    QUEUE_COUNTERS,
    SLOT_COUNTERS,
    Counters,
    Execution,
    MergedIntervals,
    count,
    count_depths,
    encode_columns,
    merge_into,
)


class ModelIntervals:
    """The counters of a model for each interval since ``begin_ns``.

    Parameters
    ----------
    begin_ns, width_ns : int
    keep : int
        How many intervals of each length are kept; see `MergedIntervals`.
    """

    def __init__(self, begin_ns: int, width_ns: int, keep: int) -> None:
        self.begin_ns = begin_ns
        self.width_ns = width_ns
        self._keep = keep
        self._queue = MergedIntervals(QUEUE_COUNTERS, keep)
        self._lanes: dict[str, MergedIntervals] = {}
        self._slots: dict[str, MergedIntervals] = {}

    def count(
        self,
        executions: Iterable[Execution],
        refused_ns: Iterable[int],
        waits: Iterable[tuple[int, int]],
        changes: list[tuple[int, int]],
        before: tuple[int, int],
        now_ns: int,
    ) -> dict[str, Any]:
        """Count what happened since the last call, and return it encoded."""
        begin = self.begin_ns
        counted = count(
            self.width_ns,
            executions,
            [time_ns - begin for time_ns in refused_ns],
            [(time_ns - begin, wait_ns) for time_ns, wait_ns in waits],
        )
        relative = [(time_ns - begin, depth) for time_ns, depth in changes]
        depths = count_depths(self.width_ns, relative, (before[0] - begin, before[1]), now_ns - begin)
        for at, values in depths.items():
            merge_into(counted.queue, at, values, list(QUEUE_COUNTERS.values()))
        self._add(counted)
        return {
            "queue": encode_columns(list(QUEUE_COUNTERS), counted.queue),
            "lanes": {name: encode_columns(list(LANE_COUNTERS), lane) for name, lane in counted.lanes.items()},
            "slots": {name: encode_columns(list(SLOT_COUNTERS), slot) for name, slot in counted.slots.items()},
        }

    def _add(self, counted: Counters) -> None:
        self._queue.add(counted.queue)
        for name, lane in counted.lanes.items():
            self._lanes.setdefault(name, MergedIntervals(LANE_COUNTERS, self._keep)).add(lane)
        for name, slot in counted.slots.items():
            self._slots.setdefault(name, MergedIntervals(SLOT_COUNTERS, self._keep)).add(slot)

    def encode(self) -> dict[str, Any]:
        """Return all counters, with longer intervals where they are old."""
        return {
            "queue": self._queue.encode(),
            "lanes": {name: lane.encode() for name, lane in self._lanes.items()},
            "slots": {name: slot.encode() for name, slot in self._slots.items()},
        }
