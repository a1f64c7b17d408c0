"""The event stream: everything that happens to requests, batches and models, in order.

Statistics, recordings, traces and views are folded from these events and from nothing else.
Times are nanoseconds of the monotonic clock. Events hold numbers and names only, never tensors, and
are kept packed (`pack`) as tuples of such: the garbage collector does not look into those, so that
a long history costs no pauses.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields
from itertools import chain
from operator import attrgetter
from typing import Any, cast, get_args


@dataclass(slots=True)
class RequestArrived:
    """A request was offered to its model's scheduler; what became of it follows.

    ``shape_key`` stands for what must be equal of two requests that share a batch, the shapes of
    variable-size inputs above all.
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
    """Nobody waits for a request any more; whether it still runs depends on where it is."""

    time_ns: int
    model: str
    version: int
    serial: int


@dataclass(slots=True)
class RequestRefused:
    """A request will not run.

    ``counted_as`` is its failure reason in the statistics (``REJECTED``, ``CANCELED``, ``OTHER``), or
    empty when Triton counts it nowhere: it was refused before it entered the queue.
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

    ``members`` are the serials of its requests, None for a null request; ``rule`` and ``facts`` are
    the scheduler's reason; ``slots`` the batch slot of each member of a sequence batch.
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


#: One request of an executed batch: serial, rows, reception and acceptance in ns, and the failure
#: reason of the statistics, empty for a success.
ExecutedRequest = tuple[int, int, int, int, str]


@dataclass(slots=True)
class BatchExecuted:
    """An instance has run a batch; null requests are in ``size`` but not in ``requests``."""

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


@dataclass(slots=True)
class ResponseSent:
    """A decoupled model sent response number ``index`` of a request.

    ``outcome`` is ``success``, ``fail``, ``cancel`` or ``empty`` (the final flag alone).
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
    """A request was answered from the response cache; it did not run."""

    time_ns: int
    model: str
    version: int
    serial: int
    received_ns: int
    lookup_ns: int


@dataclass(slots=True)
class CacheMiss:
    """The answer to a request was put into the response cache; ``elapsed_ns`` is what looking and keeping took."""

    time_ns: int
    model: str
    version: int
    serial: int
    elapsed_ns: int


@dataclass(slots=True)
class StepSent:
    """A request of an ensemble sent one of its own, ``step_serial``, to the model of a step.

    ``iteration`` counts the responses of a decoupled step before it; ``rule`` is the scheduler's reason.
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
    """A request of an ensemble is over; the compute times are the sums over all its steps.

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
)

#: An event as one flat tuple: the name of its type, then its fields, those of variable length last.
Packed = tuple[Any, ...]

_TYPES: dict[str, type[Any]] = {each.__name__: each for each in get_args(Event)}
_VARIABLE = {"members", "slots", "facts", "requests"}
_FIXED: dict[type[Any], Callable[[Any], tuple[Any, ...]]] = {
    each: attrgetter(*(field.name for field in fields(each) if field.name not in _VARIABLE)) for each in _TYPES.values()
}
_BATCH_SENT = 1 + len(fields(BatchSent)) - 3
_BATCH_EXECUTED = 1 + len(fields(BatchExecuted)) - 1


def pack(event: Event) -> Packed:
    """An event as a flat tuple, in which the garbage collector loses interest at its first visit."""
    kind, given = type(event), cast(Any, event)
    fixed = _FIXED[kind](given)
    if kind is BatchSent:
        slots, facts = given.slots or (), given.facts
        return ("BatchSent", *fixed, len(given.members), *given.members, len(slots), *slots, *facts, *facts.values())
    if kind is BatchExecuted:
        return ("BatchExecuted", *fixed, *chain.from_iterable(given.requests))
    return (kind.__name__, *fixed)


def unpack(packed: Packed) -> Event:
    """The event that was packed."""
    name = packed[0]
    if name == "BatchSent":
        return BatchSent(*(*packed[1:_BATCH_SENT], members_of(packed), slots_of(packed), facts_of(packed)))
    if name == "BatchExecuted":
        flat = iter(packed[_BATCH_EXECUTED:])
        requests = tuple(zip(flat, flat, flat, flat, flat, strict=True))
        return BatchExecuted(*(*packed[1:_BATCH_EXECUTED], requests))
    event: Event = _TYPES[name](*packed[1:])
    return event


def members_of(batch_sent: Packed) -> tuple[int | None, ...]:
    """The ``members`` of a packed `BatchSent`."""
    at = _BATCH_SENT + 1
    return batch_sent[at : at + batch_sent[at - 1]]


def slots_of(batch_sent: Packed) -> tuple[int, ...] | None:
    """The ``slots`` of a packed `BatchSent`."""
    at = _BATCH_SENT + 2 + batch_sent[_BATCH_SENT]
    return batch_sent[at : at + batch_sent[at - 1]] or None


def facts_of(batch_sent: Packed) -> dict[str, Any]:
    """The ``facts`` of a packed `BatchSent`."""
    at = _BATCH_SENT + 2 + batch_sent[_BATCH_SENT]
    rest = batch_sent[at + batch_sent[at - 1] :]
    half = len(rest) // 2
    return dict(zip(rest[:half], rest[half:], strict=True))


def failures_of(batch_executed: Packed) -> int:
    """How many requests of a packed `BatchExecuted` failed."""
    reasons = batch_executed[_BATCH_EXECUTED + 4 :: 5]
    return len(reasons) - reasons.count("")
