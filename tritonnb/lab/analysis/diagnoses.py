"""Diagnoses: mismatches between a workload and a configuration, detected in a recording.

Each rule examines the recording of one model. Where it applies, it yields a sentence with the measured numbers and a
remedy.
"""

from __future__ import annotations

import itertools
import statistics
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import starmap
from typing import Any

from tritonnb.core.failures import with_short_traceback
from tritonnb.core.protobuf import model_config_pb2 as pb
from tritonnb.lab.analysis import execution_diagnoses as executions
from tritonnb.lab.analysis.offered_load import offered_load
from tritonnb.lab.analysis.pipeline_diagnoses import pipeline_findings
from tritonnb.recording.batches import last_executions
from tritonnb.recording.recording import Recording
from tritonnb.recording.sequences import IDLE
from tritonnb.scheduling import reasons
from tritonnb.scheduling.from_config import queue_delay_ns, sequence_batcher_settings
from tritonnb.scheduling.reasons import pluralize

#: Fewer requests or batches than this are not enough evidence.
_MIN_COUNT = 10
#: A client that waits for its response sends the next request within this multiple of the latency.
_CLOSED_LOOP_GAP = 2.0
#: A smaller share of null rows is not reported.
_NULL_SHARE = 0.2
#: A smaller share of batches that stopped accepting requests is not reported.
_CLOSED_SHARE = 0.2
#: A smaller share of the latencies that the rate limiter caused is not reported.
_LIMITED_SHARE = 0.1
#: Batching does not pay if it reduces the cost per row by less than this share.
_MIN_SAVING = 0.15
#: Utilization of instances at capacity, and rows in the server relative to the rows that can run at once.
_BUSY_SHARE, _EXCESS_RATIO = 0.9, 1.2


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """One mismatch found in a recording.

    Attributes
    ----------
    name : str
        Name of the rule, such as ``one_at_a_time``.
    model : str
    text : str
        The finding with its numbers, and the remedy.
    evidence : dict
        The numbers; times in milliseconds.
    """

    name: str
    model: str
    text: str
    evidence: Mapping[str, Any] = field(default_factory=dict)

    def __str__(self) -> str:
        return self.text


@with_short_traceback
def diagnoses(rec: Recording) -> list[Diagnosis]:
    """Find mismatches of workload and configuration, each with its evidence and a remedy; empty if none."""
    rec.require_every_request("diagnoses()")
    diagnoses = []
    models = {batch.model for batch in rec.batches}
    for name in sorted(models & rec.configs.keys()):
        model_recording = rec.for_model(name)
        subject = f"'{name}': " if len(models) > 1 else ""
        for rule, find in _RULES.items():
            findings = find(model_recording, rec.configs[name])
            diagnoses += [Diagnosis(rule, name, f"{subject}{text}", evidence) for text, evidence in findings]
    return [*starmap(Diagnosis, pipeline_findings(rec)), *diagnoses]


Findings = Iterator[tuple[str, Mapping[str, object]]]


def _one_at_a_time(rec: Recording, config: pb.ModelConfig) -> Findings:
    """Find a closed loop with one client: no batch can form."""
    requests = sorted(rec.requests, key=lambda request: request.received_ns)
    if len(requests) < _MIN_COUNT or not _batches(config):
        return
    gaps = [after.received_ns - before.exec_end_ns for before, after in itertools.pairwise(requests)]
    gap, latency = statistics.median(gaps), statistics.median(request.latency_ns for request in requests)
    if min(gaps) >= 0 and gap <= _CLOSED_LOOP_GAP * latency:
        evidence = {"requests": len(requests), "gap_ms": gap / 1e6, "latency_ms": latency / 1e6}
        yield (
            f"Concurrency is 1: no two of the {len(requests)} requests were in the server at the same time; each was "
            f"sent {gap / 1e6:.2f} ms (median) after the previous response. No batch can form: send several requests "
            f"at once, from more clients or with infer_async.",
            evidence,
        )


def _batching_without_effect(rec: Recording, config: pb.ModelConfig) -> Findings:
    """Find a dynamic batcher of a model that takes at most one row."""
    batches, rows = len(rec.batches), config.max_batch_size
    if batches < _MIN_COUNT or not config.HasField("dynamic_batching") or _batches(config):
        return
    yield (
        f"max_batch_size is {rows}, so each of the {batches} requests ran alone and dynamic_batching has no effect: "
        f"set max_batch_size to at least 2, if the model takes a batch as the first dimension.",
        {"batches": batches, "max_batch_size": rows},
    )


