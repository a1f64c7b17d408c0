"""Diagnoses of executions: instances that slow each other down, cold executions, and throughput that decays."""

from __future__ import annotations

import statistics
from bisect import bisect_right
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import accumulate, pairwise

from tritonnb.client.known_defects import Defect, known_defects
from tritonnb.core.protobuf import model_config_pb2 as pb
from tritonnb.lab.analysis.recorded_executions import RecordedExecution, executions_of
from tritonnb.lab.analysis.threads import threads_of
from tritonnb.recording.batches import last_executions, latencies_ms
from tritonnb.recording.recording import Recording
from tritonnb.scheduling.from_config import queue_delay_ns
from tritonnb.scheduling.reasons import pluralize
from tritonnb.telemetry.lanes import count_overlaps
from tritonnb.telemetry.quantiles import quantile

Findings = Iterator[tuple[str, Mapping[str, object]]]

#: Fewer executions of an instance and a size are not compared, and fewer in all are not enough evidence.
_LEAST, _ENOUGH = 5, 10
#: Executions beside others that take less than this multiple of the time alone are not reported.
SLOWED = 1.25
#: An execution is alone, or beside others, if others run for less, or more, than this share of its time.
_ALONE, _BESIDE = 0.1, 0.9
#: A cold execution takes this multiple of the time of others; without them, the p99 is at most this share.
_COLD, _TAIL = 2.0, 2 / 3
#: Fewer requests determine no p99.
_TAIL_REQUESTS = 50
#: A pause is this multiple of an execution, and at least this many ns.
_PAUSE_RATIO, _PAUSE_NS = 5, 20_000_000
#: Parts of a recording that are compared, and requests without which they are not.
_PARTS, _DECAY_REQUESTS = 12, 120
#: Share of the time that requests wait beside an idle instance: at most at the beginning, at least at the end.
_STALLED_FIRST, _STALLED_LAST = 0.1, 0.3
#: The rate falls to this share, or the number of waiting requests grows to this multiple.
_SLOWER, _LONGER = 0.85, 3.0


def company(rec: Recording) -> tuple[float, int, int] | None:
    """Return how many times as long executions take beside others, how many run then, and the number of comparisons.

    Only executions of the same instance and size are compared, because instances can have different speeds, and the
    scheduler prefers some of them. None if the recording does not tell.
    """
    groups: dict[tuple[str, int], tuple[list[int], list[int]]] = defaultdict(lambda: ([], []))
    levels: Counter[int] = Counter()
    for one in executions_of(rec):
        if not one.first and not _ALONE < one.shared < _BESIDE:
            beside = one.shared >= _BESIDE
            groups[one.instance, one.rows][beside].append(one.time_ns - one.dispatch_ns)
            levels[one.busy] += beside
    ratios: list[float] = []
    for alone, beside_others in groups.values():
        count = min(len(alone), len(beside_others))
        if count >= _LEAST:
            ratios += [statistics.median(beside_others) / max(1, statistics.median(alone))] * count
    if len(ratios) < _ENOUGH:
        return None
    return statistics.median(ratios), max(2, levels.most_common(1)[0][0]), len(ratios)


def instances_slow_each_other(rec: Recording, config: pb.ModelConfig) -> Findings:
    """Find instances whose executions take longer while others execute, and the threads that may be the reason."""
    found = company(rec) if len(rec.instances) > 1 else None
    if found is None or found[0] < SLOWED:
        return
    factor, busy, count = found
    another = "a second instance makes" if busy == 2 else f"{busy} instances at the same time make"
    yield (
        f"Instances slow each other down: {another} each execution {factor:.1f} times as long, so the gain is "
        f"{busy / factor:.1f} and not {busy} ({pluralize(count, 'comparison')} of the same instance and size). They "
        f"share cores, a device, memory or a lock: fewer instances with larger batches may serve the same rate sooner.",
        {"factor": factor, "busy": busy, "gain": busy / factor, "compared": count},
    )


def threads_exceed_cores(rec: Recording, config: pb.ModelConfig) -> Findings:
    """Find instances that slow each other down because each of them uses all cores."""
    threads = threads_of(config)
    found = None if threads is None else company(rec)
    if threads is not None and found is not None and found[0] >= SLOWED:
        yield (
            f"{threads}. Executions beside others took {found[0]:.1f} times as long.",
            {"factor": found[0], "instances": threads.instances, "threads_each": threads.each},
        )


