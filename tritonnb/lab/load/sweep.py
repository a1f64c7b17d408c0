"""`sweep`: find the best configuration of a model, by simulation with measured service times or by live trials."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from functools import cache, partial
from itertools import product

from tritonnb.client.address import ModelAddress
from tritonnb.core.errors import InvalidArgumentError
from tritonnb.core.failures import with_short_traceback
from tritonnb.core.option_types import with_checked_types
from tritonnb.core.protobuf import model_config_pb2 as pb
from tritonnb.lab.analysis.constraint import Constraint
from tritonnb.lab.analysis.pipeline_what_if import flat_edits
from tritonnb.lab.analysis.recorded_times import joined_times
from tritonnb.lab.load import trial
from tritonnb.lab.load.examples import Inputs, Shapes
from tritonnb.lab.load.load import AnyModel, config_of, find_model, step_of
from tritonnb.lab.load.running_sweep import Configs, Grid, RunTrial, Sweep, SweepPlan
from tritonnb.lab.load.service_times import Measurement, Meter, measure_for
from tritonnb.lab.load.sweep_result import SweepResult, noise_of, rank_by
from tritonnb.lab.load.trial import SimulatedTrials, Stopping, Trial
from tritonnb.lab.load.workload import LoadOptions, OpenLoop, WorkloadOptions, workload
from tritonnb.lab.prediction.timed_models import TimedModels, resampled_services
from tritonnb.lab.simulation.arrivals import Arrivals, ClosedLoop, as_arrivals
from tritonnb.lab.simulation.models import check_steps, step_names
from tritonnb.lab.simulation.run import instance_count
from tritonnb.lab.simulation.service import Service, table
from tritonnb.model_config.diagnose import problem_context
from tritonnb.model_config.editable_config import with_overrides
from tritonnb.model_config.validate import validate
from tritonnb.recording.arrivals import Arrival
from tritonnb.recording.recording import Recording
from tritonnb.scheduling.reasons import pluralize
from tritonnb.server.model_handle import ModelHandle

#: The largest number of combinations of values.
_MOST_COMBINATIONS = 2000
#: How many combinations are looked at, if most have too many instances.
_MOST_TRIED = 1_000_000


@with_short_traceback
@with_checked_types
def sweep(
    model: AnyModel,
    name: str | None = None,
    models: Mapping[str, Mapping[str, Sequence[object]]] | None = None,
    *,
    constraint: str | None = None,
    rate: float | None = None,
    arrivals: str | Iterable[Arrival | tuple[float, int]] | ClosedLoop | None = None,
    clients: int | None = None,
    requests: int = 4000,
    rows: int | None = None,
    sequence_length: int = 0,
    sequences: int = 4,
    service: Service | Mapping[str, Service] | None = None,
    instances: int | None = None,
    live: bool | str = False,
    inputs: Inputs = "random",
    shapes: Shapes | None = None,
    seed: int = 0,
    **fields: object,
) -> Sweep:
    """Try configurations of a model, or of the models of an ensemble's steps, in the background and rank them.

    With a workload (``rate``, ``clients`` or ``arrivals``) every configuration is tried with the same workload:
    of those that satisfy the constraint, the best has the lowest p99 latency (open loop) or the highest rate (closed
    loop). With a constraint only, the best configuration sustains the highest rate of Poisson arrivals under it: at
    most 90 % of the capacity, with the constraint satisfied in 20 simulations with other seeds, after the queue
    has filled.

    The running configuration is measured repeatedly. Another configuration is the best only if its improvement exceeds
    the difference between these measurements (`SweepResult.noise`).

    The simulation does not model that instances slow each other down if they share cores: verify the best
    configurations with ``live=True``.

    Parameters
    ----------
    model, name
        As for `load`.
    models : dict of str to dict, optional
        Of an ensemble, the values to try by model and field: ``{"net": {"count": [1, 2]}}``. By default, with
        ``instances``, each step has from one instance to all that the others leave, and its delay or none.
    constraint : str, optional
        Such as ``"p99 < 50 ms"``; see `Constraint`.
    rate, arrivals, clients, rows, sequence_length, sequences, inputs, shapes, seed
        As for `load`, but ``arrivals`` defaults to ``"poisson"``, and a stateful model needs a ``sequence_length``,
        because the best configuration depends on it.
    requests : int, optional
        Number of requests for each configuration; with ``live=True`` fewer are faster. A search for the highest rate
        sends at least 2,500 in each of its simulations, and more to models with many instances and large batches.
    service : Service, optional
        By default measured, as by `service_times`, at the batch sizes that the configurations can form. If they allow
        larger batches than the running model, the model runs with the largest ``max_batch_size`` during the
        measurement. If that is not possible, times are extrapolated, and such configurations are never the best. Of an
        ensemble, a dict by model.
    instances : int, optional
        Try only combinations with at most this number of instances, of all steps together.
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
        arrivals = list(as_arrivals(arrivals))  # used for every configuration
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
    grid = _grid(target, models, fields, instances)
    running = grid[0][1]
    executed = trial.executed_models(running)
    given = service if isinstance(service, Mapping) or service is None else {target.name: service}
    if given is not None and given.keys() != executed.keys():
        raise InvalidArgumentError(
            f"sweep expected service times of {', '.join(executed)}, got some of {', '.join(map(str, given)) or 'none'}"
        )
    if (
        any(config.HasField("sequence_batching") for config in executed.values())
        and not sequence_length
        and not isinstance(arrivals, list)
    ):
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

    def searched_arrivals(rate: float, seed: int, count: int) -> list[Arrival]:
        options: WorkloadOptions = {**traffic, "rate": rate, "requests": max(requests, count), "seed": seed}
        searched = workload(**options)
        assert isinstance(searched, OpenLoop)  # a rate is searched for no other workload
        return list(searched.arrivals)

    # This raises for invalid arguments before anything is measured.
    fixed_arrivals = None if live or searching else arrivals_at(rate)

    by_rate = searching or not open_loop

    def begin(stopping: Stopping) -> SweepPlan:
        if live:
            run_trial = partial(trial.run_live_trial, target, sent, bound, stopping)
            is_predictable = live != "all" and (open_loop or not sequence_length)
            return SweepPlan([run_trial, run_trial], rank=partial(rank, stopping=stopping) if is_predictable else None)
        if given is not None:
            return SweepPlan([trial_runner(SimulatedTrials(bound, seed, given), math.inf, stopping)])
        measurements = measured(stopping)
        repetitions = zip(*([one.times, *one.rounds] for one in measurements.values()), strict=True)
        known = [
            SimulatedTrials(
                bound, seed,
                {name: table(times) for name, times in zip(measurements, of_steps, strict=True)},
                {name: max(times) for name, times in zip(measurements, of_steps, strict=True)},
            )
            for of_steps in repetitions
        ]  # fmt: skip
        max_rate = min(one.max_rate for one in measurements.values())
        runners = [trial_runner(trials, max_rate, stopping) for trials in known]
        return SweepPlan(runners, max_rate, {} if len(running) > 1 else measurements[target.name].times)

    @cache
    def measured(stopping: Stopping) -> dict[str, Measurement]:
        """Measure each model that is executed; of an ensemble, with generated inputs."""
        of_steps: LoadOptions = {"seed": seed}
        options: LoadOptions = {"inputs": inputs, "shapes": shapes, "seed": seed} if len(running) == 1 else of_steps
        meters = {name: Meter(step_of(target, name), rows or 1, options, stopping) for name in executed}
        before = _executions(target)
        found = {name: measure_for(meter, [configs[name] for _, configs in grid]) for name, meter in meters.items()}
        _refuse_calls(before, _executions(target), {*executed, target.name})
        return found

    def rank(tried: Sequence[Trial], stopping: Stopping) -> list[Trial]:
        """Predict the other configurations from recordings of those that were tried; the best first."""
        recordings = [trial.recording for trial in tried if trial.recording is not None and trial.recording.batches]
        recorded = [TimedModels.of(recording, "sweep") for recording in recordings]
        learned = {} if any(one.calls for one in recorded) else joined_times(one.times for one in recorded)
        sent_arrivals = arrivals_at(rate)
        sent = [] if isinstance(sent_arrivals, ClosedLoop) else as_arrivals(sent_arrivals)
        span_ns = round(max((one.time_us for one in sent), default=0.0) * 1000) or _span_ns(recordings)

        def predict(edits: dict[str, object], configs: Configs) -> Trial:
            if learned:  # with stalls as often as in the measured trials
                services = resampled_services(learned, configs, seed, max(1, span_ns))
            else:
                services = {name: table(one.times) for name, one in measured(stopping).items()}
            return replace(SimulatedTrials(bound, seed, services).run(sent_arrivals, edits, configs), predicted=True)

        others = [(edits, configs) for edits, configs in grid if all(edits != trial.edits for trial in tried)]
        # The running configuration is not one of the others: its measurement is known, and it comes last.
        known = [replace(tried[0], edits=edits, predicted=True) for edits, configs in others if configs == running]
        predicted = [predict(edits, configs) for edits, configs in others if configs != running]
        return [*sorted(predicted, key=rank_by(by_rate)), *known]

    def trial_runner(trials: SimulatedTrials, max_rate: float, stopping: Stopping) -> RunTrial:
        if fixed_arrivals is not None:
            return partial(trials.run, fixed_arrivals)
        return partial(trials.find_highest_rate, searched_arrivals, max_rate, stopping)

    def result(repeated: list[Trial], trials: list[Trial], plan: SweepPlan) -> SweepResult:
        ranked = sorted(trials, key=rank_by(by_rate))
        noise = noise_of(repeated, by_rate)
        return SweepResult(
            target, repeated[0], ranked, bound, by_rate, searching, plan.max_rate, noise, plan.service_times, sent
        )

    return Sweep(grid, begin, result, partial(trial.restored, target, list(executed)) if live else None)


