"""The events of a period, and the facts derived from them: the content of a `Recording`."""

from __future__ import annotations

import re
import statistics
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from itertools import product, starmap

from tritonnb.core.errors import InvalidArgumentError
from tritonnb.core.events import EnsembleExecuted, Event, RequestArrived, RequestRefused, StepSent
from tritonnb.core.failures import with_short_tracebacks
from tritonnb.core.protobuf import model_config_pb2 as pb
from tritonnb.recording.batches import Batch, Outlier, RequestRecord, batches_of
from tritonnb.recording.generations import Generation, generations_of
from tritonnb.recording.learned_times import LearnedTimes
from tritonnb.recording.recorded_executions import executions_of
from tritonnb.recording.sequences import SlotHistory, SlotOccupancy, slot_count
from tritonnb.recording.trace_source import Agreement, TraceSource
from tritonnb.scheduling.reasons import pluralize
from tritonnb.simulation.replicas import instance_on, replica_of


@with_short_tracebacks
class RecordedEvents:
    """The events of a server or a simulation over a period, with the requests, batches and sequences in them.

    `Recording` documents the attributes.

    Examples
    --------
    >>> from tritonnb import fixed, simulate
    >>> rec = simulate("max_batch_size: 8 dynamic_batching { }", [(0, 2), (0, 3)], fixed(10))
    >>> rec.batch_sizes(), rec.median_ms(2), rec.service()(3)
    ({2: 1, 3: 1}, 10.0, 10000000.0)
    >>> rec.sizes_of("simulated_0_0"), rec.slots_of("simulated_0_0")
    ((8, []), 8)
    >>> rec.require_every_request("this example")
    >>> rec.fill(rec.events[:2], rec.configs)
    >>> rec.derive()
    >>> len(rec.events)
    2
    """

    def __init__(
        self,
        events: Iterable[Event] = (),
        configs: Mapping[str, pb.ModelConfig] | None = None,
        *,
        simulated: bool = False,
        source: TraceSource | None = None,
    ) -> None:
        self.simulated = simulated
        self.source = source
        self.fill(events, configs or {})

    def fill(self, events: Iterable[Event], configs: Mapping[str, pb.ModelConfig]) -> None:
        """Replace the content; a recording in progress is empty until it ends.

        Parameters
        ----------
        events : iterable of Event
        configs : mapping of str to ModelConfig
        """
        self.events = list(events)
        self.configs = dict(configs)
        for name, member in vars(RecordedEvents).items():
            if isinstance(member, cached_property):  # derived from the events
                self.__dict__.pop(name, None)

    @cached_property
    def executed(self) -> list[tuple[Batch, list[RequestRecord]]]:
        """The batches that ran, in the order in which they finished, each with its requests."""
        return list(batches_of(self.events))

    @cached_property
    def batches(self) -> list[Batch]:
        """The batches that ran, in the order in which they finished."""
        return [batch for batch, _ in self.executed]

    @cached_property
    def requests(self) -> list[RequestRecord]:
        """The requests that ran."""
        return [request for _, requests in self.executed for request in requests]

    @cached_property
    def arrived(self) -> dict[int, RequestArrived]:
        """The arrival of each request by its serial, in the order of time."""
        return {event.serial: event for event in self.events if isinstance(event, RequestArrived)}

    @property
    def refused(self) -> list[RequestRefused]:
        """The requests that were refused or cancelled before they ran."""
        return [event for event in self.events if isinstance(event, RequestRefused)]

    @cached_property
    def slot_occupancy(self) -> list[SlotOccupancy]:
        """The sequence in each batch slot over time, ordered by their assignment; empty without a stateful model."""
        history = SlotHistory(self.configs)
        for batch, requests in sorted(self.executed, key=lambda pair: (pair[0].sent_ns, pair[0].number)):
            history.add_batch(batch, requests)
        return history.occupancies(self.span_ns[1])  # later idle timeouts are not part of the recording

    @cached_property
    def ensemble_requests(self) -> list[EnsembleRequest]:
        """Requests of ensembles, with the requests of their steps."""
        return ensemble_requests_of(self.events)

    @cached_property
    def generations(self) -> list[Generation]:
        """Requests that were answered token by token, and the steps that computed the tokens; often empty."""
        return generations_of(self)

    def derive(self) -> None:
        """Compute everything that is derived from the events, which fails if they contradict each other."""
        for derived in (self.batches, self.requests, self.slot_occupancy, self.ensemble_requests, self.generations):
            len(derived)

    @property
    def span_ns(self) -> tuple[int, int]:
        """The monotonic times of the first event, or of the acceptance of a request that ran, and of the last event."""
        times = [event.time_ns for event in self.events] or [0]
        begin = min(times[0], *(request.queued_ns for request in self.requests)) if self.requests else times[0]
        return begin, max(times)

    @property
    def origin_ns(self) -> int:
        """The time (monotonic clock, ns) that figures show as 0: the beginning."""
        return self.span_ns[0]

    @property
    def first_arrival_ns(self) -> int:
        """The time of the first arrival (monotonic clock, ns); 0 if there is none."""
        return next((event.time_ns for event in self.arrived.values()), 0)

    @property
    def instances(self) -> list[str]:
        """The names of the instances that ran a batch, and of configured ones that stayed idle."""
        seen = {batch.instance for batch in self.batches}
        replicas = self.replicas
        for name, config in self.configs.items():
            if any(batch.model == name for batch in self.batches):
                defined = instances_of(name, config)
                seen.update(starmap(instance_on, product(replicas, defined)) if replicas else defined)
        return sorted(seen, key=natural_sort_key)

    @property
    def replicas(self) -> list[str]:
        """The replicas that ran a batch; empty in a recording of one server."""
        names = {replica_of(batch.instance) for batch in self.batches} - {""}
        return sorted(names, key=natural_sort_key)

    def sizes_of(self, instance: str) -> tuple[int, list[int]]:
        """Return the largest possible batch of an instance in rows, and the preferred batch sizes of its model.

        Parameters
        ----------
        instance : str
        """
        batches = [batch for batch in self.batches if batch.instance == instance]
        config = self._config_of(instance)
        seen = max((batch.size for batch in batches), default=1)
        if config is None:
            return seen, []
        batching = config.sequence_batching.oldest if config.HasField("sequence_batching") else config.dynamic_batching
        return max(config.max_batch_size, seen), sorted(set(batching.preferred_batch_size))

    def slots_of(self, instance: str) -> int:
        """Return the number of batch slots of an instance of a stateful model.

        Parameters
        ----------
        instance : str
        """
        config = self._config_of(instance)
        used = [slot for batch in self.batches if batch.instance == instance for slot in batch.slots or ()]
        seen = max(used, default=0) + 1
        return seen if config is None else max(seen, slot_count(config))

    def _config_of(self, instance: str) -> pb.ModelConfig | None:
        models = {batch.model for batch in self.batches if batch.instance == instance}
        names = models or {name for name in self.configs if instance.startswith(f"{name}_")}
        return next((self.configs[name] for name in names if name in self.configs), None)

    def batch_sizes(self) -> dict[int, int]:
        """Return the number of batches that ran, by batch size in rows."""
        self.require_every_request("batch_sizes()")
        return dict(sorted(Counter(batch.size for batch in self.batches).items()))

    def median_ms(self, size: int) -> float:
        """Return the median execution time of batches with this many rows, in milliseconds.

        Parameters
        ----------
        size : int

        Raises
        ------
        InvalidArgumentError
            If no such batch ran.
        """
        times = [batch.compute_ns / 1e6 for batch in self.batches if batch.size == size]
        if not times:
            raise InvalidArgumentError(f"no batch of {pluralize(size, 'row')} ran")
        return statistics.median(times)

    def service(self) -> LearnedTimes:
        """Return the execution times as a service model, for simulations of the recorded arrivals.

        An execution with the rows and at the time of a recorded one takes as long; any other one takes the typical time
        of its size, varied as recorded around its time. Called with rows, it returns the latter, in nanoseconds.

        Raises
        ------
        InvalidArgumentError
            If nothing was executed.
        """
        if not self.batch_sizes():
            raise InvalidArgumentError("service() expected a recording with at least one executed batch, got none")
        return LearnedTimes(tuple(executions_of(self)), max(1, len(self.replicas)))

    @cached_property
    def outliers(self) -> list[Outlier]:
        """Batches that took much longer than others of their size, for a recording of one model."""
        by_number = {batch.number: batch for batch in self.batches}
        executions = tuple(executions_of(self))
        found = LearnedTimes(executions).outliers if executions else ()
        return [Outlier(by_number[one.batch], one.time_ns / expected_ns) for one, expected_ns in found]

    @property
    def agreement(self) -> Agreement | None:
        """The number of batches of a trace that a replay of the scheduler reproduces; None without a trace."""
        return None if self.source is None else self.source.agreement

    def require_every_request(self, purpose: str) -> None:
        """Raise an error if the recording was made from a sampled trace.

        Parameters
        ----------
        purpose : str
            The beginning of the error message.

        Raises
        ------
        InvalidArgumentError
            If it does not contain every request.
        """
        if self.source is not None and self.source.sampled:
            raise InvalidArgumentError(
                f"{purpose} expected a recording of every request, got a sample: {self.source.sampled}; "
                "set trace_rate to 1"
            )


