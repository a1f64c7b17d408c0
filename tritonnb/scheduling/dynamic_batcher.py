"""The dynamic batcher: requests that wait are combined into batches.

Three places, from left to right: the *queue* holds requests; a *batch-formation pass* walks along it and
moves a prefix into a *payload*; payloads wait in line for instances, and an idle instance takes
the first. While all instances are busy up to two payloads an instance are prepared ahead
(prefetching), and the last of them grows until it is full. Where a queue policy or priorities
apply nothing is prepared ahead, since a request in a payload can no longer expire, be overtaken, or be
cancelled. With a rate limiter a payload is *staged* first: it has its instance, and goes on growing until
it may run.

A pass asks, in this order: is a preferred size reached, or about to be overshot? can the batch not grow
any more? has the oldest request waited for ``max_queue_delay``? Otherwise it waits for more.

Implements ``ModelDynamicBatching`` of *model_config.proto* as Triton 2.51 behaves, with one
intended difference: there is no poll. Expiry and freed instances take effect at once.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Sequence
from typing import Any

from tritonnb.core.errors import CancelledError, InvalidArgumentError, UnavailableError
from tritonnb.scheduling import reasons
from tritonnb.scheduling.decisions import CANNOT_RESCHEDULE, STOPPING, Decision, Execute, Reason, Refuse, Stage
from tritonnb.scheduling.instances import Instances
from tritonnb.scheduling.payload import Payload
from tritonnb.scheduling.policy import DynamicBatcherSettings
from tritonnb.scheduling.queue import PriorityQueue
from tritonnb.scheduling.response_order import ResponseOrder

PAYLOADS_AHEAD = 2  # for each instance


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
        Those that wait for an instance, first to go first.
    instances : Instances
    settings : DynamicBatcherSettings
    stopping : bool
        No more requests are admitted.
    """

    heeds_release = False

    def __init__(self, settings: DynamicBatcherSettings, instance_count: int) -> None:
        self.next_wake_ns: int | None = None
        self.queue = PriorityQueue(settings.queue)
        self.payloads: deque[Payload] = deque()
        self.instances = Instances(instance_count)
        self._staged: dict[int, tuple[Payload, int]] = {}  # by instance, with since when that was idle
        self._order = ResponseOrder()
        self._hold_until = settings.hold_until
        self.stopping = False
        self._apply(settings)

    def _apply(self, settings: DynamicBatcherSettings) -> None:
        self.settings = settings
        self._preferred = frozenset(settings.preferred_batch_sizes)
        self._largest_preferred = max(settings.preferred_batch_sizes, default=0)
        self._prefetching = settings.queue.supports_prefetching
        self._expiring = settings.queue.has_timeouts
        # Without delay and with max_batch_size as the only preferred size, payloads come out the same
        # whether they are formed at every arrival or when somebody looks.
        only_full = settings.preferred_batch_sizes == (settings.max_batch_size,)
        self._forms_late = self._prefetching and not settings.max_queue_delay_ns and only_full
        self._look_again()

    def _look_again(self) -> None:
        """Forget the pending batch and what it waits for: it was chosen for another payload."""
        self.queue.restore()
        formed = self._formed()
        last = formed[-1] if formed else None
        self._growing: Payload | None = last if last and not last.full else None
        self._enough_rows = 0  # rows in the queue that call for the next pass
        self._pass_due_ns: int | None = None

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
        if self._may_leave_for_later():
            return ()
        refused = self._expire(now)
        if self.settings.enforce_equal_shape or self.queue.rows >= self._enough_rows:
            return refused + self._advance(now)
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
        payload, idle_since = self._staged[instance]
        if self.settings.preserve_ordering:
            self._place(payload)
        del self._staged[instance]
        if self._growing is payload:
            self._look_again()
        return [*decisions, payload.execute(instance, idle_since, now, self.settings), *self._advance(now)]

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
        if not self.queue.remove(request):
            return refused
        self._hold_less(1)
        return [*refused, _cancelled(request, now - request.queued_ns), *self._advance(now)]

    def wake(self, now: int) -> Sequence[Decision]:
        """A request may have expired, or the pending batch waited long enough."""
        refused = self._expire(now)
        if self._pass_due_ns is not None and now >= self._pass_due_ns:
            return refused + self._advance(now)
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

    def hand_over(self, now: int) -> tuple[list[Decision], list[Any]]:
        """Give up what waits, in the order of its turn, to a scheduler that takes this one's place."""
        refused = self._expire(now) + self.prepare(now)
        waiting = [request for payload in self.payloads for request in payload.requests]
        self.payloads.clear()
        return refused, waiting + self.queue.clear()

    def take_over(self, waiting: Sequence[Any], instances: Instances, now: int) -> list[Decision]:
        """Go on with the instances and the waiting requests of the scheduler before this one.

        As with new settings, none is refused for a limit of size, and timeouts run from now.
        """
        self.instances = instances
        cancelled = [request for request in waiting if request.cancelled]
        for request in waiting:
            if not request.cancelled:
                self.queue.put(request, request.queued_ns, now)
        return [_cancelled(each, now - each.queued_ns) for each in cancelled] + self._advance(now)

    def set_instances(self, members: Collection[int], now: int) -> Sequence[Decision]:
        """Go on with other instances: see `Instances.replace`."""
        formed = self.prepare(now)
        self.instances.replace(members)
        return formed + self._advance(now)

    def prepare(self, now: int) -> list[Decision]:
        """Form the payloads that arrivals would have formed, had that not been left for later."""
        return self._advance(now) if self._may_leave_for_later() else []

    # Questions

    def queue_depth(self) -> int:
        """Requests accepted and not yet running."""
        return self.queue.size + sum(len(payload.requests) for payload in self._formed())

    def uses(self, instance: int) -> bool:
        """Whether an instance may still be given work."""
        return instance in self.instances.members

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
        self._enough_rows, self._pass_due_ns = 0, now  # those who are left may fit together
        refused = self.queue.expire(now)
        self._hold_less(len(refused))
        return list(refused)

    def _hold_less(self, left: int) -> None:
        """Requests left the queue: Triton, which drops them later, still counts them as waiting."""
        if self._hold_until:
            self._hold_until -= left

    def _may_leave_for_later(self) -> bool:
        return self._forms_late and not self.instances.idle

    def _may_form(self) -> bool:
        if self._hold_until:
            if self.queue.size < self._hold_until:
                return False
            self._hold_until = 0
        if self._prefetching:
            return self.settings.rate_limited or len(self.payloads) < PAYLOADS_AHEAD * len(self.instances.members)
        return len(self.payloads) < len(self.instances.idle)

    def _advance(self, now: int) -> list[Decision]:
        """Form payloads and hand them to instances until nothing more can be done at this time."""
        decisions: list[Decision] = []
        while True:
            while self.payloads and self.instances.idle:
                decisions.append(self._stage() if self.settings.rate_limited else self._execute(now))
            if not (self.queue.size and self._may_form() and self._form(now)):
                break
        if not self.queue.size:
            self._enough_rows, self._pass_due_ns = 0, None
        self._plan_wake()
        return decisions

    def _plan_wake(self) -> None:
        wake = self.queue.next_expiry() if self._expiring else None
        if self._pass_due_ns is not None and (wake is None or self._pass_due_ns < wake) and self._may_form():
            wake = self._pass_due_ns
        self.next_wake_ns = wake

    def _form(self, now: int) -> bool:
        """One batch-formation pass; True if it moved requests into a payload or found it full."""
        settings, queue, payload = self.settings, self.queue, self._growing
        delay = settings.max_queue_delay_ns
        best, rule, ends, next_rows, overshot = self._walk(payload, now)
        count = len(queue.pending)
        base = payload.rows if payload else 0
        rows = base + queue.pending_rows
        age = now - queue.pending_oldest_ns
        exceeded = 0 < delay <= age
        full = True
        if best and not exceeded:
            count, full = best, overshot or not delay
        elif payload is not None and not count:
            payload.full = True  # the next request needs another payload
            payload.closed = payload.closed or ends == reasons.DIFFERENT_INPUTS
            self._growing = None
            return True
        elif rows >= self._largest_preferred:
            rule = reasons.FULL
        elif ends:
            rule = reasons.DELAY_EXCEEDED if exceeded else ends
        elif exceeded or not delay:
            rule, full = reasons.DELAY_EXCEEDED if exceeded else reasons.NO_DELAY, False
        elif base and base not in self._preferred:
            rule, full = reasons.GROWN, False
        else:
            self._enough_rows = min(size for size in settings.preferred_batch_sizes if size > rows) - base
            self._pass_due_ns = queue.pending_oldest_ns + delay
            return False

        if payload is None:
            payload = Payload(queue.pending_oldest_ns)
            self.payloads.append(payload)
        payload.add(queue.withdraw(count), now)
        payload.full = full
        payload.closed = payload.closed or ends == reasons.DIFFERENT_INPUTS
        payload.rule, payload.waited_ns, payload.next_rows = rule, age, next_rows
        self._growing = None if full else payload
        return True

    def _walk(self, payload: Payload | None, now: int) -> tuple[int, str, str, int, bool]:
        """Take into the pending batch what can join the payload.

        Returns how many of the pending requests make the best batch (0 if no number of them stands out) and
        by which rule; why nothing more can join, if so; the size of the first request beyond every preferred
        size; and whether such a one was met before any preferred size was.
        """
        queue, largest, delay = self.queue, self._largest_preferred, self.settings.max_queue_delay_ns
        rows = queue.pending_rows + (payload.rows if payload else 0)
        best, rule, next_rows, overshot = 0, "", 0, False
        while (candidate := queue.candidate()) is not None:
            total = rows + candidate.batch_size
            if rows:
                too_large = total > self.settings.max_batch_size
                if total > largest:
                    next_rows = next_rows or candidate.batch_size
                    if not best:
                        overshot = True
                        best = len(queue.pending)
                        rule = reasons.DOES_NOT_FIT if too_large else reasons.OVERSHOOTS_PREFERRED
                    # A larger preferred size is out of reach; go on only if ages or other inputs could still matter.
                    young = self._prefetching and now - queue.pending_oldest_ns < delay
                    if best and (not delay or (young and candidate.batch_key is None)):
                        break
                if too_large:
                    return best, rule, reasons.DOES_NOT_FIT, next_rows, overshot
                if candidate.batch_key != (payload or queue).batch_key:
                    return best, rule, reasons.DIFFERENT_INPUTS, next_rows, overshot
            queue.take()
            rows = total
            if rows in self._preferred:
                best, rule = len(queue.pending), reasons.PREFERRED_SIZE
        return best, rule, "", next_rows, overshot

    def _execute(self, now: int) -> Execute:
        """The first payload goes to the instance that has been idle longest."""
        instance, idle_since = self.instances.take()
        payload = self.payloads.popleft()
        merged = payload.merge(self.payloads, self.settings, now)
        if self._growing and not self.payloads:
            self._look_again()
        if self.settings.preserve_ordering:
            for request in payload.requests:
                self._order.placed(request)
        return payload.execute(instance, idle_since, now, self.settings, merged)

    def _stage(self) -> Stage:
        """The first payload is to run on the instance that has been idle longest."""
        instance, idle_since = self.instances.take()
        self._staged[instance] = self.payloads.popleft(), idle_since
        return Stage(instance)

    def _place(self, last: Payload) -> None:
        """Those formed before it answer before it, also where the rate limiter lets it run first."""
        for payload, _ in self._staged.values():
            for request in payload.requests:
                self._order.placed(request)
            if payload is last:
                break

    def validate(self) -> None:
        """Check the invariants."""
        self.queue.validate()
        assert not (self.payloads and self.instances.idle)
        formed = self._formed()
        assert self._growing is None or (self._growing is formed[-1] and not self._growing.full)
        for payload in formed:
            assert payload.rows == sum(request.batch_size for request in payload.requests)
            assert payload.rows <= self.settings.max_batch_size or len(payload.requests) == 1
            assert {request.batch_key for request in payload.requests} == {payload.batch_key}
        if self.queue.size and not self._may_leave_for_later() and self._may_form():
            assert self._pass_due_ns is not None
            assert self.next_wake_ns is not None
            assert self.next_wake_ns <= self._pass_due_ns


def _cancelled(request: Any, waited_ns: int) -> Refuse:
    why = Reason(reasons.CANCELLED, {"waited_ns": waited_ns})
    return Refuse(request, CancelledError(""), "CANCELED", why)
