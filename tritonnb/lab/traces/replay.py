"""The scheduler, replayed on the recorded arrivals and executions of a trace, to infer why batches were sent.

The replay follows the recording: an instance becomes available shortly before its next recorded execution, as soon as
it was free and the last request of the batch had come. The scheduler then decides what the batch contains. Where it
decides otherwise, the batch counts as different.

A trace of Triton does not determine the order of what happened within a few milliseconds: time stamps are taken by
different threads, before they get a lock or after they were woken. Within `QUEUE_NS` the order of requests that
explains the recorded batches is assumed, and all states are followed in which the batcher may be
(`tritonnb.lab.analysis.scheduler_replay`). This project's server records when its scheduler sent a batch: the thread of
the instance may begin much later on a busy machine.
"""

from __future__ import annotations

import bisect
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

from tritonnb.core.protobuf import model_config_pb2 as pb
from tritonnb.lab.analysis.scheduler_replay import ReplayedScheduler
from tritonnb.lab.simulation.engine import SimulatedRequest
from tritonnb.lab.traces.batching import TracedBatch
from tritonnb.lab.traces.trace_events import TracedModel
from tritonnb.recording.arrivals import Arrival
from tritonnb.recording.trace_source import Agreement
from tritonnb.scheduling.decisions import Execute, Reason
from tritonnb.scheduling.from_config import queue_delay_ns
from tritonnb.scheduling.reasons import explain, pluralize

#: A request may get into the queue this much later than the time stamp that is taken before.
QUEUE_NS = 200_000
#: A pass of the batcher may be made this much later than it is due on a busy machine.
WAKE_NS = 2_000_000
#: A server may take this long to send a batch that is due to an instance that is idle.
DISPATCH_NS = 5_000_000
#: Times of different requests were converted to another clock separately.
CLOCK_NS = 100_000
#: Batches that differ, minus those that do not, in a run of batches, from which on chance does not explain it.
_MIN_RUN = 20

OTHER_REQUESTS, EARLY, LATE = "with other requests", "sent earlier", "sent later"


@dataclass(slots=True)
class _Arrival:
    """A request of the trace, for the scheduler; ``batch`` is -1, and ``leaves_ns`` set, if it was not executed."""

    request: SimulatedRequest
    time_ns: int
    batch: int = -1
    position: int = 0
    leaves_ns: int = 0


class TraceReplay:
    """A replay of the scheduler of a traced model that is executed, and is not stateful."""

    def __init__(self, model: TracedModel, config: pb.ModelConfig) -> None:
        self._config = config
        batches = model.batches
        #: In the order of their formation: threads of instances may start a little later than others.
        self._order = sorted(range(len(batches)), key=lambda number: _order(config, batches[number]))
        self._batches = batches = [batches[number] for number in self._order]
        serials = {id(request): serial for serial, request in enumerate(model.requests, 1)}
        self._members = [tuple([serials[id(request)] for request in batch.requests]) for batch in batches]
        self._taken = _taken(batches, queue_delay_ns(config))
        self._arrivals = self._arrivals_of(model)
        self._next = 0
        self._leaving: list[_Arrival] = []  # requests that wait, and will not be executed
        recorded = {arrival.request.serial: arrival.batch for arrival in self._arrivals}
        self._scheduler = ReplayedScheduler(
            config,
            len(model.instances),
            WAKE_NS,
            lambda requests: recorded[requests[0].serial] == recorded[requests[-1].serial],
        )

    def run(self) -> tuple[list[Reason | None], Agreement]:
        """Compare every batch of the trace with the scheduler's batch.

        Returns
        -------
        list of Reason or None
            For each batch, why the scheduler sends it; None if the replay does not form it.
        Agreement
        """
        reasons: list[Reason | None] = [None] * len(self._batches)
        causes: Counter[str] = Counter()
        first = ""
        for number, batch in enumerate(self._batches):
            taken_ns = self._taken[number]
            self._arrive_until(taken_ns, number)
            self._scheduler.end_execution(batch.lane, taken_ns)
            self._scheduler.leave(self._members[number])
            difference = partial(self._cause, number, batch)
            execute, cause = self._scheduler.compare_batch(batch.start_ns + CLOCK_NS, difference)
            if not cause:
                reasons[self._order[number]] = _reason(execute, batch, taken_ns)
                continue
            causes[cause] += 1
            first = first or self._difference(number, batch, execute, cause)
            self._scheduler.restart(taken_ns)
        return reasons, Agreement(len(reasons), len(reasons) - causes.total(), first, dict(causes))

    def _arrivals_of(self, model: TracedModel) -> list[_Arrival]:
        """Return the arrivals at the scheduler, in the order of the batches where the times do not determine it."""
        max_batch_size = self._config.max_batch_size
        arrivals = []
        for serial, request in enumerate(model.requests, 1):
            shape_key = request.shape_key(max_batch_size > 0)
            simulated = SimulatedRequest(Arrival(0.0, model.rows[request.key], batch_key=shape_key), serial)
            leaves_ns = 0 if request.executed else request.ended_ns
            arrivals.append(_Arrival(simulated, request.queued_ns, leaves_ns=leaves_ns))
        times = [request.queued_ns for request in model.requests]
        for number, taken_ns in enumerate(self._taken):
            latest = 0
            for position, serial in enumerate(self._members[number]):
                arrival = arrivals[serial - 1]
                arrival.batch, arrival.position = number, position
                arrival.time_ns = latest = min(max(latest, arrival.time_ns), taken_ns)
        for number, taken_ns in enumerate(self._taken):
            if self._batches[number].sent_ns is not None:
                continue
            rows = sum(arrivals[serial - 1].request.batch_size for serial in self._members[number])
            begin = bisect.bisect_left(times, taken_ns - QUEUE_NS)
            for arrival in arrivals[begin : bisect.bisect_right(times, taken_ns)]:
                if arrival.batch > number and rows + arrival.request.batch_size <= max_batch_size:
                    arrival.time_ns = max(arrival.time_ns, min(taken_ns + 1, self._taken[arrival.batch]))
        arrivals.sort(key=lambda arrival: (arrival.time_ns, arrival.batch, arrival.position))
        return arrivals

    def _arrive_until(self, time_ns: int, number: int) -> None:
        while self._next < len(self._arrivals) and self._arrivals[self._next].time_ns <= time_ns:
            arrival = self._arrivals[self._next]
            self._next += 1
            if 0 <= arrival.batch < number:
                continue  # its batch was compared before: batches may start in another order than they were formed
            self._leave_until(arrival.time_ns)
            self._scheduler.arrive(arrival.request, arrival.time_ns)
            if arrival.leaves_ns:
                self._leaving.append(arrival)
        self._leave_until(time_ns)

    def _leave_until(self, time_ns: int) -> None:
        """Remove the requests that were not executed when they left the queue: they had expired or were cancelled."""
        for arrival in self._leaving:
            if arrival.leaves_ns <= time_ns:
                self._scheduler.cancel(arrival.request, arrival.leaves_ns)
                self._scheduler.leave([arrival.request.serial])
                self._scheduler.compare_refusal(arrival.request.serial, arrival.leaves_ns)
        self._leaving = [arrival for arrival in self._leaving if arrival.leaves_ns > time_ns]

    def _cause(self, number: int, batch: TracedBatch, execute: Execute | None) -> str:
        """Describe how the recorded batch differs from the decision; empty if it does not."""
        if execute is None:
            return EARLY
        if tuple([request.serial for request in execute.requests]) != self._members[number]:
            return OTHER_REQUESTS
        latest_ns = max(request.queued_ns for request in batch.requests)
        return LATE if latest_ns - _due_ns(execute, batch, self._taken[number]) > DISPATCH_NS else ""

    def _difference(self, number: int, batch: TracedBatch, execute: Execute | None, cause: str) -> str:
        begin_ns = self._arrivals[0].time_ns
        text = f"batch {self._order[number] + 1} at {(batch.start_ns - begin_ns) / 1e6:.1f} ms"
        recorded = pluralize(len(batch.requests), "request")
        if execute is None:
            waits = self._scheduler.verdict(self._taken[number]) is not None
            state = "the scheduler waits for max_queue_delay or more rows" if waits else "nothing waits in the replay"
            return f"{text}: the server sent {recorded}, while {state}"
        if cause == LATE:
            late_ms = (batch.start_ns - _due_ns(execute, batch, self._taken[number])) / 1e6
            return f"{text}: the server sent it {late_ms:.1f} ms after the scheduler does ({explain(execute.reason)})"
        return f"{text}: the server sent {recorded}, the scheduler sends {explain(execute.reason)}"


