"""Diagnoses of pipelines: which step limits the rate, and what the steps cost each other.

Each rule examines the requests of one pipeline and yields a sentence with the recorded numbers and a remedy.
"""

from __future__ import annotations

import itertools
import statistics
from bisect import bisect_left
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass

from tritonnb.core.protobuf import model_config_pb2 as pb
from tritonnb.lab.analysis import latency_split as split
from tritonnb.lab.analysis.pipeline_blame import BETWEEN_STEPS, blame_pipeline
from tritonnb.recording.batches import Batch
from tritonnb.recording.instance_names import instances_of
from tritonnb.recording.pipelines import CALL, Pipeline, PipelineRequest
from tritonnb.recording.recording import Recording
from tritonnb.scheduling.from_config import queue_delay_ns
from tritonnb.scheduling.reasons import pluralize
from tritonnb.telemetry.lanes import count_overlaps

Findings = Iterator[tuple[str, Mapping[str, object]]]

#: Fewer requests, batches or pairs than this are not enough evidence.
_MIN_COUNT = 10
#: A step limits the rate if a larger share of the requests that it can execute came.
_BUSY_SHARE = 0.7
#: Executions are slowed down by those of another step if they take longer by this factor.
_SLOWER = 1.25
#: An execution is alone, or together with those of another model, for less or more than these shares of its time.
_ALONE, _TOGETHER = 0.1, 0.5
#: The work of the server that is reported, as a share of the latency.
_WORK_SHARE = 0.15
#: Batches fall apart if at most this share of the pairs of a batch is together in the next step.
_TOGETHER_SHARE = 0.5
#: Time that calls at the same time would save, as a share of the latency.
_SAVED_SHARE = 0.1
#: The causes that are the server's own work, by what it is.
_WORK = {
    "copies of tensors": (split.COMPUTE_INPUT, split.COMPUTE_OUTPUT),
    "wake-ups and late starts": (split.OVERHEAD, split.RECEPTION, split.RESPONSE),
    "the ensemble between its steps": (BETWEEN_STEPS,),
}


@dataclass(frozen=True, slots=True)
class _Load:
    """How busy the instances of a model were.

    Attributes
    ----------
    model : str
    instances : int
    busy : float
        Share of the time (0 to 1) in which they executed batches, or waited for their calls.
    limit : float
        Requests of the pipeline per second that they can execute, with the best of the recorded batch sizes: instances
        that batch are often busy at a low rate, since larger batches form only when requests wait.
    best_rows : int
        That batch size.
    execution_ms : float
        Mean execution time of a batch.
    """

    model: str
    instances: int
    busy: float
    limit: float
    best_rows: int
    execution_ms: float

    def __str__(self) -> str:
        return f"'{self.model}' {_rate_text(self.limit)} requests/s ({self.busy:.0%} busy)"


def loads(rec: Recording, pipeline: Pipeline) -> list[_Load]:
    """Return how busy the instances of the models in a pipeline were, the lowest limit first.

    Parameters
    ----------
    rec : Recording
    pipeline : Pipeline
    """
    records = {
        below.serial: below.record for root in pipeline.requests for below in root.walk() if below.record is not None
    }
    rows: Counter[str] = Counter()
    for record in records.values():
        rows[record.model] += record.size
    batches: dict[str, list[Batch]] = defaultdict(list)
    for batch in rec.batches:
        batches[batch.model].append(batch)
    queued_ns = {
        one.record.batch: _calls_queued_ns(one)
        for root in pipeline.requests
        for one in root.walk()
        if one.record is not None and any(step.kind == CALL for step in one.steps)
    }
    begin_ns = min(request.received_ns for request in pipeline.requests)
    span_ns = max(1, max(request.ended_ns for request in pipeline.requests) - begin_ns)
    found = []
    for model in rows:
        instances = len({batch.instance for batch in batches[model]})
        if not rec.replicas:  # some may have stayed idle
            instances = max(instances, len(instances_of(model, rec.configs[model])))
        times: dict[int, list[int]] = defaultdict(list)
        for batch in batches[model]:
            # Another model's queue is its limit: with shorter ones, the same instances make more calls.
            times[batch.size].append(batch.compute_ns - queued_ns.get(batch.number, 0))
        busy = sum(batch.compute_ns for batch in batches[model]) / span_ns / instances
        row_ns, best_rows = min((statistics.median(every) / max(1, size), size) for size, every in times.items())
        limit = instances * 1e9 / max(1, row_ns) * len(pipeline.requests) / rows[model]
        mean_ms = statistics.fmean(batch.compute_ns for batch in batches[model]) / 1e6
        found.append(_Load(model, instances, busy, limit, best_rows, mean_ms))
    return sorted(found, key=lambda load: load.limit)


