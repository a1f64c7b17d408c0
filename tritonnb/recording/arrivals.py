"""The arrivals of a recording, to simulate or send them again."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from tritonnb.core.events import BatchExecuted, Event, RequestArrived, RequestCancelled
from tritonnb.core.sequence_flags import SEQUENCE_END, SEQUENCE_START
from tritonnb.simulation.arrivals import Arrival


def arrivals_of(events: Iterable[Event]) -> list[Arrival]:
    """The arrival of each request, in µs after the first one."""
    arrived: list[RequestArrived] = []
    cancelled_ns: dict[int, int] = {}
    steps: Counter[int] = Counter()
    for event in events:
        if isinstance(event, RequestArrived):
            arrived.append(event)
        elif isinstance(event, RequestCancelled):
            cancelled_ns[event.serial] = event.time_ns
        elif isinstance(event, BatchExecuted):
            steps.update([serial for serial, *_ in event.requests])
    return [
        _arrival(event, arrived[0].time_ns, cancelled_ns.get(event.serial), max(1, steps[event.serial]))
        for event in arrived
    ]


def _arrival(event: RequestArrived, begin_ns: int, cancelled_ns: int | None, steps: int) -> Arrival:
    return Arrival(
        (event.time_ns - begin_ns) / 1000,
        event.size,
        event.priority,
        event.timeout_us,
        event.correlation_id,
        bool(event.flags & SEQUENCE_START),
        bool(event.flags & SEQUENCE_END),
        event.shape_key,
        None if cancelled_ns is None else (cancelled_ns - begin_ns) / 1000,
        steps,
    )
