"""A check that a simulation of what was recorded has the figures of the recording, and possible causes if not."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence

from tritonnb.lab.analysis.learned_times import LearnedTimes
from tritonnb.lab.analysis.typical_times import STALL_FACTOR
from tritonnb.lab.simulation.calls import CallingService
from tritonnb.lab.simulation.run import instance_count
from tritonnb.lab.simulation.service import Service
from tritonnb.recording.recording import Recording
from tritonnb.scheduling.reasons import pluralize

#: The relative difference from which on a simulated figure is not the recorded one: tails rest on a few executions.
TOLERANCE, TAIL_TOLERANCE = 0.1, 0.2
#: The figures that rest on a few executions.
_TAILS = {
    "longest_queue_ms",
    "latency_p99_ms",
    "time_to_first_token_p99_ms",
    "time_per_output_token_p99_ms",
}
#: A larger share of the time before executions, or a larger variation of the speed, explains a difference.
_NOTABLE = 0.1
#: Instances that are busier than this share of the time have queues that small differences make long.
_BUSY = 0.85
#: Times of less than this many ms are equal: a simulation has no time between its decisions.
_LEAST_MS = 0.5


def is_near(name: str, recorded: float, simulated: float) -> bool:
    """Return whether a simulated figure of `Recording.summary` is within the tolerance of the recorded one.

    Examples
    --------
    >>> is_near("latency_p99_ms", 73.0, 85.0), is_near("latency_p99_ms", 73.0, 141.0)
    (True, False)
    """
    tolerance = TAIL_TOLERANCE if name in _TAILS else TOLERANCE
    if name.endswith("_ms") and abs(simulated - recorded) <= _LEAST_MS:
        return True
    return abs(simulated - recorded) <= tolerance * max(abs(recorded), abs(simulated) / (1 + tolerance))


def verdict_of(edits: str, changed: Sequence[str], doubts: Mapping[str, str], causes: Iterable[str]) -> str:
    """Return what changes with edits, after a doubt if the simulation does not reproduce its recording.

    Parameters
    ----------
    edits : str
    changed : sequence of str
        The figures that change.
    doubts : mapping of str to str
        The figures that are not reproduced, by their names.
    causes : iterable of str
        Why they may not be.
    """
    change = f"{f'With {edits}' if edits else 'Without an edit'}: {'; '.join(changed) or 'nothing changes'}."
    if not doubts:
        return change
    return (
        f"The simulation does not reproduce the recording (within {_tolerance_text(doubts)}): "
        f"{'; '.join(doubts.values())}. Possible causes: {'; '.join(causes)}. {change}"
    )


def _tolerance_text(names: Iterable[str]) -> str:
    """Return the tolerances of figures: ``10 %``, ``20 %``, or both."""
    shares = sorted({TAIL_TOLERANCE if name.rpartition(": ")[2] in _TAILS else TOLERANCE for name in names})
    return " or ".join(f"{share * 100:.0f} %" for share in shares)


#: Why a simulation differs if nothing else is known.
OTHER_DECISIONS = "the scheduler's decisions came out differently where arrivals and ends were close to each other"


def causes_of(rec: Recording, model: str, service: Service, sizes: Collection[int]) -> list[str]:
    """Return why a simulation of a recording may differ from it, as far as that is known.

    Parameters
    ----------
    rec : Recording
    model : str
    service : Service
        Of the simulation.
    sizes : collection of int
        Of the simulated batches, in rows.
    """
    batches = [batch for batch in rec.batches if batch.model == model]
    span_ns = max(batch.exec_end_ns for batch in batches) - min(batch.exec_start_ns for batch in batches)
    instances = instance_count(rec.configs[model]) * max(1, len(rec.replicas))
    busy = sum(batch.compute_ns for batch in batches) / max(1, span_ns) / instances
    causes = []
    failed = sum(bool(request.failed) for request in rec.requests if request.model == model)
    if failed:
        causes.append(f"{pluralize(failed, 'request')} failed in its executions, and none does in a simulation")
    if busy >= _BUSY:
        causes.append(f"its instances were {busy:.0%} busy, where a small difference of times makes long queues")
    if isinstance(service, CallingService):
        return causes
    if not isinstance(service, LearnedTimes):
        return ["the execution times are the given ones, not the recorded ones"]
    slow_ms = [one.time_ns / 1e6 for one in service.executions if one.first and service.factor_of(one) >= STALL_FACTOR]
    if slow_ms:
        causes.append(f"the first execution of an instance took {max(slow_ms):.0f} ms: only the same batch repeats it")
    stalls = service.stalls
    if stalls:
        longest_ms = max(excess_ns for _, excess_ns in stalls) / 1e6
        causes.append(f"{pluralize(len(stalls), 'stall')} of the machine, up to {longest_ms:.0f} ms")
    if rec.source is not None and rec.source.unknown_rows:
        causes.append("the rows of the requests are not known")
    if service.dispatch_share > _NOTABLE:
        causes.append(f"{service.dispatch_share:.0%} of the time of an execution pass before it begins")
    if service.speed_variation > _NOTABLE:
        causes.append(f"the speed of the machine varied by {service.speed_variation:.0%}")
    if text := service.speeds_text():
        causes.append(text)
    causes += service.function.basis(sizes)
    return causes
