"""The events of a recording, made from the requests of a trace."""

from __future__ import annotations

import bisect
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from operator import attrgetter
from typing import Self

from tritonnb.core.events import (
    BatchExecuted,
    BatchSent,
    CacheHit,
    EnsembleExecuted,
    Event,
    RequestArrived,
    RequestRefused,
    StepSent,
)
from tritonnb.core.protobuf import model_config_pb2 as pb
from tritonnb.lab.simulation.run import instance_count
from tritonnb.lab.traces.batching import TracedBatch, assign_instances, batches_of, reported_instances
from tritonnb.lab.traces.traced_request import TracedRequest
from tritonnb.recording.instance_names import instances_of
from tritonnb.scheduling.decisions import Reason
from tritonnb.scheduling.reasons import BLS_REQUEST, INPUTS_READY, UNKNOWN
from tritonnb.telemetry.statistics_entry import StatisticsEntry, difference

_queued_ns = attrgetter("queued_ns")
#: The name and the version of a model.
ModelVersion = tuple[str, int]

_NOT_EXECUTED = "not executed; the trace does not contain the reason"


@dataclass(frozen=True, slots=True)
class CountedRows:
    """The rows and the requests that a server executed during a recording.

    Attributes
    ----------
    rows, requests : int
        Of the requests that succeeded, without responses from the cache.
    batch_sizes : tuple of int
        The sizes of the batches, in rows.
    """

    rows: int
    requests: int
    batch_sizes: tuple[int, ...]

    @classmethod
    def between(cls, after: StatisticsEntry, before: StatisticsEntry) -> Self:
        """Return the counts between two readings of the statistics."""
        new = difference(after, before)
        sizes = tuple([entry["batch_size"] for entry in new["batch_stats"]])
        return cls(new["inference_count"], new["inference_stats"]["compute_infer"]["count"], sizes)

    @property
    def per_request(self) -> int | None:
        """The rows of each request; None if they are not known.

        A request has at least one row: with as many rows as requests, each has one. More rows are the same for each
        request if the mean and the sizes of all batches are multiples of it.

        Examples
        --------
        >>> CountedRows(rows=200, requests=200, batch_sizes=(1, 2)).per_request
        1
        >>> CountedRows(rows=600, requests=200, batch_sizes=(3, 6)).per_request
        3
        >>> CountedRows(rows=400, requests=200, batch_sizes=(1, 3)).per_request is None
        True
        """
        mean, rest = divmod(self.rows, self.requests)
        return None if rest or any(size % mean for size in self.batch_sizes) else mean


def counted_rows(
    after: Sequence[StatisticsEntry], before: Sequence[StatisticsEntry]
) -> Mapping[ModelVersion, CountedRows]:
    """Return the counts of each model version; none of one that was loaded in between, and so began at 0 again."""
    earlier = {(entry["name"], int(entry["version"])): entry for entry in before}
    later = {(entry["name"], int(entry["version"])): entry for entry in after}
    counts = {key: CountedRows.between(later[key], earlier[key]) for key in later.keys() & earlier.keys()}
    return {key: count for key, count in counts.items() if 0 < count.requests <= count.rows}


