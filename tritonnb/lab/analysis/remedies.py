"""Finds the smallest change of a configuration that removes a cause of a request's latency, by simulation.

For each cause there is a list of candidates, the smallest change first. Each one is simulated with the recorded
arrivals, and the latency of the same request is split again. A candidate counts only if both the part of the cause and
the latency of the request are smaller than in the simulation of the recorded configuration.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from typing import Any

from tritonnb.core.errors import InvalidArgumentError
from tritonnb.core.protobuf import model_config_pb2 as pb
from tritonnb.lab.analysis import latency_split as split
from tritonnb.lab.analysis.blame import Blame
from tritonnb.lab.analysis.reproduction import is_near
from tritonnb.lab.analysis.rerun import Rerun, config_of, unknown_instances
from tritonnb.recording.batches import latencies_ms
from tritonnb.recording.recording import Recording
from tritonnb.recording.sequences import slot_count
from tritonnb.telemetry.quantiles import quantile

Edits = dict[str, Any]
#: Requests before the request in question that are simulated.
_MAX_EARLIER = 2000
#: The simulation ends with the arrivals within this multiple of the latency, unless the request takes longer.
_HORIZON = 4
#: Instances that are tried in addition to the configured instances.
_MORE_INSTANCES = (1, 2, 3, 4, 8)


@dataclass(frozen=True, slots=True)
class Remedy:
    """A change of the configuration that reduces one part of a request's latency.

    All numbers come from simulations with the recorded arrivals.

    Attributes
    ----------
    edits : dict
        The changed fields, as for `Recording.what_if`.
    before_ns, after_ns : int
        The part of the cause, before and after the change.
    latency_before_ns, latency_after_ns : int
        The latency of the request.
    p99_before_ms, p99_after_ms : float
        Of all simulated requests.
    recorded_ns : int
        The recorded latency of the request.
    unknown : str
        That its instances were not recorded at the same time, if that is so: see `SlowDown` for what is assumed then.
    """

    edits: Edits
    before_ns: int
    after_ns: int
    latency_before_ns: int
    latency_after_ns: int
    p99_before_ms: float
    p99_after_ms: float
    recorded_ns: int
    unknown: str = ""

    @property
    def removes(self) -> bool:
        """True if nothing is left of the part."""
        return self.after_ns == 0

    def __str__(self) -> str:
        edits = ", ".join(f"{name}: {value}" for name, value in self.edits.items())
        part = "removes it" if self.removes else f"reduces it to {self.after_ns / 1e6:.3f} ms"
        if self.latency_before_ns - self.latency_after_ns < (self.before_ns - self.after_ns) / 2:
            part += ", but most of it becomes another cause"
        doubt = ""
        if not is_near("latency_p99_ms", self.recorded_ns / 1e6, self.latency_before_ns / 1e6):
            doubt = f", not the recorded {self.recorded_ns / 1e6:.0f} ms"
        return (
            f"{edits} {part} (simulated: its latency {_change(self.latency_before_ns, self.latency_after_ns)}{doubt}, "
            f"p99 of all {self.p99_before_ms:.3f} → {self.p99_after_ms:.3f} ms{self.unknown and '; '}{self.unknown})"
        )


def _change(before_ns: int, after_ns: int) -> str:
    return f"{before_ns / 1e6:.3f} → {after_ns / 1e6:.3f} ms"


def remedies(blame: Blame) -> dict[str, Remedy]:
    """Return the smallest configuration change that reduces each cause of a latency, found by simulation.

    The simulation has the recorded arrivals and service times, like `Recording.what_if`. A remedy that does not reduce
    the latency of the request is not reported. A cause with an outlier has no remedy, because the simulation does not
    reproduce it.

    Parameters
    ----------
    blame : Blame
        Of a request in a recording of one model.

    Returns
    -------
    dict of str to Remedy
        By cause; causes that no candidate reduces are left out.
    """
    causes = [cause for cause in blame.parts if cause not in blame.outliers]
    rec, request = blame.recording, blame.request
    config = rec.configs[request.model]
    serials = list(rec.arrived)
    if request.serial not in serials or not any(cause in _CANDIDATES for cause in causes):
        return {}
    outcomes = _Outcomes(blame, serials.index(request.serial))
    before = outcomes.of(config)
    found: dict[str, Remedy] = {}
    if before is None:
        return found
    known: dict[str, Blame | None] = {}
    for cause in causes:
        part_ns = before.parts.get(cause, 0)
        for edits in edits_for(cause, config, before) if part_ns else ():
            key = repr(edits)
            if key not in known:
                known[key] = outcomes.of_edits(edits)
            after = known[key]
            if after is None or after.latency_ns >= before.latency_ns:
                continue
            # A simulation may begin with a larger part than was recorded: to get back to that is no remedy.
            if after.parts.get(cause, 0) >= min(part_ns, blame.parts[cause]):
                continue
            if cause == split.COMPUTE_INFER and not outcomes.is_faster(before, after):
                continue
            remedy = Remedy(
                edits, part_ns, after.parts.get(cause, 0), before.latency_ns, after.latency_ns,
                _p99_ms(before.recording), _p99_ms(after.recording), blame.latency_ns, outcomes.unknown_of(edits),
            )  # fmt: skip
            if cause not in found or remedy.removes:
                found[cause] = remedy
            if remedy.removes:
                break
    return found


def edits_for(cause: str, config: pb.ModelConfig, before: Blame) -> Iterator[Edits]:
    """Yield the changes of a configuration that may reduce a cause, the smallest one first.

    Parameters
    ----------
    cause : str
    config : ModelConfig
    before : Blame
        Of a request with the cause.
    """
    return chain.from_iterable(find(config, before) for find in _CANDIDATES.get(cause, ()))


def _p99_ms(rec: Recording) -> float:
    return quantile(latencies_ms(rec.requests), 0.99)


class _Outcomes:
    """Simulations of the arrivals around one request under different configurations."""

    def __init__(self, blame: Blame, index: int) -> None:
        rec, self._blame = blame.recording, blame
        has_slots = config_of(rec, "remedies").HasField("sequence_batching")
        first = 0 if has_slots else self._first_arrival(rec, index)
        self._rerun = Rerun(rec, "remedies", blame.service, first=first)
        self._serial = index - first + 1
        self._until_us = self._rerun.arrivals[index - first].time_us + _HORIZON * blame.request.latency_ns / 1000

    @staticmethod
    def _first_arrival(rec: Recording, index: int) -> int:
        """Return the first arrival to simulate: the server was empty before it, if that is so at some time."""
        start = max(0, index - _MAX_EARLIER)
        if not start:
            return 0
        arrived = list(rec.arrived.values())
        end_ns = {request.serial: request.exec_end_ns for request in rec.requests}
        latest = max((end_ns.get(event.serial, 0) for event in arrived[:start]), default=0)
        for position in range(start, index + 1):
            if arrived[position].time_ns >= latest:
                return position
            latest = max(latest, end_ns.get(arrived[position].serial, 0))
        return start

    def is_faster(self, before: Blame, after: Blame) -> bool:
        """Return whether the batch of the request typically takes less time: its execution alone may be luck."""
        times = self._rerun.times
        sizes = ({batch.number: batch.size for batch in one.recording.batches} for one in (before, after))
        rows_before, rows_after = (size[one.request.batch] for size, one in zip(sizes, (before, after), strict=True))
        return times(rows_after) < times(rows_before)

    def unknown_of(self, edits: Edits) -> str:
        """Return that the instances of edits were not recorded at the same time, if that is so."""
        return unknown_instances(self._rerun.times, self._rerun.edited(edits))

    def of_edits(self, edits: Edits) -> Blame | None:
        """Return the outcome of an edited configuration; None if it is invalid or the request does not run."""
        try:
            return self.of(self._rerun.edited(edits))
        except InvalidArgumentError:
            return None

    def of(self, config: pb.ModelConfig) -> Blame | None:
        """Return the outcome of a configuration; None if the request does not run."""
        for until_us in (self._until_us, math.inf):
            rec = self._rerun.run(config, [arrival for arrival in self._rerun.arrivals if arrival.time_us <= until_us])
            matches = [record for record in rec.requests if record.serial == self._serial]
            if matches and matches[-1].exec_end_ns <= until_us * 1000:
                break
        if not matches:
            return None
        intervals = tuple(split.LatencySplitter(rec, config).split(matches[-1]))
        return replace(self._blame, request=matches[-1], intervals=intervals, recording=rec)


# --- candidates: the smallest change first ------------------------------------------------------


def _more_instances(config: pb.ModelConfig, before: Blame) -> Iterator[Edits]:
    largest = max([max(1, group.count) for group in config.instance_group], default=1)
    yield from ({"count": largest + more} for more in _MORE_INSTANCES)


def _larger_batches(config: pb.ModelConfig, before: Blame) -> Iterator[Edits]:
    """Yield a batch size with room for this request as well; then larger sizes."""
    if config.max_batch_size > 1 and config.WhichOneof("scheduling_choice") is None:
        yield {"dynamic_batching": {}}
    elif config.HasField("dynamic_batching"):
        numbers = [interval.batch for interval in before.intervals if interval.batch is not None]
        sizes = {batch.number: batch.size for batch in before.recording.batches}
        needed = max([sizes[number] for number in numbers], default=0) + before.request.size
        largest = max(1, config.max_batch_size)
        yield from ({"max_batch_size": rows} for rows in sorted({needed, 2 * largest, 4 * largest}) if rows > largest)


def _no_delay(config: pb.ModelConfig, before: Blame) -> Iterator[Edits]:
    yield {"max_queue_delay_microseconds": 0}


def _longer_delays(config: pb.ModelConfig, before: Blame) -> Iterator[Edits]:
    """Yield edits to a delay that may not expire while the instances are busy."""
    delay_us = int(config.dynamic_batching.max_queue_delay_microseconds)
    yield from ({"max_queue_delay_microseconds": factor * delay_us} for factor in (2, 4, 8))


def _no_priorities(config: pb.ModelConfig, before: Blame) -> Iterator[Edits]:
    batching = config.dynamic_batching
    edits: Edits = {"priority_levels": 0}
    if batching.default_priority_level:
        edits["default_priority_level"] = 0
    if batching.priority_queue_policy:
        edits["priority_queue_policy"] = {}
    yield edits


def _no_preferred_sizes(config: pb.ModelConfig, before: Blame) -> Iterator[Edits]:
    yield {"preferred_batch_size": []}


def _longer_timeouts(config: pb.ModelConfig, before: Blame) -> Iterator[Edits]:
    timeout_us = int(config.dynamic_batching.default_queue_policy.default_timeout_microseconds)
    yield from ({"default_timeout_microseconds": factor * timeout_us} for factor in (2, 4, 8) if timeout_us)


def _more_slots(config: pb.ModelConfig, before: Blame) -> Iterator[Edits]:
    slots = slot_count(config)
    field = "max_candidate_sequences" if config.sequence_batching.HasField("oldest") else "max_batch_size"
    yield from ({field: slots + more} for more in _MORE_INSTANCES)


def _smaller_batches(config: pb.ModelConfig, before: Blame) -> Iterator[Edits]:
    """Yield edits to smaller batches, which take less time if the service time depends on the size."""
    rows = config.max_batch_size // 2
    while rows >= before.request.size and not config.HasField("sequence_batching"):
        yield {"max_batch_size": rows}
        rows //= 2


def _unordered_responses(config: pb.ModelConfig, before: Blame) -> Iterator[Edits]:
    yield {"preserve_ordering": False}


_CANDIDATES: Mapping[str, Sequence[Callable[[pb.ModelConfig, Blame], Iterator[Edits]]]] = {
    split.SEQUENCE_SLOT: (_more_slots, _more_instances),
    split.INSTANCES_BUSY: (_more_instances,),
    split.QUEUE_DELAY: (_no_delay,),
    split.PRIORITY: (_no_priorities, _larger_batches, _more_instances),
    split.EARLIER_REQUESTS: (_larger_batches, _more_instances),
    split.DID_NOT_FIT: (_larger_batches, _more_instances),
    split.PREFERRED_SIZE: (_no_preferred_sizes, _more_instances),
    split.BATCH_CLOSED: (_no_delay, _longer_delays, _more_instances),
    split.DIFFERENT_INPUTS: (_more_instances,),
    split.TIMED_OUT: (_longer_timeouts, _more_instances),
    split.COMPUTE_INFER: (_smaller_batches,),
    split.RESPONSE: (_unordered_responses,),
}
