"""The scheduler of a model without a batcher: each request is executed alone, in order of arrival.

It has no limits, timeouts or priorities. As in Triton since release 26.10, a cancelled request is refused when its turn
comes.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Sequence

from tritonnb.core.errors import CancelledError, InvalidArgumentError, UnavailableError
from tritonnb.core.schedulable import Schedulable
from tritonnb.scheduling.decisions import (
    CANNOT_RESCHEDULE,
    STOPPING,
    Decision,
    Execute,
    Reason,
    Refuse,
    ResponseOrder,
)
from tritonnb.scheduling.instances import Instances
from tritonnb.scheduling.reasons import CANCELLED, ONE_REQUEST


def refuse_cancelled(request: Schedulable, waited_ns: int) -> Refuse:
    """Return the decision to refuse a request that its client has cancelled."""
    why = Reason(CANCELLED, {"waited_ns": waited_ns})
    return Refuse(request, CancelledError(""), "CANCELED", why)  # without a text, as on Triton


class StatelessScheduler:
    """A part of a `Scheduler` whose requests are executed once, on any instance.

    Attributes
    ----------
    instances : Instances
    stopping : bool
        New requests are rejected.
    """

    needs_release_events = False

    def __init__(self, instance_count: int) -> None:
        self.instances = Instances(instance_count)
        self.stopping = False

    def released(self, request: Schedulable, now: int) -> Sequence[Decision]:
        """Do nothing: no decision depends on it."""
        return ()

    def reschedule(self, request: Schedulable, now: int) -> Sequence[Decision]:
        """Reject it: requests are executed once.

        Raises
        ------
        InvalidArgumentError
            Always.
        """
        # INVALID_ARG as on Triton, although it was the model that asked for this, and not the client.
        raise InvalidArgumentError(CANNOT_RESCHEDULE)

    def stop(self) -> None:
        """Reject new requests; queued requests are executed."""
        self.stopping = True

    def end_sequences(self, instance: int, reason: str, now: int) -> Sequence[Decision]:
        """Do nothing: the model has no sequences."""
        return []

    def uses(self, instance: int) -> bool:
        """Return whether an instance may still get work."""
        return instance in self.instances.active_ids


class DefaultScheduler(StatelessScheduler):
    """A `Scheduler` that never combines requests.

    Parameters
    ----------
    instance_count : int
        Instances 0 to instance_count - 1 are used, each after it is reported as idle.
    """

    next_wake_ns: int | None = None

    def __init__(self, instance_count: int) -> None:
        super().__init__(instance_count)
        # Without a limit: max_queue_size is a field of dynamic_batching, so such a model cannot have it.
        self._waiting: deque[Schedulable] = deque()

    def enqueue(self, request: Schedulable, now: int) -> Sequence[Decision]:
        """Handle the arrival of a request.

        Raises
        ------
        UnavailableError
            If the server is stopping.
        """
        if self.stopping:
            raise UnavailableError(f"{request.id_prefix}{STOPPING}")
        request.queued_ns = now
        self._waiting.append(request)
        return self._advance(now)

    def instance_idle(self, instance: int, now: int) -> Sequence[Decision]:
        """Handle an instance that has become idle."""
        self.instances.release(instance, now)
        return self._advance(now)

    def execute_staged(self, instance: int, now: int) -> Sequence[Decision]:
        """Do nothing: batches of one request cannot grow and are not staged."""
        return ()

    def cancel(self, request: Schedulable, now: int) -> Sequence[Decision]:
        """Do nothing: the request is refused when its turn comes."""
        return ()

    def wake(self, now: int) -> Sequence[Decision]:
        """Do nothing: no decision depends on time."""
        return ()

    def export_waiting(self, now: int) -> tuple[list[Decision], list[Schedulable]]:
        """Return the waiting requests, in order, for the scheduler that replaces this scheduler."""
        waiting = list(self._waiting)
        self._waiting.clear()
        return [], waiting

    def import_waiting(self, waiting: Sequence[Schedulable], instances: Instances, now: int) -> list[Decision]:
        """Continue with the instances and waiting requests of the scheduler that this scheduler replaces."""
        self.instances = instances
        self._waiting.extend(waiting)
        return self._advance(now)

    def set_instances(self, instances: Collection[int], now: int) -> Sequence[Decision]:
        """Replace the set of instances: see `Instances.replace`."""
        self.instances.replace(instances)
        return self._advance(now)

    def verdict(self, now: int) -> Reason | None:
        """Return the reason of the next batch; None if no request waits."""
        return _reason(self._waiting[0], now) if self._waiting else None

    def queue_depth(self) -> int:
        """Return the number of accepted requests that are not running."""
        return len(self._waiting)

    def response_order(self, instance: int) -> ResponseOrder | None:
        """Return None: responses are sent directly."""
        return None

    def _advance(self, now: int) -> list[Decision]:
        decisions: list[Decision] = []
        while self._waiting and self.instances.idle:
            request = self._waiting.popleft()
            if request.cancelled:
                decisions.append(refuse_cancelled(request, now - request.queued_ns))
                continue
            taken = self.instances.take_instance()
            reason = _reason(request, now)
            reason.facts.update(taken.facts(now))
            decisions.append(Execute(taken.instance, [request], request.batch_size, reason))
        return decisions


def _reason(request: Schedulable, now: int) -> Reason:
    facts = {"requests": 1, "rows": request.batch_size, "waited_ns": now - request.queued_ns}
    return Reason(ONE_REQUEST, facts)
