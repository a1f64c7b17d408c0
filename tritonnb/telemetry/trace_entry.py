"""The form of the entries of a trace file."""

from __future__ import annotations

from typing import Required, TypedDict

#: The time at which the scheduler sent the batch of a request, which traces of Triton do not have: it is when an
#: instance that is idle begins only if the thread of the instance gets a processor at once.
BATCH_SENT = "BATCH_SENT"


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
    """The batch of a traced request; only in traces that become spans.

    ``facts`` is JSON: the values that the rule used. ``index`` is the position of the request in the batch, and
    ``request_size`` its rows. ``sent_ns`` is the time of `BATCH_SENT`.
    """

    id: int
    size: int
    instance: str
    sent_ns: int
    rule: str
    facts: str
    index: int
    request_size: int
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
