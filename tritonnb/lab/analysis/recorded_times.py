"""Execution times of recordings: of one model, of the models of a pipeline, and of several recordings."""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from tritonnb.core.errors import InvalidArgumentError
from tritonnb.core.failures import with_short_traceback
from tritonnb.lab.analysis.learned_times import LearnedTimes
from tritonnb.lab.analysis.recorded_executions import RecordedExecution, executions_of, with_company
from tritonnb.lab.simulation.run import instance_names
from tritonnb.recording.batches import Outlier
from tritonnb.recording.recording import Recording


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
        name: LearnedTimes(known, **_names_in(rec, name, known)) for name, known in with_company(executions).items()
    }
