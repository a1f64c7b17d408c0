"""The form of the statistics extension's response, as the server returns it as JSON, and differences of two."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypedDict

from tritonnb.core.json_types import Json

#: The number of executions from which on an average is drawn as such, and may determine a scale.
SETTLED = 5
#: A total that is above this number of ns (73 years) has wrapped around below zero.
UNDERFLOW_NS = 1 << 61


class DurationEntry(TypedDict):
    """The number of occurrences, and their total time in nanoseconds."""

    count: int
    ns: int


def has_wrapped(entry: DurationEntry) -> bool:
    """Return whether a total is a number below zero, in 64 bits without a sign: see server #8874."""
    return not 0 <= entry["ns"] < UNDERFLOW_NS


def mean_ms(entry: DurationEntry) -> float:
    """Return the mean duration in milliseconds; 0 if nothing happened."""
    return entry["ns"] / entry["count"] / 1e6 if entry["count"] else 0.0


class ComputeEntry(TypedDict):
    """The three parts of an execution."""

    compute_input: DurationEntry
    compute_infer: DurationEntry
    compute_output: DurationEntry


class BatchEntry(ComputeEntry):
    """The executions of one batch size."""

    batch_size: int


class InferenceEntry(ComputeEntry):
    """Requests by outcome, and the parts of the successful ones."""

    success: DurationEntry
    fail: DurationEntry
    queue: DurationEntry
    cache_hit: DurationEntry
    cache_miss: DurationEntry


class ResponseEntry(TypedDict):
    """The responses with one index of a decoupled model."""

    cancel: DurationEntry
    compute_infer: DurationEntry
    compute_output: DurationEntry
    empty_response: DurationEntry
    fail: DurationEntry
    success: DurationEntry


class MemoryEntry(TypedDict):
    """Memory of a model on one device, in bytes."""

    type: str
    id: int
    byte_size: int


class StatisticsEntry(TypedDict):
    """One entry of ``model_stats``: the statistics of a model version since it was loaded."""

    name: str
    version: str
    last_inference: int
    inference_count: int
    execution_count: int
    inference_stats: InferenceEntry
    response_stats: dict[str, ResponseEntry]
    batch_stats: list[BatchEntry]
    memory_usage: list[MemoryEntry]


class StatisticsResponse(TypedDict):
    """The response of the statistics extension."""

    model_stats: list[StatisticsEntry]


def difference(after: Mapping[str, object], before: Mapping[str, object]) -> Json:
    """Return the statistics of a model between two times.

    Parameters
    ----------
    after, before : mapping
        Two entries of ``model_stats`` of the same model version, as returned by ``server["name"].stats()``.

    Returns
    -------
    dict
        In the same form. Counters are subtracted; everything else is as in ``after``.

    Examples
    --------
    >>> entry = {"batch_size": 4, "compute_infer": {"count": 9, "ns": 90}}
    >>> earlier = {"batch_size": 4, "compute_infer": {"count": 2, "ns": 20}}
    >>> difference({"inference_count": 36, "batch_stats": [entry]}, {"inference_count": 8, "batch_stats": [earlier]})
    {'inference_count': 28, 'batch_stats': [{'batch_size': 4, 'compute_infer': {'count': 7, 'ns': 70}}]}
    """
    return {name: _subtracted(name, value, before.get(name)) for name, value in after.items()}


def _subtracted(name: str, value: Any, before: Any) -> object:
    if name == "batch_stats":
        known = {row["batch_size"]: row for row in before or ()}
        rows = [difference(row, known.get(row["batch_size"], {})) for row in value]
        return [row for row in rows if row["compute_infer"]["count"]]
    if isinstance(value, Mapping):
        return difference(value, before or {})
    counts = isinstance(value, int) and name not in ("batch_size", "last_inference")
    return value - (before or 0) if counts else value
