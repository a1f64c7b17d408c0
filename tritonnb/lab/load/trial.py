"""Trials of a sweep, simulated or live: one configuration under a workload, or at several rates of arrivals."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent import futures
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from statistics import fmean
from threading import Event

import numpy as np
import numpy.typing as npt
from google.protobuf import text_format

from tritonnb.client.address import ModelAddress
from tritonnb.core.errors import InvalidArgumentError
from tritonnb.core.protobuf import model_config_pb2 as pb
from tritonnb.lab.analysis.constraint import Constraint, measure
from tritonnb.lab.analysis.sustained import (
    CONFIRMED,
    MOST_OF_CAPACITY,
    SAMPLES,
    SEARCHED,
    SETTLED,
    certain_runs,
    mean_rows,
    measured_capacity,
    requests_of_run,
    requests_to_confirm,
)
from tritonnb.lab.load.load import config_of, load, step_of
from tritonnb.lab.load.result import LoadResult
from tritonnb.lab.load.running_load import Load
from tritonnb.lab.load.workload import AnyLoop, LoadOptions, OpenLoop
from tritonnb.lab.simulation.arrivals import Arrivals, ClosedLoop, poisson
from tritonnb.lab.simulation.engine import Columns
from tritonnb.lab.simulation.latencies import SimulatedLatencies, latencies_from_columns
from tritonnb.lab.simulation.run import capacity, instance_count, recorded_run, run_models
from tritonnb.lab.simulation.service import Service
from tritonnb.lab.simulation.simulate import simulate
from tritonnb.recording.arrivals import Arrival
from tritonnb.recording.recording import Recording
from tritonnb.server.model_handle import ModelHandle
from tritonnb.telemetry.statistics_entry import difference

#: Shares of the capacity that are tried as rates, and the relative precision of the highest rate.
_SHARES = (MOST_OF_CAPACITY, 0.8, 0.7, 0.6, 0.5, 0.4, 0.3, 0.2, 0.1, 0.05, 0.02)
_PRECISION = 0.01
#: Simulations that have to satisfy the constraint at each rate of the search, before the result is confirmed by more.
_SEARCHED = 3
#: The fewest and the most requests of each simulation in a search: with 500, the p99 was 20 % too short.
_REQUESTS = (2500, 40_000)
#: Simulations of a search until its result is confirmed, for an estimate of the time.
_SIMULATIONS = 50
#: A rate that is not confirmed is lowered by this share.
_LOWERED = 0.03
#: Poll interval in seconds for a stopped sweep while a load runs.
_POLL_S = 0.05
#: Seconds for the requests in flight of a load that was stopped.
_FINISH_S = 5.0
#: Recordings of one model at different rates, or several such series by name.
Runs = Sequence[Recording] | Mapping[str, Sequence[Recording]]
#: The simulated rates, as shares of the capacity: closer to each other where latency rises.
_CURVE_SHARES = (0.1, 0.25, 0.4, 0.55, 0.7, 0.8, 0.85, MOST_OF_CAPACITY)


class StoppedError(Exception):
    """The caller of a search needs no more trials."""


class Stopping(Event):
    """Set to stop trials, each of which says how much of it is done.

    Attributes
    ----------
    share : callable
        Returns how much of the current trial is done (0 to 1), for an estimate of the time.
    """

    share: Callable[[], float]

    def __init__(self) -> None:
        super().__init__()
        self.end_trial()

    def end_trial(self) -> None:
        """Nothing of the next trial is done yet."""
        self.share = lambda: 0.0


@dataclass(frozen=True)
class Trial:
    """Measurements of one configuration.

    Attributes
    ----------
    edits : dict
        The fields that were set; of a pipeline with their models: ``net: count``.
    configs : dict of str to ModelConfig
        Of the model; of an ensemble after those of the models of its steps.
    rate : float
        Completed requests per second; for a search with a constraint only, the highest rate of arrivals that is
        sustained: see `tritonnb.lab.analysis.sustained`.
    latencies_ms : numpy.ndarray
        Latencies of the requests that ran, in milliseconds.
    refused : int
        Number of requests that did not run.
    meets : bool
        Whether the constraint is satisfied and no request was refused.
    mean_batch_size : float
        Mean number of rows per batch.
    extrapolated : bool
        Whether it formed larger batches than were measured, so that its numbers are extrapolated.
    predicted : bool
        Whether a sweep of live trials predicted it instead of measuring it.
    capacity_share : float
        For a search, the share (0 to 1) of the capacity that the rate uses; NaN otherwise.
    record : callable, optional
        Returns its recording: a simulation keeps only numbers, and is repeated for it.

    Examples
    --------
    >>> from tritonnb import Server, FP32, fixed, sweep
    >>> with Server(port=0) as server:
    ...     @server.model(max_batch_size=8, dynamic_batching={})
    ...     def double(X: FP32[1]) -> FP32[1]:
    ...         return X * 2
    ...     trial = sweep(server["double"], count=[2], rate=100, requests=200, service=fixed(8)).wait().trials[0]
    >>> trial.edits_text(), round(trial.percentile(50))
    ('count 2', 8)
    >>> list(trial.row())[:3]
    ['count', 'rate', 'p50_ms']
    >>> len(trial.recording.requests) == len(trial.latencies_ms)
    True
    """

    edits: dict[str, object]
    configs: Mapping[str, pb.ModelConfig]
    rate: float
    latencies_ms: npt.NDArray[np.float64]
    refused: int
    meets: bool
    mean_batch_size: float
    extrapolated: bool = False
    predicted: bool = False
    capacity_share: float = math.nan
    record: Callable[[], Recording | None] | None = field(default=None, repr=False)

    @property
    def config(self) -> pb.ModelConfig:
        """The configuration of the model that requests are sent to."""
        return list(self.configs.values())[-1]

    @property
    def instances(self) -> int:
        """The number of instances of all models that are executed."""
        return sum(map(instance_count, executed_models(self.configs).values()))

    @cached_property
    def recording(self) -> Recording | None:
        """Its recording; None for live trials on another server."""
        return self.record() if self.record else None

    def percentile(self, percent: float) -> float:
        """Return a percentile (0 to 100) of the latency in ms; NaN if no request ran.

        Parameters
        ----------
        percent : float
        """
        return self.quantity(f"p{percent}")

    def quantity(self, name: str) -> float:
        """Return a quantity of the latency in ms, as in a `Constraint`; NaN if no request ran.

        Parameters
        ----------
        name : str
            ``p90``, ``p99.9``, ``mean``, ``max``, …
        """
        return measure(self.latencies_ms, name) if len(self.latencies_ms) else math.nan

    def row(self) -> dict[str, object]:
        """Return the trial as a table row; ``rate`` in requests per second, latencies in ms."""
        return {
            **self.edits,
            "rate": self.rate,
            "p50_ms": self.percentile(50),
            "p99_ms": self.percentile(99),
            "mean_batch_size": self.mean_batch_size,
            "of_capacity": self.capacity_share,
            "meets": self.meets,
            "extrapolated": self.extrapolated,
            "predicted": self.predicted,
        }

    def edits_text(self) -> str:
        """Return the edits as text, such as ``count 2``; empty for the running configuration."""
        return ", ".join(f"{name} {value}" for name, value in self.edits.items())


@dataclass(frozen=True)
class SimulatedTrials:
    """Trials of a sweep by simulation.

    Attributes
    ----------
    constraint : Constraint or None
    seed : int
    services : dict of str to Service
        Of each model that is executed.
    max_rows : dict of str to int, optional
        Largest measured batch size in rows of each model; none for service models given by the user.
    """

    constraint: Constraint | None
    seed: int
    services: Mapping[str, Service]
    max_rows: Mapping[str, int] = field(default_factory=dict)

    def run(self, arrivals: Arrivals, edits: dict[str, object], configs: Mapping[str, pb.ModelConfig]) -> Trial:
        """Simulate configurations with the given arrivals."""
        return self._trial(arrivals, edits, configs, self.seed, 0.0)

    def _trial(
        self,
        arrivals: Arrivals,
        edits: dict[str, object],
        configs: Mapping[str, pb.ModelConfig],
        seed: int,
        settled: float,
    ) -> Trial:
        """Simulate configurations; the latencies of the first requests, a share of them, do not count."""
        columns: dict[str, Columns] = {}
        target, workload = list(configs)[-1], {list(configs)[-1]: arrivals}
        run_models(configs, workload, self.services, seed, columns=columns)
        kept, rate = latencies_from_columns(columns[target]), columns[target].summary()["rate"]
        steps = {name: latencies_from_columns(columns[name]) for name in self.services if name in columns}
        last = kept.last
        latencies_ms = kept.latency_ns[last[int(settled * len(last)) :]] / 1e6
        meets = not kept.refused and (self.constraint is None or self.constraint.holds(latencies_ms))
        is_extrapolated = any(
            bool(step.batch_size.max(initial=0) > self.max_rows.get(name, math.inf)) for name, step in steps.items()
        )
        batches = sum(len(step.end_ns) for step in steps.values())
        mean = sum(int(step.rows.sum()) for step in steps.values()) / batches if batches else 0.0
        record = partial(recorded_run, configs, workload, self.services, seed)
        return Trial(edits, configs, rate, latencies_ms, kept.refused, meets, mean, is_extrapolated, record=record)

    def capacity(self, configs: Mapping[str, pb.ModelConfig], requests: Sequence[Arrival]) -> float:
        """Return how many of such requests are executed per second at most, by the model with the least capacity."""
        rows = round(mean_rows(requests))
        uses = Counter({list(configs)[-1]: 1})
        for name in reversed(list(configs)):
            for step in configs[name].ensemble_scheduling.step:
                uses[step.model_name] += uses[name]
        executed = executed_models(configs)
        most = min(capacity(executed[name], self.services[name], rows) / rows / uses[name] for name in executed)
        target = list(configs)[-1]

        def simulated(sent: list[Arrival]) -> SimulatedLatencies:
            columns: dict[str, Columns] = {}
            run_models(configs, {target: sent}, self.services, self.seed, columns=columns)
            return latencies_from_columns(columns[target])

        return measured_capacity(requests, most, simulated, is_pipeline=len(configs) > 1)

    def find_highest_rate(
        self,
        arrivals_at: Callable[[float, int, int], list[Arrival]],
        max_rate: float,
        stopping: Stopping,
        edits: dict[str, object],
        configs: Mapping[str, pb.ModelConfig],
    ) -> Trial:
        """Find the highest rate that a configuration sustains under the constraint; see `sustained`.

        The search goes from high to low rates, because a delay may violate the constraint at a low rate, where batches
        do not fill, and satisfy it at a high rate. If no rate satisfies it, the trial at the lowest rate is returned.

        Parameters
        ----------
        arrivals_at : callable
            The arrivals at a rate, from a seed; at least as many as its third argument.
        max_rate : float
            Of the server.
        stopping : Stopping
        edits, configs
        """
        assert self.constraint is not None
        constraint = self.constraint
        [some, *_] = arrivals_at(1.0, self.seed, 1)
        searched, confirmed = (
            max(requests_of_run(config, some.rows, full, _REQUESTS) for config in executed_models(configs).values())
            for full in (SEARCHED, CONFIRMED)
        )
        simulated = 0
        stopping.share = lambda: min(0.95, simulated / _SIMULATIONS)
        most = min(max_rate, self.capacity(configs, arrivals_at(1.0, self.seed, searched)))

        def runs(share: float, samples: int, requests: int) -> Iterator[Trial]:
            nonlocal simulated
            for number in range(samples):
                if stopping.is_set():
                    raise StoppedError
                simulated += 1
                seed = self.seed + number
                yield self._trial(arrivals_at(most * share, seed, requests), edits, configs, seed, SETTLED)

        def at(share: float, tried: Sequence[Trial], meets: bool) -> Trial:
            latencies_ms = np.concatenate([one.latencies_ms for one in tried])
            return replace(
                tried[0],
                rate=most * share,
                latencies_ms=latencies_ms,
                refused=sum(one.refused for one in tried),
                meets=meets,
                mean_batch_size=fmean(one.mean_batch_size for one in tried),
                extrapolated=any(one.extrapolated for one in tried),
                capacity_share=share,
            )

        def passes(share: float) -> bool:
            return all(one.meets for one in runs(share, _SEARCHED, searched))

        lowest = above = _SHARES[-1]
        for best in _SHARES:
            if passes(best):
                break
            above = best
        else:
            return at(lowest, list(runs(lowest, 1, searched)), meets=False)
        # The highest rate of the rule is not exceeded, even if a short simulation satisfies the constraint there.
        while best < above and above - best > _PRECISION * best:
            middle = (best + above) / 2
            best, above = (middle, above) if passes(middle) else (best, middle)
        while best >= lowest:
            requests = min(_REQUESTS[1], max(confirmed, requests_to_confirm(best, constraint.quantities)))
            if kept := certain_runs(runs(best, SAMPLES, requests), lambda one: one.meets):
                found = at(best, kept, meets=True)
                if constraint.holds(found.latencies_ms):  # all samples together: what is shown
                    return found
            best *= 1 - _LOWERED
        return at(lowest, list(runs(lowest, 1, searched)), meets=False)


def run_live_trial(
    model: ModelHandle | ModelAddress,
    traffic: LoadOptions,
    constraint: Constraint | None,
    stopping: Stopping,
    edits: dict[str, object],
    configs: Mapping[str, pb.ModelConfig],
    keeps_part: bool = False,
) -> Trial:
    """Apply configurations to the running models and measure them.

    Parameters
    ----------
    model
        As for `load`, and ``traffic`` its other arguments.
    constraint, stopping, edits, configs
        As of `SimulatedTrials`.
    keeps_part : bool, optional
        Whether requests that have run when ``stopping`` is set are a trial.
    """
    steps = [step_of(model, name) for name in executed_models(configs)]
    for step, config in zip(steps, executed_models(configs).values(), strict=True):
        apply_config(step, config)
    before = [step.stats() for step in steps]
    arrivals, running = traffic.get("arrivals"), load(model, record=True, **traffic)
    requests = len(arrivals) if isinstance(arrivals, list) else traffic["requests"] or math.inf
    stopping.share = lambda: running.completed / requests
    result = wait_for_load(running, stopping, keeps_part)
    new = [difference(step.stats(), earlier) for step, earlier in zip(steps, before, strict=True)]
    meets = not result.failed and (constraint is None or constraint.holds(result.latencies_ms))
    executions = sum(one["execution_count"] for one in new)
    mean = sum(one["inference_count"] for one in new) / executions if executions else math.nan
    measured = (result.rate, result.latencies_ms, result.failed, meets, mean)
    return Trial(edits, configs, *measured, record=partial(getattr, result, "recording"))


def wait_for_load(traffic: Load, stopping: Event, keeps_part: bool = False) -> LoadResult:
    """Wait for the result of a load.

    Raises
    ------
    StoppedError
        If ``stopping`` was set, unless the requests until then are kept, some have run, and the others end soon.
    """
    while not futures.wait([traffic.finished], _POLL_S).done:
        if stopping.is_set():
            traffic.stop()
            # A model that does not respond must not hold whoever has interrupted it.
            if keeps_part and traffic.completed and futures.wait([traffic.finished], _FINISH_S).done:
                break
            raise StoppedError
    return traffic.finished.result()


@contextmanager
def restored(model: ModelHandle | ModelAddress, steps: Iterable[str] = ()) -> Iterator[None]:
    """Restore the configuration of a running model, or of steps, at the end of a block, even after an error."""
    with ExitStack() as former:
        for one in [step_of(model, name) for name in steps] or [model]:
            former.callback(apply_config, one, config_of(one))
        yield


def executed_models(configs: Mapping[str, pb.ModelConfig]) -> dict[str, pb.ModelConfig]:
    """Return the configurations of the models that are no ensembles."""
    return {name: config for name, config in configs.items() if not config.HasField("ensemble_scheduling")}


def apply_config(model: ModelHandle | ModelAddress, config: pb.ModelConfig) -> str:
    """Apply a configuration to a running model, as `ConfigHandle.apply` does, or through the load API."""
    if isinstance(model, ModelAddress):
        return model.apply(config)
    handle = model.config
    handle.text = text_format.MessageToString(config)
    return handle.apply()


def virtual_arrivals(workload: AnyLoop) -> Arrivals:
    """Convert a workload to the arrivals of a simulation.

    Raises
    ------
    InvalidArgumentError
        If the clients of a closed loop send sequences.
    """
    if isinstance(workload, OpenLoop):
        return list(workload.arrivals)
    if workload.sequence_length:
        raise InvalidArgumentError(
            "a simulation expected clients without sequences: give rate=, arrivals=, or live=True"
        )
    return ClosedLoop(workload.clients, int(workload.requests), workload.think_ms, workload.rows)


def simulate_load_curve(
    config: pb.ModelConfig, service: Service, *, rows: int = 1, requests: int = 2000, seed: int = 0
) -> list[Recording]:
    """Simulate a configuration with Poisson arrivals at rates up to its capacity.

    Parameters
    ----------
    config : inference.ModelConfig
        Of a stateless model.
    service : Service
        The execution time by batch size.
    rows : int, optional
        Rows of each request.
    requests : int, optional
        Number of requests at each rate.
    seed : int, optional

    Returns
    -------
    list of Recording
        By ascending rate.

    Raises
    ------
    InvalidArgumentError
        If the model is stateful: its requests are not independent of each other.

    Examples
    --------
    >>> from tritonnb.lab.simulation.service import linear
    >>> config = pb.ModelConfig(max_batch_size=8, dynamic_batching=pb.ModelDynamicBatching())
    >>> recordings = simulate_load_curve(config, linear(1, 4), requests=50)
    >>> [round(recording.summary()["mean_batch_size"], 1) for recording in recordings][:3]
    [1.0, 1.1, 1.4]
    """
    if config.HasField("sequence_batching"):
        raise InvalidArgumentError(
            f"model '{config.name}': a load curve expected a stateless model, got one with sequence_batching"
        )
    trials = SimulatedTrials(None, seed, {config.name: service})
    most = trials.capacity({config.name: config}, [Arrival(0, rows)] * requests)
    rates = [share * most for share in _CURVE_SHARES]
    return [simulate(config, poisson(rate, requests / rate, seed=seed, rows=rows), service) for rate in rates]
