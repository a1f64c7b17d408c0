"""The counters of one model for each interval: of its queue, its instances, its batch slots and its requests."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from tritonnb.core.json_types import Json
from tritonnb.notebook.interval_counters import (
    LANE_COUNTERS,
    QUEUE_COUNTERS,
    REQUEST_COUNTERS,
    SLOT_COUNTERS,
    Counters,
    Execution,
    MergedIntervals,
    count,
    count_depths,
    encode_columns,
    merge_into,
)


@dataclass(slots=True)
class Interval:
    """Counters of a model in one interval: requests count when they end, batches when they begin, busy time exactly."""

    requests: int = 0
    rows: int = 0
    batches: int = 0
    busy_ns: int = 0
    queue_ns: int = 0
    compute_ns: int = 0
    latencies_ns: Sequence[int] = ()


class ModelIntervals:
    """The counters of a model for each interval since ``begin_ns``.

    Parameters
    ----------
    begin_ns, width_ns : int
    keep : int
        How many intervals of each length are kept; see `MergedIntervals`.
    levels : int, optional
        How many lengths of intervals are kept; by default all.
    """

    def __init__(self, begin_ns: int, width_ns: int, keep: int, levels: int | None = None) -> None:
        self.begin_ns = begin_ns
        self.width_ns = width_ns
        self._keep = keep, levels
        self._queue = MergedIntervals(QUEUE_COUNTERS, *self._keep)
        self._requests = MergedIntervals(REQUEST_COUNTERS, *self._keep)
        self._lanes: dict[str, MergedIntervals] = {}
        self._slots: dict[str, MergedIntervals] = {}

    def execution(
        self, instance: str, start_ns: int, end_ns: int, rows: int, slots: Sequence[tuple[int, bool]] = ()
    ) -> Execution:
        """Return an execution as it is counted; the time before ``begin_ns`` is not."""
        return Execution(instance, max(0, start_ns - self.begin_ns), end_ns - self.begin_ns, rows, slots)

    def count(
        self,
        executions: Iterable[Execution],
        *,
        refused_ns: Iterable[int] = (),
        waits: Iterable[tuple[int, int]] = (),
        requests: Iterable[tuple[int, int, int, int]] = (),
        depths: tuple[Sequence[tuple[int, int]], tuple[int, int], int] = ((), (0, 0), 0),
    ) -> Counters:
        """Count what happened since the last call, times in ns of the clock of ``begin_ns``, and return it.

        The parameters are those of `interval_counters.count` and, as one tuple, of `interval_counters.count_depths`.
        """
        begin = self.begin_ns
        counted = count(
            self.width_ns,
            executions,
            [time_ns - begin for time_ns in refused_ns],
            [(time_ns - begin, wait_ns) for time_ns, wait_ns in waits],
            [(time_ns - begin, latency, queue, compute) for time_ns, latency, queue, compute in requests],
        )
        changes, before, now_ns = depths
        depth_counts = count_depths(self.width_ns, changes, before, now_ns, begin)
        for at, values in depth_counts.items():
            merge_into(counted.queue, at, values, list(QUEUE_COUNTERS.values()))
        self._queue.add(counted.queue)
        self._requests.add(counted.requests)
        for name, lane in counted.lanes.items():
            self._lanes.setdefault(name, MergedIntervals(LANE_COUNTERS, *self._keep)).add(lane)
        for name, slot in counted.slots.items():
            self._slots.setdefault(name, MergedIntervals(SLOT_COUNTERS, *self._keep)).add(slot)
        return counted

    def last(self, end: int, count: int) -> list[Interval]:
        """Return the ``count`` intervals before index ``end``, the oldest first."""
        return [self._interval(at) for at in range(end - count, end)]

    def _interval(self, at: int) -> Interval:
        lanes = [values for lane in self._lanes.values() if (values := lane.at(at))]
        busy_ns, batches, rows = (sum(values[number] for values in lanes) for number in range(3))
        requests, queue_ns, compute_ns, latencies_ns = self._requests.at(at) or (0, 0, 0, ())
        return Interval(requests, rows, batches, busy_ns, queue_ns, compute_ns, latencies_ns)

    def encode(self) -> Json:
        """Return all counters of the picture, with longer intervals where they are old."""
        return {
            "queue": self._queue.encode(),
            "lanes": {name: lane.encode() for name, lane in self._lanes.items()},
            "slots": {name: slot.encode() for name, slot in self._slots.items()},
        }


def encode_counters(counted: Counters) -> Json:
    """Return counters of the picture encoded."""
    return {
        "queue": encode_columns(list(QUEUE_COUNTERS), counted.queue),
        "lanes": {name: encode_columns(list(LANE_COUNTERS), lane) for name, lane in counted.lanes.items()},
        "slots": {name: encode_columns(list(SLOT_COUNTERS), slot) for name, slot in counted.slots.items()},
    }
