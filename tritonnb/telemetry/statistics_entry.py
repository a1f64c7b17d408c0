"""The form of the statistics extension's response, as the server returns it as JSON."""

from __future__ import annotations

from typing import TypedDict

#: The number of executions from which on an average is drawn as such, and may determine a scale.
SETTLED = 5


class DurationEntry(TypedDict):
    """The number of occurrences, and their total time in nanoseconds."""

    count: int
    ns: int


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
