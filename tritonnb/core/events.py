"""The event stream: everything that happens to requests, batches and models, in order.

Statistics, recordings, traces and views are folded from these events and from nothing else.
Times are nanoseconds of the monotonic clock. Events hold numbers and names only, never tensors,
so that keeping the recent ones costs little.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass(slots=True)
class RequestQueued:
    """A request was admitted by its model's scheduler."""

    time_ns: int
    model: str
    version: int
    serial: int
    size: int
    priority: int
    id: str
    correlation_id: int | str
    flags: int


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

    ``members`` are the serials of its requests, None for a null request; ``reason`` is the
    scheduler's `Reason`; ``slots`` the batch slot of each member of a sequence batch.
    """

    time_ns: int
    model: str
    version: int
    batch: int
    instance: str
    members: tuple[int | None, ...]
    size: int
    reason: Any
    queue_depth: int
    slots: tuple[int, ...] | None


@dataclass(slots=True)
class ExecutedRequest:
    """One request of an executed batch; ``failed`` is the failure reason, empty for a success."""

    serial: int
    size: int
    received_ns: int
    queued_ns: int
    failed: str


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
class ModelStateChanged:
    """A model version entered a state of the repository index."""

    time_ns: int
    model: str
    version: int
    state: str
    reason: str


Event = RequestQueued | RequestRefused | BatchSent | BatchExecuted | ResponseSent | ModelStateChanged
