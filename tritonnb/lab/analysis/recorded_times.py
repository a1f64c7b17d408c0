"""Execution times of recordings: of one model, of the models of a pipeline, and of several recordings."""

from __future__ import annotations

import statistics
from bisect import bisect_left, bisect_right
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import pairwise
from operator import attrgetter
from typing import Any

from tritonnb.core.errors import InvalidArgumentError
from tritonnb.core.failures import with_short_traceback
from tritonnb.core.protobuf import model_config_pb2 as pb
from tritonnb.lab.analysis.learned_times import LearnedTimes
from tritonnb.lab.analysis.recorded_executions import RecordedExecution, executions_of, with_company
from tritonnb.lab.simulation.run import instance_count, instance_names
from tritonnb.recording.batches import Outlier
from tritonnb.recording.recording import Recording
from tritonnb.scheduling.from_config import queue_delay_ns

#: Requests that come within this time reach an idle batcher together, unless its thread wakes earlier.
_TOGETHER_NS = 200_000
#: Fewer cases tell nothing.
_LEAST_PAIRS = 5


@with_short_traceback
def service(rec: Recording) -> LearnedTimes:
    """Return the execution times as a service model, for simulations of the recorded arrivals.

    An execution with the rows and at the time of a recorded execution takes as long; any other takes the typical time
    of its size, varied as recorded around its time. Called with rows, it returns the latter, in nanoseconds.

    Raises
    ------
    InvalidArgumentError
        If nothing was executed.
    """
    if not rec.batch_sizes():
        raise InvalidArgumentError("service() expected a recording with at least one executed batch, got none")
    executions = tuple(executions_of(rec))
    return LearnedTimes(executions, **_names_in(rec, rec.batches[0].model, executions))


def _names_in(rec: Recording, model: str, executions: Sequence[RecordedExecution]) -> dict[str, Any]:
    """Return what is known of the instances of a model, as arguments of `LearnedTimes`."""
    knows_instances = rec.source is None or rec.source.names_instances
    names = tuple(instance_names(rec.configs[model])) if knows_instances and model in rec.configs else ()
    recorded = {one.instance.rpartition(": ")[2] for one in executions}
    return {"knows_instances": knows_instances, "names": names if recorded <= {*names} else ()}


def outliers(rec: Recording) -> list[Outlier]:
    """Batches that took much longer to execute than others of their size, for a recording of one model."""
    by_number = {batch.number: batch for batch in rec.batches}
    found = service(rec).of_executions.outliers if rec.batches else ()
    return [Outlier(by_number[one.batch], one.time_ns / expected_ns) for one, expected_ns in found]


def late_starts(rec: Recording) -> dict[int, tuple[int, int]]:
    """Batches that began to execute long after they could have begun, for a recording of one model.

    By their number: how long after, and how long it takes typically (median), in ns.
    """
    if not rec.batches:
        return {}
    times = service(rec)
    typical_ns = round(statistics.median(one.dispatch_ns for one in times.executions))
    return {one.batch: (one.dispatch_ns, typical_ns) for one in times.late_starts}


def joined_times(recorded: Iterable[Mapping[str, LearnedTimes]]) -> dict[str, LearnedTimes]:
    """Return the times of the models in several recordings, as if one recording had followed the other."""
    joined: dict[str, list[RecordedExecution]] = defaultdict(list)
    end_ns = None
    for times in recorded:
        first_ns = min(one.executions[0].begin_ns for one in times.values())
        later_ns = 0 if end_ns is None else end_ns - first_ns
        for name, learned in times.items():
            joined[name] += [replace(one, begin_ns=one.begin_ns + later_ns) for one in learned.executions]
        end_ns = max(executions[-1].begin_ns + executions[-1].time_ns for executions in joined.values())
    return {name: LearnedTimes(tuple(executions)) for name, executions in joined.items()}


def times_of_models(rec: Recording, names: Sequence[str], begin_ns: int) -> dict[str, LearnedTimes]:
    """Return the recorded times of models; their moments count from a time of the recording."""
    executions = {}
    for name in names:
        alone = rec.for_model(name)
        later_ns = alone.first_arrival_ns - begin_ns
        executions[name] = [replace(one, begin_ns=one.begin_ns + later_ns) for one in executions_of(alone)]
    return {
        name: LearnedTimes(known, **_names_in(rec, name, known), gathering=gathering_in(rec.for_model(name)))
        for name, known in with_company(executions).items()
    }


def gathering_in(rec: Recording) -> float:
    """Return how often an idle batcher took two requests together that came one right after the other.

    The first request wakes the thread of a Triton's batcher. Whether the next response of an earlier step's batch is
    there before the thread runs differs from start to start of the same server.

    Parameters
    ----------
    rec : Recording
        Of one model.

    Returns
    -------
    float
        From 0 to 1; 0 for recordings of this project's servers, whose batchers take the first request alone.
    """
    [config] = rec.configs.values() or [None]
    if rec.source is None or rec.replicas or config is None or not _batches_at_once(config):
        return 0.0
    instances = instance_count(config)
    starts, ends = sorted(one.exec_start_ns for one in rec.batches), sorted(one.exec_end_ns for one in rec.batches)
    together, waiting_until_ns = [], 0
    for one, following in pairwise(sorted(rec.requests, key=attrgetter("queued_ns"))):
        busy = bisect_left(starts, one.queued_ns) - bisect_right(ends, one.queued_ns)
        is_idle = busy < instances and waiting_until_ns <= one.queued_ns
        if is_idle and following.queued_ns - one.queued_ns <= _TOGETHER_NS:
            together.append(one.batch == following.batch)
        waiting_until_ns = max(waiting_until_ns, one.exec_start_ns)
    return statistics.fmean(together) if len(together) >= _LEAST_PAIRS else 0.0


def _batches_at_once(config: pb.ModelConfig) -> bool:
    return config.HasField("dynamic_batching") and not queue_delay_ns(config)
