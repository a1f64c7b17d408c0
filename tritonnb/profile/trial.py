"""One configuration of a sweep: what it met under some traffic, in virtual time or live."""

from __future__ import annotations

import math
from collections.abc import Callable
from concurrent import futures
from dataclasses import dataclass, replace
from threading import Event
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
from google.protobuf import text_format

from tritonnb.core.errors import InvalidArgumentError
from tritonnb.core.protobuf import model_config_pb2 as pb
from tritonnb.profile.constraint import Constraint, measure
from tritonnb.profile.load import load
from tritonnb.profile.result import LoadResult
from tritonnb.profile.running_load import Load
from tritonnb.profile.workload import ClosedLoopWorkload, OpenLoop
from tritonnb.recording.recording import Recording
from tritonnb.simulation.arrivals import Arrivals, ClosedLoop
from tritonnb.simulation.run import instance_count, run
from tritonnb.simulation.service import Service

if TYPE_CHECKING:
    from tritonnb.server.model_handle import ModelHandle

#: Shares of a configuration's capacity that are tried as rates, and how close the highest is found.
_SHARES = (0.95, 0.9, 0.8, 0.7, 0.6, 0.5, 0.4, 0.3, 0.2, 0.1, 0.05, 0.02)
_PRECISION = 0.01
#: How often whoever waits for traffic looks whether it is still wanted, in seconds.
_LOOK_S = 0.05


class StoppedError(Exception):
    """Whoever asked for trials wants no more of them."""


@dataclass(frozen=True)
class Trial:
    """What a configuration met.

    Attributes
    ----------
    edits : dict
        The fields that were set.
    config : ModelConfig
    rate : float
        Requests answered a second; where a constraint alone was given, the highest rate of Poisson
        arrivals that meets it.
    latencies_ms : numpy.ndarray
        Of the requests that ran.
    refused : int
        Requests that did not.
    meets : bool
        Whether the constraint holds, and nothing was refused.
    recording : Recording
    extrapolated : bool
        Whether it formed larger batches than were measured, so that its figures are a guess.
    """

    edits: dict[str, Any]
    config: pb.ModelConfig
    rate: float
    latencies_ms: npt.NDArray[np.float64]
    refused: int
    meets: bool
    recording: Recording
    extrapolated: bool = False

    @property
    def mean_batch_size(self) -> float:
        """Rows of a batch on average."""
        return float(self.recording.summary()["mean_batch_size"])

    def percentile(self, percent: float) -> float:
        """A percentile of the latency in ms; not a number if nothing ran."""
        return measure(self.latencies_ms, f"p{percent}") if len(self.latencies_ms) else math.nan

    def row(self) -> dict[str, Any]:
        """A row of a table; latencies in ms."""
        return {
            **self.edits,
            "rate": self.rate,
            "p50_ms": self.percentile(50),
            "p99_ms": self.percentile(99),
            "mean_batch_size": self.mean_batch_size,
            "meets": self.meets,
            "extrapolated": self.extrapolated,
        }

    def words(self) -> str:
        """The edits in words."""
        return ", ".join(f"{name} {value}" for name, value in self.edits.items())


@dataclass(frozen=True)
class KnownService:
    """Service times of a simulation, and how far they are known.

    Attributes
    ----------
    service : Service
    largest : float
        Rows of the largest batch whose time is known; infinity for a service model that was given.
    """

    service: Service
    largest: float = math.inf


def simulated(
    arrivals: Arrivals,
    known: KnownService,
    constraint: Constraint | None,
    seed: int,
    edits: dict[str, Any],
    config: pb.ModelConfig,
) -> Trial:
    """A configuration under given arrivals, in virtual time."""
    recording = Recording(run(config, arrivals, known.service, seed), {config.name: config})
    latencies = np.array([each.latency_ns for each in recording.requests], np.float64) / 1e6
    refused = len(recording.refused)
    begin = min((each.received_ns for each in recording.requests), default=0)
    span_ns = max((each.exec_end_ns for each in recording.requests), default=0) - begin
    meets = not refused and (constraint is None or constraint.holds(latencies))
    extrapolated = max(recording.batch_sizes(), default=0) > known.largest
    rate = len(latencies) * 1e9 / max(1, span_ns)
    return Trial(edits, config, rate, latencies, refused, meets, recording, extrapolated)


def highest_rate(
    arriving: Callable[[float], Arrivals],
    known: KnownService,
    constraint: Constraint,
    seed: int,
    size: int,
    most: float,
    stopping: Event,
    edits: dict[str, Any],
    config: pb.ModelConfig,
) -> Trial:
    """A configuration under the highest rate at which it obeys a constraint, in virtual time.

    From above, since a delay may break a constraint at a low rate, where batches do not fill, that
    holds at a high one. Where none does, the lowest rate tried is told. Only the second half of the requests
    counts: at a rate that is too high, queues have to fill first.
    """

    def at(rate: float) -> Trial:
        if stopping.is_set():
            raise StoppedError
        trial = simulated(arriving(rate), known, constraint, seed, edits, config)
        late = trial.latencies_ms[len(trial.latencies_ms) // 2 :]
        return replace(trial, rate=rate, latencies_ms=late, meets=not trial.refused and constraint.holds(late))

    capacity = min(most, _capacity(config, known.service) / size)
    above = capacity
    for share in _SHARES:
        found = at(capacity * share)
        if found.meets:
            break
        above = found.rate
    # Above its capacity no rate is sustained, whatever a short run may show.
    while found.meets and above - found.rate > _PRECISION * found.rate:
        middle = at((found.rate + above) / 2)
        if middle.meets:
            found = middle
        else:
            above = middle.rate
    return found


def live(
    model: ModelHandle,
    traffic: dict[str, Any],
    constraint: Constraint | None,
    stopping: Event,
    edits: dict[str, Any],
    config: pb.ModelConfig,
) -> Trial:
    """A configuration, applied to the running model, under real traffic; arguments of `load`."""
    apply(model, config)
    result = finished(load(model, record=True, **traffic), stopping)
    assert result.recording is not None
    meets = not result.failed and (constraint is None or constraint.holds(result.latencies_ms))
    return Trial(edits, config, result.rate, result.latencies_ms, result.failed, meets, result.recording)


def finished(traffic: Load, stopping: Event) -> LoadResult:
    """What some traffic measured.

    Raises
    ------
    StoppedError
        If nobody wants to know any more.
    """
    while not futures.wait([traffic.finished], _LOOK_S).done:
        if stopping.is_set():
            traffic.stop()
            raise StoppedError
    return traffic.finished.result()


def apply(model: ModelHandle, config: pb.ModelConfig) -> str:
    """Make a running model use a configuration; as `ConfigHandle.apply`."""
    handle = model.config
    handle.text = text_format.MessageToString(config)
    return handle.apply()


def virtual_arrivals(asked: OpenLoop | ClosedLoopWorkload) -> Arrivals:
    """A workload for a simulation.

    Raises
    ------
    InvalidArgumentError
        If it has no end, or its clients send sequences.
    """
    if isinstance(asked, OpenLoop):
        return list(asked.arrivals)
    if asked.sequence_length:
        raise InvalidArgumentError("clients that send sequences are not simulated: give rate=, arrivals=, or live=True")
    return ClosedLoop(asked.clients, int(asked.requests), asked.think_ms, asked.size)


def _capacity(config: pb.ModelConfig, service: Service) -> float:
    """Rows a second of all instances at their best batch size: more cannot be served."""
    sizes = range(1, max(1, config.max_batch_size) + 1)
    return instance_count(config) * max(size * 1e9 / max(1000, service(size)) for size in sizes)
