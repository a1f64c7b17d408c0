"""The steps of iterative requests, which run many times, and the responses of requests in static batches."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from tritonnb.core.events import ResponseSent
from tritonnb.core.packed_events import Packed, positions
from tritonnb.core.schedulable import SEQUENCE_START
from tritonnb.notebook.view_encoding import FLAGS, SEQUENCE, SERIAL, STEP, TIME

#: Requests that are remembered; one that has ended is not reported as such.
_REMEMBERED = 4096
_AT = positions(ResponseSent)


class IterativeRequests:
    """Requests with one arrival per step, with the sequence, the START flag of the first, and the number."""

    def __init__(self) -> None:
        self._arrived: dict[int, Packed] = {}
        self._steps: dict[int, int] = {}

    def arrived(self, packed: Packed) -> Packed:
        """Return the arrival of a request as the arrival of its first step."""
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

    def is_known(self, serial: int) -> bool:
        """Return whether a request has arrived."""
        return serial in self._arrived

    def count_rescheduled(self, serials: Iterable[int | None]) -> int:
        """Count the requests that run again."""
        return sum(1 for serial in serials if serial is not None and self._steps.get(serial, 0) > 0)

    def steps(self, sent: Packed, members: Iterable[int | None], arrivals: list[Packed | None]) -> list[Packed | None]:
        """Return the arrivals of a batch's steps; ``arrivals`` has the requests that run for the first time."""
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


class GeneratedTokens:
    """The number of responses to requests while they are executed.

    Examples
    --------
    >>> from tritonnb.core.packed_events import pack
    >>> tokens = GeneratedTokens()
    >>> for time_ns, serial in [(10, 1), (10, 2), (20, 1)]:
    ...     tokens.responded(pack(ResponseSent(time_ns, "m", 1, serial, 0, "success", 0)))
    >>> tokens.take_tokens([1, 2], end_ns=20)
    [[2, 10, 20], [1, 10, 10]]
    """

    def __init__(self) -> None:
        self._responses: dict[int, list[int]] = {}  # number, and times of the first and the last, by serial

    def responded(self, packed: Packed) -> None:
        """Count a packed `ResponseSent`."""
        if packed[_AT.outcome] != "success":
            return
        serial, time_ns = packed[_AT.serial], packed[_AT.time_ns]
        known = self._responses.setdefault(serial, [0, time_ns, time_ns])
        known[0] += 1
        known[2] = time_ns
        if len(self._responses) > _REMEMBERED:
            del self._responses[next(iter(self._responses))]

    def take_tokens(self, serials: Sequence[int | None], end_ns: int) -> list[list[int]] | None:
        """Return and forget number, first and last time of the tokens of each request of a batch.

        None if no request has several responses: then the model does not generate token by token. Times are not
        after ``end_ns``, the end of the execution: the loop of the server may see the last responses later.
        """
        taken = [self._responses.pop(serial, [0, 0, 0]) for serial in serials if serial is not None]
        if not any(count > 1 for count, _, _ in taken):
            return None
        return [[count, min(first, end_ns), min(last, end_ns)] for count, first, last in taken]
