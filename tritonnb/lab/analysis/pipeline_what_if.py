"""`Recording.what_if` of pipelines: ensembles and models that call others, simulated with edits of some models."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from statistics import fmean

from tritonnb.core.errors import InvalidArgumentError
from tritonnb.core.html_table import html_report
from tritonnb.core.protobuf import model_config_pb2 as pb
from tritonnb.lab.analysis.backlog import busy_until, from_its_begin
from tritonnb.lab.analysis.learned_calls import learned_calls
from tritonnb.lab.analysis.learned_times import LearnedTimes, accompanied
from tritonnb.lab.analysis.recorded_arrivals import RecordedArrivals
from tritonnb.lab.analysis.recorded_times import times_of_models
from tritonnb.lab.analysis.reproduction import OTHER_DECISIONS, causes_of, is_near, verdict_of
from tritonnb.lab.simulation.models import check_steps, needed_models
from tritonnb.lab.simulation.run import instance_count, recorded_run
from tritonnb.lab.simulation.service import Service
from tritonnb.model_config.editable_config import with_overrides
from tritonnb.recording.recording import Recording
from tritonnb.telemetry.quantiles import quantile

#: Figures of the pipeline, and of each step, with their formats.
_FIGURES = {
    "requests": "{:.0f}",
    "failed": "{:.0f}",
    "rate": "{:.1f}",
    "latency_p50_ms": "{:.2f}",
    "latency_p99_ms": "{:.2f}",
}
#: Other names of edits.
_NAMES = {"instance_count": "count"}
_STEP_FIGURES = {"mean_batch_size": "{:.2f}", "queue_mean_ms": "{:.2f}"}
_REMARK = (
    "Before and after are simulated with the same arrivals and execution times, and with what the recorded models cost "
    "each other on one machine."
)


class PipelineRerun:
    """The requests of clients in a recording of several models, to simulate them under other configurations.

    Parameters
    ----------
    rec : Recording
    services : dict of str to Service, optional
        Execution times of models; by default the recorded times.
    purpose : str, optional
        For error messages.

    Attributes
    ----------
    recorded : Recording
        The requests of the recording that arrived after it began.
    model : str
        The ensemble, or the model that calls others, that clients call.
    configs : dict of str to ModelConfig
        Of the models that its requests run, and of models that clients call themselves.
    services : dict of str to Service
    arrivals : dict of str to list of Arrival
        By the name of the model that clients called, in µs after the first arrival.
    begin_ns : int
        When the first request arrived, on the clock of the recording.

    Raises
    ------
    InvalidArgumentError
        If there is not exactly one pipeline, a configuration is missing, or a model calls itself, or others after its
        execution.
    """

    def __init__(self, rec: Recording, services: Mapping[str, Service] | None = None, purpose: str = "what_if") -> None:
        self.recorded = from_its_begin(rec)
        if len(rec.pipelines) != 1:
            names = ", ".join(map(repr, rec.pipelines)) or "none"
            raise InvalidArgumentError(f"{purpose} expected a recording of one pipeline, got {names}")
        [self.model] = rec.pipelines
        arrivals = RecordedArrivals(self.recorded)
        self.arrivals, self.begin_ns = arrivals.of_clients(), arrivals.begin_ns
        if self.model not in self.arrivals:
            raise InvalidArgumentError(f"{purpose} expected the arrivals at '{self.model}', got none")
        calls = learned_calls(self.recorded, arrivals)
        executed = {batch.model for batch in rec.batches}
        learned = times_of_models(rec, sorted(executed - calls.keys()), arrivals.begin_ns)
        self.services: dict[str, Service] = {**calls, **learned, **(services or {})}
        missing = sorted({*self.arrivals, *executed} - rec.configs.keys())
        if missing:
            raise InvalidArgumentError(f"{purpose} expected the configuration of model '{missing[0]}', got none")
        self.configs = needed_models(rec.configs, self.arrivals, self.services)
        self._busy_until = busy_until(rec, self.recorded.arrived, self.begin_ns)

    def edited(self, edits: Mapping[str, Mapping[str, object]]) -> dict[str, pb.ModelConfig]:
        """Return the configurations with edits of some models.

        Raises
        ------
        InvalidArgumentError
            If a model or a field does not exist, or a value is invalid.
        """
        return edited_configs(self.configs, edits, "what_if")

    def run(self, configs: Mapping[str, pb.ModelConfig], seed: int = 0) -> Recording:
        """Simulate configurations."""
        return recorded_run(configs, self.arrivals, accompanied(self.services), seed, busy_until=self._busy_until)


def edited_configs(
    configs: Mapping[str, pb.ModelConfig], edits: Mapping[str, Mapping[str, object]], purpose: str
) -> dict[str, pb.ModelConfig]:
    """Return the configurations with edits of some models; errors as of `PipelineRerun.edited`."""
    for name, fields in edits.items():
        if name not in configs:
            raise InvalidArgumentError(f"{purpose} expected edits of {', '.join(configs)}, got edits of {name!r}")
        if not isinstance(fields, Mapping):
            raise InvalidArgumentError(
                f"{purpose} expected a dict of fields for model '{name}', such as {{'count': 2}}, got {fields!r}"
            )
    named = {
        model: {_NAMES.get(name, name): value for name, value in fields.items()} for model, fields in edits.items()
    }
    edited = {name: with_overrides(config, named.get(name, {})) for name, config in configs.items()}
    for config in edited.values():
        if config.HasField("ensemble_scheduling"):
            check_steps(config, edited)
    return edited


def flat_edits(edits: Mapping[str, object]) -> dict[str, object]:
    """Return edits, which may be by model, with one name for each: ``net: count``."""
    flat: dict[str, object] = {}
    for name, value in edits.items():
        flat |= (
            {f"{name}: {field}": one for field, one in value.items()} if isinstance(value, Mapping) else {name: value}
        )
    return flat


@dataclass(frozen=True)
class PipelineComparison:
    """The same requests of a pipeline before and after edits of its models.

    Attributes
    ----------
    model : str
        The ensemble, or the model that calls others.
    before, after : Recording
        Simulated with the same arrivals and execution times.
    edits : dict of str to dict
        The fields that were set, by model.
    recorded : Recording
    causes : tuple of str
        Why the simulation of what was recorded may differ from the recording.
    notes : tuple of str
        What the simulation rests on, where that is thin.

    Examples
    --------
    >>> import tritonnb as tnb
    >>> steps = '''platform: "ensemble" max_batch_size: 4
    ... input { name: "X" data_type: TYPE_FP32 dims: 1 } output { name: "Y" data_type: TYPE_FP32 dims: 1 }
    ... ensemble_scheduling {
    ...   step { model_name: "pre" input_map { key: "I" value: "X" } output_map { key: "O" value: "t" } }
    ...   step { model_name: "net" input_map { key: "I" value: "t" } output_map { key: "O" value: "Y" } }
    ... }'''
    >>> models = {"both": steps, "pre": "max_batch_size: 4", "net": "max_batch_size: 4 dynamic_batching { }"}
    >>> times = {"pre": tnb.fixed(2), "net": tnb.fixed(20)}
    >>> recording = tnb.simulate(models, tnb.constant(150, 1), times)
    >>> comparison = recording.what_if({"net": {"count": 2}})
    >>> comparison.table()[4]
    ('latency p99 (ms)', 42.0, 35.333333)
    """

    model: str
    before: Recording
    after: Recording
    edits: Mapping[str, Mapping[str, object]]
    recorded: Recording
    causes: tuple[str, ...]
    notes: tuple[str, ...]

    @cached_property
    def differences(self) -> dict[str, tuple[float, float]]:
        """The figures that the simulation of what was recorded does not reproduce: as recorded, and as simulated."""
        recorded, before = self._figures(self.recorded), self._figures(self.before)
        return {
            name: (recorded[name], before[name])
            for name in recorded
            if not is_near(name.rpartition(": ")[2], recorded[name], before[name])
        }

    def table(self) -> list[tuple[str, float, float]]:
        """Return the figures of the pipeline, then of each step: name, before, after."""
        before, after = self._figures(self.before), self._figures(self.after)
        return [(_label(name), before[name], after[name]) for name in before]

    def verdict(self) -> str:
        """Summarize the comparison in one sentence."""
        before, after = (self._texts(run) for run in (self.before, self.after))
        changed = [f"{_label(name)} {before[name]} → {after[name]}" for name in before if before[name] != after[name]]
        edits = ", ".join(
            f"'{model}' {', '.join(f'{name}: {value}' for name, value in fields.items())}"
            for model, fields in self.edits.items()
        )
        doubts = {
            name: f"{_label(name)} {recorded:.4g} recorded and {simulated:.4g} simulated"
            for name, (recorded, simulated) in self.differences.items()
        }
        return verdict_of(edits, changed, doubts, self.causes)

    def __repr__(self) -> str:
        head, rows = self._columns_and_rows()
        width = max(len(name) for name, *_ in rows)
        lines = [
            f"  {name:<{width}}" + "".join(f"{value:>12}" for value in values) for name, *values in [("", *head), *rows]
        ]
        return "\n".join([self.verdict(), *lines, _REMARK, *self.notes])

    def _repr_html_(self) -> str:
        head, rows = self._columns_and_rows()
        return html_report(self.verdict(), ("", *head), rows, [_REMARK, *self.notes])

    def _columns_and_rows(self) -> tuple[tuple[str, ...], list[tuple[str, ...]]]:
        runs = {"recorded": self.recorded, "before": self.before, "after": self.after}
        columns = [self._texts(run) for run in runs.values()]
        return tuple(runs), [(_label(name), *(column[name] for column in columns)) for name in columns[0]]

    def _texts(self, run: Recording) -> dict[str, str]:
        formats = {**_FIGURES, **_STEP_FIGURES}
        return {name: formats[name.rpartition(": ")[2]].format(value) for name, value in self._figures(run).items()}

    @cached_property
    def _executed(self) -> list[str]:
        """The models of the pipeline that were executed, in the order in which they began."""
        requests = (one for root in self.recorded.pipelines[self.model].requests for one in root.walk())
        return list(dict.fromkeys(one.model for one in requests if one.record is not None))

    def _figures(self, run: Recording) -> dict[str, float]:
        pipeline = run.pipelines[self.model].requests
        latencies_ms = sorted(request.latency_ns / 1e6 for request in pipeline if not request.failed)
        span_ns = max(one.ended_ns for one in pipeline) - min(one.received_ns for one in pipeline)
        figures = {
            "requests": float(len(pipeline)),
            "failed": float(sum(bool(request.failed) for request in pipeline)),
            "rate": len(pipeline) / span_ns * 1e9 if span_ns else 0.0,
            "latency_p50_ms": quantile(latencies_ms, 0.5),
            "latency_p99_ms": quantile(latencies_ms, 0.99),
        }
        for name in self._executed:
            batches = [batch for batch in run.batches if batch.model == name]
            queues_ms = [request.queue_ns / 1e6 for request in run.requests if request.model == name]
            figures[f"{name}: mean_batch_size"] = fmean(batch.size for batch in batches) if batches else 0.0
            figures[f"{name}: queue_mean_ms"] = fmean(queues_ms) if queues_ms else 0.0
        return figures


def _label(name: str) -> str:
    """Return the text of a figure: ``net: mean batch size``."""
    model, separator, figure = name.rpartition(": ")
    unit = " (ms)" if figure.endswith("_ms") else " (requests/s)" if figure == "rate" else ""
    return f"{model}{separator}{figure.removesuffix('_ms').replace('_', ' ')}{unit}"


def pipeline_what_if(
    rec: Recording,
    edits: Mapping[str, Mapping[str, object]],
    services: Mapping[str, Service] | None = None,
    seed: int = 0,
) -> PipelineComparison:
    """Simulate the recorded requests of a pipeline with edits of its models; see `Recording.what_if`."""
    rerun = PipelineRerun(rec, services)
    edited = rerun.edited(edits)
    before, after = (rerun.run(configs, seed) for configs in (rerun.configs, edited))
    causes, notes = [], []
    for name, service in rerun.services.items():
        formed_before, formed_after = (
            {batch.size for batch in run.batches if batch.model == name} for run in (before, after)
        )
        causes += [f"'{name}': {cause}" for cause in causes_of(rerun.recorded, name, service, formed_before)]
        if isinstance(service, LearnedTimes):
            basis = service.basis(formed_after, instance_count(edited[name]))
            notes += [f"'{name}': {text}." for text in basis]
    causes = causes or [OTHER_DECISIONS]
    return PipelineComparison(rerun.model, before, after, dict(edits), rerun.recorded, tuple(causes), tuple(notes))
