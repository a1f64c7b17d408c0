"""The types of the event stream: everything that happens to requests, batches and models, in order.

Statistics, recordings, traces and views are computed from these events only. Times are nanoseconds of the monotonic
clock. Events hold numbers and strings, never tensors, and are stored as flat tuples of them: see
`tritonnb.core.packed_events`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass(slots=True)
class ModelEvent:
    """An event of a model version."""

    time_ns: int
    model: str
    version: int


@dataclass(slots=True)
class RequestEvent(ModelEvent):
    """An event of a request; ``serial`` is its number in the event stream."""

    serial: int


@dataclass(slots=True)
class BatchEvent(ModelEvent):
    """An event of a batch of ``size`` rows on an instance; ``batch`` is its number."""

    batch: int
    instance: str
    size: int


@dataclass(slots=True)
class RequestArrived(RequestEvent):
    """A request was offered to its model's scheduler.

    Requests that share a batch have equal ``shape_key``: it is a hash of what must be equal, such as the shapes of
    variable-size inputs. ``size`` is the batch size of the request.
    """

    size: int
    priority: int
    timeout_us: int
    id: str
    correlation_id: int | str
    flags: int
    shape_key: int


@dataclass(slots=True)
class RequestCancelled(RequestEvent):
    """The client cancelled a request; if it is already running it continues."""


@dataclass(slots=True)
class RequestRefused(RequestEvent):
    """A request will not run.

    ``counted_as`` is its failure reason in the statistics (``REJECTED``, ``CANCELED``, ``OTHER``), or
    empty if Triton does not count it because it never entered the queue. A request that is invalid, and so was not
    offered to the scheduler, has no `RequestArrived`; its ``size`` is 1.
    """

    size: int
    received_ns: int
    message: str
    counted_as: str


@dataclass(slots=True)
class BatchSent(BatchEvent):
    """The scheduler sent a batch to an instance.

    ``members`` are the serials of its requests, None for a null request. ``rule`` and ``facts`` are the scheduler's
    reason. ``slots`` are the batch slots of the members of a sequence batch, else None.
    """

    rule: str
    queue_depth: int
    members: tuple[int | None, ...]
    slots: tuple[int, ...] | None
    facts: dict[str, Any]


#: One request of an executed batch: serial, rows, time received (ns), time queued (ns), and the failure reason of
#: the statistics, empty for a success.
ExecutedRequest = tuple[int, int, int, int, str]


@dataclass(slots=True)
class BatchExecuted(BatchEvent):
    """An instance executed a batch; null requests count in ``size`` but are not in ``requests``."""

    exec_start_ns: int
    compute_start_ns: int
    compute_end_ns: int
    exec_end_ns: int
    requests: tuple[ExecutedRequest, ...]


@dataclass(slots=True)
class ResponseSent(RequestEvent):
    """A decoupled model sent response number ``index`` of a request.

    ``outcome`` is ``success``, ``fail``, ``cancel`` or ``empty`` (only the final flag). ``final`` says that no other
    response follows; recordings of earlier versions lack it.
    """

    index: int
    outcome: str
    elapsed_ns: int
    final: bool = False


@dataclass(slots=True)
class CacheHit(RequestEvent):
    """A request was answered from the response cache without being executed."""

    received_ns: int
    lookup_ns: int


@dataclass(slots=True)
class CacheMiss(RequestEvent):
    """The response to a request was inserted into the cache; ``elapsed_ns`` is the time for lookup and insertion."""

    elapsed_ns: int


@dataclass(slots=True)
class StepSent(RequestEvent):
    """An ensemble sent the request ``step_serial`` to the model of a step, on behalf of the request ``serial``.

    ``iteration`` is the number of the decoupled response that caused it; ``rule`` is the scheduler's reason.
    """

    step: int
    step_model: str
    step_version: int
    step_serial: int
    iteration: int
    rule: str


@dataclass(slots=True)
class EnsembleExecuted(RequestEvent):
    """A request to an ensemble ended; its compute times are sums over all steps.

    ``failed`` is the failure reason of the statistics, empty for a success. ``first_response_ns`` is the time of the
    first response; 0 if none was sent, and in recordings of earlier versions.
    """

    size: int
    received_ns: int
    queued_ns: int
    started_ns: int
    compute_input_ns: int
    compute_infer_ns: int
    compute_output_ns: int
    failed: str
    first_response_ns: int = 0


@dataclass(slots=True)
class ModelStateChanged(ModelEvent):
    """A model version entered a state of the repository index."""

    state: str
    reason: str


@dataclass(slots=True)
class InstanceStateChanged(ModelEvent):
    """An instance was lost with what it keeps between executions, or runs again.

    ``state`` is ``LOST``, ``READY``, or ``UNAVAILABLE`` if it could not be started again yet.
    """

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
