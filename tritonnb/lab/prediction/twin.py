"""`Recording.twin`: the execution times of a server, learned from a recording, and predictions with their range."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, ClassVar

from tritonnb.core.accessors import extensible
from tritonnb.core.errors import InvalidArgumentError
from tritonnb.core.failures import with_short_traceback
from tritonnb.core.option_types import with_checked_types
from tritonnb.lab.analysis.constraint import percent_of
from tritonnb.lab.analysis.interference import InterferenceTable
from tritonnb.lab.analysis.learned_times import LearnedTimes, Stall
from tritonnb.lab.load.notebook_wait import shown_progress
from tritonnb.lab.prediction.cross_validation import ValidatedPart, misfit_of, validated_parts
from tritonnb.lab.prediction.prediction import Figures, Prediction, Range, figure_names, simulated_figures
from tritonnb.lab.prediction.resampled_arrivals import rate_of, resampled_arrivals
from tritonnb.lab.prediction.timed_models import EditsByModel, TimedModels, recorded_latencies
from tritonnb.lab.simulation.arrivals import as_arrivals
from tritonnb.lab.simulation.run import instance_count
from tritonnb.recording.arrivals import Arrival
from tritonnb.scheduling.reasons import pluralize

if TYPE_CHECKING:
    from collections.abc import Callable

    from tritonnb.recording.recording import Recording

#: Simulations of a prediction, each with other arrivals and execution times from the recording.
SAMPLES = 40
#: An interrupted prediction of fewer simulations has no range.
_FEWEST_SAMPLES = 10
#: A rate within this factor of the recorded one is no extrapolation.
_EXTRAPOLATION_FACTOR = 1.1
#: A larger variation of the speed is a remark.
_NOTABLE_SPEED_VARIATION = 0.1
#: A machine may stall for that many seconds, and this many times in a recording of which 5 % contain no stall.
_STALL_S, _UNSEEN_STALLS = 0.1, 3.0
#: A smaller misfit is none: what chance explains was subtracted.
_SMALLEST_MISFIT = 0.0005
#: The least misfits: requests reach a server some microseconds later than planned, and then join other batches.
_LEAST_MISFITS = {"throughput": 0.001, "mean_batch_size": 0.01}


@extensible
class Twin:
    """The execution times of a server, learned from a recording of one model or of one pipeline.

    Attributes
    ----------
    recording : Recording
    models : TimedModels
        The model, or the ensemble and the models of its steps, with their learned times.

    Examples
    --------
    >>> from tritonnb import jittered, linear, poisson, simulate
    >>> config = "max_batch_size: 8 dynamic_batching { }"
    >>> rec = simulate(config, poisson(100, 1, seed=1), jittered(linear(1, 5), sigma=0.1))
    >>> twin = rec.twin()
    >>> prediction = twin.predict(max_queue_delay_microseconds=5000)
    >>> prediction.mean_batch_size.low > 1
    True
    >>> twin.range_ms(1).value < twin.range_ms(3).value
    True
    >>> len(twin.arrivals(rate=200)) == len(rec.arrivals())
    True
    >>> twin.edited({"count": 2}).config.instance_group[0].count
    2
    >>> for remark in twin.remarks(twin.validation[0].simulated, rate=200, models=twin.edited({"count": 2})):
    ...     print(remark)
    batches of 3 rows rest on 2 recorded batches: up to 7.90 (6.53 to 10.04) ms
    200 requests/s were not recorded, but 97.4
    2 instances at the same time were not recorded: executions are assumed to take 1.00 (1.00 to 2.00) times as long
    >>> twin.stalls_text()
    'stalls: 0'
    """

    plot: ClassVar[Callable[..., Any]]
    plan: ClassVar[Callable[..., Any]]
    verify: ClassVar[Callable[..., Any]]

    def __init__(self, recording: Recording) -> None:
        recording.require_every_request("twin()")
        self.recording = recording
        self.models = TimedModels.of(recording, "twin()")
        self._arrivals = self.models.arrivals

    @property
    def times(self) -> LearnedTimes:
        """The times of the only model; errors as of `times_of`."""
        return self.times_of()

    def times_of(self, model: str | None = None) -> LearnedTimes:
        """Return the times of a model: their variation, stalls of the machine, and the slow-down of busy instances.

        Parameters
        ----------
        model : str, optional
            Of a pipeline, the step.

        Raises
        ------
        InvalidArgumentError
            If there is no such step, or the twin is of a pipeline and no step is given.
        """
        known = self.models.times
        if model is None and len(known) == 1:
            [model] = known
        if model is None or model not in known:
            raise InvalidArgumentError(f"twin expected the name of a step, one of {', '.join(known)}, got {model!r}")
        return known[model]

    @property
    def interference(self) -> InterferenceTable:
        """By how much the models of the steps slow each other down, as a table; empty for a single model."""
        times = self.models.times
        return InterferenceTable.of(
            {name: one.interference for name, one in times.items()},
            {name: len(one.executions) for name, one in times.items()},
        )

    @property
    def rate(self) -> float:
        """Recorded arrivals per second."""
        return rate_of(self._arrivals)

    def sizes(self, model: str | None = None) -> list[int]:
        """Return the recorded batch sizes, in rows.

        Parameters
        ----------
        model : str, optional
            Of a pipeline, the step.
        """
        return sorted({one.rows for one in self.times_of(model).executions})

    def range_ms(self, rows: int, model: str | None = None) -> Range:
        """Return the typical time of a batch size in ms, and its range.

        The range of a size that ran often contains 90 % of its executions. The range of a rare size, or of a size that
        was not recorded, is wider: its typical time may differ.

        Parameters
        ----------
        rows : int
        model : str, optional
            Of a pipeline, the step.

        Returns
        -------
        Range
        """
        times = self.times_of(model)
        typical = times.function
        if typical.is_supported(rows):
            recorded = [one.time_ns for one in times.executions if one.rows == rows and not one.first]
            return replace(Range.from_values([time_ns / 1e6 for time_ns in recorded]), value=typical(rows) / 1e6)
        values = [typical(rows) / 1e6 * factor for factor in times.factors[1]]
        return replace(Range.from_values(values, typical.deviation(rows)), value=typical(rows) / 1e6)

    def arrivals(self, rate: float | None = None) -> list[Arrival]:
        """Return the recorded arrivals, faster or slower: for `load`, `simulate` or `sweep`.

        Parameters
        ----------
        rate : float, optional
            Requests per second; by default the recorded rate.

        Raises
        ------
        InvalidArgumentError
            If the rate is not positive.
        """
        scale = self._scale(rate)
        return [arrival.at(arrival.time_us * scale) for arrival in self._arrivals]

    def edited(self, edits: Mapping[str, Any] | None = None, models: EditsByModel | None = None) -> TimedModels:
        """Return the recorded models with edited configurations; arguments and errors as of `predict`.

        Parameters
        ----------
        edits : mapping of str to object, optional
            Fields of a single model.
        models : mapping of str to mapping, optional
            Fields by model.
        """
        return self.models.edited(self.models.by_model(models, edits or {}, "predict"), "predict")

    @with_short_traceback
    @with_checked_types
    def predict(
        self,
        models: EditsByModel | None = None,
        *,
        rate: float | None = None,
        arrivals: Iterable[Arrival | tuple[float, int]] | None = None,
        seed: int = 0,
        **edits: Any,
    ) -> Prediction:
        """Predict latencies and throughput under an edited configuration or at another rate.

        Parameters
        ----------
        models : dict of str to dict, optional
            Of a pipeline, the edits of models by name: ``{"net": {"count": 2}}``.
        rate : float, optional
            Requests per second; by default the recorded rate. The recorded arrivals come faster or more slowly.
        arrivals : iterable of Arrival or of (time in µs, rows), optional
            Exactly these arrivals, in place of those resampled from the recording.
        seed : int, optional
            Of the resampling.
        **edits
            As for `Recording.what_if`: ``max_queue_delay_microseconds=0``, ``count=2`` (or ``instance_count=2``), …

        Returns
        -------
        Prediction
            Ranges of simulations with arrivals and execution times that are resampled from the recording, on as many
            replicas as were recorded.

        Raises
        ------
        InvalidArgumentError
            If the rate is not positive, it is combined with arrivals, there is no arrival, or the configuration has no
            such field.
        """
        if rate is not None and arrivals is not None:
            raise InvalidArgumentError("predict expected a rate or arrivals, got both: give one of them")
        edited, scale, replicas = self.edited(edits, models), self._scale(rate), len(self.recording.replicas) or 1
        given = None if arrivals is None else sorted(as_arrivals(arrivals), key=lambda arrival: arrival.time_us)
        if given == []:
            raise InvalidArgumentError("predict expected at least one arrival, got none")
        misfits, runs = self.misfits, []
        interrupted = []
        with shown_progress("predict", SAMPLES) as step:
            try:
                for n in range(seed, seed + SAMPLES):
                    sent_then = resampled_arrivals(self._arrivals, n, scale) if given is None else given
                    runs.append(simulated_figures(edited, sent_then, n, replicas=replicas))
                    step()
            except KeyboardInterrupt:
                if len(runs) < _FEWEST_SAMPLES:
                    raise
                interrupted = [f"interrupted: the ranges are those of {len(runs)} of {SAMPLES} simulations"]
        sent = rate or self.rate if given is None else rate_of(given)
        remarks = [*self.remarks(runs, sent, edited), *interrupted]
        return Prediction.from_runs(runs, remarks, misfits, bool(interrupted))

    def _scale(self, rate: float | None) -> float:
        """Return the factor of the recorded times at a rate."""
        if rate is not None and not (isinstance(rate, int | float) and 0 < rate < float("inf")):
            raise InvalidArgumentError(f"twin: rate expected a positive number of requests per second, got {rate!r}")
        return self.rate / rate if rate is not None and self.rate else 1.0

    def remarks(self, runs: Sequence[Figures], rate: float, models: TimedModels) -> list[str]:
        """Name the extrapolations of simulations at a rate for each replica, and the basis of their p99.

        Parameters
        ----------
        runs : sequence of Figures
        rate : float
            Requests per second of each replica.
        models : TimedModels
            With the simulated configurations.
        """
        is_rate_new = self.rate and not 1 / _EXTRAPOLATION_FACTOR < rate / self.rate < _EXTRAPOLATION_FACTOR
        of_rate = [f"{rate:g} requests/s were not recorded, but {self.rate:.1f}"] if is_rate_new else []
        remarks = []
        for name in models.times:
            formed = frozenset[int]().union(*(one.steps[name].sizes for one in runs if name in one.steps))
            of_sizes = [
                f"{text}: up to {self.range_ms(rows, name)} ms"
                for text, rows in models.times[name].function.basis(formed).items()
            ]
            said = self._remarks_on(name, runs, instance_count(models.configs[name]))
            if not models.is_pipeline:
                return [*of_sizes, *of_rate, *said]
            remarks += [f"{name}: {text}" for text in (*of_sizes, *said)]
        return [*of_rate, *remarks, *self._unknown_pairs()]

    def _remarks_on(self, name: str, runs: Sequence[Figures], instances: int) -> Iterator[str]:
        """Yield the remarks on the instances of a model, and on its stalls and speed."""
        times = self.models.times[name]
        if text := times.slow_down.basis(instances):
            yield text
        shortest_ms = min((excess_ns for _, excess_ns in times.stalls), default=0) / 1e6
        if times.stalls and any(one.latency_p99_ms >= shortest_ms for one in runs):
            yield f"the p99 rests on {pluralize(len(times.stalls), 'stall')} in the recording"
        if text := times.speeds_text():
            yield text
        if times.speed_variation > _NOTABLE_SPEED_VARIATION:
            yield f"execution times changed from part to part of the recording: by {times.speed_variation:.0%}"

    def remarks_on_missing_stalls(self, quantities: Iterable[str]) -> list[str]:
        """Name the highest percentile that stalls may decide which a recording without stalls is too short to exclude.

        Parameters
        ----------
        quantities : iterable of str
            As of a `Constraint`.
        """
        learned = [times.without_pauses.executions for times in self.models.times.values()]
        span_s = max(known[-1].begin_ns - known[0].begin_ns for known in learned) / 1e9
        quantity = max(quantities, key=percent_of)
        needed_s = _UNSEEN_STALLS * _STALL_S / (1 - min(99.9, percent_of(quantity)) / 100)
        if span_s >= needed_s or any(times.stalls for times in self.models.times.values()):
            return []
        return [
            f"no stall was recorded in {span_s:.1f} s: the {quantity} is not certain, record at least {needed_s:.0f} s"
        ]

    def _unknown_pairs(self) -> list[str]:
        """Return the remarks on models that were never executed at the same time, if there are any."""
        never = self.interference.never_together
        # A step may always begin before another one, which then begins beside it.
        both = dict.fromkeys(tuple(sorted(pair)) for pair in never if pair[::-1] in never)
        one_way = [f"{model} never began beside {other}" for model, other in never if (other, model) not in never]
        remarks = []
        if both:
            pairs = ", ".join(" and ".join(pair) for pair in both)
            remarks.append(
                f"{pairs} were never executed at the same time: the ranges allow that they slow each other down"
            )
        if one_way:
            remarks.append(f"{', '.join(one_way)}: the ranges allow that it takes longer then")
        return remarks

    @cached_property
    def validation(self) -> tuple[ValidatedPart, ...]:
        """Each part of the recording, predicted from the other parts.

        Empty for a recording with sequences, or with few requests.
        """
        recorded = recorded_latencies(self.recording, self.models)
        return tuple(validated_parts(self.models, recorded, len(self.recording.replicas) or 1))

    @cached_property
    def misfits(self) -> dict[str, float]:
        """Standard deviation of the logarithm of measured to simulated figures, beyond the scatter of the simulations.

        Latencies contain the time before executions begin, which may differ in another configuration. The
        throughput is the rate of the arrivals.
        """
        of_dispatch = max(one.dispatch_share for one in self.models.times.values())
        misfits = {}
        for name in figure_names(self.models.executed):
            misfit = 0.0 if name == "throughput" else misfit_of(self.validation, name)
            if name.endswith("_ms"):
                misfit = math.hypot(misfit, of_dispatch)
            misfits[name] = max(misfit, _LEAST_MISFITS.get(name.rpartition(": ")[2], 0.0))
        return misfits

    def misfit_for(self, quantity: str) -> float:
        """Return the misfit of a quantity of latencies: the misfit of the nearest figure.

        Parameters
        ----------
        quantity : str
            ``p90``, ``mean`` or ``max``, as in a `Constraint`.
        """
        nearest = min((50, 95, 99), key=lambda known: abs(known - percent_of(quantity)))
        return self.misfits[f"latency_p{nearest}_ms"]

    def stalls_text(self) -> str:
        """Return the number of stalls, and how long the first stalls lasted: ``stalls: 2, of 31.0, 12.5 ms``."""
        return _stalls_text(sorted(stall for times in self.models.times.values() for stall in times.stalls))

    def __repr__(self) -> str:
        models = self.models
        count = sum(len(times.executions) for times in models.times.values())
        lines = [f"Twin of '{models.model}', from {pluralize(count, 'execution')}"]
        for name in models.times:
            lines += [f"  {name}:"] if models.is_pipeline else []
            lines += [f"{'  ' * models.is_pipeline}  {text}" for text in self._times_texts(name)]
        if len(models.times) > 1:
            lines += [f"  {line}" for line in ("at the same time:", *repr(self.interference).splitlines())]
        if self.validation:
            names = ("latency_p50_ms", "latency_p99_ms", "mean_batch_size")
            misfits = {name: misfit_of(self.validation, name) for name in names}
            errors = ", ".join(
                f"{f'{misfit:.1%}' if misfit >= _SMALLEST_MISFIT else 'no more than chance explains'} in {name}"
                for name, misfit in misfits.items()
            )
            lines.append(f"  {len(self.validation)} parts, each predicted from the others: off by {errors}")
        return "\n".join(lines)

    def _times_texts(self, name: str) -> Iterator[str]:
        """Yield what was learned about the times of a model."""
        times = self.models.times[name]
        for rows in self.sizes(name):
            count = sum(1 for one in times.executions if one.rows == rows)
            stalled = sum(one.rows == rows for one, _ in times.outliers)
            rare = "" if times.function.is_supported(rows) else ", from its neighbours, too"
            stalls = f", {stalled} stalled" if stalled else ""
            yield f"batch size {rows:>4}: {count:>5} x {self.range_ms(rows, name)} ms{rare}{stalls}"
        dispatch_ms = statistics.median(one.dispatch_ns for one in times.executions) / 1e6
        yield f"of it before the execution begins: {dispatch_ms:.3f} ms (median)"
        slow = ", ".join(f"{busy}: {factor:.2f}" for busy, factor in times.slow_down.known.items())
        yield f"slow-down by number of busy instances: {slow}"
        if times.instance_speeds:
            speeds = ", ".join(f"{instance}: {factor:.2f}" for instance, factor in times.instance_speeds.items())
            yield f"times relative to the expected times by instance: {speeds}"
        if text := times.speeds_text():
            yield text
        idle = ", ".join(f"{ms} ms: +{times.idle_cost_ns(ms * 1e6, ms * 1e6) / 1e6:.3f} ms" for ms in (10, 100))
        yield f"longer after the server was idle for {idle}"
        warm_ups = sum(1 for one in times.executions if one.first)
        yield f"left out: {pluralize(warm_ups, 'first execution')} of an instance"
        yield _stalls_text(times.stalls)
        yield f"the speed varied by {times.speed_variation:.1%} from part to part"


def _stalls_text(stalls: Sequence[Stall]) -> str:
    excess = ", ".join(f"{excess_ns / 1e6:.1f}" for _, excess_ns in stalls[:5])
    more = ", …" if len(stalls) > 5 else ""
    return f"stalls: {len(stalls)}" + (f", of {excess}{more} ms" if stalls else "")


@with_short_traceback
def twin(recording: Recording) -> Twin:
    """Learn the execution times of a recording of one model or pipeline, to predict other configurations and rates.

    Returns
    -------
    Twin
        It prints what it learned, and how well parts of the recording predict each other.

    Raises
    ------
    InvalidArgumentError
        If the recording is a sample, is neither of one model nor of one pipeline, lacks a configuration, or contains no
        executed batch.

    Examples
    --------
    >>> from tritonnb import fixed, poisson, simulate
    >>> recording = simulate("max_batch_size: 4 dynamic_batching { }", poisson(100, 4, seed=1), fixed(5))
    >>> prediction = recording.twin().predict(rate=120)
    """
    return Twin(recording)
