"""Recorded executions: how long each took, and which other instances were busy."""

from __future__ import annotations

import statistics
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate, chain, pairwise

from tritonnb.recording.instance_names import replica_of
from tritonnb.recording.recording import Recording
from tritonnb.scheduling.reasons import DELAY_EXCEEDED
from tritonnb.telemetry.lanes import count_overlaps

#: Another execution that runs for less than this share of a typical execution, when that begins, is ending.
_LEAST_BESIDE = 0.1


@dataclass(frozen=True, slots=True)
class RecordedExecution:
    """A recorded execution, for the times of others.

    A server in its own process shares its machine, and takes a while to start a batch that is due: both are part of the
    time that an instance is occupied.

    Attributes
    ----------
    begin_ns : int
        When it could have begun, after the first arrival.
    rows : int
    time_ns : int
        From then to its end.
    dispatch_ns : int
        The part of it before the execution began.
    busy : int
        Instances of the server that were busy then, including this instance.
    shared : float
        The share (0 to 1) of its time during which another instance was busy.
    alone_ns : int
        How long it ran before another instance was busy.
    idle_ns, server_idle_ns : int
        How long its instance was idle before, and how long all instances of its server were.
    first : bool
        Whether it was the first execution of its instance.
    batch : int
        Its number in the recording.
    instance : str
    beside : frozenset of str
        The other models that its server executed when it began, and for a while after that.
    waited : bool
        Whether its requests waited for the instance.
    """

    begin_ns: int
    rows: int
    time_ns: int
    dispatch_ns: int
    busy: int
    shared: float
    alone_ns: int
    idle_ns: int
    server_idle_ns: int
    first: bool
    batch: int
    instance: str = ""
    beside: frozenset[str] = frozenset()
    waited: bool = False


def executions_of(rec: Recording) -> list[RecordedExecution]:
    """Return the executions of a recording, ordered by begin."""
    origin_ns = rec.first_arrival_ns
    queued: dict[int, list[int]] = {}
    for request in rec.requests:
        queued.setdefault(request.batch, []).append(request.queued_ns)
    free: dict[str, int] = {}
    ordered = sorted(rec.batches, key=lambda batch: batch.exec_start_ns)
    executions: dict[str, list[RecordedExecution]] = defaultdict(list)  # by replica
    for batch in ordered:
        times = queued.get(batch.number, [batch.exec_start_ns])
        due_ns = max(times)
        if batch.reason.rule == DELAY_EXCEEDED:
            due_ns = max(due_ns, min(times) + batch.reason.facts["delay_ns"])
        first = batch.instance not in free
        begin_ns = min(batch.exec_start_ns, max(due_ns, free.get(batch.instance, 0)))
        idle_ns = begin_ns - free.get(batch.instance, begin_ns)
        replica = replica_of(batch.instance)
        ends_ns = [end_ns for instance, end_ns in free.items() if replica_of(instance) == replica]
        busy = 1 + sum(end_ns > begin_ns for end_ns in ends_ns)
        server_idle_ns = max(0, begin_ns - max(ends_ns, default=begin_ns))
        free[batch.instance] = batch.exec_end_ns
        dispatch_ns, time_ns = batch.exec_start_ns - begin_ns, batch.exec_end_ns - begin_ns
        after_ns, which = begin_ns - origin_ns, (batch.number, batch.instance)
        executions[replica].append(
            RecordedExecution(
                *(after_ns, batch.size, time_ns, dispatch_ns, busy, 0.0, 0, idle_ns, server_idle_ns, first, *which),
                waited=begin_ns > due_ns,
            )
        )
    shared = chain.from_iterable(map(_with_shares, executions.values()))
    return sorted(shared, key=lambda one: one.begin_ns + one.dispatch_ns)


def _with_shares(executions: Sequence[RecordedExecution]) -> Iterator[RecordedExecution]:
    """Yield the executions of one replica with how long another instance was busy during them, and until then."""
    spans = [(one.begin_ns, one.begin_ns + one.time_ns) for one in executions]
    times, running = count_overlaps(spans)
    several = [(later - time) * (count > 1) for (time, later), count in zip(pairwise(times), running, strict=False)]
    before = dict(zip(times, accumulate(several, initial=0), strict=True))  # how long several were busy until then
    begins = sorted(one.begin_ns for one in executions)
    for one, (begin_ns, end_ns) in zip(executions, spans, strict=True):
        place = bisect_right(begins, begin_ns)
        following = begins[place : place + 1] if one.busy == 1 else [begin_ns]
        shared = (before[end_ns] - before[begin_ns]) / max(1, one.time_ns)
        yield replace(one, shared=shared, alone_ns=min([end_ns, *following]) - begin_ns)


def with_company(executions: Mapping[str, Sequence[RecordedExecution]]) -> dict[str, tuple[RecordedExecution, ...]]:
    """Return the executions of the models of a server with the other models that ran when each began.

    Parameters
    ----------
    executions : dict of str to sequence of RecordedExecution
        By model, with one origin of their times.
    """
    # Not of the execution itself: the longer it took, the more of the others would have ended early in it.
    typical_ns = {
        model: statistics.median(one.time_ns for one in known) for model, known in executions.items() if known
    }
    begins: dict[tuple[str, str], list[tuple[int, bool, int]]] = {}
    latest_ends: dict[tuple[str, str], list[int]] = {}  # of the executions that began until then
    for model, known in executions.items():
        by_replica: dict[str, list[RecordedExecution]] = defaultdict(list)
        for one in sorted(known, key=_begin):
            by_replica[replica_of(one.instance)].append(one)
        for replica, ordered in by_replica.items():
            begins[model, replica] = [_begin(one) for one in ordered]
            latest_ends[model, replica] = list(accumulate((one.begin_ns + one.time_ns for one in ordered), max))

    def runs(model: str, replica: str, begin: tuple[int, bool, int], until_ns: float) -> bool:
        place = bisect_right(begins.get((model, replica), ()), begin)
        return place > 0 and latest_ends[model, replica][place - 1] > until_ns

    def beside(model: str, one: RecordedExecution) -> frozenset[str]:
        replica = replica_of(one.instance)
        # Triton reports the end of an execution after its responses, when the next step of an ensemble has begun.
        until_ns = one.begin_ns + _LEAST_BESIDE * typical_ns[model]
        return frozenset(
            other for other in executions if other != model and runs(other, replica, _begin(one), until_ns)
        )

    return {
        model: tuple([replace(one, beside=beside(model, one)) for one in known]) for model, known in executions.items()
    }


def _begin(one: RecordedExecution) -> tuple[int, bool, int]:
    """Return when an execution began, and what tells it from others that began at the same time.

    At the end of a simulated step, the next step begins before the batches that wait for the instance.
    """
    return one.begin_ns, one.waited, one.batch
