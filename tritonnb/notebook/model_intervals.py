"""The counters of one model for each interval: of its queue, its instances, its batch slots and its requests."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tritonnb.core.json_types import Json
from tritonnb.notebook.interval_counters import (
    LANE_COUNTERS,
    QUEUE_COUNTERS,
    REQUEST_COUNTERS,
    SLOT_COUNTERS,
    Counters,
    MergedIntervals,
    encode_columns,
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

    def counters(self) -> Counters:
        """Return counters for the next period, all zero; `add` adds them."""
        return Counters(self.begin_ns, self.width_ns)

    def add(self, counted: Counters) -> None:
        """Add the counters of a period."""
        self._queue.add(counted.queue)
        self._requests.add(counted.requests)
        for name, lane in counted.lanes.items():
            self._lanes.setdefault(name, MergedIntervals(LANE_COUNTERS, *self._keep)).add(lane)
        for name, slot in counted.slots.items():
            self._slots.setdefault(name, MergedIntervals(SLOT_COUNTERS, *self._keep)).add(slot)

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
