"""A recording: the events of a server or a simulation over a period, and the requests and batches derived from them.

A recording is its data. Questions about it (`Recording.blame`, `Recording.what_if`, …) are answered by packages above
this one, which register themselves in `tritonnb.accessors`.
"""

from __future__ import annotations

import math
import os
import statistics
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from functools import cached_property
from itertools import product, starmap
from typing import TYPE_CHECKING, Any, ClassVar

from tritonnb.core import events as event_types
from tritonnb.core.accessors import extensible
from tritonnb.core.errors import InvalidArgumentError
from tritonnb.core.events import Event, RequestArrived, RequestRefused
from tritonnb.core.failures import with_short_tracebacks
from tritonnb.core.html_table import html_report
from tritonnb.core.option_types import with_checked_types
from tritonnb.core.protobuf import model_config_pb2 as pb
from tritonnb.recording import files
from tritonnb.recording.arrivals import Arrival, arrivals_of
from tritonnb.recording.batches import Batch, Outlier, RequestRecord, batches_of
from tritonnb.recording.generations import Generation, generations_of
from tritonnb.recording.instance_names import instance_on, instances_of, natural_sort_key, replica_of
from tritonnb.recording.pipelines import Pipeline, PipelineRequest, pipeline_requests_of, pipelines_of
from tritonnb.recording.sequences import SlotHistory, SlotOccupancy, slot_count
from tritonnb.recording.trace_source import Agreement, TraceSource
from tritonnb.scheduling.reasons import pluralize

if TYPE_CHECKING:
    import pandas