def _executions(model: ModelHandle | ModelAddress) -> Counter[str]:
    """Return the number of executions of each model of a server."""
    if isinstance(model, ModelAddress):
        entries = model.server.statistics()
    else:
        entries = model.server.call(model.server.engine.statistics)["model_stats"]
    counts: Counter[str] = Counter()
    for entry in entries:
        counts[entry["name"]] += entry["execution_count"]
    return counts


def _refuse_calls(before: Counter[str], after: Counter[str], measured: set[str]) -> None:
    """Refuse a model whose executions wait for those of other models: their rate limits it, not its own times."""
    new = after - before
    called = sorted(name for name in new.keys() - measured if 2 * new[name] >= sum(new[name] for name in measured))
    if called:
        name = " and ".join(map(repr, sorted(measured & new.keys())))
        raise InvalidArgumentError(
            f"sweep expected models that call no others, but '{called[0]}' was executed while {name} was measured: "
            "record all models, and use rec.what_if({...}) or rec.twin().plan(...), which simulate the calls; or "
            "measure all configurations with live='all'"
        )


def _span_ns(recordings: Sequence[Recording]) -> int:
    """Return how long the measured loads took on average."""
    spans = [rec.span_ns[1] - rec.span_ns[0] for rec in recordings]
    return sum(spans) // len(spans) if spans else 0


