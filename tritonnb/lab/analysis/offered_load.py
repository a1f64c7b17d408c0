"""Arrival rate and throughput of a recording."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean

from tritonnb.recording.batches import last_executions
from tritonnb.recording.recording import Recording

#: A smaller excess of arrivals over throughput is not an overload: a recording has a beginning and an end.
_EXCESS = 0.05


@dataclass(frozen=True)
class OfferedLoad:
    """Arrival rate and throughput of a recording.

    Attributes
    ----------
    rate : float
        Arriving requests per second, including refused requests.
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


def offered_load(rec: Recording) -> OfferedLoad:
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
