"""Trace files as timelines for Perfetto (https://ui.perfetto.dev) and ``chrome://tracing``.

Trace files that Triton wrote can also be converted. A model is a process of the timeline, and a lane is one of its
threads: requests that overlap in time are in different lanes. Each request contains the slices of its stages.

The format is the JSON trace event format: https://perfetto.dev/docs/getting-started/other-formats.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from tritonnb.telemetry.lanes import assign_lanes
from tritonnb.telemetry.trace_entry import PerfettoTrace, TraceEntry, TraceEvent

#: Slices of a request: name, first and last time stamp.
STAGES = (
    ("queue", "QUEUE_START", "COMPUTE_START"),
    ("compute input", "COMPUTE_START", "COMPUTE_INPUT_END"),
    ("compute infer", "COMPUTE_INPUT_END", "COMPUTE_OUTPUT_START"),
    ("compute output", "COMPUTE_OUTPUT_START", "COMPUTE_END"),
)


@dataclass(slots=True)
class _Request:
    identity: TraceEntry
    stamps: dict[str, int] = field(default_factory=dict)

    @property
    def begin_ns(self) -> int:
        return min(self.stamps.values())

    @property
    def end_ns(self) -> int:
        return max(self.stamps.values())


def to_perfetto(entries: Iterable[TraceEntry]) -> PerfettoTrace:
    """Convert the entries of trace files to the trace event format.

    Parameters
    ----------
    entries : iterable of mappings
        The entries of one file, or of several files one after the other.

    Returns
    -------
    dict
        ``{"traceEvents": [...]}``, times in microseconds.
    """
    requests: dict[int, _Request] = {}
    for entry in entries:
        request = requests.setdefault(entry["id"], _Request({"id": entry["id"]}))
        if "model_name" in entry:
            request.identity = entry
        for stamp in entry.get("timestamps", ()):
            # These start before the request arrives, while the gRPC endpoint waits for any request.
            if not stamp["name"].startswith("GRPC_WAITREAD"):
                request.stamps[stamp["name"]] = stamp["ns"]
    by_model: dict[str, list[_Request]] = {}
    for request in sorted(
        (request for request in requests.values() if request.stamps), key=lambda request: request.begin_ns
    ):
        by_model.setdefault(request.identity.get("model_name", "unknown"), []).append(request)
    events: list[TraceEvent] = []
    for process, (model, model_requests) in enumerate(sorted(by_model.items()), 1):
        events.append(name_event("process_name", process, 0, model))
        lanes = assign_lanes((request.begin_ns, request.end_ns) for request in model_requests)
        for lane, request in zip(lanes, model_requests, strict=True):
            events += _slices(request, process, lane + 1)
    return {"traceEvents": events, "displayTimeUnit": "ms"}


def _slices(request: _Request, process: int, lane: int) -> Iterable[TraceEvent]:
    title = request.identity.get("request_id") or f"request {request.identity.get('id', '')}".rstrip()
    yield slice_event(title, request.begin_ns, request.end_ns, process, lane, request.identity)
    for name, first, last in STAGES:
        if first in request.stamps and last in request.stamps:
            yield slice_event(name, request.stamps[first], request.stamps[last], process, lane, {})


def slice_event(
    name: str, begin_ns: int, end_ns: int, process: int, lane: int, arguments: Mapping[str, object]
) -> TraceEvent:
    """Return a complete event: something with a begin and an end.

    Parameters
    ----------
    name : str
    begin_ns, end_ns : int
    process, lane : int
        Numbers of the process and of the thread that show the event.
    arguments : dict
        Details, shown when the slice is selected.

    Returns
    -------
    dict
        The event, with times in microseconds.

    Examples
    --------
    >>> slice_event("compute", 2000, 5000, 1, 1, {})
    {'ph': 'X', 'name': 'compute', 'ts': 2.0, 'dur': 3.0, 'pid': 1, 'tid': 1, 'args': {}}
    """
    return {
        "ph": "X",
        "name": name,
        "ts": begin_ns / 1000,
        "dur": (end_ns - begin_ns) / 1000,
        "pid": process,
        "tid": lane,
        "args": dict(arguments),
    }


def name_event(kind: str, process: int, lane: int, name: str) -> TraceEvent:
    """Return the metadata event that names a process or a lane.

    Parameters
    ----------
    kind : str
        ``"process_name"`` or ``"thread_name"``.
    process, lane : int
    name : str
    """
    return {"ph": "M", "name": kind, "pid": process, "tid": lane, "args": {"name": name}}