def first_executions(rec: Recording, config: pb.ModelConfig) -> Findings:
    """Find a tail of requests that met the first execution of an instance."""
    executions = executions_of(rec)
    yield from _cold_tail(
        rec,
        executions,
        [one.first for one in executions],
        "The first execution of an instance in this recording",
        "add model_warmup to the configuration, so that the server executes it before the model is ready",
    )


def idle_executions(rec: Recording, config: pb.ModelConfig) -> Findings:
    """Find a tail of requests that met an execution after a pause."""
    executions = executions_of(rec)
    if not executions:
        return
    pause_ns = max(_PAUSE_NS, _PAUSE_RATIO * statistics.median(one.time_ns for one in executions))
    idle = sum(not one.first and one.idle_ns >= pause_ns for one in executions)
    if idle < _LEAST:
        return
    # The instance of a first execution was idle, too: for how long is not in the recording.
    yield from _cold_tail(
        rec,
        executions,
        [one.first or one.idle_ns >= pause_ns for one in executions],
        f"An execution of an instance that was idle for {pause_ns / 1e6:.0f} ms or more",
        "caches and clocks are cold after a pause: send keep-alive requests more often than that, or use fewer "
        "instances",
    )


def _cold_tail(
    rec: Recording, executions: Sequence[RecordedExecution], chosen: Sequence[bool], subject: str, remedy: str
) -> Findings:
    """Report chosen executions if they are slow, and if the p99 falls without the requests that met them."""
    cold = [one for one, is_chosen in zip(executions, chosen, strict=True) if is_chosen]
    others = [one for one, is_chosen in zip(executions, chosen, strict=True) if not is_chosen and not one.first]
    if not cold or len(others) < _ENOUGH or len(rec.requests) < _TAIL_REQUESTS:
        return
    factors = _factors(cold, others)
    factor = statistics.median(factors)
    # Some are slow by chance, as others are: the pause, or the start, is the reason only if most of them are.
    if factor < _COLD:
        return
    slow = {one.batch for one, times in zip(cold, factors, strict=True) if times >= _COLD}
    spans = [(batch.exec_start_ns, batch.exec_end_ns) for batch in rec.batches if batch.number in slow]
    cold_ns = _time_covered(spans)
    kept = [
        request
        for request in rec.requests
        if request.batch not in slow
        and 2 * (cold_ns(request.exec_start_ns) - cold_ns(request.queued_ns)) < request.latency_ns
    ]
    before, after = (quantile(latencies_ms(requests), 0.99) for requests in (rec.requests, kept))
    if kept and after <= _TAIL * before:
        met = len(rec.requests) - len(kept)
        yield (
            f"{subject} takes {factor:.1f} times as long as others (median of {len(cold)}), and "
            f"{pluralize(met, 'request')} of {len(rec.requests)} met it: they determine the p99 of {before:.1f} ms, "
            f"which would be {after:.1f} ms without them. Remedy: {remedy}.",
            {"executions": len(cold), "factor": factor, "met": met, "p99_ms": before, "p99_without_ms": after},
        )


def _factors(cold: Iterable[RecordedExecution], others: Iterable[RecordedExecution]) -> list[float]:
    """Return how many times as long executions took as others of the nearest size."""
    by_size: dict[int, list[int]] = defaultdict(list)
    for one in others:
        by_size[one.rows].append(one.time_ns)
    typical = {rows: max(1, statistics.median(times)) for rows, times in by_size.items()}
    return [one.time_ns / typical[min(typical, key=lambda rows: abs(rows - one.rows))] for one in cold]


def _time_covered(spans: Iterable[tuple[int, int]]) -> Callable[[int], int]:
    """Return a function: how much of the time until a given time is in one of the spans."""
    times, counts = count_overlaps(spans)
    covered = [later - time if count else 0 for (time, later), count in zip(pairwise(times), counts, strict=False)]
    sums = list(accumulate(covered, initial=0))

    def until(time_ns: int) -> int:
        place = bisect_right(times, time_ns) - 1
        return 0 if place < 0 else sums[place] + (time_ns - times[place] if counts[place] else 0)

    return until


