"""Predictions of a twin: the figures of simulations, with their range."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import NormalDist
from typing import Any

import numpy as np
import numpy.typing as npt

from tritonnb.core.errors import InvalidArgumentError
from tritonnb.core.protobuf import model_config_pb2 as pb
from tritonnb.lab.analysis.learned_times import PIECES, LearnedTimes
from tritonnb.lab.prediction.resampled_times import Resampled
from tritonnb.lab.simulation.engine import Columns
from tritonnb.lab.simulation.latencies import SimulatedLatencies, latencies_from_columns
from tritonnb.lab.simulation.run import instance_count, run
from tritonnb.recording.arrivals import Arrival

#: A range should contain the measured value with this probability.
SHARE = 0.9
#: A normal distribution in a few values of equal probability.
NORMAL = np.array([NormalDist().inv_cdf((number + 0.5) / 40) for number in range(40)])
#: What is predicted.
FIGURES = ("latency_p50_ms", "latency_p95_ms", "latency_p99_ms", "throughput", "mean_batch_size", "utilization")


@dataclass(frozen=True, slots=True)
class Range:
    """A predicted value: the median of the simulations, and a range that should contain 90 % of the measured values.

    Examples
    --------
    >>> values = Range.from_values([8.0, 9.0, 10.0, 11.0, 12.0])
    >>> str(values), 10.5 in values
    ('10.00 (8.20 to 11.80)', True)
    """

    value: float
    low: float
    high: float

    @classmethod
    def from_values(cls, values: Sequence[float], misfit: float = 0.0, most: float = math.inf) -> Range:
        """Return the range of simulated values.

        Parameters
        ----------
        values : sequence of float
        misfit : float, optional
            Standard deviation of the logarithm of measured values around simulated values.
        most : float, optional
            The largest possible value, such as 1 of a share.
        """
        bounds = [(1 - SHARE) / 2, (1 + SHARE) / 2]
        low, high = np.quantile(np.outer(values, np.exp(misfit * NORMAL)) if misfit else values, bounds)
        return cls(float(np.median(values)), min(float(low), most), min(float(high), most))

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
        Share (0 to 1) of the time that instances are busy.
    remarks : tuple of str
        What was not recorded and so is extrapolated, and what the p99 rests on.
    interrupted : bool
        Whether an interrupt ended the simulations early: the ranges are those of fewer ones.

    Examples
    --------
    >>> from tritonnb import jittered, linear, poisson, simulate
    >>> config = "max_batch_size: 8 dynamic_batching { }"
    >>> twin = simulate(config, poisson(100, 1, seed=1), jittered(linear(1, 5), sigma=0.1)).twin()
    >>> prediction = twin.predict(rate=120)
    >>> prediction.throughput.low < prediction.throughput.value < prediction.throughput.high
    True
    >>> part = twin.validation[0]
    >>> Prediction.from_runs(part.simulated).utilization.value < 1
    True
    """

    latency_p50_ms: Range
    latency_p95_ms: Range
    latency_p99_ms: Range
    throughput: Range
    mean_batch_size: Range
    utilization: Range
    remarks: tuple[str, ...]
    interrupted: bool = False

    @classmethod
    def from_runs(
        cls,
        runs: Sequence[Figures],
        remarks: Sequence[str] = (),
        misfits: Mapping[str, float] | None = None,
        interrupted: bool = False,
    ) -> Prediction:
        """Return the ranges of simulations; each figure has its misfit, as for `Range.from_values`.

        Parameters
        ----------
        runs : sequence of Figures
        remarks : sequence of str, optional
        misfits : mapping of str to float, optional
            By the name of the figure.
        interrupted : bool, optional
        """
        known = misfits or {}
        ranges = {
            name: Range.from_values(
                [getattr(one, name) for one in runs], known.get(name, 0.0), 1.0 if name == "utilization" else math.inf
            )
            for name in FIGURES
        }
        return cls(**ranges, remarks=tuple(remarks), interrupted=interrupted)

    def __repr__(self) -> str:
        lines = [f"{name:<16} {getattr(self, name)}" for name in FIGURES]
        return "\n".join([f"{'':<16} median ({SHARE:.0%} range)", *lines, *self.remarks])


