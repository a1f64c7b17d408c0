"""What queueing theory says of a recording, beside what was measured.

Little's law holds of every queue; the M/D/1 queue is the same traffic without batches; the bound is that of Inoue
(arXiv:1912.06322) for Poisson arrivals and batches without a limit, whose time grows linearly with their rows.
"""

from __future__ import annotations

import html
import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from tritonnb.core.errors import InvalidArgumentError
from tritonnb.recording.offered import OfferedLoad, offered_load
from tritonnb.recording.recording import Recording
from tritonnb.simulation.run import instance_count


@dataclass(frozen=True)
class Theory:
    """Numbers of theory and of the measurement; times in ms, rates a second.

    Attributes
    ----------
    rate : float
        Requests that arrived a second, refused ones included.
    throughput : float
        Requests that ran a second, from the first arrival to the end of the last execution. It stays below ``rate``
        where the server is overloaded, or refuses requests.
    rows : float
        Rows of a request, on average.
    latency_ms : float
        From reception to the end of the execution, on average.
    in_system : float
        Requests in the server at once, on average over the time: counted, without a look at latencies.
    little : float
        The same by Little's law: ``throughput`` times ``latency_ms``.
    alpha_ms, tau0_ms : float
        The straight line through the time of a batch: for each row, and for the batch.
    saturation : float
        Rows a second that all instances can do at their best batch size.
    load : float
        The share of it that arrived; above 1 requests wait longer and longer.
    unbatched_latency_ms : float
        Mean latency of an M/D/1 queue, in which one instance runs every request alone; infinite where it
        could not keep up.
    bound_ms : float or None
        The mean latency is below this for Poisson arrivals of single rows at one instance with neither delay
        nor a limit of the batch; None for other configurations, and where a batch was as large as it may be.
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
    bound_ms: float | None

    @property
    def overloaded(self) -> bool:
        """Whether more arrived than the instances can do, so that it was not served as it arrived."""
        return self.load > 1 and OfferedLoad(self.rate, self.rows, self.throughput).exceeds_service

    def verdict(self) -> str:
        """What follows, in a sentence or two."""
        law = (
            f"{self.throughput:.0f} requests/s × {self.latency_ms:.2f} ms = {self.expected_in_system:.2f} requests in "
            f"the server (counted: {self.in_system:.2f})."
        )
        if self.overloaded:
            return (
                f"Overloaded: {self.rate:.0f} requests/s arrive and {self.throughput:.0f} requests/s are served. The "
                f"load is {self.load:.0%} of what the instances can do, so requests wait longer the longer it lasts: "
                f"the latency is that of this recording, not of a steady state. {law}"
            )
        alone = (
            f"without batches it would be {self.unbatched_latency_ms:.2f} ms"
            if math.isfinite(self.unbatched_latency_ms)
            else "without batches one instance could not keep up"
        )
        return f"{law} The load is {self.load:.0%} of what the instances can do; {alone}."

    def table(self) -> list[tuple[str, float, str]]:
        """Name, value, definition."""
        rows: list[tuple[str, float | None, str]] = [
            ("rate λ", self.rate, "requests that arrive a second"),
            ("throughput X", self.throughput, "requests that are served a second"),
            ("mean latency W (ms)", self.latency_ms, "from reception to the end of the execution"),
            ("in the server L", self.in_system, "requests at once, counted over the time"),
            ("Little: X·W", self.expected_in_system, "must be L"),
            ("time of a row α (ms)", self.alpha_ms, "slope of the time of a batch over its rows"),
            ("time of a batch τ₀ (ms)", self.tau0_ms, "what a batch takes whatever its size"),
            ("saturation (rows/s)", self.saturation, "all instances at their best batch size"),
            ("load ρ", self.load, "rows that arrive a second / saturation; above 1: overload"),
            ("M/D/1 latency (ms)", self.unbatched_latency_ms, "one instance that runs every request alone"),
            ("Inoue's bound (ms)", self.bound_ms, "W is below it: Poisson arrivals, no delay, batches without limit"),
        ]
        return [(name, value, words) for name, value, words in rows if value is not None]

    def to_dict(self) -> dict[str, Any]:
        """The numbers by name."""
        return {name: getattr(self, name) for name in self.__dataclass_fields__}

    def __repr__(self) -> str:
        return "\n".join([self.verdict(), *(f"  {a:<24}{b:>12,.2f}  {c}" for a, b, c in self.table())])

    def _repr_html_(self) -> str:
        rows = "".join(f"<tr><td>{a}</td><td>{b:,.2f}</td><td>{c}</td></tr>" for a, b, c in self.table())
        return f"<p><b>{html.escape(self.verdict())}</b></p><table><tbody>{rows}</tbody></table>"


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
        If it is no recording, of no model or of several (see `Recording.of`), or lasted no time.

    Examples
    --------
    >>> from tritonnb import fixed, poisson, simulate
    >>> rec = simulate("max_batch_size: 8 dynamic_batching { }", poisson(50, 20, seed=1), fixed(10))
    >>> found = theory(rec)
    >>> abs(found.expected_in_system / found.in_system - 1) < 0.01
    True
    """
    if not isinstance(rec, Recording):
        raise InvalidArgumentError(f"theory needs a recording, got {type(rec).__name__}")
    models = {each.model for each in rec.requests}
    if len(models) != 1:
        found = f"{', '.join(sorted(models))}: use rec.of()" if models else "no model"
        raise InvalidArgumentError(f"theory needs a recording of one model, and this is of {found}")
    begin = min(each.received_ns for each in rec.requests)
    span_ns = max(each.exec_end_ns for each in rec.requests) - begin
    if span_ns <= 0:
        raise InvalidArgumentError("theory needs a recording that lasted")
    config = rec.configs.get(models.pop())
    offered = offered_load(rec)
    rate, rows = offered.rate, offered.rows
    latency_ms = float(np.mean([each.latency_ns for each in rec.requests])) / 1e6
    alpha_ms, tau0_ms = _line(rec)
    instances = len(rec.instances) if config is None else instance_count(config)
    largest = max([*rec.batch_sizes(), 0 if config is None else config.max_batch_size])
    saturation = instances * max(size * 1000 / max(1e-6, alpha_ms * size + tau0_ms) for size in (1, largest))
    delay_us = 0 if config is None else config.dynamic_batching.max_queue_delay_microseconds
    full = config is not None and max(rec.batch_sizes()) >= max(1, config.max_batch_size)
    limited = instances > 1 or rows != 1 or delay_us or full
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
        _alone_ms(rate, alpha_ms * rows + tau0_ms),
        None if limited else _bound_ms(rate, alpha_ms, tau0_ms),
    )