def throughput_decays(rec: Recording, config: pb.ModelConfig) -> Findings:
    """Find requests that wait more and more beside idle instances, as with a damaged state of the scheduler."""
    requests, instances = last_executions(rec.requests), len(rec.instances)
    # Slots of sequences, resources and other replicas are reasons to wait beside an idle instance.
    limited = any(group.rate_limiter.resources for group in config.instance_group)
    held = limited or config.HasField("sequence_batching")
    if len(requests) < _DECAY_REQUESTS or held or len(rec.replicas) > 1:
        return
    begin, end = min(request.queued_ns for request in requests), max(request.exec_end_ns for request in requests)
    # A request may wait for the delay, and for the server to start its execution.
    allowed_ns = queue_delay_ns(config) + round(statistics.median(batch.compute_ns for batch in rec.batches) / 2)
    stalled_ns = _stalled(rec, [(r.queued_ns + allowed_ns, r.exec_start_ns) for r in requests], instances)
    edges = [begin + (end - begin) * part // _PARTS for part in range(_PARTS + 1)]
    stalled = [(stalled_ns(after) - stalled_ns(before)) / max(1, after - before) for before, after in pairwise(edges)]
    last = statistics.fmean(stalled[-_PARTS // 3 :])
    since = next((part for part in range(_PARTS) if min(stalled[part:]) >= last / 2), 0)
    # A drift begins slowly: only the first half of the time before it is compared.
    earlier = since // 2
    if last < _STALLED_LAST:
        return
    if not earlier or statistics.fmean(stalled[:earlier]) > _STALLED_FIRST:
        # It was so from the beginning: that alone is no decay, but what a server with the defect looks like later.
        if drift_defect(config):
            yield (
                f"Requests wait while instances idle, for {last:.0%} of the time. {reload_text(config)}",
                {"since_s": 0.0, "stalled": (last, last)},
            )
        return
    periods = [(edges[0], edges[earlier]), (edges[since], edges[-1])]
    rates = [
        sum(before < request.exec_end_ns <= after for request in requests) / max(1, after - before) * 1e9
        for before, after in periods
    ]
    waits = [
        statistics.fmean([r.queue_ns / 1e6 for r in requests if before <= r.queued_ns <= after] or [0])
        for before, after in periods
    ]
    if rates[1] > _SLOWER * rates[0] and waits[1] < _LONGER * max(waits[0], allowed_ns / 1e6):
        return
    since_s, first = (edges[since] - rec.origin_ns) / 1e9, statistics.fmean(stalled[:earlier])
    yield (
        f"Degrades since {since_s:.1f} s: requests wait while instances idle, for {last:.0%} of the time and for "
        f"{first:.0%} at the beginning; {rates[1]:.1f} instead of {rates[0]:.1f} requests/s are served, after waits of "
        f"{waits[1]:.1f} instead of {waits[0]:.1f} ms. {reload_text(config)}",
        {"since_s": since_s, "stalled": (first, last), "rates": tuple(rates), "waits_ms": tuple(waits)},
    )


def drift_defect(config: pb.ModelConfig, version: str = "") -> Defect | None:
    """Return the known defect by which throughput decays, if a version has it and the configuration meets it."""
    return next((one for one in known_defects(config, version) if one.name == "waiting_consumer_drift"), None)


def reload_text(config: pb.ModelConfig, version: str = "") -> str:
    """Return what a throughput that decays may be, and what would tell.

    Parameters
    ----------
    config : ModelConfig
    version : str, optional
        Of the server.
    """
    drift = drift_defect(config, version)
    if drift is None:
        return "The state of the server may be damaged: a reload of the model would tell."
    return f"This fits a known defect ({drift.source}; {drift.releases}): a reload of the model would tell."


def _stalled(rec: Recording, waits: Iterable[tuple[int, int]], instances: int) -> Callable[[int], int]:
    """Return a function: for how long, until a time, requests have waited although an instance was idle."""
    times, counts = count_overlaps((batch.exec_start_ns, batch.exec_end_ns) for batch in rec.batches)
    full = [span for span, count in zip(pairwise(times), counts, strict=False) if count >= instances]
    waiting = [(begin, end) for begin, end in waits if begin < end]
    either, all_busy = _time_covered(full + waiting), _time_covered(full)
    return lambda time_ns: either(time_ns) - all_busy(time_ns)
