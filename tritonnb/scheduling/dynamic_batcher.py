"""The dynamic batcher: requests that wait are combined into batches.

Theory of operation
-------------------
Requests pass through three places: the *queue* holds them; a *pass* scans the queue and moves a prefix of it into
the *current payload*; payloads wait *in line* for instances, and an idle instance takes the first. The current
payload can grow until an instance takes it, also while it waits in line.

Triton's batcher is a thread that sleeps between passes, so *when* a pass is made decides what a batch holds. This
class makes a pass exactly when that thread would:

============================  ============================================================================
a request arrives             if a payload may be formed and either enough rows wait for the next preferred
                              size (none are needed until a pass has set that number for the current
                              payload), or shapes must be equal, or the last pass was blocked by other inputs
the delay runs out            of the oldest request that the last pass left pending
an instance takes a payload   if that was the current one, the next payload begins empty
an execution ends
500 ms pass                   since the batcher fell asleep with an empty queue, if requests have arrived
                              that were too few to wake it
============================  ============================================================================

A consequence: a payload whose delay ran out waits in line with what it has. Later arrivals do not wake the batcher,
since they are fewer than the next preferred size; they form the next payload when an instance takes this one.

What a pass decides is in `tritonnb.scheduling.batch_pass`.

While all instances are busy, up to two payloads per instance are formed ahead (prefetching). With a queue policy
or priorities none is, since a request in a payload can no longer expire, be overtaken or be cancelled. With a rate
limiter a payload is *staged* first: it has its instance, and can grow until it may run.

Implements ``ModelDynamicBatching`` of *model_config.proto* as Triton 2.51 behaves (core r24.10,
*dynamic_batch_scheduler.cc*, *instance_queue.cc*, *payload.cc*). Where Triton's thread only stalls, this one does
not: expiry, cancellation and freed instances take effect at once (``docs/deviations.md``).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Sequence
from typing import Any

from tritonnb.core.errors import CancelledError, InvalidArgumentError, UnavailableError
from tritonnb.scheduling import reasons
from tritonnb.scheduling.batch_pass import BLOCKED, SEND, WAIT, decide
from tritonnb.scheduling.decisions import CANNOT_RESCHEDULE, STOPPING, Decision, Execute, Reason, Refuse, Stage
from tritonnb.scheduling.instances import Instances, TakenInstance
from tritonnb.scheduling.payload import BY_ARRIVAL, BY_DELAY, BY_INSTANCE, BY_POLL, Payload
from tritonnb.scheduling.policy import DynamicBatcherSettings
from tritonnb.scheduling.queue import PriorityQueue
from tritonnb.scheduling.response_order import ResponseOrder

#: Payloads that may be formed ahead for each instance.
PAYLOADS_AHEAD = 2
#: How long the batcher sleeps when its queue is empty and no arrival wakes it.
POLL_NS = 500_000_000


class DynamicBatcher:
    """A `Scheduler` that combines requests.

    Parameters
    ----------
    settings : DynamicBatcherSettings
    instance_count : int
        Instances 0 to instance_count - 1 are used, each once it says that it is idle.

    Attributes
    ----------
    next_wake_ns : int or None
    queue : PriorityQueue
        Accepted requests that are in no payload.
    payloads : deque of Payload
        The line: payloads that wait for an instance, first to go first.
    instances : Instances
    settings : DynamicBatcherSettings
    stopping : bool
        No more requests are admitted.
    """

    needs_release_events = False

    def __init__(self, settings: DynamicBatcherSettings, instance_count: int) -> None:
        self.next_wake_ns: int | None = None
        self.queue = PriorityQueue(settings.queue)
        self.payloads: deque[Payload] = deque()
        self.instances = Instances(instance_count)
        self._staged: dict[int, tuple[Payload, TakenInstance]] = {}  # by instance
        self._order = ResponseOrder()
        self._requests_to_start = settings.min_requests_to_start
        self.stopping = False
        #: The payload that the next pass adds to; None if that begins an empty one.
        self._current: Payload | None = None
        #: Rows in the queue from which on an arrival wakes the batcher.
        self._rows_to_wake = 0
        #: Other inputs were in the way of the last pass: each stimulus makes a pass until the payload is taken.
        self._blocked = False
        #: When the batcher wakes by itself: the delay of the oldest pending request runs out, or the poll.
        self._pass_due_ns: int | None = None
        #: When the batcher last fell asleep with an empty queue.
        self._asleep_since_ns = 0
        #: Why the pass under way is made, for the reason of the batch.
        self._woken_by = BY_ARRIVAL
        self._apply(settings)

    def _apply(self, settings: DynamicBatcherSettings) -> None:
        self.settings = settings
        self._prefetching = settings.queue.supports_prefetching
        self._unlimited = settings.rate_limited or settings.instance_bound
        self._expiring = settings.queue.has_timeouts
        # Without delay and with max_batch_size as the only preferred size, payloads come out the same
        # whether they are formed at every arrival or just before an instance takes them.
        only_full = settings.preferred_batch_sizes == (settings.max_batch_size,)
        self._forms_lazily = self._prefetching and not settings.max_queue_delay_ns and only_full
        self._begin_payload()
        formed = self._formed()
        if formed and not formed[-1].full:
            self._current = formed[-1]
        self._pass_due_ns = None

    def _begin_payload(self) -> None:
        self.queue.restore()  # what was pending for the last payload is looked at again
        self._current = None
        self._rows_to_wake = 0
        self._blocked = False

    # Stimuli

    def enqueue(self, request: Any, now: int) -> Sequence[Decision]:
        """A request arrived.

        Raises
        ------
        UnavailableError
            If the server is stopping or the queue is full.
        """
        if self.stopping:
            raise UnavailableError(f"{request.id_prefix}{STOPPING}")
        if request.cancelled:
            return [_cancelled(request, 0)]
        decisions = self.submit(request, now)
        request.queued_ns = now
        return decisions

    def submit(self, request: Any, now: int) -> Sequence[Decision]:
        """Like `enqueue`, for a request that another scheduler has admitted already."""
        self.queue.add(request, now)
        if self._forms_later():
            return ()
        refused = self._expire(now)
        if self.queue.rows >= self._rows_to_wake or self.settings.enforce_equal_shape or self._blocked:
            return refused + self._advance(now)
        if self._pass_due_ns is None:
            self._pass_due_ns = now + POLL_NS - (now - self._asleep_since_ns) % POLL_NS
        self._plan_wake()
        return refused

    def instance_idle(self, instance: int, now: int) -> Sequence[Decision]:
        """An instance has nothing to do."""
        refused = self._expire(now) + self.prepare(now)
        self.instances.release(instance, now)
        return refused + self._advance(now)

    def begin(self, instance: int, now: int) -> Sequence[Decision]:
        """The payload that was staged for an instance may run, as large as it has become."""
        decisions = self._expire(now) + self.prepare(now)
        payload, taken = self._staged[instance]
        if self.settings.preserve_ordering:
            self._place(payload)
        del self._staged[instance]
        if self._current is payload:
            self._begin_payload()
        execute = payload.execute(taken, now, self.settings, self.queue.size)
        return [*decisions, execute, *self._advance(now, BY_INSTANCE)]

    def released(self, request: Any, now: int) -> Sequence[Decision]:
        """A request has had its final response: nothing depends on it here."""
        return ()

    def reschedule(self, request: Any, now: int) -> Sequence[Decision]:
        """Requests are executed once.

        Raises
        ------
        InvalidArgumentError
            Always.
        """
        raise InvalidArgumentError(CANNOT_RESCHEDULE)

    def cancel(self, request: Any, now: int) -> Sequence[Decision]:
        """A request that is not yet in a payload leaves the queue; any other runs on."""
        refused = self._expire(now) + self.prepare(now)
        pending = len(self.queue.pending)
        if not self.queue.remove(request):
            return refused
        self._hold_less(1)
        refused.append(_cancelled(request, now - request.queued_ns))
        if len(self.queue.pending) < pending:
            self._rows_to_wake = 0  # those that are left may fit together
        elif not self._blocked:
            self._plan_wake()
            return refused
        return refused + self._advance(now)

    def wake(self, now: int) -> Sequence[Decision]:
        """A request may have expired, or the pending batch waited long enough."""
        refused = self._expire(now)
        if self._pass_due_ns is not None and now >= self._pass_due_ns:
            return refused + self._advance(now, BY_DELAY if self.queue.pending else BY_POLL)
        return refused

    def stop(self) -> None:
        """Admit no more requests; those that wait are served."""
        self.stopping = True

    def reconfigure(self, settings: DynamicBatcherSettings, now: int) -> Sequence[Decision]:
        """Go on under new settings; no waiting request is lost, payloads already formed stay as they are."""
        refused = self._expire(now) + self.prepare(now)
        if settings.queue != self.settings.queue:
            self.queue.reconfigure(settings.queue, now)
        self._apply(settings)
        return refused + self._advance(now)

    def export_waiting(self, now: int) -> tuple[list[Decision], list[Any]]:
        """Give up what waits, in the order of its turn, to a scheduler that takes this one's place."""
        refused = self._expire(now) + self.prepare(now)
        waiting = [request for payload in self.payloads for request in payload.requests]
        self.payloads.clear()
        return refused, waiting + self.queue.clear()

    def import_waiting(self, waiting: Sequence[Any], instances: Instances, now: int) -> list[Decision]:
        """Go on with the instances and the waiting requests of the scheduler before this one.

        As with new settings, none is refused for a limit of size, and timeouts run from now.
        """
        self.instances = instances
        cancelled = [request for request in waiting if request.cancelled]
        for request in waiting:
            if not request.cancelled:
                self.queue.put(request, request.queued_ns, now)
        return [_cancelled(request, now - request.queued_ns) for request in cancelled] + self._advance(now)

    def set_instances(self, members: Collection[int], now: int) -> Sequence[Decision]:
        """Go on with other instances: see `Instances.replace`."""
        formed = self.prepare(now)
        self.instances.replace(members)
        return formed + self._advance(now)

    def prepare(self, now: int) -> list[Decision]:
        """Form the payloads that arrivals would have formed, had that not been left for later."""
        return self._advance(now) if self._forms_later() else []

    # Questions

    def queue_depth(self) -> int:
        """Requests accepted and not yet running."""
        return self.queue.size + sum(len(payload.requests) for payload in self._formed())

    def uses(self, instance: int) -> bool:
        """Whether an instance may still be given work."""
        return instance in self.instances.active_ids

    def response_order(self, instance: int) -> ResponseOrder | None:
        """What responses of batches that start now pass through; None if they leave as they come."""
        return self._order if self.settings.preserve_ordering else None

    # The rules

    def _formed(self) -> list[Payload]:
        """All payloads, in the order in which they were formed."""
        return [*(payload for payload, _ in self._staged.values()), *self.payloads]

    def _expire(self, now: int) -> list[Decision]:
        expiry = self.queue.next_expiry() if self._expiring else None
        if expiry is None or now < expiry:
            return []
        self._rows_to_wake, self._pass_due_ns = 0, now  # those that are left may fit together
        refused = self.queue.expire(now)
        self._hold_less(len(refused))
        return list(refused)

    def _hold_less(self, left: int) -> None:
        """Requests left the queue: Triton, which drops them later, still counts them as waiting."""
        if self._requests_to_start:
            self._requests_to_start -= left

    def _forms_later(self) -> bool:
        return self._forms_lazily and not self.instances.idle

    def _slot_available(self) -> bool:
        if self._requests_to_start:
            if self.queue.size < self._requests_to_start:
                return False
            self._requests_to_start = 0
        if self._prefetching:
            return self._unlimited or len(self.payloads) < PAYLOADS_AHEAD * len(self.instances.active_ids)
        return len(self.payloads) < len(self.instances.idle)

    def _advance(self, now: int, woken_by: str = BY_ARRIVAL) -> list[Decision]:
        """Form payloads and hand them to instances until the batcher sleeps again or waits for an instance."""
        decisions: list[Decision] = []
        self._woken_by = woken_by
        while True:
            while self.payloads and self.instances.idle:
                decisions.append(self._stage() if self.settings.rate_limited else self._execute(now))
            if not self.queue.size:
                self._pass_due_ns, self._asleep_since_ns = None, now
                break
            if not (self._slot_available() and self._form(now)):
                break
        self._plan_wake()
        return decisions

    def _plan_wake(self) -> None:
        wake = self.queue.next_expiry() if self._expiring else None
        if self._pass_due_ns is not None and (wake is None or self._pass_due_ns < wake) and self._slot_available():
            wake = self._pass_due_ns
        self.next_wake_ns = wake

    def _form(self, now: int) -> bool:
        """Make one pass and act on it; True if another can follow at once."""
        queue, payload = self.queue, self._current
        decided = decide(queue, payload, self.settings, now)
        if decided.rows_to_wake >= 0:
            self._rows_to_wake = decided.rows_to_wake
        if decided.action == WAIT:
            self._pass_due_ns = queue.pending_oldest_ns + self.settings.max_queue_delay_ns
            return False
        if decided.action == SEND:
            if payload is None:
                payload = self._current = Payload(queue.pending_oldest_ns)
                self.payloads.append(payload)
            payload.add(queue.withdraw(decided.count), now)
            payload.rule, payload.waited_ns = decided.rule, decided.waited_ns
            payload.next_rows, payload.woken_by = decided.scan.next_rows, self._woken_by
            payload.closed = payload.closed or decided.scan.blocked_by == reasons.DIFFERENT_INPUTS
        assert payload is not None
        if decided.action == BLOCKED:
            payload.closed = self._blocked = True
            self._pass_due_ns = None
            return False
        if decided.full:
            payload.full = True
            self._begin_payload()
        return True

    def _execute(self, now: int) -> Execute:
        """The first payload goes to the instance that has been idle longest."""
        taken = self.instances.take()
        payload = self.payloads.popleft()
        merged = payload.merge(self.payloads, self.settings, now)
        current = self._current
        missed = self.queue.size
        if current and (current.full or not self.payloads):
            self._begin_payload()
        if payload.formed_ns != now:
            self._woken_by = BY_INSTANCE
        if self.settings.preserve_ordering:
            for request in payload.requests:
                self._order.add_request(request)
        return payload.execute(taken, now, self.settings, missed, merged)

    def _stage(self) -> Stage:
        """The first payload is to run on the instance that has been idle longest."""
        taken = self.instances.take()
        self._staged[taken.instance] = self.payloads.popleft(), taken
        return Stage(taken.instance)

    def _place(self, last: Payload) -> None:
        """Those formed before it answer before it, also where the rate limiter lets it run first."""
        for payload, _ in self._staged.values():
            for request in payload.requests:
                self._order.add_request(request)
            if payload is last:
                break

    def validate(self) -> None:
        """Check the invariants."""
        self.queue.validate()
        assert not (self.payloads and self.instances.idle)
        formed = self._formed()
        assert self._current is None or (self._current is formed[-1] and not self._current.full)
        for payload in formed:
            assert payload.rows == sum(request.batch_size for request in payload.requests)
            assert payload.rows <= self.settings.max_batch_size or len(payload.requests) == 1
            assert {request.batch_key for request in payload.requests} == {payload.batch_key}
        if self.queue.size and not self._forms_later() and not self._blocked and self._slot_available():
            assert self._pass_due_ns is not None
            assert self.next_wake_ns is not None
            assert self.next_wake_ns <= self._pass_due_ns


def _cancelled(request: Any, waited_ns: int) -> Refuse:
    why = Reason(reasons.CANCELLED, {"waited_ns": waited_ns})
    return Refuse(request, CancelledError(""), "CANCELED", why)
