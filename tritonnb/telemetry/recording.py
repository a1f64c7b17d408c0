"""A recording: the event stream of a while, as requests and batches that one can ask why.

Everything here is derived from the events, which stay available as they came.
"""

from __future__ import annotations

import html
import statistics
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from tritonnb.core.events import BatchExecuted, BatchSent, Event, RequestRefused
from tritonnb.scheduling.decisions import Reason
from tritonnb.scheduling.reasons import explain

if TYPE_CHECKING:
    import pandas


@dataclass(frozen=True, slots=True)
class Batch:
    """One batch that was sent to an instance and run.

    Attributes
    ----------
    number : int
        In the server's event stream.
    model, version, instance : str, int, str
    requests : tuple of int or None
        Serials of the requests, in order; None is a null request (sequence batcher).
    size : int
        Rows.
    reason : Reason
        The rule that sent it and the numbers it looked at; `why` puts them into words.
    queue_depth : int
        Requests left waiting when it was sent.
    sent_ns, exec_start_ns, compute_start_ns, compute_end_ns, exec_end_ns : int
        Monotonic clock.
    queue_ns : int
        How long the request that waited longest had waited when execution began.
    """

    number: int
    model: str
    version: int
    instance: str
    requests: tuple[int | None, ...]
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
        """Why the scheduler sent this batch when it did, in words."""
        return explain(self.reason)

    @property
    def compute_ns(self) -> int:
        """From the start of the execution to its end."""
        return self.exec_end_ns - self.exec_start_ns

    def __repr__(self) -> str:
        return (
            f"<Batch {self.number}: {len(self.requests)} requests, {self.size} rows on {self.instance}; "
            f"{self.compute_ns / 1e6:.2f} ms>"
        )


@dataclass(frozen=True, slots=True)
class RequestRecord:
    """One request that was run.

    Attributes
    ----------
    serial : int
    model, version, batch : str, int, int
        Where it ran: ``batch`` is `Batch.number`.
    size : int
        Rows.
    received_ns, queued_ns, exec_start_ns, exec_end_ns : int
        Monotonic clock.
    failed : str
        Failure reason of the statistics, empty for a success.
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

    @property
    def queue_ns(self) -> int:
        """Time in the queue."""
        return self.exec_start_ns - self.queued_ns

    @property
    def latency_ns(self) -> int:
        """From reception to the end of the execution."""
        return self.exec_end_ns - self.received_ns


class Recording:
    """What happened while it was recorded.

    Attributes
    ----------
    events : list of Event
        Everything, in order.
    batches : list of Batch
        The batches that ran, in the order in which they finished.
    requests : list of RequestRecord
        The requests that ran.
    refused : list of RequestRefused
        The requests that did not.

    Examples
    --------
    >>> with server.record() as rec:  # doctest: +SKIP
    ...     server["digits"](image=images)
    >>> rec.batches[0].why  # doctest: +SKIP
    """

    def __init__(self, events: Iterable[Event] = ()) -> None:
        self.fill(events)

    def fill(self, events: Iterable[Event]) -> None:
        """Make this the recording of these events; a recording in progress is empty until it ends."""
        self.events = list(events)
        self.batches: list[Batch] = []
        self.requests: list[RequestRecord] = []
        self.refused = [each for each in self.events if isinstance(each, RequestRefused)]
        sent = {each.batch: each for each in self.events if isinstance(each, BatchSent)}
        for event in self.events:
            if isinstance(event, BatchExecuted) and event.batch in sent:
                self.batches.append(_batch(sent[event.batch], event))
                self.requests += _requests(event)

    def of(self, model: str) -> Recording:
        """Only what concerns one model."""
        return Recording(each for each in self.events if each.model == model)

    def batch_sizes(self) -> dict[int, int]:
        """How many batches of each number of rows ran."""
        return dict(sorted(Counter(each.size for each in self.batches).items()))

    def summary(self) -> dict[str, Any]:
        """The recording in numbers; times in milliseconds."""
        latencies = sorted(each.latency_ns / 1e6 for each in self.requests)
        queues = [each.queue_ns / 1e6 for each in self.requests]
        rows = sum(each.size for each in self.requests)
        together = sum(each.size for each in self.batches if len(each.requests) > 1)
        return {
            "requests": len(self.requests),
            "rows": rows,
            "batches": len(self.batches),
            "refused": len(self.refused),
            "failed": sum(1 for each in self.requests if each.failed),
            "mean_batch_size": rows / len(self.batches) if self.batches else 0.0,
            "rows_batched": together / rows if rows else 0.0,
            "longest_queue_ms": max(queues, default=0.0),
            "latency_p50_ms": _quantile(latencies, 0.50),
            "latency_p99_ms": _quantile(latencies, 0.99),
        }

    def verdict(self) -> str:
        """The recording in one sentence."""
        if not self.batches:
            return "Nothing was executed."
        found = self.summary()
        return (
            f"{found['requests']} requests ran in {found['batches']} batches: mean batch "
            f"{found['mean_batch_size']:.1f} rows; {found['rows_batched']:.0%} of rows shared a batch; "
            f"the longest wait in the queue was {found['longest_queue_ms']:.1f} ms."
        )

    def to_pandas(self) -> pandas.DataFrame:
        """One row for each batch; times in milliseconds from the first batch sent.

        Raises
        ------
        ImportError
            Where pandas is not installed.
        """
        import pandas

        return pandas.DataFrame(self._table())

    def _table(self) -> list[dict[str, Any]]:
        begin = min((each.sent_ns for each in self.batches), default=0)
        return [
            {
                "batch": each.number,
                "model": each.model,
                "instance": each.instance,
                "requests": len(each.requests),
                "rows": each.size,
                "sent_ms": (each.sent_ns - begin) / 1e6,
                "queue_ms": each.queue_ns / 1e6,
                "compute_ms": each.compute_ns / 1e6,
                "why": each.why,
            }
            for each in self.batches
        ]

    def __repr__(self) -> str:
        lines = [self.verdict()]
        for size, count in self.batch_sizes().items():
            lines.append(f"  batch size {size:>4}: {count:>5} x {self._median_ms(size):8.2f} ms (median)")
        return "\n".join(lines)

    def _repr_html_(self) -> str:
        rows = "".join(
            f"<tr><td>{size}</td><td>{count}</td><td>{self._median_ms(size):.2f}</td></tr>"
            for size, count in self.batch_sizes().items()
        )
        return (
            f"<p><b>{html.escape(self.verdict())}</b></p><table><thead><tr><th>batch size (rows)</th>"
            f"<th>batches</th><th>compute, median (ms)</th></tr></thead><tbody>{rows}</tbody></table>"
        )

    def _median_ms(self, size: int) -> float:
        return statistics.median(each.compute_ns / 1e6 for each in self.batches if each.size == size)


def _batch(sent: BatchSent, executed: BatchExecuted) -> Batch:
    waits = [executed.exec_start_ns - queued_ns for _, _, _, queued_ns, _ in executed.requests]
    return Batch(
        sent.batch,
        sent.model,
        sent.version,
        sent.instance,
        sent.members,
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


def _requests(event: BatchExecuted) -> list[RequestRecord]:
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
        )
        for serial, size, received_ns, queued_ns, failed in event.requests
    ]


def _quantile(ordered: Sequence[float], share: float) -> float:
    if not ordered:
        return 0.0
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))]
