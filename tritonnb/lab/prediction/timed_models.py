"""What a twin simulates: a model, or a pipeline with the models of its steps, with learned execution times."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from tritonnb.core.errors import InvalidArgumentError
from tritonnb.core.protobuf import model_config_pb2 as pb
from tritonnb.lab.analysis.interference import companies
from tritonnb.lab.analysis.learned_calls import LearnedCalls
from tritonnb.lab.analysis.learned_times import LearnedTimes
from tritonnb.lab.analysis.pipeline_what_if import PipelineRerun, edited_configs
from tritonnb.lab.analysis.rerun import config_of
from tritonnb.lab.analysis.summary import columns_of
from tritonnb.lab.analysis.sustained import SEARCHED, mean_rows, measured_capacity
from tritonnb.lab.prediction.resampled_arrivals import rate_of, resampled_arrivals
from tritonnb.lab.prediction.resampled_times import Resampled
from tritonnb.lab.simulation.engine import Columns
from tritonnb.lab.simulation.latencies import SimulatedLatencies, latencies_from_columns
from tritonnb.lab.simulation.run import capacity, instance_count, run_models
from tritonnb.lab.simulation.service import Service
from tritonnb.recording.arrivals import Arrival
from tritonnb.recording.pipelines import PipelineRequest
from tritonnb.recording.recording import Recording

#: The fewest and the most requests of an overload.
_OVERLOADING = (1000, 40_000)
#: The fields of a configuration, by the name of the model.
EditsByModel = Mapping[str, Mapping[str, Any]]


@dataclass(frozen=True)
class RunLatencies:
    """The latencies of one run, simulated or recorded.

    Attributes
    ----------
    requests : SimulatedLatencies
        Of the requests of clients.
    steps : dict of str to SimulatedLatencies
        Of the models that were executed; of a single model, the same.
    """

    requests: SimulatedLatencies
    steps: Mapping[str, SimulatedLatencies]

    @classmethod
    def of(
        cls, columns: Mapping[str, Columns], model: str, executed: Sequence[str], overhead_ns: int = 0
    ) -> RunLatencies:
        """Return the latencies of the requests to a model, which are longer by an overhead, and of executed models."""
        steps = {name: latencies_from_columns(columns[name]) for name in executed if name in columns}
        if model in steps:
            return cls(steps[model], steps)
        requests = latencies_from_columns(columns[model])
        return cls(replace(requests, end_ns=requests.end_ns + overhead_ns), steps)

    def received_between(self, begin_ns: int, end_ns: int) -> RunLatencies:
        """Return the times of the requests that were received from ``begin_ns`` to before ``end_ns``."""
        return RunLatencies(
            self.requests.received_between(begin_ns, end_ns),
            {name: step.received_between(begin_ns, end_ns) for name, step in self.steps.items()},
        )


@dataclass(frozen=True)
class TimedModels:
    """The models of a server that requests run; a single model is a pipeline with one step.

    Attributes
    ----------
    model : str
        The model that clients call.
    configs : dict of str to ModelConfig
    times : dict of str to LearnedTimes
        Of the models that are executed and call no others.
    sent : dict of str to list of Arrival
        What clients sent in the recording, by the name of the model that they called, in µs after the first arrival.
    origin_ns : int
        When the first request arrived, on the clock of the recording.
    overhead_ns : int
        The time of a request of an ensemble that is not a step's (median), which the simulation adds.
    calls : dict of str to LearnedCalls
        What the executions of models that call others do.
    """

    model: str
    configs: Mapping[str, pb.ModelConfig]
    times: Mapping[str, LearnedTimes]
    sent: Mapping[str, Sequence[Arrival]]
    origin_ns: int
    overhead_ns: int = 0
    calls: Mapping[str, LearnedCalls] = field(default_factory=dict)

    @classmethod
    def of(cls, recording: Recording, purpose: str) -> TimedModels:
        """Return the recorded models.

        Raises
        ------
        InvalidArgumentError
            If the recording is neither of one model nor of one pipeline, lacks a configuration, or has no executed
            batch.
        """
        if not recording.pipelines:
            times = recording.service()
            config = config_of(recording, purpose)
            name, arrivals = config.name, recording.arrivals()
            return cls(name, {name: config}, {name: times}, {name: arrivals}, recording.first_arrival_ns)
        rerun = PipelineRerun(recording, purpose=purpose)
        learned = {name: one for name, one in rerun.services.items() if isinstance(one, LearnedTimes)}
        overhead_ns = round(statistics.median(map(_overhead_ns, recording.pipelines[rerun.model].requests)))
        calls = {name: one for name, one in rerun.services.items() if isinstance(one, LearnedCalls)}
        return cls(rerun.model, rerun.configs, learned, rerun.arrivals, rerun.begin_ns, overhead_ns, calls)

    @property
    def arrivals(self) -> Sequence[Arrival]:
        """What clients sent to the model in the recording."""
        return self.sent[self.model]

    @property
    def config(self) -> pb.ModelConfig:
        """The configuration of the model that clients call."""
        return self.configs[self.model]

    @property
    def is_pipeline(self) -> bool:
        """True if clients call an ensemble, or a model that calls others."""
        return len(self.configs) > 1

    @property
    def executed(self) -> list[str]:
        """The models that are executed."""
        return [*self.times, *self.calls]

    @property
    def instances(self) -> int:
        """The number of instances of all models that are executed."""
        return sum(self.instances_of(1).values())

    @property
    def rows_at_once(self) -> float:
        """The rows of requests in full batches on all instances, of the step that has the most."""
        rows: list[float] = [
            count * max(1, self.configs[name].max_batch_size) / self.fan_out(name)
            for name, count in self.instances_of(1).items()
        ]
        return max(rows)

    def instances_of(self, replicas: int) -> dict[str, int]:
        """Return the number of instances of each executed model on a number of servers."""
        return {name: replicas * instance_count(self.configs[name]) for name in self.executed}

    def by_model(self, models: EditsByModel | None, edits: Mapping[str, Any], purpose: str) -> EditsByModel:
        """Return edits by the name of the model.

        Parameters
        ----------
        models : dict of str to dict, optional
        edits : dict of str to object
            Of the only model.
        purpose : str

        Raises
        ------
        InvalidArgumentError
            If both are given, or the edits of a pipeline have no model.
        """
        if edits and (models is not None or self.is_pipeline):
            example = f"{{'{self.executed[0]}': {{...}}}}"
            raise InvalidArgumentError(
                f"{purpose} expected fields by model, such as {example}, got {', '.join(edits)} without a model"
            )
        return {self.model: edits} if models is None and edits else models or {}

    def edited(self, edits: EditsByModel, purpose: str) -> TimedModels:
        """Return the models with edited configurations.

        Raises
        ------
        InvalidArgumentError
            If a model or a field does not exist, or a value is invalid.
        """
        configs = edited_configs(self.configs, edits, purpose)
        return replace(self, configs=configs)

    def without(self, begin_ns: int, end_ns: int) -> TimedModels | None:
        """Return the models with the execution times outside of a span; None if one of them was only executed in it."""
        times = {
            name: replace(one, executions=tuple(e for e in one.executions if not begin_ns <= e.begin_ns < end_ns))
            for name, one in self.times.items()
        }
        return replace(self, times=times) if all(one.executions for one in times.values()) else None

    def fan_out(self, name: str) -> float:
        """Return how many rows of an executed model each row of a client's request causes, as recorded."""
        if not self.is_pipeline:
            return 1.0
        sent = sum(arrival.rows for arrival in self.arrivals)
        if name in self.calls:
            return sum(rows for (_, rows), _ in self.calls[name].executions) / max(1, sent)
        return sum(one.rows for one in self.times[name].executions) / max(1, sent)

    def most_executed(self, request_rows: float) -> float:
        """Return how many requests per second full batches on all instances execute: more than the capacity."""
        return min(
            capacity(self.configs[name], self._all_busy(name), round(request_rows)) / request_rows / self.fan_out(name)
            for name in self.executed
        )

    def capacity(self, seed: int = 0) -> float:
        """Return how many of the recorded requests one server executes per second under overload.

        Parameters
        ----------
        seed : int, optional
            Of the resampling.
        """
        rows = mean_rows(self.arrivals)
        most = self.most_executed(rows)
        count = min(_OVERLOADING[1], max(_OVERLOADING[0], round(SEARCHED * self.rows_at_once / rows)))
        requests = resampled_arrivals(self.arrivals, seed, 1.0, count=count)

        def simulated(sent: list[Arrival]) -> SimulatedLatencies:
            return self.simulated(sent, seed, typical=True).requests

        return measured_capacity(requests, most, simulated, is_pipeline=self.is_pipeline)

    def relative_duration(self, recorded: TimedModels) -> float:
        """Return how many times as long as predicted for these configurations recorded executions took (median).

        Parameters
        ----------
        recorded : TimedModels
            The same models in another recording; a single model may have another name.
        """
        times = self._times_of_instances()
        if not self.is_pipeline:
            times = dict.fromkeys(recorded.times, *times.values())
        # What the twin varies typical times by: idle times lengthen many of the executions that these are learned from.
        usual = {name: statistics.median(one.factors[1]) for name, one in times.items()}
        return statistics.median(
            times[name].factor_after_idle_of(one) / usual[name]
            for name, known in recorded.times.items()
            for one in known.executions
        )

    def _times_of_instances(self) -> dict[str, LearnedTimes]:
        """Return the times of each model with its configured number of instances."""
        return {name: one.for_instances(instance_count(self.configs[name])) for name, one in self.times.items()}

    def _all_busy(self, name: str) -> Service:
        if name in self.calls:
            return self.calls[name]
        instances = instance_count(self.configs[name])
        times = self.times[name].for_instances(instances)
        slow = statistics.harmonic_mean([times.speeds[number % len(times.speeds)] for number in range(instances)])
        return lambda rows: times.expected_ns(rows, instances) * slow

    def simulated(
        self, arrivals: Sequence[Arrival], seed: int, replicas: int = 1, typical: bool = False
    ) -> RunLatencies:
        """Simulate arrivals with resampled execution times.

        Parameters
        ----------
        arrivals : sequence of Arrival
            What clients send to the model. What they send to other models grows with its rate.
        seed : int
            Of the resampling.
        replicas : int, optional
            Number of servers, behind a router.
        typical : bool, optional
            As of `Resampled`.
        """
        columns: dict[str, Columns] = {}
        span_ns = round(arrivals[-1].time_us * 1000) + 1
        services = resampled_services(self.times, self.configs, seed, span_ns, replicas, typical)
        services.update(self.calls)
        rate = rate_of(arrivals)
        scale = rate_of(self.arrivals) / rate if rate else 1.0
        workload = {self.model: arrivals}
        for name, sent in self.sent.items():
            if name != self.model:
                count = max(1, round(rate_of(sent) / scale * span_ns / 1e9))
                workload[name] = resampled_arrivals(sent, seed, scale, count=count)
        run_models(self.configs, workload, services, seed, replicas=replicas, columns=columns)
        return RunLatencies.of(columns, self.model, self.executed, self.overhead_ns)