def _line(rec: Recording) -> tuple[float, float]:
    """Least squares through the times of all batches; neither part is negative."""
    sizes = np.array([each.size for each in rec.batches], np.float64)
    times = np.array([each.compute_ns for each in rec.batches], np.float64) / 1e6
    spread = float(((sizes - sizes.mean()) ** 2).sum())
    slope = float(((sizes - sizes.mean()) * (times - times.mean())).sum()) / spread if spread else 0.0
    slope = min(max(0.0, slope), float(times.mean() / sizes.mean()))
    return slope, float(times.mean() - slope * sizes.mean())


def _in_system(rec: Recording, span_ns: int) -> float:
    """The number of requests in the server, over the time."""
    begins = ((each.received_ns, 1) for each in rec.requests)
    ends = ((each.exec_end_ns, -1) for each in rec.requests)
    steps = sorted([*begins, *ends])
    now, since, area = 0, steps[0][0], 0
    for time_ns, step in steps:
        area += now * (time_ns - since)
        now, since = now + step, time_ns
    return area / span_ns


def _alone_ms(rate: float, service_ms: float) -> float:
    """Pollaczek and Khinchine's mean latency for a service time that never changes."""
    load = rate * service_ms / 1000
    return service_ms * (1 + load / (2 * (1 - load))) if load < 1 else math.inf


def _bound_ms(rate: float, alpha_ms: float, tau0_ms: float) -> float:
    """Inoue's upper bound: the lower one of two, each tight at an end."""
    arriving = rate / 1000
    load = arriving * alpha_ms
    if load >= 1:
        return math.inf
    small = (alpha_ms + tau0_ms) / (2 * (1 - load))
    small *= 1 + 2 * arriving * tau0_ms + (1 - arriving * tau0_ms) / (1 + load)
    return min(small, 1.5 * tau0_ms / (1 - load) + alpha_ms / 2 * (load + 2) / (1 - load**2))
