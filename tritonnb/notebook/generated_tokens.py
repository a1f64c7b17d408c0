"""The tokens of generations in static batches: a batch runs until the longest of them has ended."""

from __future__ import annotations

from collections.abc import Sequence

from tritonnb.core.events import ResponseSent
from tritonnb.core.packed_events import Packed, positions

#: Requests that are remembered; a response after the end of its execution is not counted.
_REMEMBERED = 4096
_AT = positions(ResponseSent)


class GeneratedTokens:
    """Counts the responses of requests while they are executed.

    Examples
    --------
    >>> from tritonnb.core.packed_events import pack
    >>> tokens = GeneratedTokens()
    >>> for time_ns, serial in [(10, 1), (10, 2), (20, 1)]:
    ...     tokens.responded(pack(ResponseSent(time_ns, "m", 1, serial, 0, "success", 0)))
    >>> tokens.take([1, 2], end_ns=20)
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

    def take(self, serials: Sequence[int | None], end_ns: int) -> list[list[int]] | None:
        """Return and forget number, first and last time of the tokens of each request of a batch.

        None if no request has several responses: then the model does not generate token by token. Times are not
        after ``end_ns``, the end of the execution: the loop of the server may see the last responses later.
        """
        taken = [self._responses.pop(serial, [0, 0, 0]) for serial in serials if serial is not None]
        if not any(count > 1 for count, _, _ in taken):
            return None
        return [[count, min(first, end_ns), min(last, end_ns)] for count, first, last in taken]
