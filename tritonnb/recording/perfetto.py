"""A recording as a timeline for Perfetto (https://ui.perfetto.dev) and ``chrome://tracing``.

A model is a process, an instance a lane with its batches, and in each batch the parts of its computation.
Waits are tracks of their own, and a counter shows how many there are.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from tritonnb.recording.batches import Batch
from tritonnb.recording.waits import Wait, depth, waits
from tritonnb.scheduling.reasons import pluralize
from tritonnb.telemetry.perfetto import slice_event

if TYPE_CHECKING:
    from tritonnb.recording.recording import Recording

TraceEvent = dict[str, Any]


def trace_events(rec: Recording) -> list[TraceEvent]:
    """The recording in the trace event format; times in microseconds from its beginning."""
    begin_ns = rec.span_ns[0]
    found: list[TraceEvent] = []
    models = sorted({each.model for each in rec.events} | set(rec.configs))
    for process, model in enumerate(models, 1):
        found += _model(rec.of(model), model, process, begin_ns)
    return found


def _model(rec: Recording, model: str, process: int, begin_ns: int) -> Iterator[TraceEvent]:
    yield _name("process_name", process, 0, model)
    lanes = {instance: lane for lane, instance in enumerate(rec.instances, 1)}
    for instance, lane in lanes.items():
        yield _name("thread_name", process, lane, instance)
    for batch in rec.batches:
        yield from _batch(batch, process, lanes[batch.instance], begin_ns)
    waiting = waits(rec)
    for wait in waiting:
        yield from _wait(wait, process, begin_ns)
    for time_ns, count in zip(*depth(waiting), strict=True):
        at = {"ph": "C", "name": "queue depth", "pid": process, "ts": (time_ns - begin_ns) / 1000}
        yield {**at, "args": {"requests": count}}


def _batch(batch: Batch, process: int, lane: int, begin_ns: int) -> Iterator[TraceEvent]:
    told = {
        "batch": batch.number,
        "requests": [each or "null" for each in batch.requests],
        "rows": batch.size,
        "why": batch.why,
        "queue_ms": batch.queue_ns / 1e6,
        "queue_depth": batch.queue_depth,
    }
    stamps = (batch.exec_start_ns, batch.compute_start_ns, batch.compute_end_ns, batch.exec_end_ns)
    start, computes, computed, end = (each - begin_ns for each in stamps)
    yield slice_event(pluralize(batch.size, "row"), start, end, process, lane, told)
    yield slice_event("compute input", start, computes, process, lane, {})
    yield slice_event("compute infer", computes, computed, process, lane, {})
    yield slice_event("compute output", computed, end, process, lane, {})


def _wait(wait: Wait, process: int, begin_ns: int) -> Iterator[TraceEvent]:
    """An asynchronous slice, since waits overlap."""
    same = {"cat": "waiting", "name": f"request {wait.label}", "id": wait.serial, "pid": process, "tid": 0}
    told = {"rows": wait.size, "priority": wait.priority, **({"refused": wait.refused} if wait.refused else {})}
    yield {**same, "ph": "b", "ts": (wait.begin_ns - begin_ns) / 1000, "args": told}
    yield {**same, "ph": "e", "ts": (wait.end_ns - begin_ns) / 1000, "args": {}}


def _name(kind: str, process: int, lane: int, name: str) -> TraceEvent:
    return {"ph": "M", "name": kind, "pid": process, "tid": lane, "args": {"name": name}}
