"""Predictions of a twin: the figures of simulations, with their range."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import NormalDist

import numpy as np
import numpy.typing as npt

from tritonnb.core.errors import InvalidArgumentError
from tritonnb.lab.prediction.timed_models import RunLatencies, TimedModels
from tritonnb.lab.simulation.latencies import SimulatedLatencies
from tritonnb.recording.arrivals import Arrival

#: A range should contain the measured value with this probability.
SHARE = 0.9
#: A normal distribution in a few values of equal probability.
NORMAL = np.array([NormalDist().inv_cdf((number + 0.5) / 40) for number in range(40)])
#: What is predicted of a model and of a pipeline, and in addition of each step of a pipeline.
FIGURES = ("latency_p50_ms", "latency_p95_ms", "latency_p99_ms", "throughput", "mean_batch_size", "utilization")
STEP_FIGURES = ("mean_batch_size", "utilization")


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
    def from_values(
        cls, values: Sequence[float], misfit: float = 0.0, least: float = 0.0, most: float = math.inf
    ) -> Range:
        """Return the range of simulated values.

        Parameters
        ----------
        values : sequence of float
        misfit : float, optional
            Standard deviation of the logarithm of measured values around simulated values.
        least, most : float, optional
            The possible values, such as at most 1 of a share.
        """
        bounds = [(1 - SHARE) / 2, (1 + SHARE) / 2]
        low, high = np.quantile(np.outer(values, np.exp(misfit * NORMAL)) if misfit else values, bounds)
        return cls(float(np.median(values)), *np.clip([low, high], least, most).tolist())

    def __contains__(self, value: float) -> bool:
        return self.low <= value <= self.high

    def __str__(self) -> str:
        return f"{self.value:.2f} ({self.low:.2f} to {self.high:.2f})"


@dataclass(frozen=True, slots=True)
class Prediction:
    """The prediction of a twin; see `Twin.predict`.

    Attributes
    ----------
    ranges : dict of str to Range
        By the name of the figure; ``net: mean_batch_size`` and ``net: utilization`` of a step of a pipeline.
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
    >>> prediction.ranges["latency_p95_ms"] == prediction.latency_p95_ms
    True
    >>> part = twin.validation[0]
    >>> Prediction.from_runs(part.simulated).utilization.value < 1
    True
    """

    ranges: Mapping[str, Range]
    remarks: tuple[str, ...]
    interrupted: bool = False

    @property
    def latency_p50_ms(self) -> Range:
        """The median latency."""
        return self.ranges["latency_p50_ms"]

    @property
    def latency_p95_ms(self) -> Range:
        """The p95 of the latency."""
        return self.ranges["latency_p95_ms"]

    @property
    def latency_p99_ms(self) -> Range:
        """The p99 of the latency."""
        return self.ranges["latency_p99_ms"]

    @property
    def throughput(self) -> Range:
        """Requests per second."""
        return self.ranges["throughput"]

    @property
    def mean_batch_size(self) -> Range:
        """Rows; of a pipeline, of the batches of all steps."""
        return self.ranges["mean_batch_size"]

    @property
    def utilization(self) -> Range:
        """Share (0 to 1) of the time that instances are busy; of a pipeline, at its busiest step."""
        return self.ranges["utilization"]

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
                [one.value(name) for one in runs],
                known.get(name, 0.0),
                1.0 if name.endswith("mean_batch_size") else 0.0,
                1.0 if name.endswith("utilization") else math.inf,
            )
            for name in figure_names(runs[0].steps)
        }
        return cls(ranges, tuple(remarks), interrupted)

    def __repr__(self) -> str:
        width = max(16, *map(len, self.ranges))
        lines = [f"{name:<{width}} {one}" for name, one in self.ranges.items()]
        return "\n".join([f"{'':<{width}} median ({SHARE:.0%} range)", *lines, *self.remarks])


@dataclass(frozen=True, slots=True)
class StepFigures:
    """The figures of one model in a run.

    Attributes
    ----------
    mean_batch_size : float
        In rows; 0 if nothing was executed.
    utilization : float
    sizes : frozenset of int
        The batch sizes that were formed, in rows.
    """

    mean_batch_size: float
    utilization: float
    sizes: frozenset[int]


def figure_names(steps: Sequence[str] | Mapping[str, object]) -> list[str]:
    """Return the names of the figures of a run with these steps; a single model has none of its own."""
    own = [f"{step}: {name}" for step in steps for name in STEP_FIGURES] if len(steps) > 1 else []
    return [*FIGURES, *own]


@dataclass(frozen=True, slots=True, eq=False)
class Figures:
    """The figures of one run, simulated or recorded: the figures of `Prediction`.

    Attributes
    ----------
    latencies_ms : numpy.ndarray of float64
        Of the requests that ran.
    refused : int
        Number of requests that did not run.
    steps : dict of str to StepFigures
        Of each model that was executed.
    """

    latencies_ms: npt.NDArray[np.float64]
    latency_p50_ms: float
    latency_p95_ms: float
    latency_p99_ms: float
    throughput: float
    mean_batch_size: float
    utilization: float
    refused: int
    steps: Mapping[str, StepFigures]

    def value(self, name: str) -> float:
        """Return a figure by its name.

        Parameters
        ----------
        name : str
            One of `figure_names`.
        """
        step, _, figure = name.rpartition(": ")
        value: float = getattr(self.steps[step] if step else self, figure)
        return value

    @classmethod
    def from_latencies(cls, run: RunLatencies, instances: Mapping[str, int], settled: float = 0.0) -> Figures:
        """Return the figures of a run.

        Parameters
        ----------
        run : RunLatencies
            Of at least one request.
        instances : dict of str to int
            By the name of the model.
        settled : float, optional
            The latencies of this share (0 to 1) of the requests, the first ones, do not count: queues fill first.
        """
        kept = run.requests
        last = kept.last[int(settled * len(kept.last)) :]
        latencies_ms = kept.latency_ns[last] / 1e6
        p50_ms, p95_ms, p99_ms = map(float, np.quantile(latencies_ms, [0.5, 0.95, 0.99]))
        elapsed_ns = max(1, int(kept.end_ns.max() - kept.received_ns.min()))
        steps = {name: _step_figures(step, elapsed_ns, instances[name]) for name, step in run.steps.items()}
        batches = sum(len(step.end_ns) for step in run.steps.values())
        return cls(
            latencies_ms,
            p50_ms,
            p95_ms,
            p99_ms,
            throughput=len(kept.last) / elapsed_ns * 1e9,
            mean_batch_size=sum(int(step.rows.sum()) for step in run.steps.values()) / max(1, batches),
            utilization=max(step.utilization for step in steps.values()),
            refused=kept.refused,
            steps=steps,
        )


def _step_figures(step: SimulatedLatencies, elapsed_ns: int, instances: int) -> StepFigures:
    return StepFigures(
        int(step.rows.sum()) / max(1, len(step.end_ns)),
        int((step.end_ns - step.start_ns).sum()) / elapsed_ns / instances,
        frozenset(np.unique(step.batch_size).tolist()),
    )


def simulated_figures(
    models: TimedModels, arrivals: Sequence[Arrival], seed: int, *, settled: float = 0.0, replicas: int = 1
) -> Figures:
    """Return the figures of a simulation, as `TimedModels.simulated`; ``settled`` is as for `Figures.from_latencies`.

    Raises
    ------
    InvalidArgumentError
        If all requests are refused.
    """
    run = models.simulated(arrivals, seed, replicas=replicas)
    if not len(run.requests.serial):
        raise InvalidArgumentError("predict expected requests that run, but all are refused")
    return Figures.from_latencies(run, models.instances_of(replicas), settled)
