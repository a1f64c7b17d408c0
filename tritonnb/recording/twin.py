"""`Recording.twin`: the execution times of a server, learned from a recording, and predictions with their range."""

from __future__ import annotations

import random
import statistics
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from tritonnb.core.accessors import extensible
from tritonnb.core.errors import InvalidArgumentError
from tritonnb.core.failures import with_short_traceback
from tritonnb.model_config.editable_config import with_overrides
from tritonnb.recording.batches import LEAST_BATCHES
from tritonnb.recording.latencies import latencies_from_columns
from tritonnb.recording.learned_times import PIECES, LearnedTimes, steepest
from tritonnb.recording.rerun import config_of
from tritonnb.scheduling.reasons import pluralize
from tritonnb.simulation.arrivals import Arrival
from tritonnb.simulation.engine import Columns
from tritonnb.simulation.run import instance_count, run

if TYPE_CHECKING:
    from collections.abc import Callable

    from tritonnb.recording.recording import Recording

#: A range contains this share of the simulations.
_SHARE = 0.9
#: Simulations of a prediction, each with other arrivals and execution times from the recording.
_SAMPLES = 40
#: A rate within this factor of the recorded one is no extrapolation.
_NEAR = 1.1
#: Other names of edits.
_NAMES = {"instance_count": "count"}


@dataclass(frozen=True, slots=True)
class Range:
    """A predicted value: the median of the simulations, and the range of 90 % of them."""

    value: float
    low: float
    high: float

    @classmethod
    def from_values(cls, values: Sequence[float]) -> Range:
        """Return the range of simulated values."""
        low, value, high = np.quantile(values, [(1 - _SHARE) / 2, 0.5, (1 + _SHARE) / 2])
        return cls(float(value), float(low), float(high))

    def __contains__(self, value: float) -> bool:
        return self.low <= value <= self.high

    def __str__(self) -> str:
        return f"{self.value:.2f} ({self.low:.2f} to {self.high:.2f})"


@dataclass(frozen=True, slots=True)
class Prediction:
    """The prediction of a twin; see `Twin.predict`.

    Attributes
    ----------
    latency_p50_ms, latency_p95_ms, latency_p99_ms : Range
    throughput : Range
        Requests per second.
    mean_batch_size : Range
        Rows.
    utilization : Range
        Share (0 to 1) of the time in which instances are busy.
    remarks : tuple of str
        What was not recorded and so is extrapolated, and what the p99 rests on.
    """

    latency_p50_ms: Range
    latency_p95_ms: Range
    latency_p99_ms: Range
    throughput: Range
    mean_batch_size: Range
    utilization: Range
    remarks: tuple[str, ...]

    def __repr__(self) -> str:
        lines = [f"{name:<16} {getattr(self, name)}" for name in _FIGURES]
        return "\n".join([f"{'':<16} median ({_SHARE:.0%} of the simulations)", *lines, *self.remarks])


_FIGURES = ("latency_p50_ms", "latency_p95_ms", "latency_p99_ms", "throughput", "mean_batch_size", "utilization")


