"""Diagnoses: what a recording says about a workload and a configuration that do not suit each other.

Each is a rule over one model's recording. It speaks only where it applies, with the numbers that it saw,
and says what would help.
"""

from __future__ import annotations

import itertools
import statistics
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from tritonnb.core.events import RequestArrived
from tritonnb.core.protobuf import model_config_pb2 as pb
from tritonnb.recording.offered import offered_load
from tritonnb.recording.sequences import IDLE
from tritonnb.scheduling import reasons
from tritonnb.scheduling.from_config import sequence_batcher_settings
from tritonnb.scheduling.reasons import pluralize

if TYPE_CHECKING:
    from tritonnb.recording.recording import Recording

#: Fewer requests or batches than this are no evidence.
_ENOUGH = 10
#: A client that waits for its answer sends again this soon after it, as a multiple of the latency.
_AT_ONCE = 2.0
#: Null rows below this part are no waste to speak of.
_NULLS = 0.2
#: From this share of the batches on it matters that later requests were not added.
_SPLIT = 0.2
#: Batches that make a row cheaper by less than this part do not pay.
_SAVING = 0.15
#: How busy instances are at capacity, and how much more is in the server than can run.
_BUSY, _BEYOND = 0.9, 1.2


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """One finding.

    Attributes
    ----------
    name : str
        Of the rule, such as ``one_at_a_time``.
    model : str
    text : str
        What is the case and what would help, in words, with the numbers.
    evidence : dict
        The numbers; times in milliseconds.
    """

    name: str
    model: str
    text: str
    evidence: dict[str, Any] = field(default_factory=dict)

    def __str__(self) -> str:
        return self.text


def diagnose(rec: Recording) -> list[Diagnosis]:
    """Every finding of a recording, model by model."""
    found = []
    for name in sorted({each.model for each in rec.batches} & rec.configs.keys()):
        one = rec.of(name)
        for rule, look in _RULES.items():
            found += [Diagnosis(rule, name, text, evidence) for text, evidence in look(one, rec.configs[name])]
    return found


Findings = Iterator[tuple[str, dict[str, Any]]]


def _one_at_a_time(rec: Recording, config: pb.ModelConfig) -> Findings:
    """A closed loop of one client: no batch can form."""
    requests = sorted(rec.requests, key=lambda each: each.received_ns)
    if len(requests) < _ENOUGH or not _batches(config):
        return
    gaps = [after.received_ns - before.exec_end_ns for before, after in itertools.pairwise(requests)]
    gap, latency = statistics.median(gaps), statistics.median(each.latency_ns for each in requests)
    if min(gaps) >= 0 and gap <= _AT_ONCE * latency:
        evidence = {"requests": len(requests), "gap_ms": gap / 1e6, "latency_ms": latency / 1e6}
        yield (
            f"Concurrency is 1: no two of {len(requests)} requests were in the server together, each was sent "
            f"{gap / 1e6:.2f} ms (median) after the answer to the one before. No batch can form: send several at once, "
            f"from more clients or with infer_async.",
            evidence,
        )


def _delay_never_reached(rec: Recording, config: pb.ModelConfig) -> Findings:
    """Batches fill before the delay is over."""
    batching = config.sequence_batching.oldest if config.HasField("sequence_batching") else config.dynamic_batching
    delay_us = batching.max_queue_delay_microseconds
    rules = Counter(each.reason.rule for each in rec.batches)
    filled = sum(rules[rule] for rule in _FILLED)
    if delay_us and len(rec.batches) >= _ENOUGH and not rules[reasons.DELAY_EXCEEDED] and filled == len(rec.batches):
        waited = max(each.reason.facts.get("waited_ns", 0) for each in rec.batches) / 1e6
        evidence = {"batches": filled, "delay_ms": delay_us / 1000, "longest_wait_ms": waited}
        yield (
            f"max_queue_delay {delay_us / 1000:g} ms was never reached: each of {filled} batches was complete before, "
            f"at the latest after {waited:.2f} ms. Another delay changes nothing; larger preferred sizes or a larger "
            f"max_batch_size would.",
            evidence,
        )


def _delay_splits_batches(rec: Recording, config: pb.ModelConfig) -> Findings:
    """Batches whose delay ran out while all instances were busy, so that later requests could not join."""
    delay_us = config.dynamic_batching.max_queue_delay_microseconds
    closed = [batch for batch in rec.batches if batch.reason.facts.get("missed") and batch.reason.facts.get("ready_ns")]
    missed = sum(batch.reason.facts["missed"] for batch in closed)
    if delay_us and len(rec.batches) >= _ENOUGH and len(closed) >= _SPLIT * len(rec.batches):
        execution_ms = statistics.median(batch.compute_ns for batch in rec.batches) / 1e6
        evidence = {"batches": len(rec.batches), "closed": len(closed), "missed": missed, "execution_ms": execution_ms}
        yield (
            f"max_queue_delay {delay_us / 1000:g} ms ran out while all instances were busy: {len(closed)} of "
            f"{len(rec.batches)} batches had to wait for an instance and were not added to, so {missed} requests "
            f"waited for one batch more. With an execution of {execution_ms:.1f} ms, set max_queue_delay_microseconds "
            f"to 0, or to more than that.",
            evidence,
        )


