"""The rule for every rate that is recommended, by a sweep or by a plan: it has to be sustained.

A rate close to the capacity can pass one short simulation: its queue grows too slowly to be seen. So no recommended
rate uses more than 90 % of the capacity, and the constraint holds in each of 20 simulations with other seeds, so that
one more exceeds it in less than 5 % of the cases. Their first requests do not count, since queues need time to fill.
Each is so long that its figures are those of a longer run: close to the capacity, long queues are rare and last.
The capacity is what is executed under overload: requests may not fill a batch, or wait for their sequence.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from itertools import takewhile
from statistics import fmean
from typing import TypeVar

import numpy as np

from tritonnb.core.protobuf import model_config_pb2 as pb
from tritonnb.lab.analysis.constraint import percent_of
from tritonnb.lab.simulation.latencies import SimulatedLatencies
from tritonnb.lab.simulation.run import instance_count
from tritonnb.recording.arrivals import Arrival

#: The largest share of the capacity of the instances that is recommended: the times of another day differ.
MOST_OF_CAPACITY = 0.9
#: Simulations of a result. The largest of 20 values is exceeded by another one in 1 of 21 cases.
SAMPLES = 20
#: The share of the requests at the beginning of a simulation that do not count.
SETTLED = 0.25
#: Full batches of each instance in a simulation of a search, and of a result.
SEARCHED, CONFIRMED = 30, 60
#: Requests above a percentile in a simulation of a result: at least a share of the relaxation time, and a number.
_EXCEEDING_SHARE, _EXCEEDING = 0.2, 5
#: The most requests that a simulation needs for that: a p99.9 at 90 % of the capacity needs 32,400, for minutes.
_MOST_TO_CONFIRM = 10_000
#: Arrivals of an overload relative to the most that can be executed, and which of the executions count.
_OVERLOAD, _COUNTED = 2.0, (0.2, 0.9)
#: Steps of the search for the rate that a pipeline keeps up, and the share of requests that it then completes.
_ROUNDS, _KEPT_UP = 4, 0.97
T = TypeVar("T")


def requests_of_run(config: pb.ModelConfig, rows: float, executions: int, limits: tuple[int, int]) -> int:
    """Return how many requests fill the batches of each instance a number of times, within limits.

    Parameters
    ----------
    config : ModelConfig
    rows : float
        Of a request.
    executions : int
        Of full batches, by each instance.
    limits : tuple of int
        The fewest and the most requests.

    Examples
    --------
    >>> requests_of_run(pb.ModelConfig(max_batch_size=8, instance_group=[{"count": 16}]), 1, 60, (2500, 40_000))
    7680
    """
    full = instance_count(config) * max(1, config.max_batch_size) / rows
    least, most = limits
    wanted: int = round(executions * full)
    return min(most, max(least, wanted))


def requests_to_confirm(share: float, quantities: Sequence[str]) -> int:
    """Return how many requests a simulation needs so that the largest of 20 percentiles is seldom below a long run's.

    A queue under Poisson arrivals forgets its length within ``2 (share / (1 - share))²`` requests, 162 at 90 % of the
    capacity, however many of them a batch has: the relaxation time of a reflected Brownian motion. Requests above a
    percentile come together in long queues, so that many of them may still be one event.

    Parameters
    ----------
    share : float
        Of the capacity.
    quantities : sequence of str
        As of a `Constraint`.

    Examples
    --------
    >>> requests_to_confirm(0.9, ["p99"]), requests_to_confirm(0.5, ["p99"]), requests_to_confirm(0.5, ["p99.9"])
    (3240, 500, 5000)
    """
    used = min(share, MOST_OF_CAPACITY)
    percents = [min(99.9, percent_of(name)) for name in quantities]
    relaxation = 2 * (used / (1 - used)) ** 2
    needed = max(_EXCEEDING, _EXCEEDING_SHARE * relaxation) / (1 - max(percents) / 100)
    return round(min(_MOST_TO_CONFIRM, needed))


def overload(requests: Sequence[Arrival], most: float) -> list[Arrival]:
    """Return requests that arrive twice as fast as they can be executed.

    Parameters
    ----------
    requests : sequence of Arrival
        Their times do not matter.
    most : float
        Requests per second that are executed in the most efficient batches.
    """
    return [request.at(number * 1e6 / most / _OVERLOAD) for number, request in enumerate(requests)]


def executed_rate(kept: SimulatedLatencies, requests: Sequence[Arrival]) -> float:
    """Return how many of such requests were executed per second: under an `overload`, the capacity for them.

    Of a pipeline, they are the requests of clients, and the step with the least capacity determines the result.

    Parameters
    ----------
    kept : SimulatedLatencies
        Of the model that clients call.
    requests : sequence of Arrival
        Those that arrived; a generation of several steps may have been executed in part.

    Examples
    --------
    Two requests of three rows fit into a batch of eight.

    >>> from tritonnb.lab.simulation.service import fixed
    >>> from tritonnb.lab.simulation.simulate import simulate
    >>> config = pb.ModelConfig(max_batch_size=8, dynamic_batching={})
    >>> arrivals = overload([Arrival(0, rows=3)] * 200, most=800 / 3)
    >>> executed_rate(simulate(config, arrivals, fixed(10), keep="latencies"), arrivals)
    200.0
    """
    ends_ns = kept.end_ns[kept.batch]
    first_ns, last_ns = np.quantile(ends_ns, _COUNTED, method="lower")
    rows = kept.rows[(ends_ns > first_ns) & (ends_ns <= last_ns)].sum()
    return float(rows / max(1, last_ns - first_ns) * 1e9 / mean_rows(requests))


def measured_capacity(
    requests: Sequence[Arrival],
    most: float,
    simulated: Callable[[list[Arrival]], SimulatedLatencies],
    *,
    is_pipeline: bool,
) -> float:
    """Return how many of such requests a model, or a pipeline, completes per second while more of them arrive.

    Under an `overload`, a step of a pipeline that keeps up has executed all requests before the others have. Those then
    go on without it, and faster than if it slowed them down. So this looks for the highest rate that is kept up.

    Parameters
    ----------
    requests : sequence of Arrival
    most : float
        As for `overload`.
    simulated : callable
        Simulates arrivals, and returns the times of the requests of clients.
    is_pipeline : bool
    """
    sent = overload(requests, most)
    rate = highest = executed_rate(simulated(sent), sent)
    if not is_pipeline:
        return rate
    lowest = 0.0
    for _ in range(_ROUNDS):
        sent = [request.at(number * 1e6 / rate) for number, request in enumerate(requests)]
        completed = _completed_rate(simulated(sent), sent)
        if completed < _KEPT_UP * rate:
            lowest, highest = max(lowest, completed), rate
        elif rate == highest:
            return rate
        else:
            lowest = rate
        rate = (lowest + highest) / 2
    return lowest


def _completed_rate(kept: SimulatedLatencies, requests: Sequence[Arrival]) -> float:
    """Return how many requests were completed per second in the second half of their arrivals."""
    first_ns, last_ns = 500 * requests[-1].time_us, 1000 * requests[-1].time_us
    ends_ns = kept.end_ns[kept.batch]
    rows = kept.rows[(ends_ns > first_ns) & (ends_ns <= last_ns)].sum()
    return float(rows / (last_ns - first_ns) * 1e9 / mean_rows(requests))


def mean_rows(requests: Sequence[Arrival]) -> float:
    """Return the rows of a request on average, in all its steps.

    Parameters
    ----------
    requests : sequence of Arrival
    """
    return fmean(request.rows * request.steps for request in requests)


def certain_runs(runs: Iterable[T], holds: Callable[[T], bool]) -> list[T]:
    """Return the runs if a constraint holds in all of them; none otherwise.

    Parameters
    ----------
    runs : iterable
        `SAMPLES` simulations with different seeds. No more of them are run when one has failed.
    holds : callable
        Whether the constraint holds in a run.

    Examples
    --------
    >>> len(certain_runs(range(20), lambda seed: seed < 20)), certain_runs(range(20), lambda seed: seed != 7)
    (20, [])
    """
    kept = list(takewhile(holds, runs))
    return kept if len(kept) == SAMPLES else []
