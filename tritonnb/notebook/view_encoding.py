"""Encoding of batches, requests, refusals and slot occupancy for a view: lists of plain values.

A list has one value per field, in the order of the field names below. Batches are sent as one list per field, and
times as whole `TICKS` of a millisecond since the view's begin: both are written and read faster than objects with
fractions. `ENCODING` describes this layout; a view gets it in its metadata, so it is defined here only.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from operator import attrgetter
from typing import Any, TypeAlias

from tritonnb.core.events import BatchExecuted, BatchSent, RequestArrived, RequestRefused
from tritonnb.core.json_types import Json
from tritonnb.core.packed_events import Packed, facts_of, failures_of, positions, slots_of
from tritonnb.core.schedulable import SEQUENCE_END, SEQUENCE_START
from tritonnb.recording.sequences import SlotOccupancy
from tritonnb.scheduling.decisions import Reason
from tritonnb.scheduling.reasons import explain

#: Times are sent in these fractions of a millisecond.
TICKS = 10_000
_TICK_NS = 1_000_000 // TICKS

#: The fields of a batch that are sent once it has been executed, and all fields of a batch.
EXECUTION_FIELDS = ("start", "input", "output", "end", "failed", "generated")
BATCH_FIELDS = (
    "n", "instance", "sent", "rows", "requests", "depth", "oldest", "limited", "rule", "why", "members", "slots",
    *EXECUTION_FIELDS,
)  # fmt: skip
#: Of a request in a batch or in the queue, of a refused request, and of a sequence in a batch slot.
MEMBER_FIELDS = ("label", "rows", "priority", "queued", "queue_row", "sequence", "flags")
REFUSAL_FIELDS = ("queued", "refused", "label", "queue_row", "message", "sequence")
OCCUPANCY_FIELDS = (
    "sequence", "instance", "slot", "arrived", "assigned", "released", "ended_by", "executed", "last",
)  # fmt: skip
#: Of a request of a static batch that generated tokens: their number, and when the first and the last were computed.
GENERATION_FIELDS = ("tokens", "first", "last")
#: The fields that are times.
TIME_FIELDS = (
    "now", "since", "exact", "sent", "oldest", "limited", "start", "input", "output", "end", "queued", "refused",
    "arrived", "assigned", "released", "first", "last",
)  # fmt: skip

#: The flags of a member of an iterative sequence are at least this value times the number of its step, counted from 1.
STEP = 256

#: The values of a batch, a request, a refusal or an occupied slot, in the order of its fields.
Encoded: TypeAlias = list[Any]

#: What a view needs to decode what it gets.
ENCODING: Json = {
    "ticks": TICKS,
    "times": TIME_FIELDS,
    "member": MEMBER_FIELDS,
    "refusal": REFUSAL_FIELDS,
    "occupancy": OCCUPANCY_FIELDS,
    "generation": GENERATION_FIELDS,
    "sequence_start": SEQUENCE_START,
    "sequence_end": SEQUENCE_END,
    "step": STEP,
}


TIME, MODEL, SERIAL, ROWS, PRIORITY, ID, SEQUENCE, FLAGS = attrgetter(
    "time_ns", "model", "serial", "size", "priority", "id", "correlation_id", "flags"
)(positions(RequestArrived))
#: Of a `BatchSent`; a `BatchExecuted` has the first three at the same positions.
NUMBER, INSTANCE, SIZE, RULE, DEPTH = attrgetter("batch", "instance", "size", "rule", "queue_depth")(
    positions(BatchSent)
)
EXEC_START, COMPUTE_START, COMPUTE_END, EXEC_END = attrgetter(
    "exec_start_ns", "compute_start_ns", "compute_end_ns", "exec_end_ns"
)(positions(BatchExecuted))


@dataclass(slots=True)
class DrawnBatch:
    """A batch that a view may draw: its packed events, and what was sent to views.

    ``requests`` has its members in order, each a serial and the packed arrival. The arrival is None for a null
    request, and for a request that arrived before the view was opened or that runs again. ``generated`` has what each
    of them generated (see `GENERATION_FIELDS`, times in ns), and is None if they generated no tokens. ``taken`` says
    whether it belongs to a delivery.
    """

    sent: Packed
    requests: list[tuple[int | None, Packed | None]]
    executed: Packed | None = None
    generated: list[list[int]] | None = None
    taken: bool = False
    encoded: Encoded = field(default_factory=list)


class ViewEncoder:
    """An encoder for batches, requests, refusals and slot occupancy, with times relative to ``begin_ns``.

    A request without a priority has the model's default priority level.
    """

    def __init__(self, begin_ns: int, default_priority: int = 0) -> None:
        self._begin_ns = begin_ns
        self._default_priority = default_priority

    def ticks(self, time_ns: int) -> int:
        """Encode a time."""
        return (time_ns - self._begin_ns) // _TICK_NS

    def batch(self, batch: DrawnBatch, queue_rows: Mapping[int, int]) -> Encoded:
        """Encode a batch with an explanation of why it was sent; see `BATCH_FIELDS`."""
        sent = batch.sent
        sent_ticks = self.ticks(sent[TIME])
        facts = facts_of(sent)
        limited_ns = facts.get("limited_ns", 0)  # the rate limiter made an idle instance wait
        arrivals = [arrived for _, arrived in batch.requests if arrived is not None]
        batch.encoded = [
            sent[NUMBER],
            sent[INSTANCE],
            sent_ticks,
            sent[SIZE],
            sum(serial is not None for serial, _ in batch.requests),
            sent[DEPTH],
            self.ticks(min([arrived[TIME] for arrived in arrivals])) if arrivals else sent_ticks,
            self.ticks(sent[TIME] - limited_ns) if limited_ns else None,
            sent[RULE],
            explain(Reason(sent[RULE], facts)),
            [self._member(sent_ticks, *member, queue_rows) for member in batch.requests],
            slots_of(sent),
            *self.execution(batch),
        ]
        return batch.encoded

    def execution(self, batch: DrawnBatch) -> Encoded:
        """Encode the execution of a batch, its failed requests, and its generated tokens: `EXECUTION_FIELDS`."""
        packed, ticks = batch.executed, self.ticks
        if packed is None:
            return [None, None, None, None, 0, None]
        generated = batch.generated and [
            [count, *map(ticks, times)] if count else [] for count, *times in batch.generated
        ]
        return [
            ticks(packed[EXEC_START]), ticks(packed[COMPUTE_START]), ticks(packed[COMPUTE_END]),
            ticks(packed[EXEC_END]), failures_of(packed), generated,
        ]  # fmt: skip

    def _member(
        self, sent_ticks: int, serial: int | None, arrived: Packed | None, queue_rows: Mapping[int, int]
    ) -> Encoded:
        if serial is None:
            return []  # a null request
        if arrived is None:
            return [str(serial), 1, 0, sent_ticks, 0, 0, 0]
        return self.request(arrived, queue_rows[serial])

    def request(self, arrived: Packed, queue_row: int) -> Encoded:
        """Encode a request and the row in which its wait is drawn; see `MEMBER_FIELDS`."""
        return [
            arrived[ID] or str(arrived[SERIAL]), arrived[ROWS], arrived[PRIORITY] or self._default_priority,
            self.ticks(arrived[TIME]), queue_row, arrived[SEQUENCE], arrived[FLAGS],
        ]  # fmt: skip

    def refusal(self, event: RequestRefused, arrived: Packed | None, queue_rows: Mapping[int, int]) -> Encoded:
        """Encode a request that will not be executed; see `REFUSAL_FIELDS`. One that never waited has the row -1."""
        label, sequence = (arrived[ID], arrived[SEQUENCE]) if arrived else ("", 0)
        return [
            self.ticks(event.received_ns), self.ticks(event.time_ns), label or str(event.serial),
            queue_rows.get(event.serial, -1), event.message or "cancelled", sequence,
        ]  # fmt: skip

    def occupancy(self, occupancy: SlotOccupancy) -> Encoded:
        """Encode a sequence in its slot; see `OCCUPANCY_FIELDS`."""
        released = None if occupancy.released_ns is None else self.ticks(occupancy.released_ns)
        last = self.ticks(occupancy.requests[-1][1].queued_ns)
        return [
            occupancy.sequence, occupancy.instance, occupancy.slot, self.ticks(occupancy.arrived_ns),
            self.ticks(occupancy.assigned_ns), released, occupancy.ended, occupancy.request_count, last,
        ]  # fmt: skip


def columns(names: Collection[str], rows: Collection[Encoded]) -> dict[str, list[Any]]:
    """Transpose rows into one list per field; empty without rows."""
    return {name: list(column) for name, column in zip(names, zip(*rows, strict=True), strict=False)}
