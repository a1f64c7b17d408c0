"""The batches that ran and the requests in them, joined from the events of a recording; and unusually long batches."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from tritonnb.core.events import BatchExecuted, BatchSent, Event, RequestArrived, ResponseSent
from tritonnb.core.schedulable import SEQUENCE_END, SEQUENCE_START
from tritonnb.scheduling.decisions import Reason
from tritonnb.scheduling.reasons import explain, pluralize


@dataclass(frozen=True, slots=True)
class Batch:
    """One batch that an instance executed.

    Attributes
    ----------
    number : int
        Number of the batch in the server's event stream.
    model, version, instance : str, int, str
    requests : tuple of int or None
        Serials of the requests, in order; None is a null request (sequence batcher).
    slots : tuple of int or None
        The batch slot of each request of a sequence batch; None elsewhere.
    size : int
        Rows.
    reason : Reason
        The rule that sent the batch and the facts it is based on; `why` explains them.
    queue_depth : int
        Requests left in the queue when the batch was sent.
    sent_ns, exec_start_ns, compute_start_ns, compute_end_ns, exec_end_ns : int
        Monotonic clock.
    queue_ns : int
        Longest queue time of its requests when the execution began.
    """

    number: int
    model: str
    version: int
    instance: str
    requests: tuple[int | None, ...]
    slots: tuple[int, ...] | None
    size: int
    reason: Reason
    queue_depth: int
    sent_ns: int
    exec_start_ns: int
    compute_start_ns: int
    compute_end_ns: int
    exec_end_ns: int
    queue_ns: int

    @property
    def why(self) -> str:
        """Why the scheduler sent this batch, as a sentence."""
        return explain(self.reason)

    @property
    def compute_ns(self) -> int:
        """Execution time."""
        return self.exec_end_ns - self.exec_start_ns

    def __repr__(self) -> str:
        requests, rows = pluralize(len(self.requests), "request"), pluralize(self.size, "row")
        return f"<Batch {self.number}: {requests}, {rows} on {self.instance}; {self.compute_ns / 1e6:.2f} ms>"


@dataclass(frozen=True, slots=True)
class RequestRecord:
    """One executed request.

    Attributes
    ----------
    serial : int
    model, version, batch : str, int, int
        ``batch`` is `Batch.number`.
    size : int
        Rows.
    received_ns, queued_ns, exec_start_ns, exec_end_ns : int
        Monotonic clock.
    failed : str
        Failure reason of the statistics; empty for a success.
    id : str
        Request id given by the client, or empty.
    priority : int
        Requested priority; 0 for none.
    sequence_id : int or str
        Correlation ID; 0 for none, or if the recording began after the request arrived.
    flags : int
        Combination of ``SEQUENCE_START`` and ``SEQUENCE_END``.
    responded_ns : int
        When a decoupled model sent its last response; 0 for other models.
    """

    serial: int
    model: str
    version: int
    batch: int
    size: int
    received_ns: int
    queued_ns: int
    exec_start_ns: int
    exec_end_ns: int
    failed: str
    id: str = ""
    priority: int = 0
    sequence_id: int | str = 0
    flags: int = 0
    responded_ns: int = 0

    @property
    def label(self) -> str:
        """The request id given by the client, or else the serial."""
        return self.id or str(self.serial)

    @property
    def starts(self) -> bool:
        """True if the request starts its sequence."""
        return bool(self.flags & SEQUENCE_START)

    @property
    def ends(self) -> bool:
        """True if the request ends its sequence."""
        return bool(self.flags & SEQUENCE_END)

    @property
    def queue_ns(self) -> int:
        """Time in the queue."""
        return self.exec_start_ns - self.queued_ns

    @property
    def latency_ns(self) -> int:
        """The time from reception to the end of the execution, or to a later last response of a decoupled model."""
        return max(self.exec_end_ns, self.responded_ns) - self.received_ns

    def __repr__(self) -> str:
        name = f"{self.serial}{f' ({self.id})' if self.id not in ('', str(self.serial)) else ''}"
        failed = f"; failed: {self.failed}" if self.failed else ""
        return (
            f"<RequestRecord {name}: {pluralize(self.size, 'row')} of '{self.model}' in batch {self.batch}; "
            f"{self.latency_ns / 1e6:.2f} ms{failed}>"
        )


def last_executions(requests: Iterable[RequestRecord]) -> list[RequestRecord]:
    """Return the last execution of each request: a generation is executed once for each step."""
    return list({request.serial: request for request in requests}.values())


def latencies_ms(requests: Iterable[RequestRecord]) -> list[float]:
    """Return the latencies of the requests in ms, ascending; the latency of a generation ends with its last step."""
    return sorted(request.latency_ns / 1e6 for request in last_executions(requests))


def batches_of(events: Sequence[Event]) -> Iterator[tuple[Batch, list[RequestRecord]]]:
    """Yield every batch that ran, with its requests, in the order of completion."""
    sent = {event.batch: event for event in events if isinstance(event, BatchSent)}
    arrived = {event.serial: event for event in events if isinstance(event, RequestArrived)}
    responded_ns = _last_responses(events)
    for event in events:
        if isinstance(event, BatchExecuted) and event.batch in sent:
            yield _batch(sent[event.batch], event), _requests(event, arrived, responded_ns)


def _last_responses(events: Sequence[Event]) -> dict[int, int]:
    """Return the time of the last response of each stream; steps of generations end with their executions."""
    last_ns = {event.serial: event.time_ns for event in events if isinstance(event, ResponseSent)}
    if not last_ns:
        return {}
    executed = (event.requests for event in events if isinstance(event, BatchExecuted))
    executions = Counter(serial for requests in executed for serial, *_ in requests)
    return {serial: time_ns for serial, time_ns in last_ns.items() if executions[serial] == 1}


def _batch(sent: BatchSent, executed: BatchExecuted) -> Batch:
    waits = [executed.exec_start_ns - queued_ns for _, _, _, queued_ns, _ in executed.requests]
    return Batch(
        sent.batch,
        sent.model,
        sent.version,
        sent.instance,
        sent.members,
        sent.slots,
        sent.size,
        Reason(sent.rule, sent.facts),
        sent.queue_depth,
        sent.time_ns,
        executed.exec_start_ns,
        executed.compute_start_ns,
        executed.compute_end_ns,
        executed.exec_end_ns,
        max(waits, default=0),
    )


def _requests(
    event: BatchExecuted, arrived: Mapping[int, RequestArrived], responded_ns: Mapping[int, int]
) -> list[RequestRecord]:
    return [
        RequestRecord(
            serial,
            event.model,
            event.version,
            event.batch,
            size,
            received_ns,
            queued_ns,
            event.exec_start_ns,
            event.exec_end_ns,
            failed,
            *_request_fields(arrived.get(serial)),
            responded_ns.get(serial, 0),
        )
        for serial, size, received_ns, queued_ns, failed in event.requests
    ]


def _request_fields(event: RequestArrived | None) -> tuple[str, int, int | str, int]:
    return ("", 0, 0, 0) if event is None else (event.id, event.priority, event.correlation_id, event.flags)


class Outlier(NamedTuple):
    """An execution that took much longer than others of its size.

    Attributes
    ----------
    batch : Batch
    factor : float
        Multiple of the time that `LearnedTimes` expects.
    """

    batch: Batch
    factor: float

    def __str__(self) -> str:
        return f"{self.factor:.{1 if self.factor < 9.95 else 0}f} times as long as expected"
