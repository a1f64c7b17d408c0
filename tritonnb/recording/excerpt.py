"""A part of the time of a recording."""

from __future__ import annotations

import math
from functools import cached_property

from tritonnb.core.errors import InvalidArgumentError
from tritonnb.core.events import (
    BatchExecuted,
    BatchSent,
    EnsembleExecuted,
    Event,
    RequestArrived,
    RequestCancelled,
    RequestRefused,
    StepSent,
)
from tritonnb.recording.ensemble_requests import EnsembleRequest
from tritonnb.recording.recording import Recording
from tritonnb.recording.sequences import SlotOccupancy


class Excerpt(Recording):
    """The requests that were in the server in a part of the time of a recording, and their batches.

    Its times count from the beginning of the whole recording.
    """

    def __init__(self, whole: Recording, begin_ns: int, end_ns: int) -> None:
        self._whole = whole
        self._begin_ns, self._end_ns = begin_ns, end_ns
        present = [each for each in whole.requests if self._holds(each.received_ns, each.exec_end_ns)]
        refused = [each.serial for each in whole.refused if self._holds(each.received_ns, each.time_ns)]
        self._numbers = {each.batch for each in present}
        self._serials = {each.serial for each in whole.requests if each.batch in self._numbers} | {*refused}
        super().__init__(filter(self._is_part, whole.events), whole.configs, simulated=whole.simulated)

    @property
    def span_ns(self) -> tuple[int, int]:
        """The part of the time."""
        return self._begin_ns, self._end_ns

    @property
    def origin_ns(self) -> int:
        """The beginning of the whole recording."""
        return self._whole.origin_ns

    @property
    def instances(self) -> list[str]:
        """Those of the whole recording."""
        return self._whole.instances

    @cached_property
    def slot_occupancy(self) -> list[SlotOccupancy]:
        """Sequences that held a slot in this part, or waited for it."""
        held = self._whole.slot_occupancy
        return [each for each in held if self._holds(each.arrived_ns, each.released_ns or self._end_ns)]

    @cached_property
    def ensemble_requests(self) -> list[EnsembleRequest]:
        """Requests of ensembles of which a step was in the server in this part."""
        return [each for each in self._whole.ensemble_requests if self._serials.intersection(each.steps)]

    def _holds(self, begin_ns: int, end_ns: int) -> bool:
        return begin_ns <= self._end_ns and end_ns >= self._begin_ns

    def _is_part(self, event: Event) -> bool:
        if isinstance(event, BatchSent | BatchExecuted):
            return event.batch in self._numbers
        if isinstance(event, StepSent):
            return event.step_serial in self._serials
        if isinstance(event, EnsembleExecuted):
            return self._holds(event.received_ns, event.time_ns)
        if isinstance(event, RequestArrived | RequestCancelled | RequestRefused):
            return event.serial in self._serials
        return self._holds(event.time_ns, event.time_ns)


def excerpt(whole: Recording, start_ms: float | None, end_ms: float | None) -> Excerpt:
    """The part between two moments, in milliseconds from the beginning; None for the beginning or the end.

    Raises
    ------
    InvalidArgumentError
        If the part has no length, or the moments are not numbers.
    """
    first, last = ((each - whole.origin_ns) / 1e6 for each in whole.span_ns)
    start = first if start_ms is None else start_ms
    stop = last if end_ms is None else end_ms
    try:
        possible = -math.inf < start < stop < math.inf
    except TypeError:
        possible = False
    if not possible:
        raise InvalidArgumentError(
            f"a part of a recording needs start_ms < end_ms, got {start!r} and {stop!r}; "
            f"this recording lasts from {first:.1f} to {last:.1f} ms"
        )
    return Excerpt(whole, *(whole.origin_ns + round(each * 1e6) for each in (start, stop)))
