"""Running any scheduler in virtual time, with given arrivals and service times.

The scheduler is the one that also serves in real time; only the clock and the instances are simulated. Events at the
same time are processed in this order: executions end, requests arrive, requests are cancelled, the scheduler is woken;
within each kind in the order in which they were scheduled. So a run is deterministic.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

from tritonnb.core.errors import TritonError
from tritonnb.scheduling.decisions import Decision, Execute, Refuse, ResponseOrder, Schedulable, Scheduler, Stage

#: The kinds of events, in the order in which those of one time are processed.
_END, ARRIVAL, CANCEL, _WAKE = range(4)


@dataclass(slots=True)
class VirtualBatch:
    """One execution: its decision, start and end in ns, and the number of requests queued at its start."""

    decision: Execute
    start_ns: int
    end_ns: int
    queue_depth: int


@dataclass(slots=True)
class FinalResponse:
    """The final response to a request, sent at ``time_ns``; ``error`` is None if the request was executed."""

    time_ns: int
    request: Schedulable
    error: TritonError | None
    refusal: Refuse | None = None
    final: bool = True


class VirtualClock:
    """Processes events in the order of their times, kinds, and scheduling.

    Attributes
    ----------
    now : int
        Current time in ns.
    """

    def __init__(self) -> None:
        self.now = 0
        self._events: list[tuple[int, int, int, Callable[[], None]]] = []
        self._count = 0

    def schedule(self, time_ns: int, kind: int, process: Callable[[], None]) -> None:
        """Call ``process`` at a time."""
        self._count += 1
        heapq.heappush(self._events, (time_ns, kind, self._count, process))

    def run(self, until_ns: int | None = None) -> None:
        """Process all events, or those up to and including ``until_ns``."""
        events = self._events
        while events and (until_ns is None or events[0][0] <= until_ns):
            self.now, _, _, process = heapq.heappop(events)
            process()
        if until_ns is not None:
            self.now = max(self.now, until_ns)


class VirtualTime:
    """The driver of one scheduler in virtual time.

    Parameters
    ----------
    scheduler : Scheduler
    service : callable
        ``service(decision)`` returns the duration of an execution in ns.
    instance_count : int
        All are idle at time 0.
    check : callable, optional
        Called with the scheduler after every stimulus, for example to check its invariants.
    on_response : callable, optional
        Called with each `FinalResponse`, for example to let a client send its next request with `arrive`.
    rescheduled : callable, optional
        ``rescheduled(request)`` returns whether the model releases the request to be executed again (iterative
        sequences).
    clock : VirtualClock, optional
        That of several drivers; by default this one has its own.

    Attributes
    ----------
    batches : list of VirtualBatch
        In the order in which they started.
    responses : list of FinalResponse
        In the order in which they were sent, including errors.
    """

    def __init__(
        self,
        scheduler: Scheduler,
        service: Callable[[Execute], int],
        instance_count: int = 1,
        *,
        check: Callable[[Scheduler], None] | None = None,
        on_response: Callable[[FinalResponse], None] | None = None,
        rescheduled: Callable[[Schedulable], bool] | None = None,
        clock: VirtualClock | None = None,
    ) -> None:
        self.scheduler = scheduler
        self.batches: list[VirtualBatch] = []
        self.responses: list[FinalResponse] = []
        self._service = service
        self._check = check
        self._on_response = on_response
        self._rescheduled = rescheduled
        self._clock = VirtualClock() if clock is None else clock
        self._wake_planned: int | None = None
        for instance in range(instance_count):
            self._carry_out(scheduler.instance_idle(instance, 0))

    @property
    def now(self) -> int:
        """Current time in ns."""
        return self._clock.now

    def arrive(self, time_ns: int, request: Schedulable) -> None:
        """Schedule the arrival of a request."""
        self._clock.schedule(time_ns, ARRIVAL, partial(self.arrived, request))

    def cancel(self, time_ns: int, request: Schedulable) -> None:
        """Schedule the cancellation of a request."""
        self._clock.schedule(time_ns, CANCEL, partial(self.cancelled, request))

    def run(self, until_ns: int | None = None) -> None:
        """Process all events, or those up to and including ``until_ns``."""
        self._clock.run(until_ns)

    def apply(self, change: Callable[[int], Sequence[Decision]]) -> None:
        """Change the scheduler now: ``change(now)`` returns the resulting decisions."""
        self._carry_out(change(self.now))

    def staged(self, instance: int) -> None:
        """A batch was staged: execute it immediately, as without a rate limiter; subclasses may delay it."""
        self._carry_out(self.scheduler.execute_staged(instance, self.now))

    def arrived(self, request: Schedulable) -> None:
        """A request arrives now."""
        try:
            decisions = self.scheduler.enqueue(request, self.now)
        except TritonError as error:
            self._respond(FinalResponse(self.now, request, error))
        else:
            self._carry_out(decisions)

    def cancelled(self, request: Schedulable) -> None:
        """A request is cancelled now."""
        request.cancelled = True
        self._carry_out(self.scheduler.cancel(request, self.now))

    def _woken(self) -> None:
        if self._wake_planned == self.now:
            self._carry_out(self.scheduler.wake(self.now))

    def _ended(self, decision: Execute, order: ResponseOrder | None) -> None:
        for request in decision.requests:
            if request is None:
                continue
            error = None
            if self._rescheduled is not None and self._rescheduled(request):
                try:
                    self._carry_out(self.scheduler.reschedule(request, self.now))
                    continue
                except TritonError as rejected:  # its sequence was idle for too long
                    error = rejected
            response = FinalResponse(self.now, request, error)
            for _, ready in order.add_response(request, response) if order else ((request, response),):
                ready.time_ns = self.now
                self._respond(ready)
            if self.scheduler.needs_release_events:
                self._carry_out(self.scheduler.released(request, self.now))
        self._carry_out(self.scheduler.instance_idle(decision.instance, self.now))

    def _respond(self, response: FinalResponse) -> None:
        self.responses.append(response)
        if self._on_response is not None:
            self._on_response(response)

    def _carry_out(self, decisions: Sequence[Decision]) -> None:
        for decision in decisions:
            if isinstance(decision, Execute):
                end = self.now + self._service(decision)
                self.batches.append(VirtualBatch(decision, self.now, end, self.scheduler.queue_depth()))
                order = self.scheduler.response_order(decision.instance)
                self._clock.schedule(end, _END, partial(self._ended, decision, order))
            elif isinstance(decision, Stage):
                self.staged(decision.instance)
            else:
                self._respond(FinalResponse(self.now, decision.request, decision.error, decision))
        wake = self.scheduler.next_wake_ns
        if wake is not None:
            wake = max(wake, self.now)
            if wake != self._wake_planned:
                self._clock.schedule(wake, _WAKE, self._woken)
        self._wake_planned = wake
        if self._check is not None:
            self._check(self.scheduler)
