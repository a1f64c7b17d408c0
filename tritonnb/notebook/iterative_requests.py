"""The steps of iterative requests, which arrive once and run many times."""

from __future__ import annotations

from collections.abc import Iterable

from tritonnb.core.packed_events import Packed
from tritonnb.core.sequence_flags import SEQUENCE_START
from tritonnb.notebook.view_encoding import FLAGS, SEQUENCE, SERIAL, STEP, TIME

#: Requests that are remembered; one that has ended is not reported as such.
_REMEMBERED = 4096


class IterativeRequests:
    """Makes an arrival of its own for each step: with the sequence, the START flag of the first, and the number."""

    def __init__(self) -> None:
        self._arrived: dict[int, Packed] = {}
        self._steps: dict[int, int] = {}

    def arrived(self, packed: Packed) -> Packed:
        """The arrival of a request as that of its first step."""
        serial = packed[SERIAL]
        step = list(packed)
        step[SEQUENCE] = packed[SEQUENCE] or f"#{serial}"  # the scheduler chooses an ID when it accepts the request
        step[FLAGS] = SEQUENCE_START | STEP
        self._arrived[serial] = tuple(step)
        self._steps[serial] = 0
        if len(self._arrived) > _REMEMBERED:
            oldest = next(iter(self._arrived))
            del self._arrived[oldest], self._steps[oldest]
        return self._arrived[serial]

    def known(self, serials: Iterable[int | None]) -> int:
        """How many of these requests run again."""
        return sum(1 for serial in serials if serial is not None and self._steps.get(serial, 0) > 0)

    def steps(self, sent: Packed, members: Iterable[int | None], arrivals: list[Packed | None]) -> list[Packed | None]:
        """The arrivals of the steps of a batch: ``arrivals`` has those of the requests that run for the first time."""
        return [self._step(sent[TIME], serial, arrived) for serial, arrived in zip(members, arrivals, strict=True)]

    def _step(self, sent_ns: int, serial: int | None, arrived: Packed | None) -> Packed | None:
        if serial is None or serial not in self._steps:
            return arrived
        self._steps[serial] += 1
        if arrived is not None:
            return arrived
        step = list(self._arrived[serial])
        step[TIME], step[FLAGS] = sent_ns, STEP * self._steps[serial]
        return tuple(step)