def _rate_text(per_s: float) -> str:
    return f"{per_s:.0f}" if per_s >= 10 else f"{per_s:.2g}"


def _calls_queued_ns(caller: PipelineRequest) -> int:
    """Return how long calls of a request were queued while none of them was executed."""
    records = [(one, one.record) for one in caller.walk() if one is not caller and one.record is not None]
    executed = [(record.exec_start_ns, record.exec_end_ns) for one, record in records if not one.steps]
    queued = [(one.received_ns, record.exec_start_ns) for one, record in records]
    return _covered_ns(queued + executed) - _covered_ns(executed)


def _covered_ns(spans: Iterable[tuple[int, int]]) -> int:
    times, counts = count_overlaps(spans)
    return sum(later - time for (time, later), count in zip(itertools.pairwise(times), counts, strict=False) if count)


def bottleneck(rec: Recording, pipeline: Pipeline) -> Findings:
    """State which step limits the rate, and what one more instance of each step can give."""
    first, *others = loads(rec, pipeline)
    if not others:
        return
    begin_ns = min(request.received_ns for request in pipeline.requests)
    seconds = max(1e-9, (max(request.ended_ns for request in pipeline.requests) - begin_ns) / 1e9)
    rate = len(pipeline.requests) / seconds
    callers = {one.model for root in pipeline.requests for one in root.walk() if one.steps}  # they wait for the others
    slowest = max((first, *others), key=lambda load: (load.model not in callers, load.execution_ms))
    limits = (
        f"limits the rate of '{pipeline.model}'" if rate >= _BUSY_SHARE * first.limit else "would limit the rate first"
    )
    raised = min(first.limit * (first.instances + 1) / first.instances, others[0].limit)
    next_one = f", where '{others[0].model}' is the limit" if raised == others[0].limit else ""
    surprise = (
        f" The slowest step, '{slowest.model}' with {slowest.execution_ms:.1f} ms an execution, is not the bottleneck."
        if slowest is not first
        else ""
    )
    yield (
        f"'{first.model}' {limits}: with {pluralize(first.instances, 'instance')} ({first.busy:.0%} busy) it passes at "
        f"most {_rate_text(first.limit)} requests/s in batches of {pluralize(first.best_rows, 'row')}, its best "
        f"recorded; {_rate_text(rate)} came. The others pass: {', '.join(map(str, others))}. One more instance of "
        f"'{first.model}' allows up to {_rate_text(raised)} requests/s{next_one}, if the machine has a core for it; "
        f"one more instance of another step does not raise the limit.{surprise}",
        {
            "step": first.model,
            "busy": {load.model: load.busy for load in (first, *others)},
            "limits": {load.model: load.limit for load in (first, *others)},
            "limit_with_one_more": raised,
        },
    )


