"""What the models of a server did lately, by intervals of a second: requests, latencies, batches and busy time.

Everything is counted, nothing is sampled. A sink on the server's loop only appends the events that matter to a queue;
they are folded on the thread that reads the activity.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field
from itertools import repeat, starmap
from typing import Any

from tritonnb.core.events import BatchExecuted, CacheHit, EnsembleExecuted, Packed, unpack
from tritonnb.telemetry.quantiles import quantile

INTERVAL_NS = 1_000_000_000
#: Intervals that are kept, and those that tiles and the ensemble graph are computed from.
KEPT, RECENT = 120, 5
#: Intervals of the curve of a model in a list.
CURVE = 40
_KINDS = {event.__name__ for event in (BatchExecuted, EnsembleExecuted, CacheHit)}
#: Events that wait to be folded; of more, the oldest are lost.
_MOST_EVENTS = 200_000


@dataclass(slots=True)
class Interval:
    """Counters of one model in one interval; requests and batches count when they end, busy time when it passed."""

    requests: int = 0
    rows: int = 0
    batches: int = 0
    busy_ns: int = 0
    queue_ns: int = 0
    compute_ns: int = 0
    latencies_ns: list[int] = field(default_factory=list)


class EventQueue:
    """A sink of the event stream that keeps the events of executions until they are taken."""

    def __init__(self) -> None:
        self._events: deque[Packed] = deque(maxlen=_MOST_EVENTS)

    def append(self, packed: Packed) -> None:
        """Keep an event; called on the server's loop."""
        if packed[0] in _KINDS:
            self._events.append(packed)

    def take(self) -> list[Packed]:
        """Return and forget the events so far; called on one other thread."""
        return list(starmap(self._events.popleft, repeat((), len(self._events))))


class ModelActivity:
    """The intervals of one model, by their number."""

    def __init__(self) -> None:
        self._intervals: dict[int, Interval] = {}

    def at(self, number: int) -> Interval:
        """Return the interval to count in."""
        if number not in self._intervals:
            self._intervals[number] = Interval()
        return self._intervals[number]

    def forget_before(self, number: int) -> None:
        """Forget old intervals."""
        for old in [known for known in self._intervals if known < number]:
            del self._intervals[old]

    def last(self, end: int, count: int) -> list[Interval]:
        """Return the ``count`` intervals before number ``end``, the oldest first."""
        return [self._intervals.get(number, _NOTHING) for number in range(end - count, end)]


_NOTHING = Interval()


class Activity:
    """The intervals of all models, numbered from ``begin_ns``."""

    def __init__(self, begin_ns: int) -> None:
        self._begin_ns = begin_ns
        self._models: dict[str, ModelActivity] = {}

    def number_at(self, time_ns: int) -> int:
        """Return the number of the interval of a time."""
        return (time_ns - self._begin_ns) // INTERVAL_NS

    def of(self, model: str) -> ModelActivity:
        """Return the intervals of a model."""
        return self._models.setdefault(model, ModelActivity())

    def fold(self, events: Iterable[Packed]) -> None:
        """Count packed events of executions."""
        for packed in events:
            event = unpack(packed)
            if isinstance(event, BatchExecuted):
                self._batch_executed(event)
            elif isinstance(event, EnsembleExecuted) and not event.failed:
                self._request_ended(event.model, event.time_ns, event.received_ns, event.size)
            elif isinstance(event, CacheHit):
                self._request_ended(event.model, event.time_ns, event.received_ns, 1)

    def forget(self, now_ns: int) -> None:
        """Forget intervals that are older than `KEPT` intervals."""
        for model in self._models.values():
            model.forget_before(self.number_at(now_ns) - KEPT)

    def _batch_executed(self, event: BatchExecuted) -> None:
        model = self.of(event.model)
        start, end = event.exec_start_ns, event.exec_end_ns
        at_end = model.at(self.number_at(end))
        at_end.batches += 1
        at_end.rows += event.size
        for _, _, received_ns, queued_ns, failed in event.requests:
            if not failed:
                at_end.requests += 1
                at_end.latencies_ns.append(end - received_ns)
                at_end.queue_ns += start - queued_ns
                at_end.compute_ns += end - start
        for number in range(self.number_at(start), self.number_at(end) + 1):
            begin = self._begin_ns + number * INTERVAL_NS
            model.at(number).busy_ns += min(end, begin + INTERVAL_NS) - max(start, begin)

    def _request_ended(self, name: str, end_ns: int, received_ns: int, rows: int) -> None:
        interval = self.of(name).at(self.number_at(end_ns))
        interval.requests += 1
        interval.latencies_ns.append(end_ns - received_ns)


def measures(intervals: list[Interval], instances: int) -> dict[str, Any]:
    """Return rate (requests/s), p50 and p99 (ms, None without requests), busy share and mean batch size of intervals.

    Examples
    --------
    >>> measures([Interval(requests=2, rows=6, batches=2, busy_ns=500_000_000, latencies_ns=[1_000_000, 3_000_000])], 1)
    {'rate': 2.0, 'n': 2, 'p50_ms': 2.0, 'p99_ms': 2.98, 'busy': 0.5, 'rows': 3.0}
    """
    seconds = len(intervals) * INTERVAL_NS / 1e9
    latencies_ms = sorted(latency / 1e6 for interval in intervals for latency in interval.latencies_ns)
    batches = sum(interval.batches for interval in intervals)
    busy_ns = sum(interval.busy_ns for interval in intervals)
    return {
        "rate": sum(interval.requests for interval in intervals) / seconds,
        "n": len(latencies_ms),
        "p50_ms": quantile(latencies_ms, 0.5) if latencies_ms else None,
        "p99_ms": quantile(latencies_ms, 0.99) if latencies_ms else None,
        "busy": busy_ns / (seconds * 1e9 * max(1, instances)),
        "rows": sum(interval.rows for interval in intervals) / batches if batches else None,
    }