@extensible
class Twin:
    """The execution times of a server, learned from a recording of one model.

    Attributes
    ----------
    recording : Recording
    times : LearnedTimes
        Execution times, their variation, stalls of the machine, and the slow-down of instances that run together.

    Examples
    --------
    >>> from tritonnb import jittered, linear, poisson, simulate
    >>> config = "max_batch_size: 8 dynamic_batching { }"
    >>> rec = simulate(config, poisson(100, 10, seed=1), jittered(linear(1, 5), sigma=0.1))
    >>> twin = rec.twin()
    >>> prediction = twin.predict(max_queue_delay_microseconds=5000)
    >>> prediction.mean_batch_size.low > 1
    True
    """

    plot: ClassVar[Callable[..., Any]]

    def __init__(self, recording: Recording) -> None:
        recording.require_every_request("twin()")
        self.recording = recording
        self.times = recording.service()
        self._config = config_of(recording, "twin()")
        self._arrivals = recording.arrivals()

    @property
    def rate(self) -> float:
        """Recorded arrivals per second."""
        span_us = self._arrivals[-1].time_us - self._arrivals[0].time_us
        return (len(self._arrivals) - 1) / span_us * 1e6 if span_us else 0.0

    @property
    def sizes(self) -> list[int]:
        """The recorded batch sizes, in rows."""
        return sorted({one.rows for one in self.times.executions})

    def range_ms(self, rows: int) -> Range:
        """Return the typical time of a batch size in ms, and its range.

        The range of a recorded size contains 90 % of its executions, or of those of all sizes if it has too few. Beyond
        the recorded sizes, it lies between no growth and the steepest growth between two of them.
        """
        typical, sizes = self.times.function, self.sizes
        recorded = [one.time_ns for one in self.times.executions if one.rows == rows and not one.first]
        if 0 < len(recorded) < LEAST_BATCHES:
            recorded = [round(typical(rows) * factor) for factor in self.times.factors[1]]
        if recorded:
            return replace(Range.from_values([time_ns / 1e6 for time_ns in recorded]), value=typical(rows) / 1e6)
        nearest = min(sizes, key=lambda size: abs(size - rows))
        flat, steep = typical(nearest), typical(nearest) + (rows - nearest) * steepest(typical, sizes)
        bounds = sorted([max(0.0, flat), max(0.0, steep), typical(rows)])
        return Range(typical(rows) / 1e6, bounds[0] / 1e6, bounds[-1] / 1e6)

    @with_short_traceback
    def predict(self, *, rate: float | None = None, seed: int = 0, **edits: Any) -> Prediction:
        """Predict latencies and throughput under an edited configuration or at another rate.

        Parameters
        ----------
        rate : float, optional
            Requests per second; by default the recorded rate. The recorded arrivals come faster or more slowly.
        seed : int, optional
            Of the resampling.
        **edits
            As for `Recording.what_if`: ``max_queue_delay_microseconds=0``, ``count=2`` (or ``instance_count=2``), …

        Returns
        -------
        Prediction
            Ranges of simulations with arrivals and execution times that are resampled from the recording.

        Raises
        ------
        InvalidArgumentError
            If the rate is not positive, or the configuration has no such field.
        """
        if rate is not None and not 0 < rate < float("inf"):
            raise InvalidArgumentError(f"predict: rate expected a positive number of requests per second, got {rate!r}")
        config = with_overrides(self._config, {_NAMES.get(name, name): value for name, value in edits.items()})
        scale = self.rate / rate if rate is not None and self.rate else 1.0
        runs = [_Run.simulate(config, self._resampled(seed + n, scale), self.times, seed + n) for n in range(_SAMPLES)]
        ranges = {name: Range.from_values([getattr(one, name) for one in runs]) for name in _FIGURES}
        return Prediction(**ranges, remarks=tuple(self._remarks(runs, rate, instance_count(config))))

    def _remarks(self, runs: Sequence[_Run], rate: float | None, instances: int) -> list[str]:
        remarks = []
        largest = max(one.largest for one in runs)
        if largest > self.sizes[-1]:
            ms = self.range_ms(largest)
            remarks.append(f"batches of {self.sizes[-1] + 1} to {largest} rows were not recorded: up to {ms} ms")
        if rate is not None and not 1 / _NEAR < rate / self.rate < _NEAR:
            remarks.append(f"{rate:g} requests/s were not recorded, but {self.rate:.1f}")
        busiest = max(self.times.slow_down)
        if instances > busiest:
            slow = self.times.slow_down[busiest]
            remarks.append(
                f"{pluralize(instances, 'instance')} at the same time were not recorded: assumed to be as slow as "
                f"{busiest} ({slow:.2f} times)"
            )
        stalls = len(self.times.stalls)
        if stalls and any(one.stalled for one in runs):
            remarks.append(f"the p99 rests on {pluralize(stalls, 'stall')} in the recording")
        return remarks

    def _resampled(self, seed: int, scale: float) -> list[Arrival]:
        """Return arrivals made of random pieces of the recorded ones."""
        count = len(self._arrivals)
        if any(arrival.sequence_id for arrival in self._arrivals) or count < 2 * PIECES:
            return [_at(arrival, arrival.time_us * scale) for arrival in self._arrivals]
        rng = random.Random(seed)
        bounds = [count * piece // PIECES for piece in range(PIECES + 1)]
        mean_us = 1e6 / self.rate
        arrivals: list[Arrival] = []
        begin_us = 0.0
        for _ in range(PIECES):
            piece = rng.randrange(PIECES)
            chosen = self._arrivals[bounds[piece] : bounds[piece + 1]]
            first_us = chosen[0].time_us
            arrivals += [_at(arrival, (begin_us + arrival.time_us - first_us) * scale) for arrival in chosen]
            begin_us += chosen[-1].time_us - first_us + mean_us
        return arrivals

    @cached_property
    def validation(self) -> dict[str, tuple[Range, float]]:
        """The prediction of one half of the recording for the other half, and the recorded value.

        By figure: `latency_p50_ms`, `latency_p99_ms` and `mean_batch_size`. Empty for a recording with sequences, or
        with fewer than 100 requests.
        """
        middle_ms = (self.recording.span_ns[1] - self.recording.span_ns[0]) / 2e6
        if len(self._arrivals) < 100 or any(arrival.sequence_id for arrival in self._arrivals):
            return {}
        learned, other = self.recording.between(None, middle_ms), self.recording.between(middle_ms, None)
        if not learned.batches or not other.batches:
            return {}
        recorded = other.summary()
        arrivals, times = other.arrivals(), learned.service()
        runs = [_Run.simulate(self._config, arrivals, times, seed) for seed in range(_SAMPLES // 2)]
        names = ("latency_p50_ms", "latency_p99_ms", "mean_batch_size")
        return {name: (Range.from_values([getattr(one, name) for one in runs]), recorded[name]) for name in names}

    def __repr__(self) -> str:
        times = self.times
        lines = [f"Twin of '{self._config.name}', from {pluralize(len(times.executions), 'execution')}"]
        for rows in self.sizes:
            count = sum(1 for one in times.executions if one.rows == rows)
            lines.append(f"  batch size {rows:>4}: {count:>5} x {self.range_ms(rows)} ms")
        dispatch_ms = statistics.median(one.dispatch_ns for one in times.executions) / 1e6
        lines.append(f"  of it before the execution begins: {dispatch_ms:.3f} ms (median)")
        slow = ", ".join(f"{busy}: {factor:.2f}" for busy, factor in times.slow_down.items())
        lines.append(f"  slow-down by number of busy instances: {slow}")
        warm_ups = sum(1 for one in times.executions if one.first)
        lines.append(f"  left out: {pluralize(warm_ups, 'first execution')} of an instance")
        excess = ", ".join(f"{excess_ns / 1e6:.1f}" for _, excess_ns in times.stalls[:5])
        more = ", …" if len(times.stalls) > 5 else ""
        lines.append(f"  stalls: {len(times.stalls)}" + (f", of {excess}{more} ms" if times.stalls else ""))
        for name, (predicted, recorded) in self.validation.items():
            verdict = "" if recorded in predicted else ", outside"
            lines.append(f"  first half for the second: {name} {predicted}; recorded {recorded:.2f}{verdict}")
        return "\n".join(lines)


@dataclass(frozen=True, slots=True)
class _Run:
    """The figures of one simulation, those of `Prediction`; its largest batch, and whether a stall makes its p99."""

    latency_p50_ms: float
    latency_p95_ms: float
    latency_p99_ms: float
    throughput: float
    mean_batch_size: float
    utilization: float
    largest: int
    stalled: bool

    @classmethod
    def simulate(cls, config: Any, arrivals: list[Arrival], times: LearnedTimes, seed: int) -> _Run:
        columns = Columns()
        span_ns = round(arrivals[-1].time_us * 1000) + 1
        run(config, arrivals, times.resampled(seed, span_ns), seed, columns=columns)
        kept = latencies_from_columns(columns)
        if not len(kept.serial):
            raise InvalidArgumentError("predict expected requests that run, but all are refused")
        p50_ms, p95_ms, p99_ms = map(float, np.quantile(kept.latency_ns[kept.last] / 1e6, [0.5, 0.95, 0.99]))
        durations = kept.end_ns - kept.start_ns
        elapsed_ns = int(kept.end_ns.max() - kept.received_ns.min())
        shortest = min((excess_ns for _, excess_ns in times.stalls), default=0)
        return cls(
            p50_ms,
            p95_ms,
            p99_ms,
            throughput=len(kept.last) / elapsed_ns * 1e9,
            mean_batch_size=int(kept.rows.sum()) / len(durations),
            utilization=int(durations.sum()) / elapsed_ns / instance_count(config),
            largest=int(kept.batch_size.max()),
            stalled=bool(times.stalls) and p99_ms * 1e6 >= shortest,
        )


def _at(arrival: Arrival, time_us: float) -> Arrival:
    cancel_us = None if arrival.cancel_us is None else time_us + arrival.cancel_us - arrival.time_us
    return replace(arrival, time_us=time_us, cancel_us=cancel_us)


@with_short_traceback
def twin(recording: Recording) -> Twin:
    """Learn the execution times of a recording of one model, to predict other configurations and rates.

    Returns
    -------
    Twin
        It prints what it learned, and how well one half of the recording predicts the other.

    Raises
    ------
    InvalidArgumentError
        If the recording is a sample, is not of one model, lacks its configuration, or contains no executed batch.

    Examples
    --------
    >>> from tritonnb import fixed, poisson, simulate
    >>> recording = simulate("max_batch_size: 4 dynamic_batching { }", poisson(100, 4, seed=1), fixed(5))
    >>> prediction = recording.twin().predict(rate=120)
    """
    return Twin(recording)
