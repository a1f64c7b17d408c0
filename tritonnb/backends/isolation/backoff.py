"""The delays between attempts to start a process that keeps ending."""

from __future__ import annotations

import time

_FIRST_S = 0.1
_LONGEST_S = 30.0


class Backoff:
    """Counts failures without a success in between: no delay after the first, then a delay that doubles each time.

    Examples
    --------
    >>> backoff = Backoff()
    >>> for _ in range(4):
    ...     backoff.failed()
    ...     print(backoff.delay_s)
    0.0
    0.1
    0.2
    0.4
    """

    def __init__(self) -> None:
        self._failures = 0
        self._failed_at = 0.0

    @property
    def delay_s(self) -> float:
        """The time from the last failure to the next attempt, in seconds."""
        return 0.0 if self._failures < 2 else min(_LONGEST_S, _FIRST_S * 2.0 ** (min(self._failures, 60) - 2))

    def failed(self) -> None:
        """The process has ended, or could not be started."""
        self._failures += 1
        self._failed_at = time.monotonic()

    def reset(self) -> None:
        """The process has executed a batch."""
        self._failures = 0

    def is_due(self) -> bool:
        """Whether the delay has passed."""
        return time.monotonic() >= self._failed_at + self.delay_s
