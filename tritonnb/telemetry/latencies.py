"""Latency distributions, computed from the event stream: summaries over a sliding window, and histograms.

They cost time for every request, so they are attached to the stream only if enabled
(``--metrics-config summary_latencies=true``, ``histogram_latencies=true``).
"""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from tritonnb.core import events
from tritonnb.core.packed_events import Packed, unpack
from tritonnb.telemetry.histogram import Histogram
from tritonnb.telemetry.quantiles import quantile

#: The window of a summary: this many seconds, and at most this many observations.
WINDOW_SECONDS = 60.0
WINDOW_SIZE = 10_000

#: The upper bounds of Triton's histogram of first responses, in milliseconds.
FIRST_RESPONSE_BUCKETS_MS = (100.0, 500.0, 2000.0, 5000.0)
#: The upper bounds of the histograms of durations, in microseconds, from triton-inference-server/core#474.
DURATION_BUCKETS_US: Mapping[str, tuple[float, ...]] = {
    "request": (1000.0, 5000.0, 25_000.0, 50_000.0, 100_000.0),
    "queue": (100.0, 1000.0, 5000.0, 10_000.0, 50_000.0),
    "compute_input": (100.0, 500.0, 1000.0, 5000.0, 10_000.0),
    "compute_infer": (1000.0, 5000.0, 25_000.0, 50_000.0, 100_000.0),
    "compute_output": (100.0, 500.0, 1000.0, 5000.0, 10_000.0),
}


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
        """Return the quantiles of the window; NaN if it is empty."""
        while self._window and self._window[0][0] < now - WINDOW_SECONDS:
            self._window.popleft()
        ordered = sorted(value for _, value in self._window)
        if not ordered:
            return [math.nan] * len(shares)
        return [quantile(ordered, share) for share in shares]


@dataclass(frozen=True, slots=True)
class HistogramSettings:
    """The histograms of a model version.

    Attributes
    ----------
    decoupled : bool
        Whether it is a decoupled model, whose responses are separate events.
    first_response_ms : sequence of float
        The upper bounds of the histogram of first responses, in milliseconds.
    durations_us : mapping of str to sequence of float
        The upper bounds of the histograms of durations, in microseconds, with the keys of `DURATION_BUCKETS_US`.
    """

    decoupled: bool = False
    first_response_ms: Sequence[float] = FIRST_RESPONSE_BUCKETS_MS
    durations_us: Mapping[str, Sequence[float]] = field(default_factory=lambda: DURATION_BUCKETS_US)


class ModelLatencies:
    """The distributions of one model version.

    Attributes
    ----------
    summaries : dict of str to Summary
        In microseconds, for the names in `DURATION_BUCKETS_US`, ``cache_hit`` and ``cache_miss``.
    histograms : dict of str to Histogram
        In microseconds, with the keys of `DURATION_BUCKETS_US`.
    first_response : Histogram
        In whole milliseconds, as on Triton.
    """

    def __init__(self, settings: HistogramSettings) -> None:
        self.summaries = {name: Summary() for name in (*DURATION_BUCKETS_US, "cache_hit", "cache_miss")}
        self.histograms = {name: Histogram(bounds) for name, bounds in settings.durations_us.items()}
        self.first_response = Histogram(settings.first_response_ms)
        self._decoupled = settings.decoupled

    def add_batch(self, event: events.BatchExecuted, now: float) -> None:
        """Add the successful requests of a batch."""
        compute = (
            event.compute_start_ns - event.exec_start_ns,
            event.compute_end_ns - event.compute_start_ns,
            event.exec_end_ns - event.compute_end_ns,
        )
        for _, _, received_ns, queued_ns, failed in event.requests:
            total = event.exec_end_ns - received_ns
            if not self._decoupled:
                self.first_response.observe(total // 1_000_000)
            self._add_executed(total, event.exec_start_ns - queued_ns, compute, bool(failed), now)

    def add_ensemble(self, event: events.EnsembleExecuted, now: float) -> None:
        """Add a request to an ensemble; its compute times are sums over all steps."""
        compute = event.compute_input_ns, event.compute_infer_ns, event.compute_output_ns
        total, queue = event.time_ns - event.received_ns, event.started_ns - event.queued_ns
        if event.first_response_ns:
            self.first_response.observe((event.first_response_ns - event.received_ns) // 1_000_000)
        self._add_executed(total, queue, compute, bool(event.failed), now)

    def _add_executed(self, total: int, queue: int, compute: tuple[int, int, int], failed: bool, now: float) -> None:
        if not failed:
            for name, ns in zip(DURATION_BUCKETS_US, (total, queue, *compute), strict=True):
                self._observe(name, ns, now)

    def add_hit(self, event: events.CacheHit, now: float) -> None:
        """Add a request that was answered from the response cache."""
        self.first_response.observe((event.time_ns - event.received_ns) // 1_000_000)
        self._observe("request", event.time_ns - event.received_ns, now)
        self._observe("queue", event.time_ns - event.lookup_ns - event.received_ns, now)
        self.summaries["cache_hit"].observe(event.lookup_ns // 1000, now)

    def add_miss(self, event: events.CacheMiss, now: float) -> None:
        """Add a request whose response was inserted into the response cache."""
        self.summaries["cache_miss"].observe(event.elapsed_ns // 1000, now)

    def add_response(self, event: events.ResponseSent, now: float) -> None:
        """Add a response of a decoupled model."""
        if event.index == 0 and event.outcome != "empty":
            self.first_response.observe(event.elapsed_ns // 1_000_000)

    def _observe(self, name: str, ns: int, now: float) -> None:
        self.summaries[name].observe(ns // 1000, now)
        self.histograms[name].observe(ns / 1000)


_FOLDS: Mapping[type[events.Event], Callable[[ModelLatencies, Any, float], None]] = {
    events.BatchExecuted: ModelLatencies.add_batch,
    events.EnsembleExecuted: ModelLatencies.add_ensemble,
    events.CacheHit: ModelLatencies.add_hit,
    events.CacheMiss: ModelLatencies.add_miss,
    events.ResponseSent: ModelLatencies.add_response,
}
_KINDS = {kind.__name__ for kind in (*_FOLDS, events.ModelStateChanged)}


class Latencies:
    """The distributions of all models; `fold` is a sink of the event stream.

    Parameters
    ----------
    settings_of : callable
        ``settings_of(model, version)`` returns the histograms of a model version.
    """

    def __init__(self, settings_of: Callable[[str, int], HistogramSettings]) -> None:
        self._settings_of = settings_of
        self._models: dict[tuple[str, int], ModelLatencies] = {}

    def for_model(self, model: str, version: int) -> ModelLatencies:
        """Return the distributions of a model version."""
        latencies = self._models.get((model, version))
        if latencies is None:
            latencies = self._models[model, version] = ModelLatencies(self._settings_of(model, version))
        return latencies

    def fold(self, packed: Packed) -> None:
        """Add the latencies of an event."""
        if packed[0] not in _KINDS:
            return
        event = unpack(packed)
        if not isinstance(event, events.ModelStateChanged):
            _FOLDS[type(event)](self.for_model(event.model, event.version), event, time.monotonic())
        elif event.state == "READY":
            self._models.pop((event.model, event.version), None)  # counts start when a model is loaded
