"""A timer for the time at which a scheduler must be woken."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable


class EarliestTimer:
    """Calls a function at the earliest of the times that were set.

    Parameters
    ----------
    loop : asyncio.AbstractEventLoop
    callback : callable
        Called without arguments, possibly too early: it must then set the timer again. Event loops round
        timers to milliseconds; they call a shorter timer immediately, so the event loop runs until the time is reached.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, callback: Callable[[], None]) -> None:
        self._loop = loop
        self._callback = callback
        self._timer: asyncio.TimerHandle | None = None
        self._due_ns = 0

    def set(self, due_ns: int) -> None:
        """Call the function at a time of the monotonic clock, unless an earlier time is set."""
        if self._timer is not None:
            if self._due_ns <= due_ns:
                return
            self._timer.cancel()
        self._due_ns = due_ns
        self._timer = self._loop.call_later(max(0, due_ns - time.monotonic_ns()) * 1e-9, self._fire)

    def cancel(self) -> None:
        """Cancel the timer."""
        if self._timer is not None:
            self._timer.cancel()

    def _fire(self) -> None:
        self._timer = None
        self._callback()
