"""The rate at which requests arrive, which an overloaded server does not reach."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from tritonnb.core.events import RequestArrived

if TYPE_CHECKING:
    from tritonnb.recording.recording import Recording

#: Arrivals that exceed what is served by less than this share are no overload: a recording has a beginning and an end.
_EXCESS = 0.05


@dataclass(frozen=True)
class OfferedLoad:
    """What arrived, and what of it was served.

    Attributes
    ----------
    rate : float
        Requests that arrived a second, refused ones included.
    rows : float
        Rows of a request, on average.
    throughput : float
        Requests that ran a second, from the first arrival to the end of the last execution.
    """

    rate: float
    rows: float
    throughput: float

    @property
    def exceeds_service(self) -> bool:
        """Whether requests arrive faster than they are served; never so for clients that wait for their responses."""
        return self.rate > (1 + _EXCESS) * self.throughput


def offered_load(rec: Recording) -> OfferedLoad:
    """The load of a recording of one model, in which at least one request ran and time passed."""
    arrived = sorted((each.time_ns, each.size) for each in rec.events if isinstance(each, RequestArrived))
    begin = min(each.received_ns for each in rec.requests)
    throughput = len(rec.requests) * 1e9 / (max(each.exec_end_ns for each in rec.requests) - begin)
    first_end_ns = min(each.exec_end_ns for each in rec.requests)
    rate = _rate([time_ns for time_ns, _ in arrived], first_end_ns) or throughput
    sizes = [size for _, size in arrived] or [each.size for each in rec.requests]
    return OfferedLoad(rate, float(np.mean(sizes)), throughput)


def _rate(times_ns: Sequence[int], first_end_ns: int) -> float:
    """Arrivals a second after those that came before anything was answered; 0 where there are none.

    The first requests of clients that wait for their responses come at once; only what follows has a rate.
    """
    first = max(1, bisect_left(times_ns, first_end_ns))
    span_ns = times_ns[-1] - times_ns[first - 1] if first < len(times_ns) else 0
    return (len(times_ns) - first) * 1e9 / span_ns if span_ns else 0.0
