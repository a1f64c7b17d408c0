"""The form of the entries of a trace file."""

from __future__ import annotations

from typing import Required, TypedDict


class Stamp(TypedDict):
    """One time stamp, in nanoseconds of the monotonic clock."""

    name: str
    ns: int


class TraceTensor(TypedDict):
    """One tensor of a traced request; shape and elements are comma-separated."""

    name: str
    data: str
    shape: str
    dtype: str


class TraceBatch(TypedDict):
    """The batch of a traced request; only in traces that become spans."""

    id: int
    size: int
    rule: str
    wait_ns: int


class TraceEntry(TypedDict, total=False):
    """One entry: a request and its model, or time stamps, a tensor, or a batch; ``id`` is the number of the trace."""

    id: Required[int]
    model_name: str
    model_version: int
    request_id: str
    parent_id: int
    timestamps: list[Stamp]
    activity: str
    tensor: TraceTensor
    batch: TraceBatch


class TraceEvent(TypedDict, total=False):
    """One event of the JSON trace event format that Perfetto reads; times in microseconds."""

    ph: Required[str]
    name: Required[str]
    ts: float
    dur: float
    pid: int
    tid: int
    id: int
    cat: str
    s: str
    args: dict[str, object]


class PerfettoTrace(TypedDict):
    """A file in the JSON trace event format."""

    traceEvents: list[TraceEvent]
    displayTimeUnit: str
