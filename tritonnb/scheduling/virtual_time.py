"""Running any scheduler in virtual time, with given arrivals and service times.

The same scheduler serves in real time; only the clock and the instances are simulated. Events at the
same time are processed in this order: executions end, requests arrive, requests are cancelled, the scheduler is woken;
within each kind in the order in which they were scheduled. So a run is deterministic.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from heapq import heappop, heappush
from typing import Any, Final

from tritonnb.core.errors import TritonError
from tritonnb.core.schedulable import Schedulable
from tritonnb.scheduling.decisions import Decision, Execute, Refuse, ResponseOrder, Scheduler, Stage
from tritonnb.scheduling.dynamic_batcher import DynamicBatcher

#: The kinds of events, in the order in which events of one time are processed.
END: Final = 0
ARRIVAL: Final = 1
CANCEL: Final = 2
_WAKE: Final = 3
#: The duration of an execution that ends when `VirtualTime.end` is called.
OPEN: Final = -1


class VirtualBatch:
    """One execution: its decision, start and end in ns, and the number of requests queued at its start."""

    __slots__ = ("decision", "end_ns", "queue_depth", "start_ns")

    def __init__(self, decision: Execute, start_ns: int, end_ns: int, queue_depth: int) -> None:
        self.decision = decision
        self.start_ns = start_ns
        self.end_ns = end_ns
        self.queue_depth = queue_depth


class FinalResponse:
    """The final response to a request, sent at ``time_ns``; ``error`` is None if the request was executed."""

    __slots__ = ("error", "final", "refusal", "request", "time_ns")

    def __init__(
        self, time_ns: int, request: Schedulable, error: TritonError | None, refusal: Refuse | None = None
    ) -> None:
        self.time_ns = time_ns
        self.request = request
        self.error = error
        self.refusal = refusal
        self.final = True


class VirtualClock:
    """A clock that processes events in the order of their times, kinds, and scheduling.

    Attributes
    ----------
    now : int
        Current time in ns.
    arrival_ns : int
        When ``arrive`` is called, as if that had been scheduled first of all arrivals; -1 for never. This saves the
        queue of events the arrivals, if each arrival schedules the next.
    """

    def __init__(self, arrive: Callable[[], None] | None = None) -> None:
        self.now = 0
        self.arrival_ns = -1
        self._arrive = arrive
        # The third number keeps events of one time and kind in order, and callables from being compared.
        self._events: list[tuple[int, int, int, Callable[[Any], None], Any]] = []
        self._count = 0

    def schedule(self, time_ns: int, kind: int, process: Callable[[Any], None], subject: Any) -> None:
        """Call ``process(subject)`` at a time."""
        self._count += 1
        heappush(self._events, (time_ns, kind, self._count, process, subject))

    def run(self, until_ns: int | None = None) -> None:
        """Process all events, or those up to and including ``until_ns``."""
        events = self._events
        while events or self.arrival_ns >= 0:
            if self.arrival_ns >= 0 and (not events or self._arrives_before(events[0])):
                assert self._arrive is not None
                self.now = self.arrival_ns
                self._arrive()
                continue
            if until_ns is not None and events[0][0] > until_ns:
                break
            self.now, _, _, process, subject = heappop(events)
            process(subject)
        if until_ns is not None:
            self.now = max(self.now, until_ns)

    def _arrives_before(self, event: tuple[int, int, int, Callable[[Any], None], Any]) -> bool:
        time_ns = event[0]
        return self.arrival_ns < time_ns or (self.arrival_ns == time_ns and event[1] >= ARRIVAL)


class VirtualTime:
    """The driver of one scheduler in virtual time.

    Parameters
    ----------
    scheduler : Scheduler
    service : callable
        ``service(decision)`` returns the duration of an execution in ns, or `OPEN`.
    first_idle_ns : sequence of int, optional
        When each instance is idle for the first time, since work from before time 0 ends; by default one instance is
        idle at time 0.
    check : callable, optional
        Called with the scheduler after every stimulus, for example to check its invariants.
    on_response : callable, optional
        Called with each `FinalResponse`, for example to let a client send its next request with `arrive`.
    rescheduled : callable, optional
        ``rescheduled(request)`` returns whether the model releases the request to be executed again (iterative
        sequences).
    clock : VirtualClock, optional
        The clock of several drivers; by default the driver has its own.
    staged : callable, optional
        Called with the instance of a batch that was staged, and later begun with `apply`. By default it is executed
        immediately, as without a rate limiter.
    keep : bool, optional
        Whether batches and responses are kept.
    gathers : callable, optional
        ``gathers()`` returns whether an idle dynamic batcher looks at all requests of a time together, as the thread of
        a Triton may. By default it takes the first one alone.

    Attributes
    ----------
    batches : list of VirtualBatch
        In the order in which they started; empty if they are not kept.
    responses : list of FinalResponse
        In the order in which they were sent, including errors; empty if they are not kept.
    """

    def __init__(
        self,
        scheduler: Scheduler,
        service: Callable[[Execute], int],
        first_idle_ns: Sequence[int] = (0,),
        *,
        check: Callable[[Scheduler], None] | None = None,
        on_response: Callable[[FinalResponse], None] | None = None,
        rescheduled: Callable[[Schedulable], bool] | None = None,
        clock: VirtualClock | None = None,
        staged: Callable[[int], None] | None = None,
        keep: bool = True,
        gathers: Callable[[], bool] | None = None,
    ) -> None:
        self.scheduler = scheduler
        self.batches: list[VirtualBatch] = []
        self.responses: list[FinalResponse] = []
        self._service = service
        self._check = check
        self._on_response = on_response
        self._rescheduled = rescheduled
        self._clock = VirtualClock() if clock is None else clock
        self._staged = staged
        self._keep = keep
        self._gathers = gathers
        self._gathered: list[Schedulable] = []
        self._instance_count = len(first_idle_ns)
        self._wake_planned: int | None = None
        self._ends: list[int] = []  # of the running executions, as a heap
        self._open: dict[int, tuple[Execute, ResponseOrder | None, VirtualBatch | None]] = {}  # by instance
        self._not_yet_idle = len(first_idle_ns)
        for instance, idle_ns in enumerate(first_idle_ns):
            if idle_ns > 0:
                self._clock.schedule(idle_ns, END, self._first_idle, instance)
            else:
                self._first_idle(instance)

    @property
    def now(self) -> int:
        """Current time in ns."""
        return self._clock.now

    @property
    def running(self) -> int:
        """Number of executions now, with those from before time 0."""
        return len(self._ends) + len(self._open) + self._not_yet_idle

    def arrive(self, time_ns: int, request: Schedulable) -> None:
        """Schedule the arrival of a request."""
        self._clock.schedule(time_ns, ARRIVAL, self.arrived, request)

    def cancel(self, time_ns: int, request: Schedulable) -> None:
        """Schedule the cancellation of a request."""
        self._clock.schedule(time_ns, CANCEL, self.cancelled, request)

    def run(self, until_ns: int | None = None) -> None:
        """Process all events, or those up to and including ``until_ns``."""
        self._clock.run(until_ns)

    def apply(self, change: Callable[[int], Sequence[Decision]]) -> None:
        """Change the scheduler now: ``change(now)`` returns the resulting decisions."""
        self._apply(change(self.now))

    def arrived(self, request: Schedulable) -> None:
        """Handle the arrival of a request at the current time."""
        now = self._clock.now
        if self._is_gathered(request):
            if not self._gathered:
                self._clock.schedule(now, _WAKE, self._take_gathered, None)
            self._gathered.append(request)
            return
        try:
            decisions = self.scheduler.enqueue(request, now)
        except TritonError as error:
            self._respond(FinalResponse(now, request, error))
        else:
            self._apply(decisions)

    def _is_gathered(self, request: Schedulable) -> bool:
        if self._gathers is None or request.cancelled:
            return False
        is_idle = self.running < self._instance_count and not self.scheduler.queue_depth()
        return bool(self._gathered) or (is_idle and self._gathers())

    def _take_gathered(self, _: None) -> None:
        """Let the batcher look at the requests that came together."""
        batcher, now = self.scheduler, self._clock.now
        assert isinstance(batcher, DynamicBatcher)
        requests, self._gathered = self._gathered, []
        for request in requests:
            try:
                batcher.add(request, now)
            except TritonError as error:
                self._respond(FinalResponse(now, request, error))
        self._apply(batcher.make_pass(now))

    def cancelled(self, request: Schedulable) -> None:
        """Handle the cancellation of a request at the current time."""
        request.cancelled = True
        self._apply(self.scheduler.cancel(request, self.now))

    def end(self, instance: int) -> None:
        """End an `OPEN` execution at the current time."""
        decision, order, batch = self._open.pop(instance)
        if batch is not None:
            batch.end_ns = self.now
        heappush(self._ends, self.now)
        self._ended((decision, order))

    def _first_idle(self, instance: int) -> None:
        self._not_yet_idle -= 1
        self._apply(self.scheduler.instance_idle(instance, self._clock.now))

    def _woken(self, _: None) -> None:
        # A wake that has been replaced stays in the queue and is recognised here; removing it would take a search.
        if self._wake_planned == self.now:
            self._apply(self.scheduler.wake(self.now))

    def _ended(self, execution: tuple[Execute, ResponseOrder | None]) -> None:
        decision, order = execution
        now = self._clock.now
        # This execution is the first of the heap, since events come in the order of their times.
        heappop(self._ends)
        for request in decision.requests:
            if request is None:
                continue
            error = None
            if self._rescheduled is not None and self._rescheduled(request):
                try:
                    self._apply(self.scheduler.reschedule(request, now))
                    continue
                except TritonError as rejected:  # its sequence was idle for too long
                    error = rejected
            response = FinalResponse(now, request, error)
            if order is None:
                self._respond(response)
            else:
                for _, ready in order.add_response(request, response):
                    ready.time_ns = now
                    self._respond(ready)
            if self.scheduler.needs_release_events:
                self._apply(self.scheduler.released(request, now))
        self._apply(self.scheduler.instance_idle(decision.instance, now))

    def _respond(self, response: FinalResponse) -> None:
        if self._keep:
            self.responses.append(response)
        if self._on_response is not None:
            self._on_response(response)

    def _apply(self, decisions: Sequence[Decision]) -> None:
        now = self._clock.now
        for decision in decisions:
            if isinstance(decision, Execute):
                duration = self._service(decision)
                end, batch = now + duration, None
                if self._keep:
                    batch = VirtualBatch(decision, now, end, self.scheduler.queue_depth())
                    self.batches.append(batch)
                # Asked at the start: a change of preserve_ordering does not concern batches that run.
                order = self.scheduler.response_order(decision.instance)
                if duration == OPEN:
                    self._open[decision.instance] = (decision, order, batch)
                    continue
                heappush(self._ends, end)
                self._clock.schedule(end, END, self._ended, (decision, order))
            elif isinstance(decision, Stage):
                if self._staged is None:
                    self._apply(self.scheduler.execute_staged(decision.instance, now))
                else:
                    self._staged(decision.instance)
            else:
                self._respond(FinalResponse(now, decision.request, decision.error, decision))
        wake = self.scheduler.next_wake_ns
        if wake is not None:
            wake = max(wake, now)  # a wake in the past is due now
            if self._ends and self._ends[0] <= wake:
                wake = None  # when that execution has ended, the scheduler is asked again
            elif wake != self._wake_planned:
                self._clock.schedule(wake, _WAKE, self._woken, None)
        self._wake_planned = wake
        if self._check is not None:
            self._check(self.scheduler)