def shared_cores(rec: Recording, pipeline: Pipeline) -> Findings:
    """Find steps whose executions take longer while another step executes."""
    models = {load.model for load in loads(rec, pipeline)}
    waiting = {one.model for root in pipeline.requests for one in root.walk() if one.steps}
    spans: dict[str, list[Batch]] = defaultdict(list)
    for batch in sorted(rec.batches, key=lambda batch: batch.exec_start_ns):
        if batch.model in models - waiting:  # a model that waits for its calls uses no core
            spans[batch.model].append(batch)
    for model, batches in sorted(spans.items()):
        by_size: dict[int, list[int]] = defaultdict(list)
        for batch in batches:
            by_size[batch.size].append(batch.compute_ns)
        usual = {size: statistics.median(times) for size, times in by_size.items()}
        for other in sorted(spans.keys() - {model}):
            shares = list(_overlaps(batches, spans[other]))
            times = [batch.compute_ns / (usual[batch.size] or 1) for batch in batches]
            alone = [time for time, share in zip(times, shares, strict=True) if share <= _ALONE]
            together = [time for time, share in zip(times, shares, strict=True) if share >= _TOGETHER]
            if min(len(alone), len(together)) < _MIN_COUNT:
                continue
            factor = statistics.median(together) / (statistics.median(alone) or 1)
            if factor >= _SLOWER:
                yield (
                    f"'{model}' and '{other}' wait for each other on the same cores, as it seems: executions of "
                    f"'{model}' took {factor:.1f} times as long while '{other}' executed ({len(together)} of "
                    f"{len(batches)}) as without it ({len(alone)}). Give them different cores, or fewer threads each; "
                    f"another instance would slow both down.",
                    {"step": model, "other": other, "factor": factor, "together": len(together), "alone": len(alone)},
                )


def _overlaps(batches: list[Batch], others: list[Batch]) -> Iterator[float]:
    """Yield the share of each execution during which others were executed."""
    ends = list(itertools.accumulate((other.exec_end_ns for other in others), max))
    for batch in batches:
        covered, now = 0, batch.exec_start_ns
        for other in itertools.islice(others, bisect_left(ends, now), None):
            if other.exec_start_ns >= batch.exec_end_ns:
                break
            begin, end = max(other.exec_start_ns, now), min(other.exec_end_ns, batch.exec_end_ns)
            covered, now = covered + max(0, end - begin), max(now, end)
        yield covered / (batch.compute_ns or 1)


def own_work(rec: Recording, pipeline: Pipeline) -> Findings:
    """Find a pipeline that costs more than the waits and executions of its steps."""
    blame = blame_pipeline(rec, pipeline.requests)
    times: Counter[str] = Counter()
    for causes in blame.parts.values():
        for work, members in _WORK.items():
            times[work] += sum(causes.get(cause, 0) for cause in members)
    share = sum(times.values()) / (blame.latency_ns or 1)
    if share < _WORK_SHARE:
        return
    count = len(pipeline.requests)
    parts = ", ".join(f"{ns / count / 1e6:.2f} ms {work}" for work, ns in times.most_common() if ns)
    yield (
        f"'{pipeline.model}' costs more than its steps: {share:.0%} of the latency is neither waiting for an instance "
        f"nor execution (mean of a request: {parts}). Each step costs this once: one model that does the work of two "
        f"small steps saves it.",
        {"share": share, "work_ms": {work: ns / count / 1e6 for work, ns in times.items()}},
    )


