"""`Twin.plan`: the fewest replicas and instances, and the configuration, that satisfy a constraint at a rate.

A replica of many is simulated in a small group, which gets its share of the arrivals: each arrival is kept with the
probability of the group (thinning), and the group's router distributes them. What this costs does not depend on the
number of replicas.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import product
from typing import Any

from tritonnb.core.arguments import require_positive
from tritonnb.core.errors import InvalidArgumentError
from tritonnb.core.failures import with_short_traceback
from tritonnb.core.option_types import with_checked_types
from tritonnb.core.protobuf import model_config_pb2 as pb
from tritonnb.lab.analysis.constraint import Constraint, measure
from tritonnb.lab.analysis.learned_times import PIECES
from tritonnb.lab.analysis.sustained import (
    MOST_OF_CAPACITY,
    SAMPLES,
    SETTLED,
    certain_runs,
    mean_rows,
    requests_to_confirm,
)
from tritonnb.lab.load.notebook_wait import shown_progress
from tritonnb.lab.prediction.plan import Option, Plan, cost_of
from tritonnb.lab.prediction.prediction import Figures, Prediction, Range, simulated_figures
from tritonnb.lab.prediction.resampled_arrivals import resampled_arrivals
from tritonnb.lab.prediction.timed_models import EditsByModel, TimedModels
from tritonnb.lab.prediction.twin import Twin
from tritonnb.lab.simulation.run import instance_count

#: Replicas that are simulated together, behind their router.
GROUP = 16
#: Executions of full batches by each instance in a simulation of the search, and of the result; limits of requests.
_SEARCHED, _CONFIRMED, _LIMITS = 30, 60, (1000, 40_000)
#: Shares of the capacity of the instances that are tried, from few replicas to many.
_SHARES = (MOST_OF_CAPACITY, 0.85, 0.8, 0.7, 0.6, 0.5, 0.4, 0.3, 0.2, 0.1)
#: Steps in the search for the highest rate, and by which share a rate that is not confirmed is lowered.
_STEPS, _LOWERED = 6, 0.03
#: Simulations for each candidate, and of the results, for an estimate of the time.
_SEARCHES, _CONFIRMATIONS = 8, 100
#: Instances that are busier limit the rate; batches are full if this share of them is.
_BUSY = 0.9


@with_short_traceback
@with_checked_types
def plan(
    twin: Twin,
    constraint: str,
    models: EditsByModel | None = None,
    *,
    rate: float,
    spare: int = 0,
    seed: int = 0,
    **fields: Sequence[object],
) -> Plan:
    """Find the cheapest replicas, instances and configuration that satisfy a constraint at a rate.

    The cheapest plans have the fewest replicas; of these, the fewest instances. Replicas are as fast as
    the recorded server, and a router sends each request to the less loaded of two; the time of the router is left out.
    Of many replicas, a group is simulated under its share of the arrivals. A replica of a pipeline executes all its
    steps.

    Parameters
    ----------
    constraint : str
        Such as ``"p99 < 50 ms"``, as for `sweep`. It has to hold in each of 20 simulations.
    models : dict of str to dict, optional
        Of a pipeline, the values to try by model and field: ``{"net": {"count": [1, 2, 4]}}``. By default: one instance
        of each step, and as many as were recorded; the recorded delay of each step, and none.
    rate : float
        Requests per second of all replicas. They arrive like the recorded requests, but faster.
    spare : int, optional
        Replicas that may be lost without violating the constraint.
    seed : int, optional
        Of the resampling.
    **fields
        Values to try, as for `sweep`. By default: one instance, and as many as were recorded (``count``); delays up to
        the time of a full batch (``max_queue_delay_microseconds``); the recorded ``max_batch_size``, a half and a
        quarter of it; and half of it as ``preferred_batch_size``.

    Returns
    -------
    Plan
        With its ``runner_up``, margin, what limits the rate, and the loss of a replica. ``plan.export(directory)``
        writes it for Triton, Ray and Kubernetes.

    Raises
    ------
    InvalidArgumentError
        If nothing satisfies the constraint, or the recording is too short or has sequences.

    Examples
    --------
    >>> from tritonnb import jittered, linear, poisson, simulate
    >>> config = 'name: "m" max_batch_size: 8 dynamic_batching { }'
    >>> rec = simulate(config, poisson(100, 1, seed=1), jittered(linear(1, 5), sigma=0.1))
    >>> plan = rec.twin().plan("p99 < 50 ms", rate=1000, spare=1, max_queue_delay_microseconds=[0], max_batch_size=[8])
    >>> plan.best.replicas > 1000 / 615  # a full batch of 8 rows takes 13 ms
    True
    >>> plan.holds_after_loss
    True
    """
    require_positive(rate=rate)
    if spare < 0:
        raise InvalidArgumentError(f"plan: spare expected a number of replicas of at least 0, got {spare}")
    arrivals = twin.arrivals()
    has_sequences = any(arrival.sequence_id for arrival in arrivals)
    if has_sequences or len(arrivals) < 2 * PIECES or not twin.rate:
        got = "sequences" if has_sequences else f"{len(arrivals)} requests" + ("" if twin.rate else " at once")
        raise InvalidArgumentError(
            f"plan expected a recording of at least {2 * PIECES} independent requests, got one of {got}"
        )
    candidates = list(_candidates(twin, twin.models.by_model(models, fields, "plan")))
    with shown_progress("plan", len(candidates) * _SEARCHES + _CONFIRMATIONS) as step:
        return _Search(twin, Constraint(constraint), rate, spare, seed, step).plan(candidates)


def _candidates(twin: Twin, given: EditsByModel) -> Iterator[EditsByModel]:
    """Yield the edits to try."""
    models = twin.models
    unknown = sorted(given.keys() - set(models.executed))
    if unknown:
        raise InvalidArgumentError(
            f"plan expected values for {', '.join(models.executed)}, got some for '{unknown[0]}'"
        )
    values: dict[tuple[str, str], Sequence[Any]] = {}
    for name in models.executed:
        tried = {**_default_values(twin, name), **given.get(name, {})}
        values |= {(name, field): tried[field] for field in tried}

    def changes(name: str, field: str, value: object) -> bool:
        config = models.configs[name]
        is_count = field == "count" and len(config.instance_group) <= 1  # without a group there is one instance
        edited = models.edited({name: {field: value}}, "plan")
        return value != instance_count(config) if is_count else edited.configs[name] != config

    for combined in product(*values.values()):
        edits: dict[str, dict[str, Any]] = {name: {} for name in models.executed}
        for (name, field), value in zip(values, combined, strict=True):
            edits[name][field] = value
        if all(_is_sensible(models.configs[name], fields) for name, fields in edits.items()):
            yield {
                name: {field: value for field, value in fields.items() if changes(name, field, value)}
                for name, fields in edits.items()
            }


def _default_values(twin: Twin, name: str) -> dict[str, Sequence[Any]]:
    """Return the values of the fields of a model that are tried unless others are given."""
    values: dict[str, Sequence[Any]] = {}
    if name in twin.models.calls:
        return values
    config, times = twin.models.configs[name], twin.models.times[name]
    if len(config.instance_group) <= 1:
        values["count"] = sorted({1, times.slow_down.most})
    if not config.HasField("dynamic_batching"):
        return values
    recorded_us = config.dynamic_batching.max_queue_delay_microseconds
    if twin.models.is_pipeline:  # combinations of all values of all steps would be too many
        return {**values, "max_queue_delay_microseconds": sorted({0, recorded_us})}
    largest = max(1, config.max_batch_size)
    full_us = times.function(largest) / 1e3
    delays = {int(round(full_us * part, -2)) for part in (0, 0.25, 0.5, 1)}
    most = max(arrival.rows for arrival in twin.arrivals())
    return {
        **values,
        "max_queue_delay_microseconds": sorted(delays | {recorded_us}),
        "max_batch_size": sorted({largest // part for part in (1, 2, 4) if largest // part >= most}),
        "preferred_batch_size": [[], [largest // 2]] if largest > 2 else [[]],
    }


def _is_sensible(config: pb.ModelConfig, edits: Mapping[str, Any]) -> bool:
    """Return whether a preferred size, if there is one, can have an effect."""
    preferred, has_delay = edits.get("preferred_batch_size"), edits.get("max_queue_delay_microseconds", 1)
    return not preferred or (has_delay and max(preferred) < edits.get("max_batch_size", config.max_batch_size))


def _key_of(models: TimedModels) -> bytes:
    return b"".join(config.SerializeToString(deterministic=True) for config in models.configs.values())


class _Search:
    """A search that simulates candidates with the arrivals and execution times of a twin."""

    def __init__(
        self, twin: Twin, constraint: Constraint, rate: float, spare: int, seed: int, step: Callable[[], None]
    ) -> None:
        self._twin = twin
        self._step = step
        self._constraint = constraint
        self._rate = rate
        self._spare = spare
        self._seed = seed
        self._arrivals = twin.arrivals()
        self._rows = mean_rows(self._arrivals)
        self._tried: dict[bytes, dict[int, Figures]] = {}  # by configuration and replicas
        self._capacities: dict[bytes, float] = {}  # by configuration

    def plan(self, candidates: Sequence[EditsByModel]) -> Plan:
        """Return the plan with the cheapest candidate."""
        configs = [(edits, self._twin.models.edited(edits, "plan")) for edits in candidates]
        configs.sort(key=lambda entry: (math.ceil(self._fewest(entry[1])), entry[1].instances))
        options: list[Option] = []
        remaining = configs
        interrupted = False
        try:
            while len(options) < 2 and (found := self._cheapest(remaining, 2 - len(options))):
                for entry in found:
                    options += filter(None, [self._option(*entry)])
                chosen = [models.configs for _, models, _ in found]
                remaining = [entry for entry in remaining if entry[1].configs not in chosen]
        except KeyboardInterrupt:
            if not options:
                raise
            interrupted = True  # what was found is a plan, though perhaps not the cheapest
        if not options:
            raise InvalidArgumentError(
                f"plan: expected a combination with {self._constraint.text}, got none of {len(configs)}: "
                f"an execution alone takes {self._executions_text()}; {self._twin.stalls_text()}"
            )
        options.sort(key=lambda option: option.cost)
        best = options[0]
        highest, limit = self._rate, "not searched, because the search was interrupted"
        lost: list[Figures] = []
        try:
            if not interrupted and best.replicas > 1:
                lost = list(self._samples(best.models, best.replicas - 1))
            if not interrupted:
                highest, limit = self._highest_rate(best.models, best.replicas - self._spare)
        except KeyboardInterrupt:
            interrupted = True
        misfits = self._twin.misfits
        return Plan(
            best.models.model, self._constraint, self._rate, self._spare, best, options[1] if options[1:] else None,
            highest, limit, Prediction.from_runs(lost, (), misfits) if lost else None, self._is_certain(lost),
            self._constrained(lost) if lost else {}, self._least(best.models) / best.replicas,
            interrupted,
        )  # fmt: skip

    def _executions_text(self) -> str:
        """Return how long an execution of each model takes alone."""
        times = self._twin.models.times
        return ", ".join(f"{f'of {name} ' * (len(times) > 1)}{self._twin.range_ms(1, name)} ms" for name in times)

    def _cheapest(
        self, configs: Sequence[tuple[EditsByModel, TimedModels]], count: int
    ) -> list[tuple[EditsByModel, TimedModels, int]]:
        """Return the cheapest configurations by one simulation of each, with the replicas that suffice."""
        found: list[tuple[tuple[float, ...], EditsByModel, TimedModels]] = []
        for edits, models in configs:
            cost = self._cost(edits, models, found[-1][0][0] if len(found) == count else math.inf)
            if cost is not None:
                found = sorted([*found, (cost, edits, models)], key=lambda entry: entry[0])[:count]
        return [(edits, models, round(cost[0])) for cost, edits, models in found]

    def _confirmed(self, models: TimedModels, replicas: int, number: int, rate: float) -> Figures:
        """Simulate a group for as long as the figures of a result need."""
        share = rate / self._rate * self._least(models) / replicas
        least = requests_to_confirm(share, self._constraint.quantities)
        return self._simulated(models, replicas, number, rate, _CONFIRMED, least)

    def _simulated(
        self, models: TimedModels, replicas: int, number: int, rate: float, executions: int, requests: int = 0
    ) -> Figures:
        """Simulate a group of replicas under its share of the arrivals."""
        group, seed = min(replicas, GROUP), self._seed + number
        full = group * models.rows_at_once / self._rows
        least, most = _LIMITS
        arrivals = resampled_arrivals(
            self._arrivals,
            seed,
            self._twin.rate / rate,
            share=group / replicas,
            count=round(min(most, max(least, requests, executions * full))),
        )
        figures = simulated_figures(models, arrivals, seed, settled=SETTLED, replicas=group)
        self._step()
        return figures

    def _samples(self, models: TimedModels, replicas: int, rate: float | None = None) -> Iterator[Figures]:
        for number in range(SAMPLES):
            yield self._confirmed(models, replicas, number, rate or self._rate)

    def _holds(self, figures: Figures) -> bool:
        return not figures.refused and self._constraint.holds(figures.latencies_ms)

    def _constrained(self, runs: Sequence[Figures]) -> dict[str, Range]:
        """Return the range of each quantity of the constraint: what the plan prints, and is judged by."""
        return {
            name: Range.from_values([measure(one.latencies_ms, name) for one in runs], self._twin.misfit_for(name))
            for name in self._constraint.quantities
        }

    def _is_certain(self, runs: Sequence[Figures]) -> bool:
        """Return whether the constraint holds in 95 % of the measured values that are to be expected."""
        if not runs or not all(map(self._holds, runs)):
            return False
        # Ranges are symmetric: their upper ends are exceeded by half of what they leave out.
        return self._constraint.holds_for({name: found.high for name, found in self._constrained(runs).items()})

    def _certain_samples(self, models: TimedModels, needed: int) -> list[Figures]:
        """Simulate the result; return nothing if the constraint fails in one, with the spare replicas or without."""
        runs: list[Figures] = []
        for replicas in sorted({needed, needed + self._spare}):
            runs = certain_runs(self._samples(models, replicas), self._holds)
            if not self._is_certain(runs):
                return []
        return runs

    def _fewest(self, models: TimedModels) -> float:
        """Return the replicas that full batches need at most of the capacity: no plan has fewer."""
        return self._rate / models.most_executed(self._rows) / MOST_OF_CAPACITY

    def _least(self, models: TimedModels) -> float:
        """Return the number of replicas that have the rate as capacity."""
        key = _key_of(models)
        if key not in self._capacities:
            self._capacities[key] = models.capacity(self._seed)
        return self._rate / self._capacities[key]

    def _cost(self, edits: EditsByModel, models: TimedModels, most: float) -> tuple[float, ...] | None:
        """Return the cost of the replicas that suffice, which begins with their number; None above ``most``."""
        if self._fewest(models) > most:
            return None
        tried = self._tried.setdefault(_key_of(models), {})

        def suffice(replicas: int) -> bool:
            if replicas not in tried:
                tried[replicas] = self._simulated(models, replicas, 0, self._rate, _SEARCHED)
            return self._holds(tried[replicas])

        least = self._least(models)
        failed, replicas = math.ceil(least / _SHARES[0]) - 1, 0
        for share in _SHARES:
            replicas = round(min(most, math.ceil(least / share)))
            if replicas > failed and suffice(replicas):
                break
            failed = max(failed, replicas)
        if failed >= replicas:
            return None
        while replicas - failed > 1:
            middle = (replicas + failed) // 2
            if suffice(middle):
                replicas = middle
            else:
                failed = middle
        return cost_of(replicas, replicas * models.instances, tried[replicas].latency_p99_ms, edits)

    def _option(self, edits: EditsByModel, models: TimedModels, needed: int) -> Option | None:
        """Return an option whose constraint certainly holds, with and without its spare replicas; None if none does."""
        most = max(needed, math.ceil(2 * self._least(models)) + GROUP)
        chosen = self._certain_samples(models, needed)
        if not chosen and not self._certain_samples(models, most):
            return None
        while not chosen:
            needed = min(most, needed + math.ceil(needed / 50))
            chosen = self._certain_samples(models, needed)
        replicas = needed + self._spare
        remarks = self._twin.remarks(chosen, self._rate / replicas, models)
        remarks += self._twin.remarks_on_missing_stalls(self._constraint.quantities)
        if replicas > max(1, len(self._twin.recording.replicas)):
            remarks.append(f"{replicas} replicas were not recorded: assumed to be as fast as the recorded server")
        prediction = Prediction.from_runs(chosen, remarks, self._twin.misfits)
        throughput, factor = prediction.throughput, replicas / min(replicas, GROUP)
        whole = Range(throughput.value * factor, throughput.low * factor, throughput.high * factor)
        prediction = replace(prediction, ranges={**prediction.ranges, "throughput": whole})
        return Option(edits, models, replicas, prediction, self._constrained(chosen))

    def _highest_rate(self, models: TimedModels, replicas: int) -> tuple[float, str]:
        """Return the highest rate that satisfies the constraint, and its limit."""
        low, high = self._rate, MOST_OF_CAPACITY * replicas * self._rate / self._least(models)
        broken = self._confirmed(models, replicas, 0, high)
        if self._holds(broken):
            low = high
        for _ in range(_STEPS if low < high else 0):
            middle = (low + high) / 2
            figures = self._confirmed(models, replicas, 0, middle)
            if self._holds(figures):
                low = middle
            else:
                high, broken = middle, figures
        # The rate of the plan itself is confirmed already.
        while low > self._rate and not self._is_certain(
            certain_runs(self._samples(models, replicas, low), self._holds)
        ):
            low = max(self._rate, (1 - _LOWERED) * low)
        busiest, step = max(broken.steps.items(), key=lambda entry: entry[1].utilization)
        config = models.configs[busiest]
        instances = "the instances" + f" of '{busiest}'" * models.is_pipeline
        busy = f"{instances} are {broken.utilization:.0%} busy at {high:,.0f} requests/s"
        batches = f"mean batch {step.mean_batch_size:.1f} of {max(1, config.max_batch_size)} rows"
        if low == high:
            return (
                low,
                f"{busy}, {MOST_OF_CAPACITY:.0%} of the capacity; no more is planned: more replicas or instances",
            )
        if broken.utilization < _BUSY:
            return low, f"requests wait although {busy} ({batches}): more replicas, or a shorter delay"
        if step.mean_batch_size >= _BUSY * config.max_batch_size:
            return low, f"{busy}, with full batches ({batches}): more replicas or instances"
        return low, f"{busy}, although batches are not full ({batches}): more instances, or a longer delay"
