"""A recording in numbers, and in one sentence."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tritonnb.core.protobuf import model_config_pb2 as pb
from tritonnb.scheduling.reasons import pluralize
from tritonnb.telemetry.quantiles import quantile

if TYPE_CHECKING:
    from tritonnb.recording.batches import Batch
    from tritonnb.recording.recording import Recording


def summary(recording: Recording) -> dict[str, Any]:
    """The figures of a recording; times in milliseconds.

    ``rate`` is in requests a second, from the first reception to the end of the last execution; of a simulation it is
    virtual. ``rows_batched`` is the part of the rows that shared a batch with another request's.
    """
    requests, batches = recording.requests, recording.batches
    latencies = sorted(each.latency_ns / 1e6 for each in requests)
    rows = sum(each.size for each in requests)
    alone = {each.number for each in batches if len(each.requests) - each.requests.count(None) == 1}
    together = sum(each.size for each in requests if each.batch not in alone)
    span_ns = max((each.exec_end_ns for each in requests), default=0)
    span_ns -= min((each.received_ns for each in requests), default=0)
    return {
        "requests": len(requests),
        "rate": len(requests) / span_ns * 1e9 if span_ns else 0.0,
        "rows": rows,
        "batches": len(batches),
        "refused": len(recording.refused),
        "failed": sum(1 for each in requests if each.failed),
        "mean_batch_size": rows / len(batches) if batches else 0.0,
        "rows_batched": together / rows if rows else 0.0,
        "null_rows": sum(each.requests.count(None) for each in batches),
        "longest_queue_ms": max((each.queue_ns / 1e6 for each in requests), default=0.0),
        "latency_p50_ms": quantile(latencies, 0.50),
        "latency_p99_ms": quantile(latencies, 0.99),
    }


def verdict(recording: Recording) -> str:
    """What a recording shows, in one sentence."""
    if not recording.batches:
        refused = recording.refused
        why = f": {len(refused)} refused, the first with '{refused[0].message}'" if refused else ""
        return f"Nothing was executed{why}."
    found = summary(recording)
    words = (
        f"{pluralize(found['requests'], 'request')} ran in {pluralize(found['batches'], 'batch', 'batches')}: "
        f"mean batch {found['mean_batch_size']:.1f} rows; {found['rows_batched']:.0%} of rows shared a batch; "
        f"the oldest request waited {_waited(recording, found['longest_queue_ms'])}"
    )
    for name in ("refused", "failed"):
        words += f"; {found[name]} {name}" if found[name] else ""
    return f"{words}."


def _waited(recording: Recording, longest_ms: float) -> str:
    """The longest wait, beside what the configuration allows, if it says so."""
    configs = list(recording.configs.values())
    allowed = _delay_us(configs[0]) / 1000 if len(configs) == 1 else 0
    if not allowed:
        return f"{longest_ms:.1f} ms"
    if longest_ms <= 1.05 * allowed:
        return f"{longest_ms:.1f} ms of {allowed:g} ms allowed"
    if _found_idle(max(recording.batches, key=lambda each: each.queue_ns)):
        return f"{longest_ms:.1f} ms: max_queue_delay {allowed:g} ms, and the way to an idle instance"
    return f"{longest_ms:.1f} ms: longer than max_queue_delay {allowed:g} ms, for want of a free instance"


def _found_idle(batch: Batch) -> bool:
    """Whether an instance was free when the batch was ready."""
    return bool(batch.reason.facts.get("idle_ns")) and not batch.reason.facts.get("ready_ns")


def _delay_us(config: pb.ModelConfig) -> int:
    """How long a request may be held back for others to join."""
    if not config.HasField("sequence_batching"):
        return int(config.dynamic_batching.max_queue_delay_microseconds)
    sequences = config.sequence_batching
    strategy = sequences.oldest if sequences.HasField("oldest") else sequences.direct
    return int(strategy.max_queue_delay_microseconds)
