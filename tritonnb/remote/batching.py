"""The batches of a trace: requests that were executed at the same time, and the instances that ran them.

All requests of a batch have the time stamps of its execution, since backends report them once for the whole batch.
"""

from __future__ import annotations

import bisect
import heapq
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from tritonnb.remote.traced_request import TracedRequest

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
    def released_ns(self) -> int:
        """When all requests were released."""
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
    executed = sorted(
        (request for request in requests if request.executed), key=lambda request: request.stamps["COMPUTE_START"]
    )
    batches: list[TracedBatch] = []
    starts: list[int] = []
    for request in executed:
        start, end = request.stamps["COMPUTE_START"], request.stamps["COMPUTE_END"]
        candidates = batches[bisect.bisect_left(starts, start - TOLERANCE_NS) :]
        batch = next((batch for batch in candidates if abs(batch.end_ns - end) <= TOLERANCE_NS), None)
        if batch is None:
            batches.append(TracedBatch([request], start, end))
            starts.append(start)
        else:
            batch.requests.append(request)
    for batch in batches:
        batch.requests = _in_order(batch.requests)
    return batches


def _in_order(requests: list[TracedRequest]) -> list[TracedRequest]:
    """The order in the batch: backends release the requests of a batch in this order.

    ``QUEUE_START`` is only nearly in order, since it is taken before the request gets the lock of the queue.
    """
    if all("REQUEST_END" in request.stamps for request in requests):
        return sorted(requests, key=lambda request: (request.ended_ns, request.queued_ns))
    return sorted(requests, key=lambda request: request.queued_ns)


def most_overlapping(batches: Sequence[TracedBatch]) -> int:
    """The largest number of batches that ran at the same time."""
    running: list[int] = []
    most = 0
    for batch in batches:
        while running and running[0] <= batch.start_ns:
            heapq.heappop(running)
        heapq.heappush(running, batch.end_ns)
        most = max(most, len(running))
    return most


def assign_instances(batches: Sequence[TracedBatch], instance_count: int) -> int:
    """Assign batches to instances: each to the one that has been idle longest, as the scheduler does.

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
    count = max(instance_count, most_overlapping(batches))
    ends = [0] * count
    released = [0] * count
    for batch in batches:
        lane = min(range(count), key=lambda lane: (ends[lane] > batch.start_ns, released[lane]))
        batch.lane, batch.free_ns = lane, min(released[lane], batch.start_ns)
        ends[lane], released[lane] = batch.end_ns, batch.released_ns
    return count


def by_version(requests: Iterable[TracedRequest]) -> dict[tuple[str, int], list[TracedRequest]]:
    """The requests of each model version, in the order in which they were queued."""
    groups: dict[tuple[str, int], list[TracedRequest]] = defaultdict(list)
    for request in requests:
        groups[request.model, request.version].append(request)
    for group in groups.values():
        group.sort(key=lambda request: request.queued_ns)
    return dict(sorted(groups.items()))
