"""`sweep`: find the best configuration of a model, by simulation with measured service times or by live trials."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from functools import cache, partial
from itertools import product
from threading import Event

from tritonnb.client.address import ModelAddress
from tritonnb.core.errors import InvalidArgumentError
from tritonnb.core.failures import with_short_traceback
from tritonnb.core.protobuf import model_config_pb2 as pb
from tritonnb.lab.analysis.constraint import Constraint
from tritonnb.lab.analysis.learned_times import LearnedTimes, joined_times
from tritonnb.lab.load import trial
from tritonnb.lab.load.examples import Inputs, Shapes
from tritonnb.lab.load.load import AnyModel, config_of, find_model
from tritonnb.lab.load.running_sweep import Grid, RunTrial, Sweep, SweepPlan
from tritonnb.lab.load.service_times import Measurement, Meter, measure_for
from tritonnb.lab.load.sweep_result import SweepResult, noise_of, rank_by
from tritonnb.lab.load.trial import SimulatedTrials, Trial
from tritonnb.lab.load.workload import LoadOptions, WorkloadOptions, workload
from tritonnb.lab.prediction.resampled_times import Resampled
from tritonnb.lab.simulation.arrivals import Arrivals, ClosedLoop, as_arrivals
from tritonnb.lab.simulation.run import instance_count
from tritonnb.lab.simulation.service import Service, table
from tritonnb.model_config.diagnose import problem_context
from tritonnb.model_config.editable_config import with_overrides
from tritonnb.model_config.validate import validate
from tritonnb.recording.arrivals import Arrival
from tritonnb.recording.recording import Recording
from tritonnb.server.model_handle import ModelHandle

#: The fewest requests of each simulation in a search for the highest rate: with fewer, queues do not fill near the
#: capacity, so that 500 requests showed a p99 that was 20 % too short.
_FEWEST_SEARCHED = 2500


@with_short_traceback
def sweep(
    model: AnyModel,
    name: str | None = None,
    *,
    constraint: str | None = None,
    rate: float | None = None,
    arrivals: str | Iterable[Arrival | tuple[float, int]] | ClosedLoop | None = None,
    clients: int | None = None,
    requests: int = 4000,
    rows: int | None = None,
    sequence_length: int = 0,
    sequences: int = 4,
    service: Service | None = None,
    live: bool | str = False,
    inputs: Inputs = "random",
    shapes: Shapes | None = None,
    seed: int = 0,
    **fields: object,
) -> Sweep:
    """Try configurations of a model in the background and rank them.

    With a workload (``rate``, ``clients`` or ``arrivals``) every configuration is tried with the same workload:
    of those that satisfy the constraint, the best has the lowest p99 latency (open loop) or the highest rate (closed
    loop). With a constraint only, the best configuration sustains the highest rate of Poisson arrivals under it: at
    most 90 % of the capacity, with the constraint satisfied in 95 % of 20 simulations with other seeds, after the queue
    has filled.

    The running configuration is measured repeatedly. Another configuration is the best only if its improvement exceeds
    the difference between these measurements (`SweepResult.noise`).

    The simulation does not model that instances slow each other down if they share cores: verify the best
    configurations with ``live=True``.

    Parameters
    ----------
    model, name
        As for `load`.
    constraint : str, optional
        Such as ``"p99 < 50 ms"``; see `Constraint`.
    rate, arrivals, clients, rows, sequence_length, sequences, inputs, shapes, seed
        As for `load`, but ``arrivals`` defaults to ``"poisson"``, and a stateful model needs a ``sequence_length``,
        because the best configuration depends on it.
    requests : int, optional
        Number of requests for each configuration; with ``live=True`` fewer are faster. A search for the highest rate
        sends at least 2,500 in each of its simulations.
    service : Service, optional
        By default measured, as by `service_times`, at the batch sizes that the configurations can form. If they allow
        larger batches than the running model, the model runs with the largest ``max_batch_size`` during the
        measurement. If that is not possible, times are extrapolated, and such configurations are never the best.
    live : bool or str, optional
        Apply configurations to the running model and measure a real load; the model is restored at the end. Recordings
        of those that were measured predict the others, of which the most promising is next, until an eighth of them is
        measured, and at least two: more if none of these satisfies the constraint. ``"all"`` measures all. Another
        server must have been started with explicit model control; if it is not recorded, measured service times
        predict.
    **fields
        Fields of the configuration, as for `Recording.what_if`, each with a list of values:
        ``max_queue_delay_microseconds=[0, 1000]``, ``count=[1, 2]``, ``preferred_batch_size=[[4], [4, 8]]``.

    Returns
    -------
    Sweep
        Returned immediately; the sweep is running.

    Raises
    ------
    InvalidArgumentError
        If arguments contradict each other, a field does not exist, or a configuration is invalid.
    UnavailableError
        If no server responds at a URL.

    Examples
    --------
    >>> import tritonnb as tnb
    >>> with tnb.Server(port=0) as server:
    ...     @server.model(max_batch_size=8)
    ...     def double(X: tnb.FP32[1]) -> tnb.FP32[1]:
    ...         return X * 2
    ...     result = tnb.sweep(server["double"], count=[1, 2], rate=100, requests=200, service=tnb.fixed(8)).wait()
    >>> len(result.trials)
    2
    """
    bound = None if constraint is None else Constraint(constraint)
    if arrivals is not None and not isinstance(arrivals, (str, ClosedLoop)):
        arrivals = list(arrivals)  # used for every configuration
    open_loop = clients is None and not isinstance(arrivals, ClosedLoop)
    traffic: WorkloadOptions = {
        "rate": rate,
        "arrivals": "poisson" if open_loop and arrivals is None else arrivals,
        "clients": clients,
        "requests": requests,
        "rows": rows,
        "sequence_length": sequence_length,
        "sequences": sequences,
        "seed": seed,
    }
    sent: LoadOptions = {**traffic, "inputs": inputs, "shapes": shapes}
    target = find_model(model, name)
    grid = _grid(target, fields)
    running = grid[0][1]
    if running.HasField("sequence_batching") and not sequence_length and not isinstance(arrivals, list):
        raise InvalidArgumentError(
            f"model '{target.name}': a stateful model expected sequence_length= or a list of arrivals, got neither"
        )
    searching = open_loop and rate is None and (arrivals is None or isinstance(arrivals, str))
    if searching and (bound is None or live):
        hint = "" if live else ", or constraint='p99 < 50 ms'"
        raise InvalidArgumentError(f"sweep expected a workload (rate=, clients= or arrivals=){hint}, got neither")

    def arrivals_at(rate: float | None) -> Arrivals:
        options: WorkloadOptions = {**traffic, "rate": rate}
        return trial.virtual_arrivals(workload(**options))

    def searched_arrivals(rate: float, seed: int) -> Arrivals:
        count = max(requests, _FEWEST_SEARCHED)
        options: WorkloadOptions = {**traffic, "rate": rate, "requests": count, "seed": seed}
        return trial.virtual_arrivals(workload(**options))

    # This raises for invalid arguments before anything is measured.
    fixed_arrivals = None if live or searching else arrivals_at(rate)

    by_rate = searching or not open_loop

    def begin(stopping: Event) -> SweepPlan:
        if live:
            run_trial = partial(trial.run_live_trial, target, sent, bound, stopping)
            is_predictable = live != "all" and (open_loop or not sequence_length)
            return SweepPlan([run_trial, run_trial], rank=partial(rank, stopping=stopping) if is_predictable else None)
        if service is not None:
            return SweepPlan([trial_runner(SimulatedTrials(bound, seed, service), math.inf, stopping)])
        measurement = measured(stopping)
        measured_times = (measurement.times, *measurement.rounds)
        known = [SimulatedTrials(bound, seed, table(times), max(times)) for times in measured_times]
        runners = [trial_runner(trials, measurement.max_rate, stopping) for trials in known]
        return SweepPlan(runners, measurement.max_rate, measurement.times)

    @cache
    def measured(stopping: Event) -> Measurement:
        request_options: LoadOptions = {"inputs": inputs, "shapes": shapes, "seed": seed}
        meter = Meter(target, rows or 1, request_options, stopping)
        return measure_for(meter, [config for _, config in grid])

    def rank(tried: Sequence[Trial], stopping: Event) -> list[Trial]:
        """Predict the other configurations from recordings of those that were tried; the best first."""
        recordings = [trial.recording for trial in tried if trial.recording is not None and trial.recording.batches]
        times = joined_times(recordings) if recordings else table(measured(stopping).times)
        sent_arrivals = arrivals_at(rate)
        sent = [] if isinstance(sent_arrivals, ClosedLoop) else as_arrivals(sent_arrivals)
        span_ns = round(max((one.time_us for one in sent), default=0.0) * 1000) or _span_ns(recordings)
        count = sum(one.rows for one in sent) or requests * (rows or 1)

        def predict(edits: dict[str, object], config: pb.ModelConfig) -> Trial:
            service: Service = times
            if isinstance(times, LearnedTimes):  # with stalls as often as in the measured trials
                known = times.for_instances(instance_count(config)).without_pauses
                service = Resampled(known, seed, max(1, span_ns), max(1, count))
            return replace(SimulatedTrials(bound, seed, service).run(sent_arrivals, edits, config), predicted=True)

        others = [(edits, config) for edits, config in grid if all(edits != trial.edits for trial in tried)]
        # The running configuration is not one of the others: its measurement is known, and it comes last.
        known = [replace(tried[0], edits=edits, predicted=True) for edits, config in others if config == running]
        predicted = [predict(edits, config) for edits, config in others if config != running]
        return [*sorted(predicted, key=rank_by(by_rate)), *known]

    def trial_runner(trials: SimulatedTrials, max_rate: float, stopping: Event) -> RunTrial:
        if fixed_arrivals is not None:
            return partial(trials.run, fixed_arrivals)
        return partial(trials.find_highest_rate, searched_arrivals, rows or 1, max_rate, stopping)

    def result(repeated: list[Trial], trials: list[Trial], plan: SweepPlan) -> SweepResult:
        ranked = sorted(trials, key=rank_by(by_rate))
        noise = noise_of(repeated, by_rate)
        return SweepResult(
            target, repeated[0], ranked, bound, by_rate, searching, plan.max_rate, noise, plan.service_times, sent
        )

    return Sweep(grid, begin, result, partial(trial.restored, target) if live else None)


def _span_ns(recordings: Sequence[Recording]) -> int:
    """Return how long the measured loads took on average."""
    spans = [rec.span_ns[1] - rec.span_ns[0] for rec in recordings]
    return sum(spans) // len(spans) if spans else 0


def _grid(model: ModelHandle | ModelAddress, fields: Mapping[str, object]) -> Grid:
    """Return the running configuration, and one for each combination of the values of the fields."""
    served = config_of(model)
    if served.HasField("ensemble_scheduling"):
        raise InvalidArgumentError(
            f"model '{model.name}' expected a model that executes batches, got an ensemble: sweep its steps"
        )
    if not fields:
        raise InvalidArgumentError("sweep expected at least one field with a list of values, such as count=[1, 2]")
    tried: dict[str, Sequence[object]] = {}
    for name, values in fields.items():
        if not isinstance(values, (list, tuple, range)) or not values:
            raise InvalidArgumentError(f"{name} expected a list of values to try, got {values!r}")
        tried[name] = values
    combined: list[dict[str, object]] = [dict(zip(tried, values, strict=True)) for values in product(*tried.values())]
    running = with_overrides(served, {})
    grid: Grid = [({}, running), *((edits, with_overrides(running, edits)) for edits in combined)]
    for _, config in grid:
        with problem_context(config):
            validate(config)
    return grid
