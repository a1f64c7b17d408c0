"""Predictions of queueing theory for a recording, compared with its measurements.

Little's law holds for every queue. The M/D/1 queue is the same workload without batching. The bound is the one by Inoue
(arXiv:1912.06322) for Poisson arrivals and batches of unlimited size, whose time grows linearly with their rows.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from itertools import pairwise
from statistics import fmean, linear_regression

from tritonnb.core.errors import InvalidArgumentError
from tritonnb.core.failures import with_short_traceback
from tritonnb.core.html_table import html_report
from tritonnb.lab.analysis.offered_load import OfferedLoad, offered_load
from tritonnb.lab.analysis.rerun import only_model
from tritonnb.lab.simulation.run import instance_count
from tritonnb.recording.batches import last_executions
from tritonnb.recording.recording import Recording
from tritonnb.scheduling.from_config import queue_delay_ns
from tritonnb.telemetry.lanes import count_overlaps


@dataclass(frozen=True)
class Theory:
    """Predictions and measurements; times in ms, rates per second.

    Attributes
    ----------
    rate : float
        Arriving requests per second, including refused requests.
    throughput : float
        Executed requests per second, from the first arrival to the end of the last execution. It is below ``rate`` if
        the server is overloaded or refuses requests.
    rows : float
        Mean number of rows per request.
    latency_ms : float
        Mean time from reception to the end of the execution.
    in_system : float
        Mean number of requests in the server, counted over time and not derived from latencies.
    expected_in_system : float
        The same by Little's law: ``throughput`` times ``latency_ms``.
    alpha_ms, tau0_ms : float
        Linear fit of the execution time: time per row, and constant time per batch.
    saturation : float
        Maximum rows per second of all instances, at their most efficient batch size.
    load : float
        Arriving rows per second divided by ``saturation``; above 1 the latency keeps growing.
    unbatched_latency_ms : float
        Mean latency of an M/D/1 queue, in which one instance runs each request without batching; infinite if its
        load is 1 or more.
    latency_bound_ms : float or None
        Upper bound of the mean latency for Poisson arrivals of single rows at one instance, with neither a queue delay
        nor a limit of the batch size; None for other configurations, and if a batch reached ``max_batch_size``.

    Examples
    --------
    >>> from tritonnb import constant, fixed, simulate
    >>> result = theory(simulate("max_batch_size: 8 dynamic_batching { }", constant(50, 2), fixed(10)))
    >>> round(result.rate), round(result.latency_ms)
    (50, 10)
    >>> result.verdict().split(". ")[0]
    '50 requests/s × 10.00 ms = 0.50 requests in the server (counted: 0.50)'
    >>> result.table()[0]
    ('rate λ', 50.0, 'arriving requests per second')
    >>> round(result.to_dict()["in_system"], 1)
    0.5
    """

    rate: float
    throughput: float
    rows: float
    latency_ms: float
    in_system: float
    expected_in_system: float
    alpha_ms: float
    tau0_ms: float
    saturation: float
    load: float
    unbatched_latency_ms: float
    latency_bound_ms: float | None

    @property
    def overloaded(self) -> bool:
        """True if the load exceeds the capacity of the instances."""
        return self.load > 1 and OfferedLoad(self.rate, self.rows, self.throughput).exceeds_service

    def verdict(self) -> str:
        """Summarize load and latency in one or two sentences."""
        law = (
            f"{self.throughput:.0f} requests/s × {self.latency_ms:.2f} ms = {self.expected_in_system:.2f} requests in "
            f"the server (counted: {self.in_system:.2f})."
        )
        if self.overloaded:
            return (
                f"Overloaded: {self.rate:.0f} requests/s arrive and {self.throughput:.0f} requests/s are served. The "
                f"load is {self.load:.0%} of the capacity of the instances, so the latency keeps growing: "
                f"it is that of this recording, not of a steady state. {law}"
            )
        unbatched = "without batching one instance would be overloaded"
        if math.isfinite(self.unbatched_latency_ms):
            unbatched = f"without batching the latency would be {self.unbatched_latency_ms:.2f} ms"
        return f"{law} The load is {self.load:.0%} of the capacity of the instances; {unbatched}."

    def table(self) -> list[tuple[str, float, str]]:
        """Return name, value and definition of each quantity."""
        rows: list[tuple[str, float | None, str]] = [
            ("rate λ", self.rate, "arriving requests per second"),
            ("throughput X", self.throughput, "executed requests per second"),
            ("mean latency W (ms)", self.latency_ms, "from reception to the end of the execution"),
            ("in the server L", self.in_system, "mean number of requests, counted over time"),
            ("Little: X·W", self.expected_in_system, "expected to equal L"),
            ("time of a row α (ms)", self.alpha_ms, "slope of the execution time over the rows"),
            ("time of a batch τ₀ (ms)", self.tau0_ms, "constant part of the execution time"),
            ("saturation (rows/s)", self.saturation, "all instances at their most efficient batch size"),
            ("load ρ", self.load, "arriving rows per second / saturation; above 1: overload"),
            ("M/D/1 latency (ms)", self.unbatched_latency_ms, "one instance without batching"),
            (
                "Inoue's bound (ms)",
                self.latency_bound_ms,
                "upper bound of W: Poisson arrivals, no delay, unlimited batches",
            ),
        ]
        return [(name, value, words) for name, value, words in rows if value is not None]

    def to_dict(self) -> dict[str, object]:
        """Return the numbers by name."""
        return {name: getattr(self, name) for name in self.__dataclass_fields__}

    def __repr__(self) -> str:
        return "\n".join([self.verdict(), *(f"  {a:<24}{b:>12,.2f}  {c}" for a, b, c in self.table())])

    def _repr_html_(self) -> str:
        return html_report(self.verdict(), (), [(a, f"{b:,.2f}", c) for a, b, c in self.table()])


@with_short_traceback
def theory(rec: Recording) -> Theory:
    """Compare a recording of one model with queueing theory.

    Parameters
    ----------
    rec : Recording
        Live or simulated.

    Returns
    -------
    Theory

    Raises
    ------
    InvalidArgumentError
        If it is not a recording of exactly one model (see `Recording.for_model`), or has no duration.

    Examples
    --------
    >>> from tritonnb import fixed, poisson, simulate
    >>> rec = simulate("max_batch_size: 8 dynamic_batching { }", poisson(50, 20, seed=1), fixed(10))
    >>> result = theory(rec)
    >>> abs(result.expected_in_system / result.in_system - 1) < 0.01
    True
    """
    if not isinstance(rec, Recording):
        raise InvalidArgumentError(f"theory expected a recording, got {type(rec).__name__}")
    rec.require_every_request("theory")
    model = only_model({request.model for request in rec.requests}, "theory")
    begin = min(request.received_ns for request in rec.requests)
    span_ns = max(request.exec_end_ns for request in rec.requests) - begin
    if span_ns <= 0:
        raise InvalidArgumentError("theory expected a recording with a duration above 0, got 0")
    config = rec.configs.get(model)
    offered = offered_load(rec)
    rate, rows = offered.rate, offered.rows
    latency_ms = fmean(request.latency_ns for request in last_executions(rec.requests)) / 1e6
    alpha_ms, tau0_ms = _line(rec)
    instances = len(rec.instances) if config is None else instance_count(config)
    largest = max([*rec.batch_sizes(), 0 if config is None else config.max_batch_size])
    saturation = instances * max(size * 1000 / max(1e-6, alpha_ms * size + tau0_ms) for size in (1, largest))
    delay_ns = 0 if config is None else queue_delay_ns(config)
    full = config is not None and max(rec.batch_sizes()) >= max(1, config.max_batch_size)
    limited = instances > 1 or rows != 1 or delay_ns or full
    return Theory(
        rate,
        offered.throughput,
        rows,
        latency_ms,
        _in_system(rec, span_ns),
        offered.throughput * latency_ms / 1000,
        alpha_ms,
        tau0_ms,
        saturation,
        rate * rows / saturation,
        _unbatched_latency_ms(rate, alpha_ms * rows + tau0_ms),
        None if limited else _bound_ms(rate, alpha_ms, tau0_ms),
    )


def _line(rec: Recording) -> tuple[float, float]:
    """Fit a line to the execution times of all batches; neither coefficient is negative."""
    sizes = [batch.size for batch in rec.batches]
    times_ms = [batch.compute_ns / 1e6 for batch in rec.batches]
    slope = linear_regression(sizes, times_ms).slope if len({*sizes}) > 1 else 0.0
    slope = min(max(0.0, slope), fmean(times_ms) / fmean(sizes))
    return slope, fmean(times_ms) - slope * fmean(sizes)


def _in_system(rec: Recording, span_ns: int) -> float:
    """Return the mean number of requests in the server over time."""
    times, counts = count_overlaps((request.received_ns, request.exec_end_ns) for request in rec.requests)
    spans = zip(counts, pairwise(times), strict=False)
    return sum(count * (until - since) for count, (since, until) in spans) / span_ns


def _unbatched_latency_ms(rate: float, service_ms: float) -> float:
    """Return the mean latency of the M/D/1 queue (Pollaczek-Khinchine formula)."""
    load = rate * service_ms / 1000
    return service_ms * (1 + load / (2 * (1 - load))) if load < 1 else math.inf


def _bound_ms(rate: float, alpha_ms: float, tau0_ms: float) -> float:
    """Return Inoue's upper bound: the smaller of two bounds, for low and for high load."""
    arriving = rate / 1000
    load = arriving * alpha_ms
    if load >= 1:
        return math.inf
    small = (alpha_ms + tau0_ms) / (2 * (1 - load))
    small *= 1 + 2 * arriving * tau0_ms + (1 - arriving * tau0_ms) / (1 + load)
    return min(small, 1.5 * tau0_ms / (1 - load) + alpha_ms / 2 * (load + 2) / (1 - load**2))
