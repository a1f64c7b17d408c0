"""Cross-validation of a twin: each part of its recording is predicted from the other parts."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from tritonnb.core.protobuf import model_config_pb2 as pb
from tritonnb.recording.latencies import SimulatedLatencies
from tritonnb.recording.learned_times import LearnedTimes
from tritonnb.recording.prediction import FIGURES, Figures, at, simulated_latencies
from tritonnb.simulation.arrivals import Arrival
from tritonnb.simulation.run import instance_count

#: The number of parts, the fewest requests of each, and how often each is simulated.
_PARTS, _LEAST, _SAMPLES = 8, 25, 5


@dataclass(frozen=True, slots=True, eq=False)
class ValidatedPart:
    """A part of a recording, and its simulations with the execution times of the other parts."""

    recorded: Figures
    simulated: tuple[Figures, ...]

    def logarithms(self, name: str) -> list[float]:
        """Return the logarithms of the simulated figures, relative to the recorded one; 0 if a figure is 0."""
        recorded = getattr(self.recorded, name)
        ratios = [getattr(one, name) / recorded if recorded else 1.0 for one in self.simulated]
        return [math.log(ratio or 1.0) for ratio in ratios]


def validated_parts(
    config: pb.ModelConfig,
    arrivals: Sequence[Arrival],
    times: LearnedTimes,
    recorded: SimulatedLatencies,
    replicas: int,
) -> Iterator[ValidatedPart]:
    """Predict each part of a recording from the other parts.

    Parameters
    ----------
    config : ModelConfig
    arrivals : sequence of Arrival
        Of the recording, in µs after the first one. With few of them, or with sequences, there are no parts.
    times : LearnedTimes
        Of the recording.
    recorded : SimulatedLatencies
    replicas : int
    """
    count = min(_PARTS, len(arrivals) // _LEAST)
    if count < 2 or any(arrival.sequence_id for arrival in arrivals):
        return
    firsts = [len(arrivals) * part // count for part in range(count)] + [len(arrivals)]
    begins_ns = [round(arrivals[first].time_us * 1000) for first in firsts[:-1]]
    begins_ns.append(round(arrivals[-1].time_us * 1000) + 1)
    instances, origin_ns = instance_count(config) * replicas, int(recorded.received_ns.min())
    for part in range(count):
        begin_ns, end_ns, before = begins_ns[part], begins_ns[part + 1], max(0, part - 1)
        kept = recorded.received_between(origin_ns + begin_ns, origin_ns + end_ns)
        others = tuple([one for one in times.executions if not begin_ns <= one.begin_ns < end_ns])
        if not len(kept.serial) or not others:
            continue
        # The part before it is simulated, too, so that the queue has its length when the part begins.
        first_us = arrivals[firsts[before]].time_us
        sent = [at(arrival, arrival.time_us - first_us) for arrival in arrivals[firsts[before] : firsts[part + 1]]]
        span_ns = [bound_ns - begins_ns[before] for bound_ns in (begin_ns, end_ns)]
        learned = LearnedTimes(others)
        simulated = [
            simulated_latencies(config, sent, learned, seed, replicas=replicas).received_between(*span_ns)
            for seed in range(_SAMPLES)
        ]
        if all(len(one.serial) for one in simulated):
            figures = tuple([Figures.from_latencies(one, instances) for one in simulated])
            yield ValidatedPart(Figures.from_latencies(kept, instances), figures)


def misfits_of(parts: Sequence[ValidatedPart]) -> dict[str, float]:
    """Return how far simulations are off beyond their own scatter, by figure; empty without parts.

    It is the standard deviation of the logarithm of recorded to simulated figures.
    """
    misfits = {}
    for name in FIGURES if parts else ():
        logarithms = [part.logarithms(name) for part in parts]
        errors = statistics.fmean(statistics.median(values) ** 2 for values in logarithms)
        scatter = statistics.fmean(map(statistics.variance, logarithms))
        expected = scatter * (1 + math.pi / 2 / _SAMPLES)  # of a recorded value, and of the median of the simulations
        misfits[name] = math.sqrt(max(0.0, errors - expected))
    return misfits
