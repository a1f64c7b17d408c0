"""The statistics extension, one rule at a time, from hand-made events."""

from __future__ import annotations

import time
from typing import Any

import pytest

from tritonnb.core.events import (
    BatchExecuted,
    CacheHit,
    CacheMiss,
    EnsembleExecuted,
    Event,
    ExecutedRequest,
    ModelStateChanged,
    RequestRefused,
    ResponseSent,
)
from tritonnb.telemetry.statistics import ModelStatistics

MODEL = ("m", 1)


def executed(*requests: ExecutedRequest, size: int, start: int = 100) -> BatchExecuted:
    """A batch that took 10 ns to gather, 20 to run, and 30 to scatter."""
    return BatchExecuted(start + 60, *MODEL, 1, "m_0_0", size, start, start + 10, start + 30, start + 60, requests)


def request(serial: int, size: int = 1, failed: str = "") -> ExecutedRequest:
    """Received at 10, queued at 40."""
    return serial, size, 10, 40, failed


def folded(*events: Event) -> Any:
    statistics = ModelStatistics(*MODEL)
    for event in events:
        statistics.fold(event)
    return statistics.to_dict()


def test_statistics_of_unused_model_have_all_fields_at_zero() -> None:
    entry = folded()
    assert list(entry) == [
        "name", "version", "last_inference", "inference_count", "execution_count",
        "inference_stats", "response_stats", "batch_stats", "memory_usage",
    ]  # fmt: skip
    assert list(entry["inference_stats"]) == [
        "success", "fail", "queue", "compute_input", "compute_infer", "compute_output",
        "cache_hit", "cache_miss",
    ]  # fmt: skip
    assert entry["inference_stats"]["success"] == {"count": 0, "ns": 0}


def test_inference_count_counts_rows_and_execution_count_counts_batches() -> None:
    entry = folded(executed(request(1, 2), request(2, 3), size=5))
    assert (entry["inference_count"], entry["execution_count"]) == (5, 1)


def test_every_request_counts_the_time_of_the_whole_batch_once() -> None:
    entry = folded(executed(request(1), request(2), size=2))
    assert entry["inference_stats"]["success"] == {"count": 2, "ns": 2 * 150}
    assert entry["inference_stats"]["queue"] == {"count": 2, "ns": 2 * 60}
    assert entry["inference_stats"]["compute_infer"] == {"count": 2, "ns": 2 * 20}
    assert entry["batch_stats"] == [
        {
            "batch_size": 2,
            "compute_input": {"count": 1, "ns": 10},
            "compute_infer": {"count": 1, "ns": 20},
            "compute_output": {"count": 1, "ns": 30},
        }
    ]


def test_batch_stats_are_sorted_by_size_and_count_null_rows() -> None:
    entry = folded(executed(request(1), size=4), executed(request(2), size=1))
    assert [batch["batch_size"] for batch in entry["batch_stats"]] == [1, 4]
    assert entry["inference_count"] == 2


def test_failed_request_counts_only_as_failed_but_its_batch_counts() -> None:
    entry = folded(executed(request(1, failed="BACKEND"), size=1))
    assert entry["inference_stats"]["fail"] == {"count": 1, "ns": 150}
    assert entry["inference_stats"]["success"]["count"] == 0
    assert (entry["inference_count"], entry["execution_count"]) == (0, 1)


def test_request_that_expired_in_the_queue_counts_as_failed() -> None:
    entry = folded(RequestRefused(70, *MODEL, 1, 1, 20, "Request timeout expired", "REJECTED"))
    assert entry["inference_stats"]["fail"] == {"count": 1, "ns": 50}


def test_request_refused_before_the_queue_is_not_counted() -> None:
    entry = folded(RequestRefused(70, *MODEL, 1, 1, 20, "Exceeds maximum queue size", ""))
    assert entry["inference_stats"]["fail"] == {"count": 0, "ns": 0}


def test_decoupled_responses_are_counted_by_their_index() -> None:
    entry = folded(
        ResponseSent(10, *MODEL, 1, 0, "success", 5),
        ResponseSent(20, *MODEL, 1, 1, "empty", 7),
    )
    assert entry["response_stats"]["0"]["success"] == {"count": 1, "ns": 5}
    assert entry["response_stats"]["1"]["empty_response"] == {"count": 1, "ns": 7}


