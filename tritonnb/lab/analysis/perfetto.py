"""A recording as a trace for Perfetto (https://ui.perfetto.dev) and ``chrome://tracing``.

A model is a process and an instance is a thread with its batches, each divided into compute input, infer and output.
Waiting requests are asynchronous slices, and a counter shows the queue depth.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path

from tritonnb.core.failures import with_short_traceback
from tritonnb.core.option_types import with_checked_types
from tritonnb.recording.batches import Batch
from tritonnb.recording.recording import Recording
from tritonnb.recording.waits import Wait, queue_depth, waits_of
from tritonnb.scheduling.reasons import pluralize
from tritonnb.telemetry.perfetto import name_event, slice_event
from tritonnb.telemetry.trace_entry import TraceEvent


@with_short_traceback
@with_checked_types
def to_perfetto(rec: Recording, path: str | os.PathLike[str]) -> None:
    """Write the recording as a trace for https://ui.perfetto.dev.

    Parameters
    ----------
    path : path
        File to write (JSON, Chrome's trace event format).
    """
    content = json.dumps({"traceEvents": trace_events(rec), "displayTimeUnit": "ms"})
    Path(path).write_text(content, encoding="utf-8")


def trace_events(rec: Recording) -> list[TraceEvent]:
    """Return the recording in the trace event format; timestamps in microseconds from its beginning."""
    begin_ns = rec.span_ns[0]
    events: list[TraceEvent] = []
    models = sorted({event.model for event in rec.events} | set(rec.configs))
    for process, model in enumerate(models, 1):
        events += _model(rec.for_model(model), model, process, begin_ns)
    return events


def _model(rec: Recording, model: str, process: int, begin_ns: int) -> Iterator[TraceEvent]:
    yield name_event("process_name", process, 0, model)
    lanes = {instance: lane for lane, instance in enumerate(rec.instances, 1)}
    for instance, lane in lanes.items():
        yield name_event("thread_name", process, lane, instance)
    for batch in rec.batches:
        yield from _batch(batch, process, lanes[batch.instance], begin_ns)
    waiting = waits_of(rec)
    for wait in waiting:
        yield from _wait(wait, process, begin_ns)
    for time_ns, count in zip(*queue_depth(waiting), strict=True):
        at = (time_ns - begin_ns) / 1000
        yield {"ph": "C", "name": "queue depth", "pid": process, "ts": at, "args": {"requests": count}}


def _batch(batch: Batch, process: int, lane: int, begin_ns: int) -> Iterator[TraceEvent]:
    details = {
        "batch": batch.number,
        "requests": [request or "null" for request in batch.requests],
        "rows": batch.size,
        "why": batch.why,
        "queue_ms": batch.queue_ns / 1e6,
        "queue_depth": batch.queue_depth,
    }
    stamps = (batch.exec_start_ns, batch.compute_start_ns, batch.compute_end_ns, batch.exec_end_ns)
    start, computes, computed, end = (time_ns - begin_ns for time_ns in stamps)
    yield slice_event(pluralize(batch.size, "row"), start, end, process, lane, details)
    yield slice_event("compute input", start, computes, process, lane, {})
    yield slice_event("compute infer", computes, computed, process, lane, {})
    yield slice_event("compute output", computed, end, process, lane, {})


def _wait(wait: Wait, process: int, begin_ns: int) -> Iterator[TraceEvent]:
    """Yield an asynchronous slice, since waits overlap."""
    details = {"rows": wait.size, "priority": wait.priority, **({"refused": wait.refused} if wait.refused else {})}
    for phase, time_ns, arguments in (("b", wait.begin_ns, details), ("e", wait.end_ns, {})):
        yield {
            "cat": "waiting",
            "name": f"request {wait.label}",
            "id": wait.serial,
            "pid": process,
            "tid": 0,
            "ph": phase,
            "ts": (time_ns - begin_ns) / 1000,
            "args": arguments,
        }