@dataclass(frozen=True, slots=True)
class EnsembleRequest:
    """One request of an ensemble.

    Attributes
    ----------
    serial : int
    model : str
        Name of the ensemble; of nested ensembles the outermost.
    steps : tuple of int
        Serials of the requests sent to the models of its steps, in order, including those of nested ensembles.
    received_ns, ended_ns : int or None
        Monotonic clock; None if outside the recording.
    failed : str
        Failure reason of the statistics; empty for a success.
    """

    serial: int
    model: str
    steps: tuple[int, ...]
    received_ns: int | None
    ended_ns: int | None
    failed: str

    def __repr__(self) -> str:
        failed = f"; failed: {self.failed}" if self.failed else ""
        return f"<EnsembleRequest {self.serial} of '{self.model}': {pluralize(len(self.steps), 'step')}{failed}>"


def ensemble_requests_of(events: Iterable[Event]) -> list[EnsembleRequest]:
    """Return the requests of ensembles in a stream of events, ordered by their first step."""
    outermost: dict[int, int] = {}
    models: dict[int, str] = {}
    steps: dict[int, list[int]] = {}
    ends: dict[int, EnsembleExecuted] = {}
    for event in events:
        if isinstance(event, StepSent):
            serial = outermost[event.step_serial] = outermost.get(event.serial, event.serial)
            models.setdefault(serial, event.model)
            steps.setdefault(serial, []).append(event.step_serial)
        elif isinstance(event, EnsembleExecuted):
            ends[event.serial] = event
    return [
        EnsembleRequest(
            serial,
            models[serial],
            tuple(sent),
            end.received_ns if (end := ends.get(serial)) else None,
            end.time_ns if end else None,
            end.failed if end else "",
        )
        for serial, sent in steps.items()
    ]


def instances_of(model: str, config: pb.ModelConfig) -> list[str]:
    """Return the names of the instances that a configuration determines.

    Empty for instances on GPUs, whose number depends on the machine, and for several instance groups, whose names in a
    simulation differ from those of the server.
    """
    groups = config.instance_group
    if len(groups) != 1 or groups[0].gpus:
        return []
    name = groups[0].name or f"{model}_0"
    return [f"{name}_{number}" for number in range(max(1, groups[0].count))]


def natural_sort_key(name: str) -> list[object]:
    """Sort key that puts instance 10 after instance 9."""
    return [int(part) if part.isdigit() else part for part in re.split(r"(\d+)", name)]