def longest_difference(reasons: Sequence[Reason | None]) -> range:
    """Return the batches, by index, during which the server most probably had another configuration; often none.

    It is the run in which differing batches, those without a reason, outnumber the others by the most, and by at least
    `_MIN_RUN`.
    """
    excess, begin, found, most = 0, 0, range(0), _MIN_RUN - 1
    for number, reason in enumerate(reasons):
        excess += 1 if reason is None else -1
        if excess < 0:
            excess, begin = 0, number + 1
        elif excess > most:
            most, found = excess, range(begin, number + 1)
    return found


def _order(config: pb.ModelConfig, batch: TracedBatch) -> int:
    """Return the key by which batches are sorted: a queue without priorities is first in, first out."""
    if batch.sent_ns is not None:
        return batch.sent_ns
    if config.dynamic_batching.priority_levels:
        return batch.start_ns
    return min(request.queued_ns for request in batch.requests)


def _taken(batches: Sequence[TracedBatch], delay_ns: int) -> list[int]:
    """Return the earliest times at which instances took batches: later requests may be in the next batch."""
    taken: list[int] = []
    latest_ns = batches[-1].start_ns if batches else 0
    for batch in reversed(batches):
        if batch.sent_ns is not None:
            taken.append(latest_ns := batch.sent_ns)
            continue
        latest_ns = min(latest_ns, batch.start_ns)
        queued = [request.queued_ns for request in batch.requests]
        earliest_ns = max(batch.free_ns, max(queued), min(queued) + delay_ns, batch.start_ns - DISPATCH_NS)
        taken.append(min(earliest_ns, latest_ns))
    return taken[::-1]


def _due_ns(execute: Execute, batch: TracedBatch, taken_ns: int) -> int:
    """Return the time when the scheduler sends the batch, if an instance is idle then."""
    facts = execute.reason.facts
    formed_ns = taken_ns - facts.get("ready_ns", 0)
    oldest_ns = min(request.queued_ns for request in batch.requests)
    return max(batch.free_ns, formed_ns if facts.get("delay_ns") else oldest_ns)


def _reason(execute: Execute | None, batch: TracedBatch, taken_ns: int) -> Reason:
    """Return the reason of a recorded batch that the scheduler also sends, with the times of the recorded instance."""
    assert execute is not None
    facts = {**execute.reason.facts, "inferred": True}
    if "instance" in facts:
        facts["has_run"] = batch.free_ns > 0
        if batch.free_ns < _due_ns(execute, batch, taken_ns):
            facts["idle_ns"], facts["ready_ns"] = taken_ns - batch.free_ns if batch.free_ns else 0, 0
    return Reason(execute.reason.rule, facts)