def _grid(
    model: ModelHandle | ModelAddress,
    models: Mapping[str, Mapping[str, Sequence[object]]] | None,
    fields: Mapping[str, object],
    instances: int | None,
) -> Grid:
    """Return the running configurations, and those with each combination of the values of the fields."""
    running = _running(model)
    executed = trial.executed_models(running)
    if len(running) == 1:
        by_model: Mapping[str, Mapping[str, object]] = models or {model.name: fields}
    elif fields:
        raise InvalidArgumentError(
            f"model '{model.name}': sweep expected values by model, such as "
            f"{{'{next(iter(executed))}': {{'count': [1, 2]}}}}, got {', '.join(fields)} without a model"
        )
    else:
        by_model = models or (_counts_and_delays(executed, instances) if instances is not None else {})
    unknown = sorted(by_model.keys() - executed.keys())
    if unknown:
        raise InvalidArgumentError(f"sweep expected values for {', '.join(executed)}, got some for '{unknown[0]}'")
    if not any(by_model.values()):
        hint = "count=[1, 2]" if len(running) == 1 else "{'net': {'count': [1, 2]}}, or instances=4"
        raise InvalidArgumentError(f"sweep expected at least one field with a list of values, such as {hint}")
    tried: dict[tuple[str, str], Sequence[object]] = {}
    for name, of_model in by_model.items():
        for field, values in of_model.items():
            if not isinstance(values, (list, tuple, range)) or not values:
                raise InvalidArgumentError(f"{field} expected a list of values to try, got {values!r}")
            tried[name, field] = values
    limit = f" with at most {pluralize(instances, 'instance')}" if instances is not None else ""
    too_many = InvalidArgumentError(
        f"sweep expected at most {_MOST_COMBINATIONS} combinations of values, got more{limit}"
    )
    if any(len(values) > _MOST_COMBINATIONS for values in tried.values()):
        raise too_many
    grid: Grid = [({}, running)]
    for number, combined in enumerate(product(*tried.values())):
        if len(grid) > _MOST_COMBINATIONS + 1 or number > _MOST_TRIED:
            raise too_many
        edits: dict[str, dict[str, object]] = {}
        for (name, field), value in zip(tried, combined, strict=True):
            edits.setdefault(name, {})[field] = value
        # Before the configurations are made: most combinations have too many instances, and there may be billions.
        counts = [of_model.get("count", 1) for of_model in edits.values()]
        if instances is not None and sum(count for count in counts if isinstance(count, int)) > instances:
            continue
        configs = {name: with_overrides(config, edits.get(name, {})) for name, config in running.items()}
        if instances is None or sum(map(instance_count, trial.executed_models(configs).values())) <= instances:
            grid.append((edits[model.name] if len(running) == 1 else flat_edits(edits), configs))
    if len(grid) > _MOST_COMBINATIONS + 1:
        raise too_many
    if len(grid) == 1:
        raise InvalidArgumentError(f"sweep expected at least one combination of values, got none{limit}")
    for _, configs in grid:
        for name, config in configs.items():
            with problem_context(config):
                if name in executed:
                    validate(config)
                else:
                    check_steps(config, configs)
    return grid


def _running(model: ModelHandle | ModelAddress) -> dict[str, pb.ModelConfig]:
    """Return the running configuration of a model; of an ensemble after those of the models of its steps."""
    found: dict[str, pb.ModelConfig] = {}

    def add(name: str) -> None:
        config = config_of(step_of(model, name))
        for step in step_names(config):
            if step not in found:
                add(step)
        found[name] = with_overrides(config, {})

    add(model.name)
    return found


def _counts_and_delays(
    executed: Mapping[str, pb.ModelConfig], instances: int
) -> dict[str, dict[str, Sequence[object]]]:
    """Return numbers of instances for each step that leave one for each other step, and its delay and none."""
    most = instances - len(executed) + 1
    values: dict[str, dict[str, Sequence[object]]] = {}
    for name, config in executed.items():
        values[name] = {"count": range(1, most + 1)} if most > 0 else {}
        delay_us = config.dynamic_batching.max_queue_delay_microseconds
        if delay_us:
            values[name]["max_queue_delay_microseconds"] = [0, delay_us]
    return values
