"""``recording.between(start_ms, end_ms)``: the part of a recording in a time range."""

from __future__ import annotations

import math
from functools import cached_property

from tritonnb.core import events
from tritonnb.core.errors import InvalidArgumentError
from tritonnb.core.failures import with_short_traceback
from tritonnb.recording.generations import Generation
from tritonnb.recording.recorded_events import EnsembleRequest
from tritonnb.recording.recording import Recording
from tritonnb.recording.sequences import SlotOccupancy


@with_short_traceback
def between(recording: Recording, start_ms: float | None = None, end_ms: float | None = None) -> Excerpt:
    """Return the requests that were in the server during a time range, and their batches.

    Parameters
    ----------
    start_ms, end_ms : float, optional
        Milliseconds from the beginning of the recording; by default its beginning and its end.

    Raises
    ------
    InvalidArgumentError
        If ``start_ms`` is not before ``end_ms``, or one of them is not a finite number.

    Examples
    --------
    >>> from tritonnb import constant, fixed, simulate
    >>> recording = simulate("max_batch_size: 4", constant(100, 1), fixed(5))
    >>> len(recording.requests), len(recording.between(0, 500).requests)
    (100, 51)
    """
    first, last = ((time_ns - recording.origin_ns) / 1e6 for time_ns in recording.span_ns)
    start = first if start_ms is None else start_ms
    stop = last if end_ms is None else end_ms
    try:
        is_valid = -math.inf < start < stop < math.inf
    except TypeError:
        is_valid = False
    if not is_valid:
        raise InvalidArgumentError(
            f"time range of a recording expected numbers start_ms < end_ms, got {start!r} and {stop!r}: "
            f"this recording lasts from {first:.1f} to {last:.1f} ms"
        )
    return Excerpt(recording, *(recording.origin_ns + round(ms * 1e6) for ms in (start, stop)))


class Excerpt(Recording):
    """The requests that were in the server during a time range of a recording, and their batches.

    Times count from the beginning of the whole recording.
    """

    def __init__(self, whole: Recording, begin_ns: int, end_ns: int) -> None:
        self._whole = whole
        self._begin_ns, self._end_ns = begin_ns, end_ns
        present = [request for request in whole.requests if self._overlaps(request.received_ns, request.exec_end_ns)]
        refused = [refusal.serial for refusal in whole.refused if self._overlaps(refusal.received_ns, refusal.time_ns)]
        self._numbers = {request.batch for request in present}
        self._serials = {request.serial for request in whole.requests if request.batch in self._numbers} | {*refused}
        included = filter(self._includes, whole.events)
        super().__init__(included, whole.configs, simulated=whole.simulated, source=whole.source)

    @property
    def span_ns(self) -> tuple[int, int]:
        """Begin and end of the time range (monotonic clock, ns)."""
        return self._begin_ns, self._end_ns

    @property
    def origin_ns(self) -> int:
        """The beginning of the whole recording."""
        return self._whole.origin_ns

    @property
    def instances(self) -> list[str]:
        """Instances of the whole recording."""
        return self._whole.instances

    @cached_property
    def slot_occupancy(self) -> list[SlotOccupancy]:
        """Sequences that held a slot during the time range, or waited for one."""
        occupancies = self._whole.slot_occupancy
        return [
            occupancy
            for occupancy in occupancies
            if self._overlaps(occupancy.arrived_ns, occupancy.released_ns or self._end_ns)
        ]

    @cached_property
    def generations(self) -> list[Generation]:
        """Generations that were in the server during the time range, with all of their steps."""
        generations = self._whole.generations
        return [one for one in generations if self._overlaps(one.arrived_ns, one.free_ns)]

    @cached_property
    def ensemble_requests(self) -> list[EnsembleRequest]:
        """Requests of ensembles with a step in the server during the time range."""
        return [request for request in self._whole.ensemble_requests if self._serials.intersection(request.steps)]

    def _overlaps(self, begin_ns: int, end_ns: int) -> bool:
        return begin_ns <= self._end_ns and end_ns >= self._begin_ns

    def _includes(self, event: events.Event) -> bool:
        if isinstance(event, events.BatchSent | events.BatchExecuted):
            return event.batch in self._numbers
        if isinstance(event, events.StepSent):
            return event.step_serial in self._serials
        if isinstance(event, events.EnsembleExecuted):
            return self._overlaps(event.received_ns, event.time_ns)
        if isinstance(event, events.RequestArrived | events.RequestCancelled | events.RequestRefused):
            return event.serial in self._serials
        return self._overlaps(event.time_ns, event.time_ns)