@dataclass
class TracedModel:
    """The requests and batches of one model version.

    Attributes
    ----------
    name, version : str, int
    config : ModelConfig or None
    requests : list of TracedRequest
        In the order of queueing.
    batches : list of TracedBatch
        In the order of their start.
    rows : dict of int to int
        Batch sizes of the requests, by serial.
    counted : CountedRows or None
        What the server counted during the recording; the source of the sizes that are not in the trace.
    knows_rows : bool
        Whether all sizes are known; unknown sizes are 1.
    instances : list of str
        The reported names, or the configured names and, if the batches need more, numbered names.
    is_reported : bool
        Whether the server reported every batch with its instance and its reason.
    """

    name: str
    version: int
    config: pb.ModelConfig | None
    requests: list[TracedRequest]
    batches: list[TracedBatch]
    rows: dict[int | str, int]
    counted: CountedRows | None
    knows_rows: bool
    instances: list[str]
    is_reported: bool
    serials: Mapping[int | str, int]
    reasons: Sequence[Reason | None] = ()
    unknown: str = "the configuration of the model was not given"

    @property
    def is_ensemble(self) -> bool:
        """True if requests are executed by other models."""
        return self.config is not None and self.config.HasField("ensemble_scheduling")

    def queue_depth(self, time_ns: int) -> int:
        """Return the number of requests that are queued after a time."""
        arrived = bisect.bisect_right(self.requests, time_ns, key=_queued_ns)
        return max(0, arrived - bisect.bisect_right(self._left_ns, time_ns))

    @cached_property
    def _left_ns(self) -> list[int]:
        return sorted(map(_left_ns, self.requests))

    def reason(self, number: int) -> Reason:
        """Return the reason of a batch, if it is known."""
        batch = self.batches[number]
        if batch.reported is not None:
            return batch.reported.reason
        inferred = self.reasons[number] if self.reasons else None
        if inferred is not None:
            return inferred
        text = "a replay of the scheduler forms another batch here" if self.reasons else self.unknown
        idle_ns = batch.start_ns - batch.free_ns if batch.free_ns else 0
        facts = {
            "requests": len(batch.requests),
            "rows": sum(self.rows[request.key] for request in batch.requests),
            "instance": batch.lane,
            "idle_ns": idle_ns,
            "has_run": batch.free_ns > 0,
            "cause": text,
        }
        return Reason(UNKNOWN, facts)


def models_of(
    requests: Sequence[TracedRequest],
    configs: Mapping[str, pb.ModelConfig],
    counted: Mapping[ModelVersion, CountedRows] | None = None,
) -> list[TracedModel]:
    """Group the complete requests of a trace by model, and find their batches.

    Parameters
    ----------
    requests : sequence of TracedRequest
    configs : mapping of str to ModelConfig
    counted : mapping of (str, int) to CountedRows, optional
        The server's counts in the meantime, by model version.
    """
    ordered = sorted(requests, key=_queued_ns)
    serials = {request.key: serial for serial, request in enumerate(ordered, 1)}
    groups: dict[ModelVersion, list[TracedRequest]] = defaultdict(list)
    for request in ordered:
        groups[request.model, request.version].append(request)
    models = []
    for (name, version), group in sorted(groups.items()):
        config = configs.get(name)
        batching = config is None or config.max_batch_size > 0
        counts = (counted or {}).get((name, version))
        usual = None if counts is None else counts.per_request
        rows = {request.key: request.rows(batching) or usual for request in group}
        batches = batches_of(group)
        sizes = {key: size or 1 for key, size in rows.items()}
        knows_rows = None not in rows.values()
        names = [] if config is None else instances_of(name, config)
        reported = reported_instances(batches, names)
        configured = 1 if config is None else instance_count(config)
        instances = reported or _named_instances(name, names, assign_instances(batches, configured))
        key = (name, version, config, group, batches, sizes, counts, knows_rows)
        models.append(TracedModel(*key, instances, bool(reported), serials))
    return models


def _named_instances(model: str, names: Sequence[str], count: int) -> list[str]:
    """Return the names of the configured instances, and of others up to a number."""
    prefix = names[0].rpartition("_")[0] if names else f"{model}_0"
    return [*names, *(f"{prefix}_{number}" for number in range(len(names), count))]


def events_of(models: Sequence[TracedModel]) -> list[Event]:
    """Return the events of all models, in the order of time."""
    events: list[Event] = []
    batches = [(batch.start_ns, model, position) for model in models for position, batch in enumerate(model.batches)]
    for number, (_, model, position) in enumerate(sorted(batches, key=lambda item: item[0]), 1):
        events += _batch_events(model, position, number)
    children: dict[int | str, list[tuple[TracedModel, TracedRequest]]] = defaultdict(list)
    for model in models:
        for request in model.requests:
            if request.parent:
                children[request.parent].append((model, request))
    for model in models:
        for request in model.requests:
            events += _request_events(model, request, children.get(request.key, []))
    # Of events at the same time, an execution ends first, and a request arrives before its batch is sent.
    events.sort(key=lambda event: (event.time_ns, isinstance(event, BatchSent), not isinstance(event, BatchExecuted)))
    return events


