"""The types of the event stream: everything that happens to requests, batches and models, in order.

Statistics, recordings, traces and views are computed from these events only. Times are nanoseconds of the monotonic
clock. Events hold numbers and strings, never tensors, and are stored packed (`pack`), as flat tuples of them: the
garbage collector does not scan such tuples, so that a long history causes no pauses.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields
from operator import attrgetter
from types import SimpleNamespace
from typing import Any, get_args


@dataclass(slots=True)
class RequestArrived:
    """A request was offered to its model's scheduler.

    Requests that share a batch have equal ``shape_key``: it is a hash of what must be equal, such as the shapes of
    variable-size inputs. ``size`` is the batch size of the request.
    """

    time_ns: int
    model: str
    version: int
    serial: int
    size: int
    priority: int
    timeout_us: int
    id: str
    correlation_id: int | str
    flags: int
    shape_key: int


@dataclass(slots=True)
class RequestCancelled:
    """The client cancelled a request; if it is already running it continues."""

    time_ns: int
    model: str
    version: int
    serial: int


@dataclass(slots=True)
class RequestRefused:
    """A request will not run.

    ``counted_as`` is its failure reason in the statistics (``REJECTED``, ``CANCELED``, ``OTHER``), or
    empty if Triton does not count it because it never entered the queue.
    """

    time_ns: int
    model: str
    version: int
    serial: int
    size: int
    received_ns: int
    message: str
    counted_as: str


@dataclass(slots=True)
class BatchSent:
    """The scheduler sent a batch to an instance.

    ``members`` are the serials of its requests, None for a null request. ``rule`` and ``facts`` are the scheduler's
    reason. ``slots`` are the batch slots of the members of a sequence batch, else None.
    """

    time_ns: int
    model: str
    version: int
    batch: int
    instance: str
    size: int
    rule: str
    queue_depth: int
    members: tuple[int | None, ...]
    slots: tuple[int, ...] | None
    facts: dict[str, Any]

    def __init__(  # the one that `dataclass` writes is not compiled
        self,
        time_ns: int,
        model: str,
        version: int,
        batch: int,
        instance: str,
        size: int,
        rule: str,
        queue_depth: int,
        members: tuple[int | None, ...],
        slots: tuple[int, ...] | None,
        facts: dict[str, Any],
    ) -> None:
        self.time_ns = time_ns
        self.model = model
        self.version = version
        self.batch = batch
        self.instance = instance
        self.size = size
        self.rule = rule
        self.queue_depth = queue_depth
        self.members = members
        self.slots = slots
        self.facts = facts


#: One request of an executed batch: serial, rows, time received (ns), time queued (ns), and the failure reason of
#: the statistics, empty for a success.
ExecutedRequest = tuple[int, int, int, int, str]


@dataclass(slots=True)
class BatchExecuted:
    """An instance executed a batch; null requests count in ``size`` but are not in ``requests``."""

    time_ns: int
    model: str
    version: int
    batch: int
    instance: str
    size: int
    exec_start_ns: int
    compute_start_ns: int
    compute_end_ns: int
    exec_end_ns: int
    requests: tuple[ExecutedRequest, ...]

    def __init__(  # the one that `dataclass` writes is not compiled
        self,
        time_ns: int,
        model: str,
        version: int,
        batch: int,
        instance: str,
        size: int,
        exec_start_ns: int,
        compute_start_ns: int,
        compute_end_ns: int,
        exec_end_ns: int,
        requests: tuple[ExecutedRequest, ...],
    ) -> None:
        self.time_ns = time_ns
        self.model = model
        self.version = version
        self.batch = batch
        self.instance = instance
        self.size = size
        self.exec_start_ns = exec_start_ns
        self.compute_start_ns = compute_start_ns
        self.compute_end_ns = compute_end_ns
        self.exec_end_ns = exec_end_ns
        self.requests = requests


@dataclass(slots=True)
class ResponseSent:
    """A decoupled model sent response number ``index`` of a request.

    ``outcome`` is ``success``, ``fail``, ``cancel`` or ``empty`` (only the final flag).
    """

    time_ns: int
    model: str
    version: int
    serial: int
    index: int
    outcome: str
    elapsed_ns: int


@dataclass(slots=True)
class CacheHit:
    """A request was answered from the response cache without being executed."""

    time_ns: int
    model: str
    version: int
    serial: int
    received_ns: int
    lookup_ns: int


@dataclass(slots=True)
class CacheMiss:
    """The response to a request was inserted into the cache; ``elapsed_ns`` is the time for lookup and insertion."""

    time_ns: int
    model: str
    version: int
    serial: int
    elapsed_ns: int


@dataclass(slots=True)
class StepSent:
    """An ensemble sent the request ``step_serial`` to the model of a step, on behalf of the request ``serial``.

    ``iteration`` is the number of the decoupled response that caused it; ``rule`` is the scheduler's reason.
    """

    time_ns: int
    model: str
    version: int
    serial: int
    step: int
    step_model: str
    step_version: int
    step_serial: int
    iteration: int
    rule: str


@dataclass(slots=True)
class EnsembleExecuted:
    """A request to an ensemble ended; its compute times are sums over all steps.

    ``failed`` is the failure reason of the statistics, empty for a success.
    """

    time_ns: int
    model: str
    version: int
    serial: int
    size: int
    received_ns: int
    queued_ns: int
    started_ns: int
    compute_input_ns: int
    compute_infer_ns: int
    compute_output_ns: int
    failed: str


@dataclass(slots=True)
class ModelStateChanged:
    """A model version entered a state of the repository index."""

    time_ns: int
    model: str
    version: int
    state: str
    reason: str


@dataclass(slots=True)
class InstanceStateChanged:
    """An instance was lost with what it keeps between executions, or runs again.

    ``state`` is ``LOST``, ``READY``, or ``UNAVAILABLE`` if it could not be started again yet.
    """

    time_ns: int
    model: str
    version: int
    instance: str
    state: str
    reason: str


Event = (
    RequestArrived
    | RequestCancelled
    | RequestRefused
    | BatchSent
    | BatchExecuted
    | ResponseSent
    | CacheHit
    | CacheMiss
    | StepSent
    | EnsembleExecuted
    | ModelStateChanged
    | InstanceStateChanged
)

#: An event as one flat tuple: the name of its type, then its fields in the order of the class, those of variable
#: length last. `positions` says where a field of fixed length is.
Packed = tuple[Any, ...]

_KINDS: dict[str, type[Event]] = {kind.__name__: kind for kind in get_args(Event)}
_VARIABLE = {"members", "slots", "facts", "requests"}
#: Names of the fields of fixed length of each type of event.
_FIXED: dict[type[Event], tuple[str, ...]] = {
    kind: tuple([field.name for field in fields(kind) if field.name not in _VARIABLE]) for kind in _KINDS.values()
}
_fixed_values: dict[type[Event], Callable[[Event], Packed]] = {
    kind: attrgetter(*names) for kind, names in _FIXED.items()
}
_POSITIONS: dict[type[Event], SimpleNamespace] = {
    kind: SimpleNamespace(**{name: position for position, name in enumerate(names, start=1)})
    for kind, names in _FIXED.items()
}
_END_OF_BATCH_SENT = 1 + len(_FIXED[BatchSent])
_END_OF_BATCH_EXECUTED = 1 + len(_FIXED[BatchExecuted])


def positions(kind: type[Event]) -> SimpleNamespace:
    """Where the fields of a type of event are in its packed form.

    Parameters
    ----------
    kind : type
        Such as `RequestArrived`.

    Returns
    -------
    types.SimpleNamespace
        An index for each field of fixed length, by name.

    Examples
    --------
    >>> cancelled = pack(RequestCancelled(time_ns=5, model="m", version=1, serial=7))
    >>> cancelled[positions(RequestCancelled).serial]
    7
    """
    return _POSITIONS[kind]


def pack(event: Event) -> Packed:
    """Pack an event as a flat tuple, which the garbage collector untracks at its first collection."""
    if isinstance(event, BatchSent):
        return _pack_batch_sent(event)
    if isinstance(event, BatchExecuted):
        return _pack_batch_executed(event)
    kind = type(event)
    return (kind.__name__, *_fixed_values[kind](event))


def _pack_batch_sent(event: BatchSent) -> Packed:
    packed: list[Any] = [
        "BatchSent", event.time_ns, event.model, event.version, event.batch,
        event.instance, event.size, event.rule, event.queue_depth,
    ]  # fmt: skip
    slots, facts = event.slots or (), event.facts
    packed.append(len(event.members))
    packed += event.members
    packed.append(len(slots))
    packed += slots
    packed += facts
    packed += facts.values()
    return tuple(packed)


def _pack_batch_executed(event: BatchExecuted) -> Packed:
    packed: list[Any] = [
        "BatchExecuted", event.time_ns, event.model, event.version, event.batch, event.instance, event.size,
        event.exec_start_ns, event.compute_start_ns, event.compute_end_ns, event.exec_end_ns,
    ]  # fmt: skip
    for request in event.requests:
        packed += request
    return tuple(packed)


def pack_request_arrived(
    *,
    time_ns: int,
    model: str,
    version: int,
    serial: int,
    size: int,
    priority: int,
    timeout_us: int,
    id: str,
    correlation_id: int | str,
    flags: int,
    shape_key: int,
) -> Packed:
    """``pack(RequestArrived(...))`` without creating the event: there is one for each request."""
    # fmt: off
    return (
        "RequestArrived", time_ns, model, version, serial, size,
        priority, timeout_us, id, correlation_id, flags, shape_key,
    )
    # fmt: on


def pack_step_sent(
    *,
    time_ns: int,
    model: str,
    version: int,
    serial: int,
    step: int,
    step_model: str,
    step_version: int,
    step_serial: int,
    iteration: int,
    rule: str,
) -> Packed:
    """``pack(StepSent(...))`` without creating the event: there is one for each step of a request."""
    # fmt: off
    return (
        "StepSent", time_ns, model, version, serial,
        step, step_model, step_version, step_serial, iteration, rule,
    )
    # fmt: on


def unpack(packed: Packed) -> Event:
    """Restore a packed event."""
    name = packed[0]
    if name == "BatchSent":
        return BatchSent(*(*packed[1:_END_OF_BATCH_SENT], members_of(packed), slots_of(packed), facts_of(packed)))
    if name == "BatchExecuted":
        flat = iter(packed[_END_OF_BATCH_EXECUTED:])
        requests = tuple(zip(flat, flat, flat, flat, flat, strict=True))
        return BatchExecuted(*(*packed[1:_END_OF_BATCH_EXECUTED], requests))
    event: Event = _KINDS[name](*packed[1:])
    return event


def members_of(batch_sent: Packed) -> tuple[int | None, ...]:
    """The ``members`` of a packed `BatchSent`."""
    at = _END_OF_BATCH_SENT + 1
    return batch_sent[at : at + batch_sent[at - 1]]


def slots_of(batch_sent: Packed) -> tuple[int, ...] | None:
    """The ``slots`` of a packed `BatchSent`."""
    at = _END_OF_BATCH_SENT + 2 + batch_sent[_END_OF_BATCH_SENT]
    return batch_sent[at : at + batch_sent[at - 1]] or None


def facts_of(batch_sent: Packed) -> dict[str, Any]:
    """The ``facts`` of a packed `BatchSent`."""
    at = _END_OF_BATCH_SENT + 2 + batch_sent[_END_OF_BATCH_SENT]
    rest = batch_sent[at + batch_sent[at - 1] :]
    half = len(rest) // 2
    return dict(zip(rest[:half], rest[half:], strict=True))


def failures_of(batch_executed: Packed) -> int:
    """The number of failed requests of a packed `BatchExecuted`."""
    reasons = batch_executed[_END_OF_BATCH_EXECUTED + 4 :: 5]
    return len(reasons) - reasons.count("")
