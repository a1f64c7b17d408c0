"""Trace files as timelines for Perfetto (https://ui.perfetto.dev) and ``chrome://tracing``.

Reads the files of a real Triton, too. A model is a process; its requests lie in lanes, so that those that
overlap in time are drawn one below the other, and each holds the slices of its stages.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

#: Slices of a request: name, first and last time stamp.
STAGES = (
    ("queue", "QUEUE_START", "COMPUTE_START"),
    ("compute input", "COMPUTE_START", "COMPUTE_INPUT_END"),
    ("compute infer", "COMPUTE_INPUT_END", "COMPUTE_OUTPUT_START"),
    ("compute output", "COMPUTE_OUTPUT_START", "COMPUTE_END"),
)


@dataclass(slots=True)
class _Request:
    identity: dict[str, Any] = field(default_factory=dict)
    stamps: dict[str, int] = field(default_factory=dict)

    @property
    def begin(self) -> int:
        return min(self.stamps.values())

    @property
    def end(self) -> int:
        return max(self.stamps.values())


def to_perfetto(entries: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
    """The entries of trace files in the trace event format.

    Parameters
    ----------
    entries : iterable of mappings
        The lists of one or several files, one after the other.

    Returns
    -------
    dict
        ``{"traceEvents": [...]}``, times in microseconds.
    """
    requests: dict[int, _Request] = {}
    for entry in entries:
        request = requests.setdefault(entry["id"], _Request())
        if "model_name" in entry:
            request.identity = dict(entry)
        for stamp in entry.get("timestamps", ()):
            # How long a gRPC endpoint has been waiting says nothing of the request.
            if not stamp["name"].startswith("GRPC_WAITREAD"):
                request.stamps[stamp["name"]] = stamp["ns"]
    by_model: dict[str, list[_Request]] = {}
    for request in sorted((each for each in requests.values() if each.stamps), key=lambda each: each.begin):
        by_model.setdefault(request.identity.get("model_name", "unknown"), []).append(request)
    events: list[dict[str, Any]] = []
    for process, (model, listed) in enumerate(sorted(by_model.items()), 1):
        events.append({"ph": "M", "name": "process_name", "pid": process, "args": {"name": model}})
        for lane, request in _in_lanes(listed):
            events += _slices(request, process, lane)
    return {"traceEvents": events, "displayTimeUnit": "ms"}


def _in_lanes(requests: list[_Request]) -> Iterable[tuple[int, _Request]]:
    """Each request with the lowest lane that is free when it begins."""
    ends: list[tuple[int, int]] = []
    free: list[int] = []
    lanes = 0
    for request in requests:
        while ends and ends[0][0] <= request.begin:
            heapq.heappush(free, heapq.heappop(ends)[1])
        if not free:
            lanes += 1
            heapq.heappush(free, lanes)
        lane = heapq.heappop(free)
        heapq.heappush(ends, (request.end, lane))
        yield lane, request


def _slices(request: _Request, process: int, lane: int) -> Iterable[dict[str, Any]]:
    title = request.identity.get("request_id") or f"request {request.identity.get('id', '')}".rstrip()
    yield slice_event(title, request.begin, request.end, process, lane, request.identity)
    for name, first, last in STAGES:
        if first in request.stamps and last in request.stamps:
            yield slice_event(name, request.stamps[first], request.stamps[last], process, lane, {})


def slice_event(name: str, begin: int, end: int, process: int, lane: int, arguments: dict[str, Any]) -> dict[str, Any]:
    """Something that lasted, in the trace event format; times in ns."""
    return {
        "ph": "X",
        "name": name,
        "ts": begin / 1000,
        "dur": (end - begin) / 1000,
        "pid": process,
        "tid": lane,
        "args": arguments,
    }
