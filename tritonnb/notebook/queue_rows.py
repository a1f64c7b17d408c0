"""The rows in which a drawing of a queue shows its requests: each in the topmost row that is free during its wait."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from tritonnb.core.packed_events import Packed
from tritonnb.notebook.view_encoding import SERIAL, TIME, DrawnBatch
from tritonnb.telemetry.lanes import Lanes

#: A request's arrival in ns, its serial, and when it left the queue; None if it still waits.
Wait = tuple[int, int, int | None]


class QueueRows:
    """Assigns rows to requests, delivery by delivery; a request that still waits keeps its row."""

    def __init__(self) -> None:
        self._row_of: dict[int, int] = {}  # of the requests that still wait
        self._lanes = Lanes()

    def assign(self, waits: Iterable[Wait]) -> Mapping[int, int]:
        """Return the row of each request by its serial; a waiting request that is not listed any more has left."""
        ordered = sorted(waits, key=lambda wait: wait[0])
        for serial in self._row_of.keys() - {serial for _, serial, _ in ordered}:
            self._lanes.free(self._row_of.pop(serial))
        rows = {}
        for arrived_ns, serial, left_ns in ordered:
            row = self._row_of.pop(serial, None)
            if row is None:
                row = self._lanes.take(arrived_ns)
            rows[serial] = row
            if left_ns is None:
                self._row_of[serial] = row
            else:
                # A request that did not wait has its row for itself, too: else its mark would be another's.
                self._lanes.leave(row, max(left_ns, arrived_ns + 1))
        return rows


def drawn_waits(
    batches: Iterable[DrawnBatch], refused: Iterable[tuple[Any, Packed | None]], pending: Iterable[Packed]
) -> Iterator[Wait]:
    """The waits that are drawn in the queue."""
    for batch in batches:
        for serial, arrived in batch.requests:
            if serial is not None and arrived is not None:
                yield arrived[TIME], serial, batch.sent[TIME]
    for event, arrived in refused:
        if arrived is not None:
            yield arrived[TIME], event.serial, event.time_ns
    for arrived in pending:
        yield arrived[TIME], arrived[SERIAL], None