def _batch_events(model: TracedModel, position: int, number: int) -> Iterator[Event]:
    batch = model.batches[position]
    reason, instance = model.reason(position), model.instances[batch.lane]
    sizes = [model.rows[request.key] for request in batch.requests]
    size = batch.reported.size if batch.reported is not None else sum(sizes)
    members = tuple([model.serials[request.key] for request in batch.requests])
    key = (model.name, model.version, number, instance, size)
    start_ns, inputs_ns, outputs_ns, end_ns = batch.requests[0].compute
    sent_ns = batch.start_ns if batch.sent_ns is None else batch.sent_ns
    depth = model.queue_depth(sent_ns)
    yield BatchSent(sent_ns, *key, reason.rule, depth, members, None, reason.facts)
    executed = [
        (serial, rows, request.received_ns, min(request.queued_ns, start_ns), "")
        for serial, rows, request in zip(members, sizes, batch.requests, strict=True)
    ]
    yield BatchExecuted(end_ns, *key, start_ns, inputs_ns, outputs_ns, end_ns, tuple(executed))


def _left_ns(request: TracedRequest) -> int:
    """Return the time when a request left the queue."""
    return request.stamps["COMPUTE_START"] if request.executed else request.ended_ns


def _request_events(
    model: TracedModel, request: TracedRequest, children: list[tuple[TracedModel, TracedRequest]]
) -> Iterator[Event]:
    serial, rows = model.serials[request.key], model.rows[request.key]
    key = (model.name, model.version, serial)
    shape = request.shape_key(model.config is None or model.config.max_batch_size > 0)
    is_ensemble = not request.executed and (model.is_ensemble or bool(children))
    if not is_ensemble:
        yield RequestArrived(request.queued_ns, *key, rows, 0, 0, request.id, 0, 0, shape)
    children.sort(key=lambda child: child[1].queued_ns)
    rule = INPUTS_READY if is_ensemble else BLS_REQUEST
    for step, (child_model, child) in enumerate(children):
        child_key = (child_model.name, child_model.version, child_model.serials[child.key])
        yield StepSent(child.queued_ns, *key, step, *child_key, 0, rule)
    if is_ensemble:
        yield _ensemble_executed(model, request, rows, [child for _, child in children])
    elif not request.executed and "CACHE_HIT_LOOKUP_START" in request.stamps:
        lookup = [request.stamps.get(f"CACHE_HIT_LOOKUP_{end}", request.ended_ns) for end in ("START", "END")]
        yield CacheHit(request.ended_ns, *key, request.received_ns, lookup[1] - lookup[0])
    elif not request.executed:
        ended = request.ended_ns
        yield RequestRefused(ended, *key, rows, request.received_ns, _NOT_EXECUTED, "REJECTED")


def _ensemble_executed(
    model: TracedModel, request: TracedRequest, rows: int, children: list[TracedRequest]
) -> EnsembleExecuted:
    executions = [child.compute for child in children if child.executed]
    compute_input, compute_infer, compute_output = (
        sum(times[part + 1] - times[part] for times in executions) for part in range(3)
    )
    return EnsembleExecuted(
        time_ns=request.ended_ns,
        model=model.name,
        version=model.version,
        serial=model.serials[request.key],
        size=rows,
        received_ns=request.received_ns,
        queued_ns=request.queued_ns,
        started_ns=min((times[0] for times in executions), default=request.ended_ns),
        compute_input_ns=compute_input,
        compute_infer_ns=compute_infer,
        compute_output_ns=compute_output,
        failed="",
    )