@pytest.mark.parametrize(
    ("outcome", "counted"),
    [
        ("success", ["compute_infer", "compute_output", "success"]),
        ("fail", ["compute_infer", "fail"]),
        ("empty", ["compute_infer", "empty_response"]),
        ("cancel", ["cancel"]),
    ],
)
def test_response_is_counted_by_its_outcome(outcome: str, counted: list[str]) -> None:
    stats = folded(ResponseSent(10, *MODEL, 1, 3, outcome, 5))["response_stats"]["3"]
    assert list(stats) == ["cancel", "compute_infer", "compute_output", "empty_response", "fail", "success"]
    assert [name for name, entry in stats.items() if entry["count"]] == counted
    assert {entry["ns"] for name, entry in stats.items() if name in counted} <= {0, 5}
    assert stats[counted[0]] == stats[counted[-1]] == {"count": 1, "ns": 5}


def test_responses_of_one_index_add_up_and_indices_are_in_order() -> None:
    events = [ResponseSent(10, *MODEL, serial, index, "success", 5) for serial in (1, 2) for index in (10, 2)]
    stats = folded(*events)["response_stats"]
    assert list(stats) == ["2", "10"]
    assert stats["2"]["success"] == {"count": 2, "ns": 10}
    assert stats["2"]["compute_output"] == {"count": 2, "ns": 0}


def test_ensemble_times_are_sums_over_its_steps() -> None:
    entry = folded(EnsembleExecuted(500, *MODEL, 1, 3, 100, 110, 130, 10, 20, 30, ""))
    assert (entry["inference_count"], entry["execution_count"]) == (3, 1)
    computed = {
        "compute_input": {"count": 1, "ns": 10},
        "compute_infer": {"count": 1, "ns": 20},
        "compute_output": {"count": 1, "ns": 30},
    }
    nothing = {"count": 0, "ns": 0}
    assert entry["batch_stats"] == [{"batch_size": 3, **computed}]
    assert entry["inference_stats"] == {
        "success": {"count": 1, "ns": 400},
        "fail": nothing,
        "queue": {"count": 1, "ns": 20},
        **computed,
        "cache_hit": nothing,
        "cache_miss": nothing,
    }


def test_failed_ensemble_counts_as_two_failures_only() -> None:
    entry = folded(EnsembleExecuted(500, *MODEL, 1, 3, 100, 110, 130, 10, 20, 30, "OTHER"))
    assert entry["inference_stats"]["fail"] == {"count": 2, "ns": 800}
    assert entry["inference_stats"]["success"]["count"] == 0
    assert (entry["inference_count"], entry["execution_count"], entry["batch_stats"]) == (0, 0, [])


def test_cache_hit_counts_as_success_with_lookup_time_as_queue_time() -> None:
    entry = folded(CacheHit(170, *MODEL, 1, 100, 20))
    stats = entry["inference_stats"]
    assert stats["cache_hit"] == {"count": 1, "ns": 20}
    assert stats["success"] == {"count": 1, "ns": 70}
    assert stats["queue"] == {"count": 1, "ns": 50}
    assert (entry["inference_count"], entry["execution_count"], entry["last_inference"]) == (0, 0, 0)


def test_cache_miss_adds_to_the_request_time_and_counts_no_request() -> None:
    stats = folded(executed(request(1), size=1), CacheMiss(200, *MODEL, 1, 15))["inference_stats"]
    assert stats["cache_miss"] == {"count": 1, "ns": 15}
    assert stats["success"] == {"count": 1, "ns": 150 + 15}


def test_failures_are_counted_by_reason() -> None:
    statistics = ModelStatistics(*MODEL)
    statistics.fold(executed(request(1, failed="BACKEND"), request(2), size=2))
    statistics.fold(RequestRefused(70, *MODEL, 1, 1, 20, "Request timeout expired", "REJECTED"))
    statistics.fold(RequestRefused(80, *MODEL, 1, 1, 20, "", "CANCELED"))
    statistics.fold(RequestRefused(90, *MODEL, 1, 1, 20, "", "CANCELED"))
    assert statistics.fail_reasons == {"REJECTED": 1, "CANCELED": 2, "BACKEND": 1, "OTHER": 0}


def test_last_inference_is_the_end_of_the_last_execution_in_milliseconds_since_1970() -> None:
    before = time.time_ns() // 1_000_000
    assert before <= folded(executed(request(1), size=1))["last_inference"] <= time.time_ns() // 1_000_000


def test_unrelated_events_are_ignored() -> None:
    assert folded(ModelStateChanged(5, *MODEL, "READY", "")) == folded()


def test_memory_is_listed_by_kind_and_device() -> None:
    statistics = ModelStatistics(*MODEL)
    statistics.memory_usage = {("GPU", 1): 5, ("GPU", 0): 6, ("CPU", 0): 7}
    assert statistics.to_dict()["memory_usage"] == [
        {"type": "CPU", "id": 0, "byte_size": 7},
        {"type": "GPU", "id": 0, "byte_size": 6},
        {"type": "GPU", "id": 1, "byte_size": 5},
    ]
