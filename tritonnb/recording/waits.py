"""Requests that wait, and how many of them there are at each moment."""

from __future__ import annotations

import heapq
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tritonnb.core.events import RequestArrived

if TYPE_CHECKING:
    from tritonnb.recording.recording import Recording


@dataclass(frozen=True, slots=True)
class Wait:
    """One request from its acceptance to its execution or refusal.

    Attributes
    ----------
    serial, size, priority : int
    label : str
        The client's id, else the serial.
    begin_ns, end_ns : int
    refused : str
        The error's text; empty for one that ran.
    """

    serial: int
    size: int
    priority: int
    label: str
    begin_ns: int
    end_ns: int
    refused: str = ""


def waits(rec: Recording) -> list[Wait]:
    """Every request's wait, in order of its beginning; one that runs several times waits once."""
    sent = {each.number: each.sent_ns for each in rec.batches}
    found: dict[int, Wait] = {}
    for each in rec.requests:
        label = each.id or str(each.serial)
        end_ns = max(sent[each.batch], each.queued_ns)
        found.setdefault(each.serial, Wait(each.serial, each.size, each.priority, label, each.queued_ns, end_ns))
    arrived = {each.serial: each for each in rec.events if isinstance(each, RequestArrived)}
    for gone in rec.refused:
        asked = arrived.get(gone.serial)
        label = (asked.id if asked else "") or str(gone.serial)
        priority = asked.priority if asked else 0
        error = gone.message or "cancelled"
        refused = Wait(gone.serial, gone.size, priority, label, gone.received_ns, gone.time_ns, error)
        found.setdefault(gone.serial, refused)
    return sorted(found.values(), key=lambda each: (each.begin_ns, each.serial))


def drawn_waits(rec: Recording) -> list[Wait]:
    """The waits of which something lies in the time that is drawn."""
    begin_ns, end_ns = rec.span_ns
    return [each for each in waits(rec) if each.begin_ns <= end_ns and each.end_ns >= begin_ns]


def depth(found: Iterable[Wait]) -> tuple[list[int], list[int]]:
    """Requests waiting: moments in ns, and how many from each of them on."""
    steps: dict[int, int] = {}
    for each in found:
        steps[each.begin_ns] = steps.get(each.begin_ns, 0) + 1
        steps[each.end_ns] = steps.get(each.end_ns, 0) - 1
    times = sorted(steps)
    now = 0
    return times, [now := now + steps[time] for time in times]


def rows(intervals: Iterable[tuple[float, float]]) -> list[int]:
    """A row for each interval (in order of their beginnings), so that none overlaps another: the topmost free one.

    Examples
    --------
    >>> rows([(0, 5), (1, 2), (3, 4), (4, 6)])
    [0, 1, 1, 1]
    """
    busy: list[tuple[float, int]] = []
    free: list[int] = []
    chosen = []
    for begin, end in intervals:
        while busy and busy[0][0] <= begin:
            heapq.heappush(free, heapq.heappop(busy)[1])
        row = heapq.heappop(free) if free else len(busy)
        heapq.heappush(busy, (end, row))
        chosen.append(row)
    return chosen
