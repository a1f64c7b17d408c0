"""What a view is told of a batch, a request, a refusal and a slot: lists of plain values.

Batches go as one list for each of their fields, and times as whole `TICKS` of a millisecond from the view's
beginning: both are written and read faster than objects with fractions.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Any

from tritonnb.core.events import (
    BatchExecuted,
    BatchSent,
    Packed,
    RequestArrived,
    RequestRefused,
    facts_of,
    failures_of,
    positions,
    slots_of,
)
from tritonnb.recording.sequences import SlotOccupancy
from tritonnb.scheduling.decisions import Reason
from tritonnb.scheduling.reasons import explain

#: Times are told in these parts of a millisecond.
TICKS = 10_000
_TICK_NS = 1_000_000 // TICKS

#: What is told of a batch once it has run, and all that is told of one.
RAN = ("start", "input", "output", "end", "failed")
BATCH = (
    "n", "instance", "sent", "rows", "requests", "depth", "oldest", "why", "members", "slots", "drawn", *RAN,
)  # fmt: skip

_ARRIVED, _SENT, _EXECUTED = positions(RequestArrived), positions(BatchSent), positions(BatchExecuted)
#: Positions of fields in packed events.
TIME, MODEL = _ARRIVED.time_ns, _ARRIVED.model  # of every event
SERIAL, ROWS, PRIORITY, ID = _ARRIVED.serial, _ARRIVED.size, _ARRIVED.priority, _ARRIVED.id
SEQUENCE, FLAGS = _ARRIVED.correlation_id, _ARRIVED.flags
NUMBER, INSTANCE, SIZE = _SENT.batch, _SENT.instance, _SENT.size  # of a BatchExecuted, too
RULE, DEPTH = _SENT.rule, _SENT.queue_depth
EXEC_START, COMPUTE_START = _EXECUTED.exec_start_ns, _EXECUTED.compute_start_ns
COMPUTE_END, EXEC_END = _EXECUTED.compute_end_ns, _EXECUTED.exec_end_ns


@dataclass(slots=True)
class DrawnBatch:
    """A batch that may be drawn: its packed events, and what views were told of it.

    ``requests`` has its members in order, a serial and the packed arrival: None of a null request, and of one
    that came before the view or runs again.
    """

    sent: Packed
    requests: list[tuple[int | None, Packed | None]]
    executed: Packed | None = None
    told: list[Any] = field(default_factory=list)
    drawn: tuple[int, int] = (1, 1)  # one of how many batches, one of how many members

    @property
    def shown(self) -> list[tuple[int | None, Packed | None]]:
        """The requests that are drawn."""
        return self.requests if self.drawn[1] == 1 else self.requests[:: self.drawn[1]]


class ViewEncoder:
    """Says things in numbers that a view reads, with times from ``begin_ns`` on."""

    def __init__(self, begin_ns: int) -> None:
        self._begin_ns = begin_ns

    def at(self, time_ns: int) -> int:
        """A time."""
        return (time_ns - self._begin_ns) // _TICK_NS

    def batch(self, batch: DrawnBatch, lines: Mapping[int, int]) -> list[Any]:
        """A batch with words for why, field by field as in `BATCH`."""
        sent = batch.sent
        at = self.at(sent[TIME])
        arrivals = [arrived for _, arrived in batch.requests if arrived is not None]
        batch.told = [
            sent[NUMBER],
            sent[INSTANCE],
            at,
            sent[SIZE],
            sum(serial is not None for serial, _ in batch.requests),
            sent[DEPTH],
            self.at(min([each[TIME] for each in arrivals])) if arrivals else at,
            explain(Reason(sent[RULE], facts_of(sent))),
            [self._member(at, *each, lines) for each in batch.shown],
            slots_of(sent),
            batch.drawn,
            *self.ran(batch),
        ]
        return batch.told

    def ran(self, batch: DrawnBatch) -> list[Any]:
        """When a batch ran, and how many of its requests failed, as in `RAN`."""
        packed, at = batch.executed, self.at
        if packed is None:
            return [None, None, None, None, 0]
        return [
            at(packed[EXEC_START]), at(packed[COMPUTE_START]), at(packed[COMPUTE_END]), at(packed[EXEC_END]),
            failures_of(packed),
        ]  # fmt: skip

    def _member(self, sent: int, serial: int | None, arrived: Packed | None, lines: Mapping[int, int]) -> list[Any]:
        if serial is None:
            return []
        if arrived is None:
            return [str(serial), 1, 0, sent, 0, 0, 0]
        return self.request(arrived, lines[serial])

    def request(self, arrived: Packed, line: int) -> list[Any]:
        """A request and the line on which it waits."""
        return [
            arrived[ID] or str(arrived[SERIAL]), arrived[ROWS], arrived[PRIORITY], self.at(arrived[TIME]), line,
            arrived[SEQUENCE], arrived[FLAGS],
        ]  # fmt: skip

    def refusal(self, event: RequestRefused, arrived: Packed | None, lines: Mapping[int, int]) -> list[Any]:
        """A request that will not run."""
        label, sequence = (arrived[ID], arrived[SEQUENCE]) if arrived else ("", 0)
        return [
            self.at(event.received_ns), self.at(event.time_ns), label or str(event.serial),
            lines.get(event.serial, 0), event.message or "cancelled", sequence,
        ]  # fmt: skip

    def stay(self, stay: SlotOccupancy) -> list[Any]:
        """A sequence in its slot."""
        released = None if stay.released_ns is None else self.at(stay.released_ns)
        last = self.at(stay.requests[-1][1].queued_ns)
        return [
            stay.sequence, stay.instance, stay.slot, self.at(stay.arrived_ns), self.at(stay.assigned_ns), released,
            stay.ended, stay.ran, last,
        ]  # fmt: skip


def columns(names: Collection[str], rows: Collection[list[Any]]) -> dict[str, list[Any]]:
    """Things that are alike, as one list for each of their fields."""
    return {name: list(each) for name, each in zip(names, zip(*rows, strict=True), strict=False)}