def _delay_never_reached(rec: Recording, config: pb.ModelConfig) -> Findings:
    """Find a delay that never expires because batches are complete before."""
    if config.max_batch_size <= 1:
        return
    delay_ms = queue_delay_ns(config) / 1e6
    rules = Counter(batch.reason.rule for batch in rec.batches)
    filled = sum(rules[rule] for rule in _FILLED)
    if delay_ms and len(rec.batches) >= _MIN_COUNT and not rules[reasons.DELAY_EXCEEDED] and filled == len(rec.batches):
        waited = max(batch.reason.facts.get("waited_ns", 0) for batch in rec.batches) / 1e6
        evidence = {"batches": filled, "delay_ms": delay_ms, "longest_wait_ms": waited}
        yield (
            f"max_queue_delay {delay_ms:g} ms was never reached: all {filled} batches were complete earlier, "
            f"after {waited:.2f} ms at the latest. A different delay has no effect; larger preferred batch sizes or a "
            f"larger max_batch_size would.",
            evidence,
        )


def _delay_splits_batches(rec: Recording, config: pb.ModelConfig) -> Findings:
    """Find batches whose delay expired while all instances were busy, so that later requests could not join."""
    if not _batches(config):
        return
    delay_us = config.dynamic_batching.max_queue_delay_microseconds
    closed = [batch for batch in rec.batches if batch.reason.facts.get("missed") and batch.reason.facts.get("ready_ns")]
    missed = sum(batch.reason.facts["missed"] for batch in closed)
    if delay_us and len(rec.batches) >= _MIN_COUNT and len(closed) >= _CLOSED_SHARE * len(rec.batches):
        execution_ms = statistics.median(batch.compute_ns for batch in rec.batches) / 1e6
        evidence = {"batches": len(rec.batches), "closed": len(closed), "missed": missed, "execution_ms": execution_ms}
        yield (
            f"max_queue_delay {delay_us / 1000:g} ms expired while all instances were busy: {len(closed)} of "
            f"{len(rec.batches)} batches waited for an instance without accepting more requests, so {missed} requests "
            f"had to wait for a later batch. An execution takes {execution_ms:.1f} ms (median): set "
            f"max_queue_delay_microseconds to 0, or to more than that.",
            evidence,
        )


def _rate_limited(rec: Recording, config: pb.ModelConfig) -> Findings:
    """Find instances that were free, and waited for resources of the rate limiter with a batch."""
    waits_ns = Counter[str]()
    for batch in rec.batches:
        if "limited_ns" in batch.reason.facts:
            waits_ns[batch.reason.facts["limited_by"]] += batch.reason.facts["limited_ns"]
    latency_ns = sum(request.latency_ns for request in rec.requests)
    limited = [batch for batch in rec.batches if batch.reason.facts.get("limited_ns")]
    held_ns = sum(batch.reason.facts["limited_ns"] * len(batch.requests) for batch in limited)
    if not limited or len(rec.batches) < _MIN_COUNT or held_ns < _LIMITED_SHARE * latency_ns:
        return
    ((cause, _),) = waits_ns.most_common(1)
    wait_ms = sum(waits_ns.values()) / len(limited) / 1e6
    evidence = {"batches": len(rec.batches), "limited": len(limited), "mean_wait_ms": wait_ms, "waited_for": cause}
    yield (
        f"The rate limiter held {len(limited)} of {len(rec.batches)} batches back for {wait_ms:.1f} ms on average "
        f"while an instance was free, most of the time for {cause}. Raise the resource with "
        f"--rate-limit-resource, lower its count in the instance groups that need it, or remove instances that cannot "
        f"run together.",
        evidence,
    )


def _null_rows(rec: Recording, config: pb.ModelConfig) -> Findings:
    """Find batches that the direct strategy pads with null requests."""
    batches = [batch for batch in rec.batches if batch.slots]
    rows = sum(batch.size for batch in batches)
    nulls = sum(batch.requests.count(None) for batch in batches)
    if len(batches) < _MIN_COUNT or nulls < _NULL_SHARE * rows:
        return
    full, slots = sum(1 for batch in batches if None not in batch.requests), config.max_batch_size
    evidence = {"nulls": nulls, "rows": rows, "batches": len(batches), "without_nulls": full}
    yield (
        f"{nulls / rows:.0%} of the rows were null requests: {nulls} of {rows} rows in {len(batches)} batches padded "
        f"slots below the highest ready slot, of {slots} slots. Set minimum_slot_utilization with "
        f"max_queue_delay_microseconds to wait until more slots are ready, or use the oldest strategy, which needs "
        f"no padding.",
        evidence,
    )


def _idle_timeout(rec: Recording, config: pb.ModelConfig) -> Findings:
    """Find a sequence that continued after the idle timeout had released its slot."""
    if not config.HasField("sequence_batching"):
        return
    limit_ms = sequence_batcher_settings(config, {}).max_sequence_idle_ns / 1e6
    ids = {serial: event.correlation_id for serial, event in rec.arrived.items()}
    refused = [refusal for refusal in rec.refused if "must specify the START flag" in refusal.message]
    reported = set()
    for occupancy in rec.slot_occupancy:
        silent_since = occupancy.requests[-1][1].queued_ns
        after = [
            refusal
            for refusal in refused
            if ids.get(refusal.serial) == occupancy.sequence and refusal.time_ns > silent_since
        ]
        if occupancy.ended == IDLE and after and occupancy.sequence not in reported:
            reported.add(occupancy.sequence)
            gap_ms = (after[0].time_ns - silent_since) / 1e6
            evidence = {"sequence": occupancy.sequence, "idle_ms": limit_ms, "gap_ms": gap_ms, "refused": len(after)}
            yield (
                f"Sequence {occupancy.sequence} lost slot {occupancy.slot} of {occupancy.instance} to the idle "
                f"timeout: its next request arrived after {gap_ms:.1f} ms, and max_sequence_idle_microseconds is "
                f"{limit_ms:g} ms, so {pluralize(len(after), 'request was', 'requests were')} refused because the "
                f"START flag is missing.",
                evidence,
            )