def resampled_services(
    times: Mapping[str, LearnedTimes],
    configs: Mapping[str, pb.ModelConfig],
    seed: int,
    span_ns: int,
    replicas: int = 1,
    typical: bool = False,
) -> dict[str, Service]:
    """Return the execution times of models in one simulated run, as `Resampled`, in which they slow each other down.

    Parameters
    ----------
    times, configs : dict by model
    seed, span_ns
        As of `Resampled`.
    replicas, typical
        As of `Resampled`.
    """
    interference = {name: one.interference for name, one in times.items()}
    beside = companies(interference, None if typical else seed, replicas)
    return {
        name: Resampled(
            one.for_instances(instance_count(configs[name])).without_pauses,
            *(seed, span_ns, replicas),
            beside[name] if len(beside) > 1 else None,
            typical,
        )
        for name, one in times.items()
    }


def _overhead_ns(request: PipelineRequest) -> int:
    """Return the time on the critical path of a request that neither a step nor a queue needed."""
    return sum(part.end_ns - part.begin_ns for part in request.critical_path() if part.request.is_ensemble)


def recorded_latencies(recording: Recording, models: TimedModels) -> RunLatencies:
    """Return the latencies of a recording of one model, or of one pipeline."""
    if not models.is_pipeline:
        return RunLatencies.of({models.model: columns_of(recording)}, models.model, [models.model])
    columns = {name: columns_of(recording.for_model(name)) for name in models.executed}
    if models.model in columns:
        return RunLatencies.of(columns, models.model, models.executed)
    whole = columns[models.model] = Columns()
    for request in recording.pipelines[models.model].requests:
        if request.failed:
            whole.failed += 1
        else:
            whole.add_request(request.serial, 1, request.received_ns, request.received_ns)
            whole.add_batch(request.received_ns, request.ended_ns, 1, 0)
    return RunLatencies.of(columns, models.model, models.executed)