@dataclass(frozen=True, slots=True, eq=False)
class Figures:
    """The figures of one run, simulated or recorded: the figures of `Prediction`.

    Attributes
    ----------
    latencies_ms : numpy.ndarray of float64
        Of the requests that ran.
    refused : int
        Number of requests that did not run.
    sizes : frozenset of int
        The batch sizes that were formed, in rows.
    """

    latencies_ms: npt.NDArray[np.float64]
    latency_p50_ms: float
    latency_p95_ms: float
    latency_p99_ms: float
    throughput: float
    mean_batch_size: float
    utilization: float
    refused: int
    sizes: frozenset[int]

    @classmethod
    def from_latencies(cls, kept: SimulatedLatencies, instances: int, settled: float = 0.0) -> Figures:
        """Return the figures of a run.

        Parameters
        ----------
        kept : SimulatedLatencies
            Of at least one request.
        instances : int
        settled : float, optional
            The latencies of this share (0 to 1) of the requests, the first ones, do not count: queues fill first.
        """
        last = kept.last[int(settled * len(kept.last)) :]
        latencies_ms = kept.latency_ns[last] / 1e6
        p50_ms, p95_ms, p99_ms = map(float, np.quantile(latencies_ms, [0.5, 0.95, 0.99]))
        elapsed_ns = max(1, int(kept.end_ns.max() - kept.received_ns.min()))
        return cls(
            latencies_ms,
            p50_ms,
            p95_ms,
            p99_ms,
            throughput=len(kept.last) / elapsed_ns * 1e9,
            mean_batch_size=int(kept.rows.sum()) / len(kept.end_ns),
            utilization=int((kept.end_ns - kept.start_ns).sum()) / elapsed_ns / instances,
            refused=kept.refused,
            sizes=frozenset(np.unique(kept.batch_size).tolist()),
        )


def simulated_latencies(
    config: pb.ModelConfig, arrivals: list[Arrival], times: LearnedTimes, seed: int, **options: Any
) -> SimulatedLatencies:
    """Simulate arrivals with resampled execution times.

    Parameters
    ----------
    config, arrivals, times, seed
        As for `run`; the seed resamples the times.
    **options
        ``replicas`` and ``router``, as for `run`.
    """
    columns = Columns()
    span_ns = round(arrivals[-1].time_us * 1000) + 1
    rows, machines = sum(arrival.rows * arrival.steps for arrival in arrivals), options.get("replicas", 1)
    learned = times.for_instances(instance_count(config)).without_pauses
    resampled = Resampled(learned, seed, span_ns, rows, machines)
    run(config, arrivals, resampled, seed, columns=columns, **options)
    return latencies_from_columns(columns)


def simulated_figures(
    config: pb.ModelConfig,
    arrivals: list[Arrival],
    times: LearnedTimes,
    seed: int,
    *,
    settled: float = 0.0,
    **options: Any,
) -> Figures:
    """Return the figures of `simulated_latencies`; ``settled`` is as for `Figures.from_latencies`.

    Raises
    ------
    InvalidArgumentError
        If all requests are refused.
    """
    kept = simulated_latencies(config, arrivals, times, seed, **options)
    if not len(kept.serial):
        raise InvalidArgumentError("predict expected requests that run, but all are refused")
    return Figures.from_latencies(kept, instance_count(config) * options.get("replicas", 1), settled)


def resampled_arrivals(
    recorded: Sequence[Arrival], seed: int, scale: float, *, share: float = 1.0, count: int | None = None
) -> list[Arrival]:
    """Return arrivals made of random pieces of recorded arrivals; few of them, and sequences, stay as they are.

    Parameters
    ----------
    recorded : sequence of Arrival
    seed : int
    scale : float
        Factor of the times.
    share : float, optional
        Each arrival is kept with this probability: what one of several servers gets.
    count : int, optional
        How many to return; by default as many as were recorded.
    """
    if len(recorded) < 2 * PIECES or any(arrival.sequence_id for arrival in recorded):
        return [arrival.at(arrival.time_us * scale) for arrival in recorded]
    rng = np.random.default_rng(seed)
    size = len(recorded) if count is None else count
    index = np.arange(size) if share >= 1 else np.cumsum(rng.geometric(share, size)) - 1
    bounds = len(recorded) * np.arange(PIECES + 1) // PIECES
    times_us = np.array([arrival.time_us for arrival in recorded])
    firsts, sizes = times_us[bounds[:-1]], np.diff(bounds)
    spans = times_us[bounds[1:] - 1] - firsts + (times_us[-1] - times_us[0]) / (len(recorded) - 1)
    # Another recording would have consisted of other pieces: the recorded pieces are resampled first.
    learned = rng.integers(PIECES, size=PIECES)
    pieces = rng.choice(learned, size=index[-1] // sizes.min() + 1)
    ends, begins_us = np.cumsum(sizes[pieces]), np.cumsum(spans[pieces]) - spans[pieces]
    number = np.searchsorted(ends, index, "right")
    piece = pieces[number]
    place = bounds[piece] + index - (ends[number] - sizes[piece])
    when_us = (begins_us[number] + times_us[place] - firsts[piece]) * scale
    return [recorded[i].at(time_us) for i, time_us in zip(place.tolist(), when_us.tolist(), strict=True)]


def rate_of(arrivals: Sequence[Arrival]) -> float:
    """Return the arrivals per second; 0 if all of them arrive at once."""
    span_us = arrivals[-1].time_us - arrivals[0].time_us
    return (len(arrivals) - 1) / span_us * 1e6 if span_us else 0.0