def _cost_in_proportion(rec: Recording, config: pb.ModelConfig) -> Findings:
    """Find an execution time that is proportional to the batch size."""
    counts = {size: count for size, count in rec.batch_sizes().items() if count >= 3}
    if len(counts) < 2 or max(counts) < 2 * min(counts):
        return
    small, large = min(counts), max(counts)
    row = {size: rec.median_ms(size) / size for size in counts}
    if min(row.values()) > (1 - _MIN_SAVING) * row[small]:
        evidence = {"row_ms": row, "batches": counts}
        yield (
            f"Batching does not pay: a row takes {row[small]:.2f} ms in batches of {pluralize(small, 'row')} and "
            f"{row[large]:.2f} ms in batches of {pluralize(large, 'row')}, because the execution time grows with the "
            f"batch size. Requests wait for each other without a benefit.",
            evidence,
        )


def _beyond_capacity(rec: Recording, config: pb.ModelConfig) -> Findings:
    """Find more rows in the server than can run at once: Little's law gives their latency."""
    requests = last_executions(rec.requests)
    if len(requests) < 3 * _MIN_COUNT:
        return
    begin = min(request.queued_ns for request in rec.requests)
    seconds = (max(request.exec_end_ns for request in requests) - begin) / 1e9
    if not seconds:
        return
    instances = len(rec.instances)
    busy = sum(batch.compute_ns for batch in rec.batches) / 1e9 / seconds / instances
    rows = sum(request.size for request in requests)
    rate = rows / seconds
    latency_s = sum(request.size * request.latency_ns for request in requests) / rows / 1e9
    in_server, capacity = rate * latency_s, instances * max(1, config.max_batch_size)
    if busy >= _BUSY_SHARE and in_server >= _EXCESS_RATIO * capacity:
        offered = offered_load(rec)
        arriving = offered.rate * offered.rows
        evidence = {
            "rows_per_second": rate,
            "latency_ms": latency_s * 1e3,
            "rows_in_server": in_server,
            "row_capacity": capacity,
            "busy": busy,
        }
        capacity_text = f"{pluralize(instances, 'instance')} x max_batch_size {capacity // instances}"
        if offered.exceeds_service:
            yield (
                f"Overloaded: {arriving:.0f} rows/s arrive and {rate:.0f} rows/s are served; the instances were "
                f"{busy:.0%} busy ({capacity_text}). The longer this lasts, the longer requests wait (mean latency "
                f"of this recording: {latency_s * 1e3:.1f} ms). Send fewer requests, add instances or "
                f"allow larger batches.",
                evidence | {"arriving_rows_per_second": arriving},
            )
            return
        yield (
            f"More requests are in the server than can run at once: {in_server:.0f} rows on average = {rate:.0f} "
            f"rows/s x {latency_s * 1e3:.1f} ms (Little's law), and {pluralize(capacity, 'row')} can run at once "
            f"({capacity_text}); the instances were {busy:.0%} busy. A higher concurrency adds waiting time, not "
            f"throughput: with {pluralize(capacity, 'row')} in the server the latency would be "
            f"{capacity / rate * 1e3:.1f} ms.",
            evidence,
        )


def _batches(config: pb.ModelConfig) -> bool:
    return bool(config.max_batch_size > 1) and config.HasField("dynamic_batching")


_FILLED = (reasons.PREFERRED_SIZE, reasons.FULL, reasons.OVERSHOOTS_PREFERRED, reasons.DOES_NOT_FIT)
_RULES: dict[str, Callable[[Recording, pb.ModelConfig], Findings]] = {
    "one_at_a_time": _one_at_a_time,
    "batching_without_effect": _batching_without_effect,
    "delay_never_reached": _delay_never_reached,
    "delay_splits_batches": _delay_splits_batches,
    "rate_limited": _rate_limited,
    "null_rows": _null_rows,
    "idle_timeout": _idle_timeout,
    "cost_in_proportion": _cost_in_proportion,
    "beyond_capacity": _beyond_capacity,
    "instances_slow_each_other": executions.instances_slow_each_other,
    "threads_exceed_cores": executions.threads_exceed_cores,
    "first_executions": executions.first_executions,
    "idle_executions": executions.idle_executions,
    "throughput_decays": executions.throughput_decays,
}
