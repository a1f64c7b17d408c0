"""The arrivals of a recording, to simulate or send them again, and their rate."""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean

from tritonnb.core.events import RequestArrived, RequestCancelled
from tritonnb.core.sequence_flags import SEQUENCE_END, SEQUENCE_START
from tritonnb.recording.batches import last_executions
from tritonnb.recording.recorded_events import RecordedEvents
from tritonnb.simulation.arrivals import Arrival

#: A smaller excess of arrivals over throughput is not an overload: a recording has a beginning and an end.
_EXCESS = 0.05


def arrivals_of(rec: RecordedEvents) -> list[Arrival]:
    """Return the arrival of each request, in µs after the first one."""
    cancelled_ns = {event.serial: event.time_ns for event in rec.events if isinstance(event, RequestCancelled)}
    steps, begin_ns = Counter(request.serial for request in rec.requests), rec.first_arrival_ns
    return [
        arrival_of(event, begin_ns, cancelled_ns.get(serial), max(1, steps[serial]))
        for serial, event in rec.arrived.items()
    ]


def arrival_of(event: RequestArrived, begin_ns: int = 0, cancelled_ns: int | None = None, steps: int = 1) -> Arrival:
    """Return the arrival of a request, in µs after ``begin_ns``."""
    return Arrival(
        (event.time_ns - begin_ns) / 1000,
        event.size,
        event.priority,
        event.timeout_us,
        event.correlation_id,
        bool(event.flags & SEQUENCE_START),
        bool(event.flags & SEQUENCE_END),
        event.shape_key or None,
        None if cancelled_ns is None else (cancelled_ns - begin_ns) / 1000,
        steps,
    )


@dataclass(frozen=True)
class OfferedLoad:
    """Arrival rate and throughput of a recording.

    Attributes
    ----------
    rate : float
        Arriving requests per second, including refused ones.
    rows : float
        Mean number of rows per request.
    throughput : float
        Executed requests per second, from the first arrival to the end of the last execution.
    """

    rate: float
    rows: float
    throughput: float

    @property
    def exceeds_service(self) -> bool:
        """True if requests arrive faster than they are served; never true for clients that wait for their responses."""
        return self.rate > (1 + _EXCESS) * self.throughput


def offered_load(rec: RecordedEvents) -> OfferedLoad:
    """Measure the load of a recording of one model; at least one request must have run and time must have passed."""
    arrived = sorted((event.time_ns, event.size) for event in rec.arrived.values())
    begin = min(request.received_ns for request in rec.requests)
    ends_ns = [request.exec_end_ns for request in rec.requests]
    throughput = len(last_executions(rec.requests)) * 1e9 / (max(ends_ns) - begin)
    rate = _rate([time_ns for time_ns, _ in arrived], min(ends_ns)) or throughput
    sizes = [size for _, size in arrived] or [request.size for request in rec.requests]
    return OfferedLoad(rate, fmean(sizes), throughput)


def _rate(times_ns: Sequence[int], first_end_ns: int) -> float:
    """Return the arrivals per second after the first response; 0 if there are none.

    Clients that wait for their responses send their first requests all at once, so those do not count.
    """
    first = max(1, bisect_left(times_ns, first_end_ns))
    span_ns = times_ns[-1] - times_ns[first - 1] if first < len(times_ns) else 0
    return (len(times_ns) - first) * 1e9 / span_ns if span_ns else 0.0