def _null_rows(rec: Recording, config: pb.ModelConfig) -> Findings:
    """The direct strategy computes slots that have nothing to run."""
    batches = [each for each in rec.batches if each.slots]
    rows = sum(each.size for each in batches)
    nulls = sum(each.requests.count(None) for each in batches)
    if len(batches) < _ENOUGH or nulls < _NULLS * rows:
        return
    full, slots = sum(1 for each in batches if None not in each.requests), config.max_batch_size
    evidence = {"nulls": nulls, "rows": rows, "batches": len(batches), "without_nulls": full}
    yield (
        f"{nulls / rows:.0%} of the rows were null requests: {nulls} of {rows} rows in {len(batches)} batches padded "
        f"slots below the highest ready one, of {slots} slots. minimum_slot_utilization with "
        f"max_queue_delay_microseconds waits for more slots to be ready; the oldest strategy needs no padding.",
        evidence,
    )


def _idle_timeout(rec: Recording, config: pb.ModelConfig) -> Findings:
    """A sequence went on after its slot had been taken away."""
    if not config.HasField("sequence_batching"):
        return
    limit_ms = sequence_batcher_settings(config, {}).max_sequence_idle_ns / 1e6
    ids = {each.serial: each.correlation_id for each in rec.events if isinstance(each, RequestArrived)}
    refused = [each for each in rec.refused if "must specify the START flag" in each.message]
    told = set()
    for stay in rec.slot_occupancy:
        silent_since = stay.requests[-1][1].queued_ns
        after = [each for each in refused if ids.get(each.serial) == stay.sequence and each.time_ns > silent_since]
        if stay.ended == IDLE and after and stay.sequence not in told:
            told.add(stay.sequence)
            came_ms = (after[0].time_ns - silent_since) / 1e6
            evidence = {"sequence": stay.sequence, "idle_ms": limit_ms, "came_after_ms": came_ms, "refused": len(after)}
            yield (
                f"Sequence {stay.sequence} lost slot {stay.slot} of {stay.instance} to the idle timeout: its next "
                f"request came after {came_ms:.1f} ms, max_sequence_idle_microseconds allows {limit_ms:g} ms, so "
                f"{pluralize(len(after), 'request was', 'requests were')} refused for want of the START flag.",
                evidence,
            )


def _cost_in_proportion(rec: Recording, config: pb.ModelConfig) -> Findings:
    """A batch of n takes n times as long as a batch of one."""
    counts = {size: count for size, count in rec.batch_sizes().items() if count >= 3}
    if len(counts) < 2 or max(counts) < 2 * min(counts):
        return
    small, large = min(counts), max(counts)
    row = {size: rec.median_ms(size) / size for size in counts}
    if min(row.values()) > (1 - _SAVING) * row[small]:
        evidence = {"row_ms": row, "batches": counts}
        yield (
            f"Batching does not pay: a row costs {row[small]:.2f} ms in batches of {small} and {row[large]:.2f} ms in "
            f"batches of {large}, since the time of a batch grows with its size. Requests only wait for each other.",
            evidence,
        )


def _beyond_capacity(rec: Recording, config: pb.ModelConfig) -> Findings:
    """More in the server than can run: Little's law says how long they wait."""
    if len(rec.requests) < 3 * _ENOUGH:
        return
    begin = min(each.queued_ns for each in rec.requests)
    seconds = (max(each.exec_end_ns for each in rec.requests) - begin) / 1e9
    if not seconds:
        return
    instances = len(rec.instances)
    busy = sum(each.compute_ns for each in rec.batches) / 1e9 / seconds / instances
    rows = sum(each.size for each in rec.requests)
    rate = rows / seconds
    stay = sum(each.size * each.latency_ns for each in rec.requests) / rows / 1e9
    inside, room = rate * stay, instances * max(1, config.max_batch_size)
    if busy >= _BUSY and inside >= _BEYOND * room:
        offered = offered_load(rec)
        arriving = offered.rate * offered.rows
        evidence = {"rows_per_second": rate, "stay_ms": stay * 1e3, "inside": inside, "room": room, "busy": busy}
        able = f"{pluralize(instances, 'instance')} x max_batch_size {room // instances}"
        if offered.exceeds_service:
            yield (
                f"Overloaded: {arriving:.0f} rows a second arrive and {rate:.0f} are served, by instances that were "
                f"{busy:.0%} busy ({able}). Requests wait longer the longer this lasts, {stay * 1e3:.1f} ms on average "
                f"in this recording: fewer requests, more instances or larger batches would help.",
                evidence | {"arriving_rows_per_second": arriving},
            )
            return
        yield (
            f"More requests are in the server than can run: {inside:.0f} rows on average = {rate:.0f} rows a "
            f"second x {stay * 1e3:.1f} ms (Little's law), and {room} can run at once ({able}), on instances that "
            f"were {busy:.0%} busy. More requests at once add waiting, not throughput: {room} rows inside would take "
            f"{room / rate * 1e3:.1f} ms each.",
            evidence,
        )


def _batches(config: pb.ModelConfig) -> bool:
    return bool(config.max_batch_size > 1) and config.HasField("dynamic_batching")


_FILLED = (reasons.PREFERRED_SIZE, reasons.FULL, reasons.OVERSHOOTS_PREFERRED, reasons.DOES_NOT_FIT)
_RULES: dict[str, Callable[[Recording, pb.ModelConfig], Findings]] = {
    "one_at_a_time": _one_at_a_time,
    "delay_never_reached": _delay_never_reached,
    "delay_splits_batches": _delay_splits_batches,
    "null_rows": _null_rows,
    "idle_timeout": _idle_timeout,
    "cost_in_proportion": _cost_in_proportion,
    "beyond_capacity": _beyond_capacity,
}
