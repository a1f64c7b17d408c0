"""The dynamic batcher: it combines queued requests into batches.

Theory of operation
-------------------
A request waits in the *queue*. A *pass* scans the queue and moves requests from its head to the *current payload*.
*Payloads* wait for instances; an idle instance takes the first one. The current payload can grow until an instance
takes it.

Triton's batcher is a thread that sleeps between passes, so the contents of a batch depend on *when* passes are made.
This class makes a pass exactly when that thread would:

============================  ============================================================================
a request arrives             if a payload may be formed and either enough rows are queued for the next preferred
                              size (any number is, until a pass has set the minimum for the current payload),
                              or shapes must be equal, or the last pass was blocked by other inputs
the queue delay is exceeded   of the oldest request that the last pass left pending
an instance takes a payload   if it was the current payload, the next payload starts empty
an execution ends
500 ms have passed            since the batcher started to sleep with an empty queue, and requests have arrived
                              that were too few to wake it
============================  ============================================================================

Therefore a payload whose delay is exceeded does not grow while it waits for an instance: later arrivals are fewer than
the next preferred size and do not wake the batcher. They form the next payload when an instance takes this payload.

In Triton, the batcher and each instance have a thread; a thread that runs is before the threads that it wakes. Hence,
after it has completed a payload, the batcher makes all its passes before an idle instance takes that payload. When an
execution ends, the instance takes the next payload before the batcher makes a pass. There, Triton's batcher is at times
first, or its pass comes later, with later arrivals; `DynamicBatcher.make_pass` and `DynamicBatcher.take_payload`
reproduce that.

The rules of a pass are in `tritonnb.scheduling.batch_pass`.

While all instances are busy, up to two payloads per instance are formed ahead (prefetching). With a queue policy or
priorities none are, since a request in a payload cannot expire or be overtaken. With a rate limiter a payload is
*staged* first: it is assigned to an instance, and can grow until the rate limiter starts it. A request that is
cancelled in a payload keeps its place until the payload starts without it.

Implements ``ModelDynamicBatching`` of *model_config.proto* as Triton 2.51 behaves (core r24.10,
*dynamic_batch_scheduler.cc*, *instance_queue.cc*, *payload.cc*), with the cancellation in payloads of release 26.10.
Unlike there, expiry, cancellation in the queue and idle instances take effect immediately even while Triton's thread
would be stalled (``docs/deviations.md``).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Sequence
from typing import Final

from tritonnb.core.errors import UnavailableError
from tritonnb.core.schedulable import Schedulable
from tritonnb.scheduling import reasons
from tritonnb.scheduling.batch_pass import BLOCKED, SEND, WAIT, BatchingStrategy, StrategyBatch, decide, preview
from tritonnb.scheduling.decisions import STOPPING, Decision, Reason, ResponseOrder, Stage
from tritonnb.scheduling.default_scheduler import StatelessScheduler, refuse_cancelled
from tritonnb.scheduling.instances import Instances, TakenInstance
from tritonnb.scheduling.payload import BY_ARRIVAL, BY_DELAY, BY_INSTANCE, BY_POLL, Payload
from tritonnb.scheduling.policy import DynamicBatcherSettings
from tritonnb.scheduling.queue import PriorityQueue

#: Number of payloads per instance that may be formed ahead.
PAYLOADS_AHEAD: Final = 2
#: How long the batcher sleeps with an empty queue if no arrival wakes it, in ns.
POLL_NS: Final = 500_000_000


class DynamicBatcher(StatelessScheduler):
    """A `Scheduler` that combines requests.

    Parameters
    ----------
    settings : DynamicBatcherSettings
    instance_count : int
        Instances 0 to instance_count - 1 are used, each after it is reported as idle.

    Attributes
    ----------
    next_wake_ns : int or None
    queue : PriorityQueue
        Accepted requests that are not in a payload.
    payloads : deque of Payload
        Payloads that wait for an instance, in order.
    rows_to_wake : int
        An arrival wakes the batcher if at least this many rows are queued.
    settings : DynamicBatcherSettings
    """

    def __init__(self, settings: DynamicBatcherSettings, instance_count: int) -> None:
        super().__init__(instance_count)
        self.next_wake_ns: int | None = None
        self.queue = PriorityQueue(settings.queue)
        self.payloads: deque[Payload] = deque()
        self._staged: dict[int, tuple[Payload, TakenInstance]] = {}  # by instance
        self._cancelled_in_payloads = False  # perhaps: so that payloads are searched only after a cancellation
        self._order = ResponseOrder()
        self._custom: StrategyBatch | None = None
        self._requests_to_start = settings.min_requests_to_start
        #: The payload that the next pass adds to; None if the pass starts a new payload.
        self._current: Payload | None = None
        self.rows_to_wake = 0
        #: The last pass was blocked by other inputs: every arrival triggers a pass until the payload is taken.
        self._blocked = False
        #: When the batcher wakes by itself: the delay of the oldest pending request is exceeded, or the poll is due.
        self._pass_due_ns: int | None = None
        #: When the batcher last started to sleep with an empty queue.
        self._asleep_since_ns = 0
        #: What triggered the current pass, for the `Reason` of the batch.
        self._woken_by = BY_ARRIVAL
        self._apply(settings)

    def use_strategy(self, strategy: BatchingStrategy) -> None:
        """Let custom batching exclude requests from the batches that are formed from now on."""
        self._custom = StrategyBatch(strategy)

    def _apply(self, settings: DynamicBatcherSettings) -> None:
        self.settings = settings
        # Triton compares its limit with the length of a queue that these payloads do not wait in: with the rate limiter
        # payloads enter it when they are granted, and the payloads of a batcher of one instance never do.
        self._unlimited = settings.rate_limited or settings.instance_bound
        # Without delay and with max_batch_size as the only preferred size, payloads are the same whether they are
        # formed at every arrival or just before an instance takes them; the latter is faster.
        only_full_batches = settings.preferred_batch_sizes == (settings.max_batch_size,)
        self._forms_lazily = self.queue.prefetches and not settings.max_queue_delay_ns and only_full_batches
        # The pending batch was chosen by the old preferred sizes, so the scan begins again.
        self._start_payload()
        formed = self._waiting_payloads()
        if formed and not formed[-1].full:
            self._current = formed[-1]
        self._pass_due_ns = None

    def _start_payload(self) -> None:
        self.queue.restore()  # the pending batch was relative to the previous payload
        self._current = None
        self.rows_to_wake = 0
        self._blocked = False
        if self._custom is not None:
            self._custom.end_batch()

    # Stimuli

    def enqueue(self, request: Schedulable, now: int) -> Sequence[Decision]:
        """Handle the arrival of a request.

        Raises
        ------
        UnavailableError
            If the server is stopping or the queue is full.
        """
        if self.stopping:
            raise UnavailableError(f"{request.id_prefix}{STOPPING}")
        if request.cancelled:
            # Its client has left before the event loop came to it.
            return [refuse_cancelled(request, 0)]
        decisions = self.submit(request, now)
        # Not in `submit`: with the oldest strategy the queue time of the statistics starts in the sequence batcher, but
        # the delay of the batcher counts from here, as on Triton. And not before it, which raises if the queue is full.
        request.queued_ns = now
        return decisions

    def submit(self, request: Schedulable, now: int) -> Sequence[Decision]:
        """Like `enqueue`, for a request that another scheduler has already accepted."""
        self.queue.add(request, now)
        if self._defers_forming():
            return ()
        refused = self._expire(now)
        # Triton wakes its thread for every arrival only if shapes must be equal. A request that differs in its optional
        # inputs does not wake it, and is found when the delay is exceeded: inconsistent, but measured on 2.51.
        if self.queue.rows >= self.rows_to_wake or self.settings.enforce_equal_shape or self._blocked:
            return refused + self._advance(now)
        if self._pass_due_ns is None:
            # The poll ticks since the batcher fell asleep, and not since this arrival.
            self._pass_due_ns = now + POLL_NS - (now - self._asleep_since_ns) % POLL_NS
        self._plan_wake()
        return refused

    def instance_idle(self, instance: int, now: int) -> Sequence[Decision]:
        """Handle an instance that has become idle."""
        refused = self._expire(now) + self.form_deferred(now)
        # The deferred payloads come first: at their arrivals, no instance was idle.
        self.instances.release(instance, now)
        return refused + self._advance(now)

    def execute_staged(self, instance: int, now: int) -> Sequence[Decision]:
        """Execute the payload that was staged for an instance, with everything that joined it since."""
        decisions = self._expire(now) + self.form_deferred(now)
        payload, taken = self._staged[instance]
        decisions += self._drop_cancelled(payload, now)
        if self.settings.preserve_ordering:
            self._preserve_order_up_to(payload)
        del self._staged[instance]
        if self._current is payload:
            self._start_payload()
        if payload.requests:
            decisions.append(payload.execute(taken, now, self.settings, self.queue.size))
        else:
            self.instances.release(instance, now)
        return [*decisions, *self._advance(now, BY_INSTANCE)]

    def cancel(self, request: Schedulable, now: int) -> Sequence[Decision]:
        """Remove a request from the queue; a request in a payload is refused when the payload starts."""
        refused = self._expire(now) + self.form_deferred(now)
        pending_before = len(self.queue.pending)
        if not self.queue.remove(request):
            # Triton looks for cancelled requests again where it passes a batch to the backend, but not of sequences.
            self._cancelled_in_payloads = not self.settings.instance_bound
            return refused
        self._lower_start_threshold(1)
        refused.append(refuse_cancelled(request, now - request.queued_ns))
        # The queue gives its whole pending batch back if the request was in it.
        if len(self.queue.pending) < pending_before:
            self.rows_to_wake = 0  # the remaining requests may fit together
        # Nothing that the last pass looked at has changed, unless this was the request that blocked it.
        elif not self._blocked:
            self._plan_wake()
            return refused
        return refused + self._advance(now)

    def wake(self, now: int) -> Sequence[Decision]:
        """Called when a request has expired, the delay of the pending batch is exceeded, or the poll is due."""
        refused = self._expire(now)
        if self._pass_due_ns is not None and now >= self._pass_due_ns:
            return refused + self._advance(now, BY_DELAY if self.queue.pending else BY_POLL)
        return refused

    def reconfigure(self, settings: DynamicBatcherSettings, now: int) -> Sequence[Decision]:
        """Apply new settings; queued requests are kept, payloads that are already formed stay unchanged."""
        refused = self._expire(now) + self.form_deferred(now)
        # Timeouts start anew when the queue is changed, so an equal policy must leave it alone.
        if settings.queue != self.settings.queue:
            self.queue.reconfigure(settings.queue, now)
        self._apply(settings)
        return refused + self._advance(now)

    def export_waiting(self, now: int) -> tuple[list[Decision], list[Schedulable]]:
        """Return the waiting requests, in order, for the scheduler that replaces this batcher."""
        refused = self._expire(now) + self.form_deferred(now)
        waiting = [request for payload in self.payloads for request in payload.requests]
        self.payloads.clear()
        return refused, waiting + self.queue.clear()

    def import_waiting(self, waiting: Sequence[Schedulable], instances: Instances, now: int) -> list[Decision]:
        """Continue with the instances and waiting requests of the scheduler that this batcher replaces.

        As with new settings, queue size limits do not apply to them, and their timeouts start now.
        """
        self.instances = instances
        # Of its own queue a dynamic batcher has refused them, so those of its predecessor have no other place here.
        cancelled = [request for request in waiting if request.cancelled]
        for request in waiting:
            if not request.cancelled:
                self.queue.put(request, request.queued_ns, now)
        return [refuse_cancelled(request, now - request.queued_ns) for request in cancelled] + self._advance(now)

    def set_instances(self, instances: Collection[int], now: int) -> Sequence[Decision]:
        """Replace the set of instances: see `Instances.replace`."""
        formed = self.form_deferred(now)
        self.instances.replace(instances)
        return formed + self._advance(now)

    # Other orders of Triton's threads, which the server never uses: see "Theory of operation"

    def add(self, request: Schedulable, now: int) -> None:
        """Queue a request without a pass: its thread has not woken yet.

        Raises
        ------
        UnavailableError
            If the queue is full.
        """
        self.queue.add(request, now)
        request.queued_ns = now

    def make_pass(self, now: int) -> Sequence[Decision]:
        """Make a pass before an instance takes a payload, or after `take_payload`."""
        return self._advance(now, BY_INSTANCE)

    def take_payload(self, instance: int, now: int) -> list[Decision]:
        """Like `instance_idle` while payloads wait, without the pass."""
        self.instances.release(instance, now)
        return self._execute(now)

    def form_deferred(self, now: int) -> list[Decision]:
        """Form the payloads of earlier arrivals, if forming them was deferred."""
        return self._advance(now) if self._defers_forming() else []

    # Questions

    def verdict(self, now: int) -> Reason | None:
        """Return the reason of the next batch, or `reasons.WAIT`; None if no request waits."""
        if self.payloads:
            return self.payloads[0].reason(self.settings)
        if not self.queue.size:
            return None
        asleep_until = self._pass_due_ns if self._slot_available() and not self._defers_forming() else None
        # The wake is due but has not been delivered yet, so the next pass is now.
        if asleep_until is not None and asleep_until <= now:
            asleep_until = None
        return preview(self.queue, self._current, self.settings, now, asleep_until)

    def queue_depth(self) -> int:
        """Return the number of accepted requests that are not running."""
        return self.queue.size + sum(len(payload.requests) for payload in self._waiting_payloads())

    def response_order(self, instance: int) -> ResponseOrder | None:
        """Return the `ResponseOrder` for batches that start now; None if responses are sent directly."""
        return self._order if self.settings.preserve_ordering else None

    # Forming and sending payloads

    def _waiting_payloads(self) -> list[Payload]:
        """Return all payloads that are not running, in the order in which they were formed."""
        return [*(payload for payload, _ in self._staged.values()), *self.payloads]

    def _expire(self, now: int) -> list[Decision]:
        expiry = self.queue.next_expiry() if self.queue.expires else None
        if expiry is None or now < expiry:
            return []
        self.rows_to_wake, self._pass_due_ns = 0, now  # the remaining requests may fit together
        refused = self.queue.expire(now)
        self._lower_start_threshold(len(refused))
        return list(refused)

    def _lower_start_threshold(self, count: int) -> None:
        """Lower the threshold after requests left the queue: Triton drops them later and still counts them."""
        if self._requests_to_start:
            self._requests_to_start -= count

    def _defers_forming(self) -> bool:
        return self._forms_lazily and not self.instances.idle

    def _slot_available(self) -> bool:
        if self._requests_to_start:
            # TRITONSERVER_DELAY_SCHEDULER is a hook for tests: once the number is reached, it has no effect any more.
            if self.queue.size < self._requests_to_start:
                return False
            self._requests_to_start = 0
        if self.queue.prefetches:
            return self._unlimited or len(self.payloads) < PAYLOADS_AHEAD * len(self.instances.active_ids)
        # Nothing is formed ahead of a busy instance: a request in a payload can no longer expire or be overtaken.
        return len(self.payloads) < len(self.instances.idle)

    def _advance(self, now: int, woken_by: str = BY_ARRIVAL) -> list[Decision]:
        """Send payloads to idle instances, and form payloads until the batcher sleeps or waits for an instance."""
        decisions: list[Decision] = []
        self._woken_by = woken_by
        while True:
            while self.payloads and self.instances.idle:
                if self.settings.rate_limited:
                    decisions.append(self._stage())
                else:
                    decisions += self._execute(now)
            # All passes come before an idle instance takes what they form: Triton's batcher runs on while the
            # instance's thread still wakes up.
            while self.queue.size and self._slot_available() and self._form(now):
                pass
            if not (self.payloads and self.instances.idle):
                break
        if not self.queue.size:
            self._pass_due_ns, self._asleep_since_ns = None, now
        self._plan_wake()
        return decisions

    def _plan_wake(self) -> None:
        wake = self.queue.next_expiry() if self.queue.expires else None
        # Without a free slot a pass would do nothing; the end of an execution causes the next pass.
        if self._pass_due_ns is not None and (wake is None or self._pass_due_ns < wake) and self._slot_available():
            wake = self._pass_due_ns
        self.next_wake_ns = wake

    def _form(self, now: int) -> bool:
        """Make a pass and act on its decision; True if another pass can follow immediately."""
        queue, payload = self.queue, self._current
        result = decide(queue, payload, self.settings, now, self._custom)
        if result.rows_to_wake >= 0:
            self.rows_to_wake = result.rows_to_wake
        if result.action == WAIT:
            self._pass_due_ns = queue.pending_oldest_ns + self.settings.max_queue_delay_ns
            return False
        if result.action == SEND:
            if payload is None:
                payload = self._current = Payload(queue.pending_oldest_ns)
                self.payloads.append(payload)
            payload.add(queue.withdraw(result.count), now)
            payload.rule, payload.waited_ns = result.rule, result.waited_ns
            payload.next_rows, payload.woken_by = result.next_rows, self._woken_by
        assert payload is not None
        # Size does not close a payload: late merging compares sizes again.
        payload.closed = payload.closed or result.blocked_by in (reasons.DIFFERENT_INPUTS, reasons.EXCLUDED)
        # Time does not help here, only an instance that takes the payload, or another arrival.
        if result.action == BLOCKED:
            self._blocked = True
            self._pass_due_ns = None
            return False
        if result.full:
            payload.full = True
            self._start_payload()
        return True

    def _execute(self, now: int) -> list[Decision]:
        """Send the first payload to the next idle instance, after late merging."""
        taken = self.instances.take_instance()
        payload = self.payloads.popleft()
        # Custom batching has divided the requests; payloads that it did not see together stay apart.
        merged = 0 if self._custom is not None else payload.merge(self.payloads, self.settings, now)
        current = self._current
        missed = self.queue.size
        # The current payload is always the last: it was taken or merged if none is left, and a merge that failed
        # has marked it as full.
        if current and (current.full or not self.payloads):
            self._start_payload()
        # It waited for this instance, which therefore causes the passes that follow.
        if payload.formed_ns != now:
            self._woken_by = BY_INSTANCE
        refused = self._drop_cancelled(payload, now)
        if not payload.requests:
            self.instances.release(taken.instance, now)
            return refused
        if self.settings.preserve_ordering:
            for request in payload.requests:
                self._order.add_request(request)
        return [*refused, payload.execute(taken, now, self.settings, missed, merged)]

    def _drop_cancelled(self, payload: Payload, now: int) -> list[Decision]:
        """Refuse the cancelled requests of a payload that starts; it may be empty afterwards."""
        if not self._cancelled_in_payloads:
            return []
        self._cancelled_in_payloads = bool(self.payloads or self._staged)
        # With a place among the responses a request is executed: without its response, later ones would wait for ever.
        cancelled = [one for one in payload.requests if one.cancelled and one not in self._order]
        payload.remove(cancelled)
        return [refuse_cancelled(request, now - request.queued_ns) for request in cancelled]

    def _stage(self) -> Stage:
        """Assign the first payload to the next idle instance; the rate limiter decides when it starts."""
        taken = self.instances.take_instance()
        self._staged[taken.instance] = self.payloads.popleft(), taken
        return Stage(taken.instance)

    def _preserve_order_up_to(self, last: Payload) -> None:
        """Make earlier payloads respond before this payload, even if the rate limiter starts it first."""
        # Adding a request twice is harmless: its place in the dict stays, and a staged request has no responses yet.
        for payload, _ in self._staged.values():
            for request in payload.requests:
                self._order.add_request(request)
            if payload is last:
                break
