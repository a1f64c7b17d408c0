"""What a scheduler says: the decisions, and the reason that travels with each.

A scheduler is a state machine. Stimuli go in as method calls that carry the time; decisions come
out as a list of the small objects below. It never looks at a clock and never runs a model.
"""

from __future__ import annotations

from collections.abc import Collection, Hashable, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, final

from tritonnb.core.errors import TritonError
from tritonnb.scheduling.response_order import ResponseOrder


class Schedulable(Protocol):
    """What a scheduler needs to know of a request; `InferRequest` is one."""

    id: str
    batch_size: int
    batch_key: Hashable
    priority: int
    timeout_us: int
    correlation_id: int | str
    flags: int
    cancelled: bool
    queued_ns: int
    serial: int

    @property
    def id_prefix(self) -> str:
        """What stands before many of Triton's error texts."""


@dataclass(slots=True)
class Reason:
    """Why a decision was taken.

    Attributes
    ----------
    rule : str
        The rule's name, one of a closed set documented by the scheduler that fires it.
    facts : dict
        The numbers that the rule looked at, by name, so that a sentence, a widget or a test can
        be made of them. Times are in ns.
    """

    rule: str
    facts: dict[str, Any] = field(default_factory=dict)


@final
@dataclass(slots=True)
class Execute:
    """Run these requests, in this order, as one batch on this instance.

    Attributes
    ----------
    instance : int
        Index of the model instance, idle until now.
    requests : sequence of Schedulable
        None stands for a null request (padding of the direct strategy).
    size : int
        Rows, null rows included.
    reason : Reason
    slots : tuple of int or None
        The batch slot of each request of a sequence batch; None elsewhere.
    """

    instance: int
    requests: Sequence[Any]
    size: int
    reason: Reason
    slots: tuple[int, ...] | None = None


@dataclass(slots=True)
class Refuse:
    """Answer this request with an error; it will not run.

    ``counted_as`` is the failure reason of the statistics (``REJECTED`` or ``CANCELED``).
    """

    request: Any
    error: TritonError
    counted_as: str
    reason: Reason


@final
@dataclass(slots=True)
class Stage:
    """A batch waits for this instance, idle until now; it grows until the rate limiter lets it run: see `begin`."""

    instance: int


Decision = Execute | Refuse | Stage

CANNOT_RESCHEDULE = (
    "Request is released with TRITONSERVER_REQUEST_RELEASE_RESCHEDULE, while the model is not configured to "
    "handle such a flag."
)
# What a stopping scheduler answers, after the request's id.
STOPPING = "Server is stopping, scheduler for model has stopped accepting new inference requests"


class Scheduler(Protocol):
    """The contract between a scheduler and whoever drives it, in real or in virtual time.

    Every method returns the decisions that follow, in order. After each call the driver reads
    `next_wake_ns` and calls `wake` at that time. A late call is correct, an early one harmless; but a
    driver that finds itself late calls `wake` before it reports anything else, so that what is
    decided depends on when requests came and executions ended, and not on how late a timer was.
    All times are ns of one monotonic clock.
    """

    next_wake_ns: int | None
    #: Whether anything depends on `released`; where nothing does, it need not be called.
    needs_release_events: bool

    def enqueue(self, request: Any, now: int) -> Sequence[Decision]:
        """A request arrived. Raises a `TritonError` when it is not admitted."""

    def instance_idle(self, instance: int, now: int) -> Sequence[Decision]:
        """An instance has nothing to do: it was just created, or its execution is over."""

    def begin(self, instance: int, now: int) -> Sequence[Decision]:
        """A batch that was staged may run now: one of the decisions is its `Execute`."""

    def released(self, request: Any, now: int) -> Sequence[Decision]:
        """The backend has given its final response to a request (after `Execute`)."""

    def reschedule(self, request: Any, now: int) -> Sequence[Decision]:
        """The backend releases a request to be executed again, instead of answering it (iterative sequences).

        Raises `InvalidArgumentError` where the model is not configured for it.
        """

    def cancel(self, request: Any, now: int) -> Sequence[Decision]:
        """``request.cancelled`` has become true; it may be queued, running, or long gone."""

    def wake(self, now: int) -> Sequence[Decision]:
        """The time `next_wake_ns` has come."""

    def stop(self) -> None:
        """The server is stopping: no new work is admitted, queued work completes."""

    def set_instances(self, members: Collection[int], now: int) -> Sequence[Decision]:
        """The model's instances are now these; others get no new work, but for sequences that they own.

        An added one is to be reported as idle. A number must not be used for a new instance before the
        old one has ended its last execution and `uses` denies it.
        """

    def uses(self, instance: int) -> bool:
        """Whether an instance may still be given work, such as a removed one that sequences own slots of."""

    def queue_depth(self) -> int:
        """Requests admitted and not yet in an `Execute` decision."""

    def response_order(self, instance: int) -> ResponseOrder | None:
        """What the responses of a batch that starts on an instance now must pass through; None for nothing.

        The scheduler tells the `ResponseOrder` of each request it places; the driver passes every
        response of the batch through `ResponseOrder.add_response` and delivers what that returns.
        """

    def validate(self) -> None:
        """Assert the scheduler's invariants: for tests."""
