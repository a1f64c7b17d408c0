"""What the models of a server did lately, by intervals of a second: requests, latencies, batches and busy time."""

from __future__ import annotations

from collections.abc import Iterable

from tritonnb.core.events import BatchExecuted, CacheHit, EnsembleExecuted
from tritonnb.core.json_types import Json
from tritonnb.core.packed_events import Packed, unpack
from tritonnb.notebook.interval_counters import Counters
from tritonnb.notebook.model_intervals import Interval, ModelIntervals
from tritonnb.telemetry.quantiles import quantile

INTERVAL_NS = 1_000_000_000
#: Intervals that are kept, and those that tiles and the ensemble graph are computed from.
KEPT, RECENT = 120, 5
#: Intervals of the curve of a model in a list.
CURVE = 40
_KINDS = {event.__name__ for event in (BatchExecuted, EnsembleExecuted, CacheHit)}


class Activity:
    """The intervals of all models, numbered from ``begin_ns``."""

    def __init__(self, begin_ns: int) -> None:
        self._begin_ns = begin_ns
        self._models: dict[str, ModelIntervals] = {}

    def number_at(self, time_ns: int) -> int:
        """Return the number of the interval of a time."""
        return (time_ns - self._begin_ns) // INTERVAL_NS

    def of(self, model: str) -> ModelIntervals:
        """Return the intervals of a model; they are kept for `KEPT` seconds."""
        if model not in self._models:
            self._models[model] = ModelIntervals(self._begin_ns, INTERVAL_NS, KEPT, levels=1)
        return self._models[model]

    def fold(self, packed: Iterable[Packed]) -> None:
        """Count packed events of executions; others are ignored."""
        counted: dict[str, Counters] = {}
        for event in (unpack(one) for one in packed if one[0] in _KINDS):
            counters = counted.get(event.model)
            if counters is None:
                counters = counted[event.model] = self.of(event.model).counters()
            if isinstance(event, BatchExecuted):
                start, end = event.exec_start_ns, event.exec_end_ns
                rows = sum(request_rows for _, request_rows, *_ in event.requests)  # without null requests
                counters.add_execution(event.instance, start, end, rows)
                for _, _, received_ns, queued_ns, failed in event.requests:
                    if not failed:
                        counters.add_request(end, end - received_ns, start - queued_ns, end - start)
            elif isinstance(event, CacheHit) or (isinstance(event, EnsembleExecuted) and not event.failed):
                counters.add_request(event.time_ns, event.time_ns - event.received_ns, 0, 0)
        for model, counters in counted.items():
            self.of(model).add(counters)


def measures(intervals: list[Interval], instances: int) -> Json:
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
