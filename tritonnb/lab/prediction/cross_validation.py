"""Cross-validation of a twin: each part of its recording is predicted from the other parts."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import numpy.typing as npt

from tritonnb.lab.prediction.prediction import Figures
from tritonnb.lab.prediction.timed_models import RunLatencies, TimedModels
from tritonnb.lab.simulation.latencies import SimulatedLatencies

#: The number of parts, the fewest requests of each, and how often each is simulated.
_PARTS, _LEAST, _SAMPLES = 8, 25, 5


@dataclass(frozen=True, slots=True, eq=False)
class ValidatedPart:
    """A part of a recording, and its simulations with the execution times of the other parts.

    Attributes
    ----------
    recorded : Figures
    simulated : tuple of Figures

    Examples
    --------
    >>> from tritonnb import jittered, linear, poisson, simulate
    >>> config = "max_batch_size: 8 dynamic_batching { }"
    >>> twin = simulate(config, poisson(100, 1, seed=1), jittered(linear(1, 5), sigma=0.1)).twin()
    >>> part = twin.validation[0]
    >>> len(part.logarithms("latency_p50_ms")) == len(part.simulated)
    True
    """

    recorded: Figures
    simulated: tuple[Figures, ...]

    def logarithms(self, name: str) -> list[float]:
        """Return the logarithms of the simulated figures, relative to the recorded one; 0 if a figure is 0.

        Parameters
        ----------
        name : str
            Of the figure, such as ``latency_p99_ms``.
        """
        recorded = self.recorded.value(name)
        ratios = [one.value(name) / recorded if recorded else 1.0 for one in self.simulated]
        return [math.log(ratio or 1.0) for ratio in ratios]


def validated_parts(models: TimedModels, recorded: RunLatencies, replicas: int) -> Iterator[ValidatedPart]:
    """Predict each part of a recording from the other parts.

    Parameters
    ----------
    models : TimedModels
        Of the recording. With few arrivals, or with sequences, there are no parts.
    recorded : RunLatencies
    replicas : int
    """
    arrivals, origin_ns = models.arrivals, models.origin_ns
    count = min(_PARTS, len(arrivals) // _LEAST)
    if count < 2 or any(arrival.sequence_id for arrival in arrivals):
        return
    received_us = np.array([arrival.time_us for arrival in arrivals])
    bounds = len(arrivals) * np.arange(count + 1) // count
    idle_us = _idle_us(recorded.requests, origin_ns)
    for first, end in pairwise(bounds.tolist()):
        span_ns = round(received_us[first] * 1000), round(received_us[end - 1] * 1000) + 1
        kept = recorded.received_between(origin_ns + span_ns[0], origin_ns + span_ns[1])
        others = models.without(*span_ns)
        if not len(kept.requests.serial) or others is None:
            continue
        # Begin when nothing was queued or executed, so that the queue has its length when the part begins.
        earlier_us = idle_us[idle_us <= received_us[first]]
        begin = min(first, int(np.searchsorted(received_us, earlier_us[-1]))) if len(earlier_us) else 0
        sent = [arrival.at(arrival.time_us - received_us[begin]) for arrival in arrivals[begin:end]]
        shifted_ns = [bound_ns - round(received_us[begin] * 1000) for bound_ns in span_ns]
        simulated = [others.simulated(sent, seed, replicas).received_between(*shifted_ns) for seed in range(_SAMPLES)]
        if all(len(one.requests.serial) for one in simulated):
            instances = models.instances_of(replicas)
            figures = tuple([Figures.from_latencies(one, instances) for one in simulated])
            yield ValidatedPart(Figures.from_latencies(kept, instances), figures)


def _idle_us(recorded: SimulatedLatencies, origin_ns: int) -> npt.NDArray[np.float64]:
    """Return when requests arrived while nothing was queued or executed, in µs after the first arrival."""
    order = np.argsort(recorded.received_ns, kind="stable")
    received_ns, end_ns = recorded.received_ns[order], recorded.end_ns[recorded.batch[order]]
    busy_until_ns = np.maximum.accumulate(end_ns)
    is_idle = np.concatenate([[True], received_ns[1:] >= busy_until_ns[:-1]])
    idle_us: npt.NDArray[np.float64] = (received_ns[is_idle] - origin_ns) / 1000
    return idle_us


def misfit_of(parts: Sequence[ValidatedPart], name: str) -> float:
    """Return how far the simulations of a figure are off beyond their own scatter; 0 without parts.

    It is the standard deviation of the logarithm of recorded to simulated values.
    """
    if not parts:
        return 0.0
    logarithms = [part.logarithms(name) for part in parts]
    errors = statistics.fmean(statistics.median(values) ** 2 for values in logarithms)
    scatter = statistics.fmean(map(statistics.variance, logarithms))
    expected = scatter * (1 + math.pi / 2 / _SAMPLES)  # of a recorded value, and of the median of the simulations
    return math.sqrt(max(0.0, errors - expected))
