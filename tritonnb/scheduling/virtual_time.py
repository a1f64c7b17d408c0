"""Runs any scheduler on a virtual clock: arrivals and a service time go in, what happened comes out.

The scheduler is the object that serves in real time; only the clock and the instances are imitated.
Events at the same moment happen in the order: executions end, requests arrive, requests are
cancelled, the scheduler is woken; and inside each kind in the order in which they were scheduled. So
a run is a function of its arguments, to the nanosecond.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from tritonnb.core.errors import TritonError
from tritonnb.scheduling.decisions import Decision, Execute, Refuse, Scheduler, Stage
from tritonnb.scheduling.response_order import ResponseOrder

_END, _ARRIVAL, _CANCEL, _WAKE = range(4)


@dataclass(slots=True)
class Batch:
    """One execution: the decision that started it, its time on the instance in ns, and how many waited on then."""

    decision: Execute
    start_ns: int
    end_ns: int
    queue_depth: int


@dataclass(slots=True)
class FinalResponse:
    """The final response to a request left at ``time_ns``; ``error`` is None if it ran."""

    time_ns: int
    request: Any
    error: TritonError | None
    refusal: Refuse | None = None
    final: bool = True


class VirtualTime:
    """Drives one scheduler.

    Parameters
    ----------
    scheduler : Scheduler
    service : callable
        ``service(decision)`` gives the duration of an execution in ns.
    instance_count : int
        All are idle at time 0.
    validate : bool
        Check the scheduler's invariants after every stimulus.
    on_response : callable, optional
        Called with each `FinalResponse`, such as to let a client send its next request by `arrive`.
    rescheduled : callable, optional
        ``rescheduled(request)`` is true where the model releases the request to be executed
        again (iterative sequences).

    Attributes
    ----------
    now : int
        ns.
    batches : list of Batch
        In the order in which they started.
    responses : list of FinalResponse
        In the order in which they left, refusals included.
    """

    def __init__(
        self,
        scheduler: Scheduler,
        service: Callable[[Execute], int],
        instance_count: int = 1,
        *,
        validate: bool = False,
        on_response: Callable[[FinalResponse], None] | None = None,
        rescheduled: Callable[[Any], bool] | None = None,
    ) -> None:
        self.scheduler = scheduler
        self.now = 0
        self.batches: list[Batch] = []
        self.responses: list[FinalResponse] = []
        self._service = service
        self._validate = validate
        self._on_answer = on_response
        self._rescheduled = rescheduled
        self._events: list[tuple[int, int, int, Any]] = []
        self._count = 0
        self._wake_planned: int | None = None
        for instance in range(instance_count):
            self._follow(scheduler.instance_idle(instance, 0))

    def arrive(self, time_ns: int, request: Any) -> None:
        """A request will arrive."""
        self._at(time_ns, _ARRIVAL, request)

    def cancel(self, time_ns: int, request: Any) -> None:
        """A client will cancel a request."""
        self._at(time_ns, _CANCEL, request)

    def run(self, until_ns: int | None = None) -> None:
        """Let time pass: until nothing more can happen, or to the end of a moment."""
        events = self._events
        while events and (until_ns is None or events[0][0] <= until_ns):
            self.now, kind, _, subject = heapq.heappop(events)
            if kind == _ARRIVAL:
                self._arrived(subject)
            elif kind == _END:
                self._ended(*subject)
            elif kind == _CANCEL:
                subject.cancelled = True
                self._follow(self.scheduler.cancel(subject, self.now))
            elif self._wake_planned == self.now:
                self._follow(self.scheduler.wake(self.now))
        if until_ns is not None:
            self.now = max(self.now, until_ns)

    def apply(self, change: Callable[[int], Sequence[Decision]]) -> None:
        """Do something to the scheduler now: ``change(now)`` returns the decisions that follow."""
        self._follow(change(self.now))

    def staged(self, instance: int) -> None:
        """A batch waits for the rate limiter; there is none here: it runs, unless a subclass holds it back."""
        self._follow(self.scheduler.begin(instance, self.now))

    def _at(self, time_ns: int, kind: int, subject: Any) -> None:
        self._count += 1
        heapq.heappush(self._events, (time_ns, kind, self._count, subject))

    def _arrived(self, request: Any) -> None:
        try:
            decisions = self.scheduler.enqueue(request, self.now)
        except TritonError as error:
            self._leave(FinalResponse(self.now, request, error))
        else:
            self._follow(decisions)

    def _ended(self, decision: Execute, order: ResponseOrder | None) -> None:
        for request in decision.requests:
            if request is None:
                continue
            if self._rescheduled is not None and self._rescheduled(request):
                self._follow(self.scheduler.reschedule(request, self.now))
                continue
            answer = FinalResponse(self.now, request, None)
            for _, leaving in order.add_response(request, answer) if order else ((request, answer),):
                leaving.time_ns = self.now
                self._leave(leaving)
            if self.scheduler.needs_release_events:
                self._follow(self.scheduler.released(request, self.now))
        self._follow(self.scheduler.instance_idle(decision.instance, self.now))

    def _leave(self, answer: FinalResponse) -> None:
        self.responses.append(answer)
        if self._on_answer is not None:
            self._on_answer(answer)

    def _follow(self, decisions: Sequence[Decision]) -> None:
        for decision in decisions:
            if isinstance(decision, Execute):
                end = self.now + self._service(decision)
                self.batches.append(Batch(decision, self.now, end, self.scheduler.queue_depth()))
                self._at(end, _END, (decision, self.scheduler.response_order(decision.instance)))
            elif isinstance(decision, Stage):
                self.staged(decision.instance)
            else:
                self._leave(FinalResponse(self.now, decision.request, decision.error, decision))
        wake = self.scheduler.next_wake_ns
        if wake is not None:
            wake = max(wake, self.now)
            if wake != self._wake_planned:
                self._at(wake, _WAKE, None)
        self._wake_planned = wake
        if self._validate:
            self.scheduler.validate()
