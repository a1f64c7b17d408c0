"""The batches of a trace: requests that were executed at the same time, and the instances that ran them.

All requests of a batch have the time stamps of its execution, since backends report them once for the whole batch.
Where the server reports the batches and their instances, nothing is inferred.
"""

from __future__ import annotations

import bisect
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from tritonnb.lab.traces.traced_request import ReportedBatch, TracedRequest
from tritonnb.recording.instance_names import natural_sort_key
from tritonnb.telemetry.lanes import count_overlaps
from tritonnb.telemetry.trace_entry import BATCH_SENT

#: In OTLP each request converts the times to the clock of the calendar, which moves them by nanoseconds.
TOLERANCE_NS = 1000


@dataclass(slots=True)
class TracedBatch:
    """One batch of a trace.

    Attributes
    ----------
    requests : list of TracedRequest
        In the order of the batch.
    start_ns, end_ns : int
        Of the execution.
    lane : int
        The instance that ran it, from 0: instance names are not in a trace.
    free_ns : int
        When that instance had released the requests of its previous batch; 0 for its first batch.
    """

    requests: list[TracedRequest]
    start_ns: int
    end_ns: int
    lane: int = 0
    free_ns: int = 0

    @property
    def reported(self) -> ReportedBatch | None:
        """The batch as the server reported it."""
        return self.requests[0].batch

    @property
    def sent_ns(self) -> int | None:
        """The time when the scheduler sent the batch, if the server recorded it; otherwise it is at most the start."""
        return self.requests[0].stamps.get(BATCH_SENT)

    @property
    def released_ns(self) -> int:
        """The time when all requests were released."""
        return max(self.end_ns, *(request.ended_ns for request in self.requests))


def batches_of(requests: Iterable[TracedRequest]) -> list[TracedBatch]:
    """Group the executed requests of one model version into batches, in the order of their start.

    Parameters
    ----------
    requests : iterable of TracedRequest
        Complete requests.

    Examples
    --------
    >>> times = {"QUEUE_START": 0, "COMPUTE_START": 5, "COMPUTE_END": 9}
    >>> batches = batches_of([TracedRequest(1, stamps=times), TracedRequest(2, stamps=times)])
    >>> [[request.key for request in batch.requests] for batch in batches]
    [[1, 2]]
    """
    executed = [request for request in requests if request.executed]
    batches: list[TracedBatch] = []
    starts: list[int] = []
    for request in sorted(executed, key=lambda request: request.stamps["COMPUTE_START"]):
        start, end = request.stamps["COMPUTE_START"], request.stamps["COMPUTE_END"]
        candidates = batches[bisect.bisect_left(starts, start - TOLERANCE_NS) :]
        batch = next((batch for batch in candidates if _share_batch(batch, request)), None)
        if batch is None:
            batches.append(TracedBatch([request], start, end))
            starts.append(start)
        else:
            batch.requests.append(request)
    for batch in batches:
        batch.requests = _in_order(batch.requests)
    return batches


def _share_batch(batch: TracedBatch, request: TracedRequest) -> bool:
    """Return whether a request that started at the time of a batch belongs to it."""
    if batch.reported is not None and request.batch is not None:
        return batch.reported.id == request.batch.id
    return abs(batch.end_ns - request.stamps["COMPUTE_END"]) <= TOLERANCE_NS


def _in_order(requests: list[TracedRequest]) -> list[TracedRequest]:
    """Return the order in the batch: backends release the requests of a batch in this order.

    ``QUEUE_START`` is only nearly in order, since it is taken before the request gets the lock of the queue.
    """
    indices = {id(request): request.batch.index for request in requests if request.batch is not None}
    if len(indices) == len(requests):
        return sorted(requests, key=lambda request: indices[id(request)])
    if all("REQUEST_END" in request.stamps for request in requests):
        return sorted(requests, key=lambda request: (request.ended_ns, request.queued_ns))
    return sorted(requests, key=lambda request: request.queued_ns)


def assign_instances(batches: Sequence[TracedBatch], instance_count: int) -> int:
    """Assign batches to instances: each to the instance that has been idle longest, as the scheduler does.

    Parameters
    ----------
    batches : sequence of TracedBatch
        In the order of their start; `TracedBatch.lane` and ``free_ns`` are set.
    instance_count : int
        Configured number of instances.

    Returns
    -------
    int
        Number of instances used: more than configured, if more batches overlap.
    """
    _, running = count_overlaps((batch.start_ns, batch.end_ns) for batch in batches)
    count = max([instance_count, *running])
    ends = [0] * count
    released = [0] * count
    for batch in batches:
        taken_ns = batch.start_ns if batch.sent_ns is None else batch.sent_ns
        lane = min(range(count), key=lambda lane: (ends[lane] > taken_ns, released[lane]))
        batch.lane, batch.free_ns = lane, min(released[lane], batch.start_ns)
        ends[lane], released[lane] = batch.end_ns, batch.released_ns
    return count


def reported_instances(batches: Sequence[TracedBatch], names: Sequence[str]) -> list[str]:
    """Assign batches to the instances that the server reported; `TracedBatch.lane` and ``free_ns`` are set.

    Parameters
    ----------
    batches : sequence of TracedBatch
        In the order of their start.
    names : sequence of str
        The configured instances.

    Returns
    -------
    list of str
        The names of the instances; empty, and nothing is set, if a batch was not reported.
    """
    reported = [batch.reported for batch in batches if batch.reported is not None]
    if not reported or len(reported) < len(batches):
        return []
    known = [*names, *sorted({batch.instance for batch in reported} - {*names}, key=natural_sort_key)]
    released = dict.fromkeys(known, 0)
    for batch, report in zip(batches, reported, strict=True):
        batch.lane, batch.free_ns = known.index(report.instance), min(released[report.instance], batch.start_ns)
        released[report.instance] = batch.released_ns
    return known
