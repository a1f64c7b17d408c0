"""The statistics extension, computed from the event stream.

Triton's *Statistics Extension* document defines the numbers: ``inference_count`` counts rows, ``execution_count``
counts executions. Every request of a batch is charged the full compute time of the batch, and ``batch_stats`` once
per execution.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, cast

from tritonnb.core import events
from tritonnb.telemetry.statistics_entry import ComputeEntry, DurationEntry, ResponseEntry, StatisticsEntry


class Duration:
    """A number of occurrences, and their total duration in nanoseconds."""

    __slots__ = ("count", "ns")

    def __init__(self) -> None:
        self.count = 0
        self.ns = 0

    def add(self, ns: int, count: int = 1) -> None:
        """Add ``count`` occurrences that took ``ns`` in total."""
        self.count += count
        self.ns += ns

    def to_dict(self) -> DurationEntry:
        """Return the entry in the statistics extension."""
        return {"count": self.count, "ns": self.ns}


class _Compute:
    """The three compute durations that requests and batches share."""

    __slots__ = ("infer", "input", "output")

    def __init__(self) -> None:
        self.input = Duration()
        self.infer = Duration()
        self.output = Duration()

    def add(self, input_ns: int, infer_ns: int, output_ns: int, count: int = 1) -> None:
        """Add the times of an execution, once for each of ``count`` requests."""
        self.input.add(input_ns * count, count)
        self.infer.add(infer_ns * count, count)
        self.output.add(output_ns * count, count)

    def to_dict(self) -> ComputeEntry:
        return {
            "compute_input": self.input.to_dict(),
            "compute_infer": self.infer.to_dict(),
            "compute_output": self.output.to_dict(),
        }


class _Responses:
    """``response_stats`` of one response index of a decoupled model."""

    def __init__(self) -> None:
        self._durations = {name: Duration() for name in ResponseEntry.__annotations__}

    def add(self, event: events.ResponseSent) -> None:
        if event.outcome != "cancel":
            self._durations["compute_infer"].add(event.elapsed_ns)
        if event.outcome == "success":
            self._durations["compute_output"].add(0)
        total = "empty_response" if event.outcome == "empty" else event.outcome
        self._durations[total].add(event.elapsed_ns)

    def to_dict(self) -> ResponseEntry:
        return cast(ResponseEntry, {name: duration.to_dict() for name, duration in self._durations.items()})


class ModelStatistics:
    """Statistics of one model version since it was loaded."""

    def __init__(self, name: str, version: int) -> None:
        self.name = name
        self.version = version
        self.last_inference_ms = 0
        self.inference_count = 0
        self.execution_count = 0
        self.success = Duration()
        self.queue = Duration()
        self.compute = _Compute()
        self.cache_hit = Duration()
        self.cache_miss = Duration()
        self.fail = Duration()
        self.fail_reasons = {"REJECTED": 0, "CANCELED": 0, "BACKEND": 0, "OTHER": 0}
        self.batches: dict[int, _Compute] = {}
        self.sent_by_rule: dict[str, int] = {}
        self.responses: dict[int, _Responses] = {}
        self.memory_usage: dict[tuple[str, int], int] = {}
        #: How often each instance was lost, and why it was lost last.
        self.lost_instances: dict[str, tuple[int, str]] = {}
        self._folds: dict[type, Callable[[Any], None]] = {
            events.BatchSent: self._batch_sent,
            events.BatchExecuted: self._batch_executed,
            events.RequestRefused: self._request_refused,
            events.ResponseSent: self._response_sent,
            events.EnsembleExecuted: self._ensemble_executed,
            events.CacheHit: self._cache_hit,
            events.CacheMiss: self._cache_miss,
            events.InstanceStateChanged: self._instance_state_changed,
        }

    def fold(self, event: events.Event) -> None:
        """Update the statistics with an event of this model version; other types of events are ignored."""
        fold = self._folds.get(type(event))
        if fold is not None:
            fold(event)

    def to_dict(self) -> StatisticsEntry:
        """Return the entry in ``model_stats``, with the members in Triton's order."""
        compute = self.compute.to_dict()
        return {
            "name": self.name,
            "version": str(self.version),
            "last_inference": self.last_inference_ms,
            "inference_count": self.inference_count,
            "execution_count": self.execution_count,
            "inference_stats": {
                "success": self.success.to_dict(),
                "fail": self.fail.to_dict(),
                "queue": self.queue.to_dict(),
                **compute,
                "cache_hit": self.cache_hit.to_dict(),
                "cache_miss": self.cache_miss.to_dict(),
            },
            "response_stats": {str(index): self.responses[index].to_dict() for index in sorted(self.responses)},
            "batch_stats": [{"batch_size": size, **self.batches[size].to_dict()} for size in sorted(self.batches)],
            "memory_usage": [
                {"type": kind, "id": device, "byte_size": size}
                for (kind, device), size in sorted(self.memory_usage.items())
            ],
        }

    # The three kinds of events that a served request causes; a server passes their fields without an object.

    def batch_sent(self, rule: str) -> None:
        """Count a `BatchSent`."""
        self.sent_by_rule[rule] = self.sent_by_rule.get(rule, 0) + 1

    def batch_executed(
        self,
        size: int,
        exec_start_ns: int,
        compute_start_ns: int,
        compute_end_ns: int,
        exec_end_ns: int,
        requests: tuple[events.ExecutedRequest, ...],
    ) -> None:
        """Count a `BatchExecuted` with these fields."""
        input_ns, infer_ns = compute_start_ns - exec_start_ns, compute_end_ns - compute_start_ns
        output_ns = exec_end_ns - compute_end_ns
        self._batch(size).add(input_ns, infer_ns, output_ns)
        successes = total = queue = 0
        for _, rows, received_ns, queued_ns, failed in requests:
            if failed:
                self._failed(failed, exec_end_ns - received_ns)
                continue
            successes += 1
            self.inference_count += rows
            total += exec_end_ns - received_ns
            queue += exec_start_ns - queued_ns
        if successes:
            self.success.add(total, successes)
            self.queue.add(queue, successes)
            self.compute.add(input_ns, infer_ns, output_ns, successes)

    def ensemble_executed(
        self,
        time_ns: int,
        size: int,
        received_ns: int,
        queued_ns: int,
        started_ns: int,
        compute_ns: tuple[int, int, int],
        failed: str,
    ) -> None:
        """Count an `EnsembleExecuted` with these fields."""
        total = time_ns - received_ns
        if failed:
            self._failed(failed, total)
            self._failed(failed, total)  # Triton counts it with the response, and again with its statistics
            return
        gather, infer, scatter = compute_ns
        self._batch(size).add(gather, infer, scatter)
        self.inference_count += size
        self.success.add(total)
        self.queue.add(started_ns - queued_ns)
        self.compute.add(gather, infer, scatter)

    def _batch_sent(self, event: events.BatchSent) -> None:
        self.batch_sent(event.rule)

    def _batch_executed(self, event: events.BatchExecuted) -> None:
        start, end = event.exec_start_ns, event.exec_end_ns
        self.batch_executed(event.size, start, event.compute_start_ns, event.compute_end_ns, end, event.requests)

    def _ensemble_executed(self, event: events.EnsembleExecuted) -> None:
        times = event.compute_input_ns, event.compute_infer_ns, event.compute_output_ns
        self.ensemble_executed(
            event.time_ns, event.size, event.received_ns, event.queued_ns, event.started_ns, times, event.failed
        )

    def _batch(self, size: int) -> _Compute:
        """Count an execution with this many rows; return the statistics of that batch size."""
        self.execution_count += 1
        self.last_inference_ms = time.time_ns() // 1_000_000
        batch = self.batches.get(size)
        if batch is None:
            batch = self.batches[size] = _Compute()
        return batch

    def _cache_hit(self, event: events.CacheHit) -> None:
        self.cache_hit.add(event.lookup_ns)
        self.success.add(event.time_ns - event.received_ns)
        self.queue.add(event.time_ns - event.lookup_ns - event.received_ns)

    def _cache_miss(self, event: events.CacheMiss) -> None:
        self.cache_miss.add(event.elapsed_ns)
        self.success.ns += event.elapsed_ns

    def _request_refused(self, event: events.RequestRefused) -> None:
        if event.counted_as:
            self._failed(event.counted_as, event.time_ns - event.received_ns)

    def _response_sent(self, event: events.ResponseSent) -> None:
        if event.index not in self.responses:
            self.responses[event.index] = _Responses()
        self.responses[event.index].add(event)

    def _instance_state_changed(self, event: events.InstanceStateChanged) -> None:
        if event.state == "LOST":
            count, _ = self.lost_instances.get(event.instance, (0, ""))
            self.lost_instances[event.instance] = (count + 1, event.reason)

    def _failed(self, reason: str, ns: int) -> None:
        self.fail.add(ns)
        self.fail_reasons[reason] += 1