@extensible
@with_short_tracebacks
class Recording:
    """The events of a server or a simulation over a period.

    Attributes
    ----------
    events : list of Event
        All events, in order.
    configs : dict of str to ModelConfig
        The configurations of the models, by name.
    simulated : bool
        True for a simulation, which has virtual times.
    source : TraceSource or None
        What is known about the trace that it was made from (`from_trace`); None for other recordings.

    Examples
    --------
    >>> from tritonnb import fixed, simulate
    >>> recording = simulate("max_batch_size: 8 dynamic_batching { }", [(0, 2), (0, 3)], fixed(10))
    >>> [batch.size for batch in recording.batches]
    [2, 3]
    >>> recording.verdict().split(";")[0]
    '2 requests ran in 2 batches: mean batch size 2.5 rows'
    >>> recording.remarks()
    ['Simulated: times and rates are virtual, not measured.']
    >>> [(arrival.time_us, arrival.rows) for arrival in recording.arrivals()]
    [(0.0, 2), (0.0, 3)]
    >>> recording.for_model("simulated").to_pandas()[["rows", "sent_ms"]].to_numpy().tolist()
    [[2.0, 0.0], [3.0, 10.0]]
    >>> [diagnosis.name for diagnosis in recording.diagnoses()]
    []
    >>> from tempfile import TemporaryDirectory
    >>> with TemporaryDirectory() as directory:
    ...     recording.save(f"{directory}/recording.json")
    ...     recording.to_perfetto(f"{directory}/trace.json")
    ...     len(Recording.load(f"{directory}/recording.json").batches)
    2
    """

    # What other packages answer about a recording: `tritonnb.accessors` says which function answers what.
    blame: ClassVar[Callable[..., Any]]
    debug: ClassVar[Callable[..., Any]]
    diagnoses: ClassVar[Callable[..., Any]]
    from_trace: ClassVar[Callable[..., Recording]]
    outliers: ClassVar[list[Outlier]]
    late_starts: ClassVar[Any]
    plot: ClassVar[Any]
    service: ClassVar[Callable[..., Any]]
    summary: ClassVar[Callable[..., dict[str, float]]]
    to_html: ClassVar[Callable[..., None]]
    to_perfetto: ClassVar[Callable[..., None]]
    twin: ClassVar[Callable[..., Any]]
    verdict: ClassVar[Callable[..., str]]
    view: ClassVar[Callable[..., Any]]
    what_if: ClassVar[Callable[..., Any]]
    worksheet: ClassVar[Callable[..., Any]]

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
        for name, member in vars(Recording).items():
            if isinstance(member, cached_property):  # derived from the events
                self.__dict__.pop(name, None)

    @classmethod
    @with_checked_types
    def load(cls, path: str | os.PathLike[str]) -> Recording:
        """Read a recording that `save` wrote.

        Parameters
        ----------
        path : path

        Returns
        -------
        Recording

        Raises
        ------
        InvalidArgumentError
            If the file is not a recording.
        """
        events, configs, simulated, source = files.read(path)
        recording = cls(events, configs, simulated=simulated, source=source)
        try:
            recording.derive()
        except (ArithmeticError, LookupError, TypeError, ValueError) as error:
            raise InvalidArgumentError(
                f"recording '{path}': expected events that fit together, got {type(error).__name__}: {error}"
            ) from error
        return recording

    @with_checked_types
    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the recording to a file: JSON, one event per line.

        Parameters
        ----------
        path : path
        """
        files.write(path, self.events, self.configs, simulated=self.simulated, source=self.source)

    @with_checked_types
    def for_model(self, model: str) -> Recording:
        """Return the part of the recording that concerns one model.

        Parameters
        ----------
        model : str
            Name of a model that was served during the recording.

        Returns
        -------
        Recording

        Raises
        ------
        InvalidArgumentError
            If the recording has neither events nor a configuration of that model.
        """
        known = self.configs.keys() | {event.model for event in self.events}
        if model not in known:
            names = ", ".join(map(repr, sorted(known))) or "(none)"
            raise InvalidArgumentError(f"recording expected one of the models {names}, got '{model}'")
        configs = {name: config for name, config in self.configs.items() if name == model}
        events = (event for event in self.events if event.model == model)
        source = None if self.source is None else self.source.for_model(model)
        return Recording(events, configs, simulated=self.simulated, source=source)

    @with_checked_types
    def between(self, start_ms: float | None = None, end_ms: float | None = None) -> Excerpt:
        """Return the requests that were in the server during a time range, and their batches.

        Parameters
        ----------
        start_ms, end_ms : float, optional
            Milliseconds from the beginning of the recording; by default its beginning and its end.

        Raises
        ------
        InvalidArgumentError
            If ``start_ms`` is not before ``end_ms``, or one of them is not a finite number.

        Examples
        --------
        >>> from tritonnb import constant, fixed, simulate
        >>> recording = simulate("max_batch_size: 4", constant(100, 1), fixed(5))
        >>> len(recording.requests), len(recording.between(0, 500).requests)
        (100, 51)
        """
        first, last = ((time_ns - self.origin_ns) / 1e6 for time_ns in self.span_ns)
        start = first if start_ms is None else start_ms
        stop = last if end_ms is None else end_ms
        try:
            is_valid = -math.inf < start < stop < math.inf
        except TypeError:
            is_valid = False
        if not is_valid:
            raise InvalidArgumentError(
                f"time range of a recording expected numbers start_ms < end_ms, got {start!r} and {stop!r}: "
                f"this recording lasts from {first:.1f} to {last:.1f} ms"
            )
        return Excerpt(self, *(self.origin_ns + round(ms * 1e6) for ms in (start, stop)))

    @cached_property
    def executed(self) -> list[tuple[Batch, list[RequestRecord]]]:
        """The batches that ran, in the order of completion, each with its requests."""
        return list(batches_of(self.events))

    @cached_property
    def batches(self) -> list[Batch]:
        """The batches that ran, in the order of completion."""
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
    def ensemble_requests(self) -> list[PipelineRequest]:
        """Requests of ensembles, and of models that call others, with the requests that they caused."""
        return pipeline_requests_of(self.events, self.executed)

    @cached_property
    def pipelines(self) -> dict[str, Pipeline]:
        """The pipelines by the name of the ensemble, or of the calling model, that clients send requests to."""
        return pipelines_of(self.ensemble_requests)

    @cached_property
    def generations(self) -> list[Generation]:
        """Requests that were answered token by token, and the steps that computed the tokens; often empty."""
        return generations_of(self.events, self.configs, self.executed)

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
        """The names of the instances that ran a batch, and of configured instances that stayed idle."""
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

    @property
    def unit(self) -> str:
        """The unit of batch sizes: ``"rows"``, or ``"requests"`` if the rows of traced requests are not known."""
        return "requests" if self.source is not None and self.source.unknown_rows else "rows"

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

    def arrivals(self) -> list[Arrival]:
        """Return the arrival of each request, in µs after the first arrival: for `simulate`, `load` or `sweep`."""
        self.require_every_request("arrivals()")
        return arrivals_of(self.events, self.arrived, self.requests)

    def to_pandas(self) -> pandas.DataFrame:
        """Return one row for each batch; ``sent_ms`` counts from the first batch sent.

        Returns
        -------
        pandas.DataFrame

        Raises
        ------
        ImportError
            Where pandas is not installed.
        """
        import pandas

        begin = min((batch.sent_ns for batch in self.batches), default=0)
        rows = [
            {
                "batch": batch.number,
                "model": batch.model,
                "instance": batch.instance,
                "requests": len(batch.requests),
                "rows": batch.size,
                "sent_ms": (batch.sent_ns - begin) / 1e6,
                "queue_ms": batch.queue_ns / 1e6,
                "compute_ms": batch.compute_ns / 1e6,
                "why": batch.why,
            }
            for batch in self.batches
        ]
        return pandas.DataFrame(rows)

    def remarks(self) -> list[str]:
        """Explain how to read the numbers: whether they are simulated, and facts about the trace."""
        remarks = ["Simulated: times and rates are virtual, not measured."] if self.simulated else []
        if self.source is not None:
            remarks += [f"From a trace: {text}." for text in self.source.remarks()]
        return remarks

    def __repr__(self) -> str:
        remarks = [f"  {remark}" for remark in self.remarks()]
        if self.source is not None and self.source.sampled:
            return "\n".join([self.verdict(), *remarks])
        lines = [self.verdict()]
        for size, count in self.batch_sizes().items():
            lines.append(f"  batch size {size:>4}: {count:>5} x {self.median_ms(size):8.2f} ms (median)")
        return "\n".join([*lines, *remarks, *(f"  ! {diagnosis}" for diagnosis in self.diagnoses())])

    def _repr_html_(self) -> str:
        if self.source is not None and self.source.sampled:
            return html_report(self.verdict(), (), (), self.remarks())
        rows = [(size, count, f"{self.median_ms(size):.2f}") for size, count in self.batch_sizes().items()]
        titles = ("batch size (rows)", "batches", "compute, median (ms)")
        return html_report(self.verdict(), titles, rows, [*self.diagnoses(), *self.remarks()])


class Excerpt(Recording):
    """The requests that were in the server during a time range of a recording, and their batches.

    Times count from the beginning of the whole recording.
    """

    def __init__(self, whole: Recording, begin_ns: int, end_ns: int) -> None:
        self._whole = whole
        self._begin_ns, self._end_ns = begin_ns, end_ns
        present = [request for request in whole.requests if self._overlaps(request.received_ns, request.exec_end_ns)]
        refused = [refusal.serial for refusal in whole.refused if self._overlaps(refusal.received_ns, refusal.time_ns)]
        self._numbers = {request.batch for request in present}
        self._serials = {request.serial for request in whole.requests if request.batch in self._numbers} | {*refused}
        included = filter(self._includes, whole.events)
        super().__init__(included, whole.configs, simulated=whole.simulated, source=whole.source)

    @property
    def span_ns(self) -> tuple[int, int]:
        """Begin and end of the time range (monotonic clock, ns)."""
        return self._begin_ns, self._end_ns

    @property
    def origin_ns(self) -> int:
        """The beginning of the whole recording."""
        return self._whole.origin_ns

    @property
    def instances(self) -> list[str]:
        """Instances of the whole recording."""
        return self._whole.instances

    @cached_property
    def slot_occupancy(self) -> list[SlotOccupancy]:
        """Sequences that held a slot during the time range, or waited for one."""
        occupancies = self._whole.slot_occupancy
        return [
            occupancy
            for occupancy in occupancies
            if self._overlaps(occupancy.arrived_ns, occupancy.released_ns or self._end_ns)
        ]

    @cached_property
    def generations(self) -> list[Generation]:
        """Generations that were in the server during the time range, with all of their steps."""
        generations = self._whole.generations
        return [one for one in generations if self._overlaps(one.arrived_ns, one.free_ns)]

    @cached_property
    def ensemble_requests(self) -> list[PipelineRequest]:
        """Requests of pipelines that were in the server during the time range, with all that they caused."""
        whole = self._whole.ensemble_requests
        return [request for request in whole if self._overlaps(request.received_ns, request.ended_ns)]

    def _overlaps(self, begin_ns: int, end_ns: int) -> bool:
        return begin_ns <= self._end_ns and end_ns >= self._begin_ns

    def _includes(self, event: event_types.Event) -> bool:
        if isinstance(event, event_types.BatchSent | event_types.BatchExecuted):
            return event.batch in self._numbers
        if isinstance(event, event_types.StepSent):
            return event.step_serial in self._serials
        if isinstance(event, event_types.EnsembleExecuted):
            return self._overlaps(event.received_ns, event.time_ns)
        if isinstance(event, event_types.RequestArrived | event_types.RequestCancelled | event_types.RequestRefused):
            return event.serial in self._serials
        return self._overlaps(event.time_ns, event.time_ns)
