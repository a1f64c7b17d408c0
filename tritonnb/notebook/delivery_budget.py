"""How many batches and requests a delivery to a view may have."""

from __future__ import annotations

#: Requests and batches sent per delivery, and how many times as many in a burst. Jupyter forwards 1 MB per second; ten
#: deliveries are 0.1 MB.
MOST_MEMBERS, MOST_BATCHES, BURST = 120, 30, 5


class DeliveryBudget:
    """How many more batches and requests the next delivery may have; a burst may use what earlier ones left.

    Parameters
    ----------
    limited : bool
        Whether there is a limit.

    Examples
    --------
    >>> budget = DeliveryBudget(limited=True)
    >>> [budget.covers(time_ns, members=200) for time_ns in range(5)]
    [True, True, True, False, False]
    >>> budget.refill()
    3
    """

    def __init__(self, limited: bool) -> None:
        self._limited = limited
        self._members, self._batches = BURST * MOST_MEMBERS, BURST * MOST_BATCHES
        self._omitted_ns: int | None = None

    def covers(self, time_ns: int, members: int) -> bool:
        """Whether a batch is sent: not if the budget is exceeded, nor after one that was not sent."""
        if not self._limited:
            return True
        if self._omitted_ns is not None:
            return False
        self._members -= members
        self._batches -= 1
        if self._members < 0 or self._batches < 0:
            self._omitted_ns = time_ns
        return self._omitted_ns is None

    def refill(self) -> int | None:
        """Add the budget of another delivery; return when the first batch was not sent."""
        self._members = min(BURST * MOST_MEMBERS, max(0, self._members) + MOST_MEMBERS)
        self._batches = min(BURST * MOST_BATCHES, max(0, self._batches) + MOST_BATCHES)
        omitted_ns, self._omitted_ns = self._omitted_ns, None
        return omitted_ns
