"""Latency distributions, computed from the event stream: summaries over a sliding window, and histograms.

They cost time for every request, so they are attached to the stream only if enabled
(``--metrics-config summary_latencies=true``, ``histogram_latencies=true``).
"""

from __future__ import annotations

import math
import time
from bisect import bisect_left
from collections import deque
from collections.abc import Callable, Sequence
from itertools import accumulate

from tritonnb.core.events import BatchExecuted, CacheHit, CacheMiss, ModelStateChanged, Packed, ResponseSent, unpack
from tritonnb.telemetry.quantiles import quantile

#: The window of a summary: this many seconds, and at most this many observations.
WINDOW_SECONDS = 60.0
WINDOW_SIZE = 10_000

#: Triton's buckets of the first response, in milliseconds.
FIRST_RESPONSE_BUCKETS_MS = (100.0, 500.0, 2000.0, 5000.0)

_KINDS = {event_type.__name__ for event_type in (BatchExecuted, CacheHit, CacheMiss, ResponseSent, ModelStateChanged)}


class Summary:
    """Count and sum of all observations, and quantiles over a sliding window."""

    def __init__(self) -> None:
        self.count = 0
        self.sum = 0
        self._window: deque[tuple[float, int]] = deque(maxlen=WINDOW_SIZE)

    def observe(self, value: int, now: float) -> None:
        """Add an observation; ``now`` in seconds of the monotonic clock."""
        self.count += 1
        self.sum += value
        self._window.append((now, value))

    def quantiles(self, shares: Sequence[float], now: float) -> list[float]:
        """The quantiles of the window; NaN if it is empty."""
        while self._window and self._window[0][0] < now - WINDOW_SECONDS:
            self._window.popleft()
        ordered = sorted(value for _, value in self._window)
        if not ordered:
            return [math.nan] * len(shares)
        return [quantile(ordered, share) for share in shares]


class Histogram:
    """Counts by upper bound, and the sum of all.

    Parameters
    ----------
    bounds : sequence of float
        Ascending; values above the last one are counted too.
    """

    def __init__(self, bounds: Sequence[float]) -> None:
        self.bounds = tuple(bounds)
        self.sum = 0.0
        self._counts = [0] * (len(self.bounds) + 1)

    def observe(self, value: float) -> None:
        """Add an observation."""
        self._counts[bisect_left(self.bounds, value)] += 1
        self.sum += value

    def cumulative(self) -> list[int]:
        """The number of observations up to each bound, and in total."""
        return list(accumulate(self._counts))


class ModelLatencies:
    """The distributions of one model version, in microseconds (summaries) and milliseconds (histogram)."""

    def __init__(self, bounds: Sequence[float]) -> None:
        self.request = Summary()
        self.queue = Summary()
        self.compute_input = Summary()
        self.compute_infer = Summary()
        self.compute_output = Summary()
        self.cache_hit = Summary()
        self.cache_miss = Summary()
        self.first_response = Histogram(bounds)

    def add(self, event: BatchExecuted, now: float) -> None:
        """Add the successful requests of a batch."""
        for _, _, received_ns, queued_ns, failed in event.requests:
            if not failed:
                self.request.observe((event.exec_end_ns - received_ns) // 1000, now)
                self.queue.observe((event.exec_start_ns - queued_ns) // 1000, now)
                self.compute_input.observe((event.compute_start_ns - event.exec_start_ns) // 1000, now)
                self.compute_infer.observe((event.compute_end_ns - event.compute_start_ns) // 1000, now)
                self.compute_output.observe((event.exec_end_ns - event.compute_end_ns) // 1000, now)

    def add_hit(self, event: CacheHit, now: float) -> None:
        """Add a request that was answered from the response cache."""
        self.request.observe((event.time_ns - event.received_ns) // 1000, now)
        self.queue.observe((event.time_ns - event.lookup_ns - event.received_ns) // 1000, now)
        self.cache_hit.observe(event.lookup_ns // 1000, now)


class Latencies:
    """The distributions of all models; `take` is a sink of the event stream.

    Parameters
    ----------
    bounds_of : callable
        ``bounds_of(model, version)`` returns the upper bounds of its first-response histogram, in milliseconds.
    """

    def __init__(self, bounds_of: Callable[[str, int], Sequence[float]]) -> None:
        self._bounds_of = bounds_of
        self._models: dict[tuple[str, int], ModelLatencies] = {}

    def of(self, model: str, version: int) -> ModelLatencies:
        """The distributions of a model version."""
        latencies = self._models.get((model, version))
        if latencies is None:
            latencies = self._models[model, version] = ModelLatencies(self._bounds_of(model, version))
        return latencies

    def fold(self, packed: Packed) -> None:
        """Add the latencies of an event."""
        if packed[0] not in _KINDS:
            return
        event = unpack(packed)
        if isinstance(event, BatchExecuted):
            self.of(event.model, event.version).add(event, time.monotonic())
        elif isinstance(event, CacheHit):
            self.of(event.model, event.version).add_hit(event, time.monotonic())
        elif isinstance(event, CacheMiss):
            self.of(event.model, event.version).cache_miss.observe(event.elapsed_ns // 1000, time.monotonic())
        elif isinstance(event, ResponseSent):
            if event.index == 0 and event.outcome != "empty":
                self.of(event.model, event.version).first_response.observe(event.elapsed_ns / 1e6)
        elif isinstance(event, ModelStateChanged) and event.state == "READY":
            self._models.pop((event.model, event.version), None)  # counts start when a model is loaded
