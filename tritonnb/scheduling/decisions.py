"""The contract of schedulers: requests, decisions, their reasons, and the events that drivers emit for them.

A scheduler is a state machine. Stimuli are method calls with the current time; they return lists of decisions, the
small classes below. A scheduler never reads a clock and never runs a model.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any, Final, Protocol, final

from tritonnb.core.errors import TritonError
from tritonnb.core.events import RequestRefused
from tritonnb.core.packed_events import Record
from tritonnb.core.schedulable import Schedulable


class ResponseOrder:
    """Responses in the order in which their requests were batched (``preserve_ordering``).

    Batches may finish in any order on several instances; a response waits here until every earlier request has had
    its final response. Responses of the first request are sent immediately.

    Requests are dict keys; responses have an attribute ``final``.
    """

    def __init__(self) -> None:
        self._delayed: OrderedDict[Any, list[Any]] = OrderedDict()

    def add_request(self, request: Any) -> None:
        """Add a request that is sent to an instance, after all previous requests."""
        # The place is taken when the batch is sent, as on Triton, except for releases 25.09 to 26.07: they take it when
        # a response is produced, which orders nothing between two instances (core #449, mended by core #520).
        self._delayed[request] = []

    def __contains__(self, request: object) -> bool:
        return request in self._delayed

    def add_response(self, request: Any, response: Any) -> list[tuple[Any, Any]]:
        """Add a response; return the ``(request, response)`` pairs to send now, in order.

        Responses of a request that was not added are sent immediately.
        """
        delayed = self._delayed.get(request)
        if delayed is None:
            return [(request, response)]
        delayed.append(response)
        ready: list[tuple[Any, Any]] = []
        while self._delayed:
            head = next(iter(self._delayed))
            responses = self._delayed[head]
            ready += [(head, response) for response in responses]
            if not (responses and responses[-1].final):
                # A decoupled request at the head streams: its responses leave one by one, and only later requests wait
                # (as on Triton 2.51).
                responses.clear()
                break
            del self._delayed[head]
        return ready


@dataclass(slots=True)
class Reason:
    """The reason of a decision.

    Attributes
    ----------
    rule : str
        Name of the rule: a key of `tritonnb.scheduling.reasons.RULES`.
    facts : dict
        The values that the rule used, by name, for explanations, widgets and tests. Times are in ns.
    """

    rule: str
    facts: dict[str, Any]

    # mypyc does not compile the constructor that `dataclass` writes, and each batch has a reason.
    def __init__(self, rule: str, facts: dict[str, Any] | None = None) -> None:
        self.rule = rule
        self.facts = {} if facts is None else facts

    def __reduce__(self) -> tuple[Any, ...]:  # compiled classes cannot be made without arguments
        return Reason, (self.rule, self.facts)


@final
class Execute:
    """The decision to execute requests, in this order, as one batch on an instance.

    Attributes
    ----------
    instance : int
        Index of the model instance, which was idle.
    requests : sequence of Schedulable
        None is a null request (padding of the direct strategy).
    size : int
        Rows, null rows included.
    reason : Reason
    slots : tuple of int or None
        The batch slot of each request of a sequence batch; None for other batches.
    """

    __slots__ = ("instance", "reason", "requests", "size", "slots")

    def __init__(
        self,
        instance: int,
        requests: Sequence[Any],
        size: int,
        reason: Reason,
        slots: tuple[int, ...] | None = None,
    ) -> None:
        self.instance = instance
        self.requests = requests  # Schedulable or None; Any, as each driver has its own type of requests
        self.size = size
        self.reason = reason
        self.slots = slots


@dataclass(slots=True)
class Refuse:
    """The decision to respond to a request with an error instead of executing it.

    ``counted_as`` is the failure reason of the statistics (``REJECTED`` or ``CANCELED``).
    """

    # A dataclass after all, although mypyc leaves its constructor interpreted: refusals are rare.
    request: Any  # as in `Execute`
    error: TritonError
    counted_as: str
    reason: Reason


@final
@dataclass(slots=True)
class Stage:
    """The decision to stage a batch for an idle instance; the batch can grow until `execute_staged`."""

    instance: int


# Staging is a decision of its own because a batch keeps growing on Triton while it waits for its resources; an
# `Execute` that waits could not.
Decision = Execute | Refuse | Stage

CANNOT_RESCHEDULE: Final = (
    "Request is released with TRITONSERVER_REQUEST_RELEASE_RESCHEDULE, while the model is not configured to "
    "handle such a flag."
)
# The error of a stopping scheduler, after the request ID prefix.
STOPPING: Final = "Server is stopping, scheduler for model has stopped accepting new inference requests"


class Scheduler(Protocol):
    """The contract between a scheduler and its driver, in real or virtual time.

    Every stimulus returns the resulting decisions, in order. After each call the driver reads `next_wake_ns` and calls
    `wake` at that time. A late call is correct, an early call harmless; but a driver that is late calls `wake` before
    it reports anything else, so that decisions depend only on when requests arrived and executions ended, not on the
    accuracy of timers. All times are ns of one monotonic clock.
    """

    next_wake_ns: int | None
    #: Whether the driver must call `released`.
    needs_release_events: bool

    def enqueue(self, request: Schedulable, now: int) -> Sequence[Decision]:
        """Handle the arrival of a request; raise a `TritonError` if it is not accepted."""

    def instance_idle(self, instance: int, now: int) -> Sequence[Decision]:
        """Handle an instance that has become idle: it was created, or its execution ended."""

    def execute_staged(self, instance: int, now: int) -> Sequence[Decision]:
        """Execute a staged batch: one of the decisions is its `Execute`."""

    def released(self, request: Schedulable, now: int) -> Sequence[Decision]:
        """Handle the final response to a request (after `Execute`)."""

    def reschedule(self, request: Schedulable, now: int) -> Sequence[Decision]:
        """Handle a request that the backend released to be executed again (iterative sequences).

        Raises `InvalidArgumentError` if the model is not configured for it.
        """

    def cancel(self, request: Schedulable, now: int) -> Sequence[Decision]:
        """Handle a cancelled request, which may be queued, running, or finished."""

    def wake(self, now: int) -> Sequence[Decision]:
        """Called at `next_wake_ns` or later."""

    def stop(self) -> None:
        """Reject new requests and complete queued requests: the server is stopping."""

    def end_sequences(self, instance: int, reason: str, now: int) -> Sequence[Decision]:
        """End the sequences of an instance that has lost their states, and refuse their waiting requests.

        None of the requests that it executed is still running; they have been reported as `released`.
        """

    def set_instances(self, instances: Collection[int], now: int) -> Sequence[Decision]:
        """Replace the set of instances. A removed instance gets no new work, except for the sequences in its slots.

        The driver reports added instances as idle. The number of a removed instance must not be used again before its
        last execution has ended and `uses` returns False for it.
        """

    def uses(self, instance: int) -> bool:
        """Return whether an instance may still get work, such as a removed instance with sequences in its slots."""

    def verdict(self, now: int) -> Reason | None:
        """Return the reason for the next batch if an instance is idle, or `reasons.WAIT`; None if no request waits.

        This does not change the scheduler.
        """

    def queue_depth(self) -> int:
        """Return the number of accepted requests that are not yet in an `Execute` decision."""

    def response_order(self, instance: int) -> ResponseOrder | None:
        """Return the `ResponseOrder` for a batch that starts on an instance now; None to send responses directly.

        The scheduler adds each request to it; the driver passes every response of the batch to
        `ResponseOrder.add_response` and sends what that returns.
        """


def request_arrived(request: Schedulable, model: str, version: int, now: int) -> Record:
    """Return the `RequestArrived` of a request that is offered to the scheduler at ``now`` (ns), as a record."""
    key = request.batch_key
    # fmt: off
    return (
        "RequestArrived", now, model, version, request.serial, request.batch_size, request.priority,
        # A hash in place of names and shapes: readers of the event only ask whether two requests could share a batch.
        request.timeout_us, request.id, request.correlation_id, request.flags, 0 if key is None else hash(key),
    )
    # fmt: on


def request_refused(
    request: Schedulable, model: str, version: int, error: TritonError, counted_as: str, now: int
) -> RequestRefused:
    """Return the event of a refused request; ``counted_as`` is its failure reason in the statistics, empty for none."""
    return RequestRefused(
        now, model, version, request.serial, request.batch_size, request.received_ns, error.message, counted_as
    )


def batch_sent(
    decision: Execute, model: str, version: int, number: int, instance: str, queue_depth: int, now: int
) -> Record:
    """Return the `BatchSent` of a batch that is sent while ``queue_depth`` requests stay queued, as a record."""
    reason = decision.reason
    members = tuple([None if request is None else request.serial for request in decision.requests])
    # fmt: off
    return (
        "BatchSent", now, model, version, number, instance, decision.size, reason.rule, queue_depth, members,
        decision.slots, reason.facts,
    )
    # fmt: on
