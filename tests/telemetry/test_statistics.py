"""The statistics extension, one rule at a time, from hand-made events."""

from __future__ import annotations

from tritonnb.core.events import BatchExecuted, ExecutedRequest, RequestRefused, ResponseSent
from tritonnb.telemetry.statistics import ModelStatistics

MODEL = ("m", 1)


def executed(*requests: ExecutedRequest, size: int, start: int = 100) -> BatchExecuted:
    """A batch that took 10 ns to gather, 20 to run, and 30 to scatter."""
    return BatchExecuted(start + 60, *MODEL, 1, "m_0_0", size, start, start + 10, start + 30, start + 60, requests)


def request(serial: int, size: int = 1, failed: str = "") -> ExecutedRequest:
    """Received at 0, queued at 40."""
    return serial, size, 0, 40, failed


def folded(*events) -> dict:
    statistics = ModelStatistics(*MODEL)
    for event in events:
        statistics.fold(event)
    return statistics.to_dict()


def test_a_model_never_used_has_all_members_at_zero():
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


def test_inference_count_is_rows_and_execution_count_is_batches():
    entry = folded(executed(request(1, 2), request(2, 3), size=5))
    assert (entry["inference_count"], entry["execution_count"]) == (5, 1)


def test_every_request_of_a_batch_is_charged_the_whole_batch_and_the_batch_once():
    entry = folded(executed(request(1), request(2), size=2))
    assert entry["inference_stats"]["success"] == {"count": 2, "ns": 2 * 160}
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


def test_batch_stats_are_sorted_by_size_and_count_null_rows():
    entry = folded(executed(request(1), size=4), executed(request(2), size=1))
    assert [each["batch_size"] for each in entry["batch_stats"]] == [1, 4]
    assert entry["inference_count"] == 2


def test_a_failed_request_counts_only_as_failed_but_its_batch_counts():
    entry = folded(executed(request(1, failed="BACKEND"), size=1))
    assert entry["inference_stats"]["fail"] == {"count": 1, "ns": 160}
    assert entry["inference_stats"]["success"]["count"] == 0
    assert (entry["inference_count"], entry["execution_count"]) == (0, 1)


def test_a_request_that_expired_in_the_queue_counts_as_failed():
    entry = folded(RequestRefused(70, *MODEL, 1, 1, 20, "Request timeout expired", "REJECTED"))
    assert entry["inference_stats"]["fail"] == {"count": 1, "ns": 50}


def test_a_request_refused_before_the_queue_counts_nowhere():
    entry = folded(RequestRefused(70, *MODEL, 1, 1, 20, "Exceeds maximum queue size", ""))
    assert entry["inference_stats"]["fail"] == {"count": 0, "ns": 0}


def test_decoupled_responses_are_counted_by_their_index():
    entry = folded(
        ResponseSent(10, *MODEL, 1, 0, "success", 5),
        ResponseSent(20, *MODEL, 1, 1, "empty", 7),
    )
    assert entry["response_stats"]["0"]["success"] == {"count": 1, "ns": 5}
    assert entry["response_stats"]["1"]["empty_response"] == {"count": 1, "ns": 7}