def separated_batches(rec: Recording, pipeline: Pipeline) -> Findings:
    """Find requests that share a batch in one step and no longer in the next."""
    pairs: dict[tuple[str, str], Counter[bool]] = defaultdict(Counter)
    places: dict[tuple[str, str], dict[int, list[int | None]]] = defaultdict(lambda: defaultdict(list))
    for root in pipeline.requests:
        steps = [step for step in root.steps if step.record is not None]
        for before, after in itertools.pairwise(steps):
            if before.record and after.record and before.ended_ns <= after.ended_ns:
                places[before.model, after.model][before.record.batch].append(after.record.batch)
    for key, batches in places.items():
        for after_batches in batches.values():
            together = Counter(after_batches)
            size = len(after_batches)
            same = sum(count * (count - 1) // 2 for count in together.values())
            pairs[key][True] += same
            pairs[key][False] += size * (size - 1) // 2 - same
    for (model, following), counts in pairs.items():
        config, total = rec.configs[following], counts.total()
        if config.max_batch_size < 2 or total < _MIN_COUNT or model == following:
            continue
        share = counts[True] / total
        if share <= _TOGETHER_SHARE:
            yield (
                f"Batches of '{model}' fall apart before '{following}': of {total} pairs of requests that shared a "
                f"batch of '{model}', {share:.0%} shared a batch of '{following}'. {_remedy_for(config)}",
                {"step": model, "next": following, "pairs": total, "share": share},
            )


def _remedy_for(config: pb.ModelConfig) -> str:
    if not config.HasField("dynamic_batching"):
        return f"'{config.name}' has no dynamic_batching: add it."
    delay_ms = queue_delay_ns(config) / 1e6
    if delay_ms >= 1:
        return f"Its max_batch_size is {config.max_batch_size}, or its instances take other requests in between."
    return (
        f"Its max_queue_delay is {delay_ms:g} ms, and the requests of a batch arrive one by one, so that the first one "
        "starts an idle instance: a delay of 1 to 2 ms collects them."
    )


def sequential_calls(rec: Recording, pipeline: Pipeline) -> Findings:
    """Find a model whose calls follow each other although they could be made at the same time."""
    callers: dict[str, dict[int, PipelineRequest]] = defaultdict(dict)
    for root in pipeline.requests:
        for one in root.walk():
            if one.record is not None and sum(step.kind == CALL for step in one.steps) > 1:
                callers[one.model][one.serial] = one
    for model, by_serial in callers.items():
        requests = list(by_serial.values())
        if len(requests) < _MIN_COUNT or any(map(_calls_overlap, requests)):
            continue
        sums = [sum(step.latency_ns for step in one.steps) for one in requests]
        longest = [max(step.latency_ns for step in one.steps) for one in requests]
        saved_ms = statistics.fmean(map(int.__sub__, sums, longest)) / 1e6
        latency_ms = statistics.fmean(one.latency_ns for one in requests) / 1e6
        if saved_ms >= _SAVED_SHARE * latency_ms:
            called = ", ".join(dict.fromkeys(f"'{step.model}'" for one in requests for step in one.steps))
            yield (
                f"'{model}' waits for its calls of {called} one after another: {statistics.fmean(sums) / 1e6:.1f} ms "
                f"in all, the longest call {statistics.fmean(longest) / 1e6:.1f} ms (mean of {len(requests)} "
                f"requests). Calls that do not need each other's results can be made at the same time (async_exec and "
                f"asyncio.gather): that saves up to {saved_ms:.1f} of {latency_ms:.1f} ms.",
                {"model": model, "saved_ms": saved_ms, "latency_ms": latency_ms, "requests": len(requests)},
            )


def _calls_overlap(caller: PipelineRequest) -> bool:
    """Return whether a call was made before another one was answered: Triton reports the end of a call later."""
    spans = [(step.received_ns, step.answered_ns) for step in caller.steps if step.kind == CALL]
    return max(count_overlaps(spans)[1]) > 1


#: The rules by name; each examines a recording and one of its pipelines.
RULES: dict[str, Callable[[Recording, Pipeline], Findings]] = {
    "bottleneck": bottleneck,
    "shared_cores": shared_cores,
    "own_work": own_work,
    "separated_batches": separated_batches,
    "sequential_calls": sequential_calls,
}


def pipeline_findings(rec: Recording) -> Iterator[tuple[str, str, str, Mapping[str, object]]]:
    """Yield the findings in the pipelines of a recording: rule, model, sentence, and evidence.

    Parameters
    ----------
    rec : Recording
        Of all models; the recording of one model has no steps.
    """
    for pipeline in rec.pipelines.values():
        below = {one.model for root in pipeline.requests for one in root.walk() if one.record is not None}
        if len(pipeline.requests) < _MIN_COUNT or not below <= rec.configs.keys():
            continue
        if not all(step.complete for root in pipeline.requests for step in root.steps):
            continue
        for rule, find in RULES.items():
            yield from ((rule, pipeline.model, text, evidence) for text, evidence in find(rec, pipeline))
