"""Queue waits of requests, and the queue depth over time."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from tritonnb.recording.recording import Recording
from tritonnb.telemetry.lanes import count_overlaps


@dataclass(frozen=True, slots=True)
class Wait:
    """The wait of one request, from its acceptance to its execution or refusal.

    Attributes
    ----------
    serial, size, priority : int
    label : str
        The request id given by the client, or else the serial.
    begin_ns, end_ns : int
    refused : str
        Error message; empty if the request ran.
    """

    serial: int
    size: int
    priority: int
    label: str
    begin_ns: int
    end_ns: int
    refused: str = ""


def waits_of(rec: Recording) -> list[Wait]:
    """Return the wait of each request, ordered by its beginning; a request that runs several times has one wait."""
    sent = {batch.number: batch.sent_ns for batch in rec.batches}
    by_serial: dict[int, Wait] = {}
    for request in rec.requests:
        end_ns = max(sent[request.batch], request.queued_ns)
        wait = Wait(request.serial, request.size, request.priority, request.label, request.queued_ns, end_ns)
        by_serial.setdefault(request.serial, wait)
    for refusal in rec.refused:
        arrival = rec.arrived.get(refusal.serial)
        label = (arrival.id if arrival else "") or str(refusal.serial)
        priority = arrival.priority if arrival else 0
        error = refusal.message or "cancelled"
        wait = Wait(refusal.serial, refusal.size, priority, label, refusal.received_ns, refusal.time_ns, error)
        by_serial.setdefault(refusal.serial, wait)
    return sorted(by_serial.values(), key=lambda wait: (wait.begin_ns, wait.serial))


def visible_waits(rec: Recording) -> list[Wait]:
    """Return the waits that overlap the time range of a recording."""
    begin_ns, end_ns = rec.span_ns
    return [wait for wait in waits_of(rec) if wait.begin_ns <= end_ns and wait.end_ns >= begin_ns]


def queue_depth(waits: Iterable[Wait]) -> tuple[list[int], list[int]]:
    """Return the times in ns at which the number of waiting requests changes, and its value from each of them on."""
    return count_overlaps((wait.begin_ns, wait.end_ns) for wait in waits)
