"""An alarm: when a scheduler wants to be woken, on the clock of the event loop."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable


class EarliestTimer:
    """Calls a function at a time; of several wishes the earliest wins.

    Parameters
    ----------
    loop : asyncio.AbstractEventLoop
    callback : callable
        Called without arguments, perhaps too early: it sets the alarm again then. Event loops round
        timers to milliseconds; below that they call at once, and so the loop turns until the time has come.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, callback: Callable[[], None]) -> None:
        self._loop = loop
        self._callback = callback
        self._timer: asyncio.TimerHandle | None = None
        self._due_ns = 0

    def set(self, due_ns: int) -> None:
        """Ring at a time of the monotonic clock."""
        if self._timer is not None:
            if self._due_ns <= due_ns:
                return
            self._timer.cancel()
        self._due_ns = due_ns
        self._timer = self._loop.call_later(max(0, due_ns - time.monotonic_ns()) * 1e-9, self._fire)

    def cancel(self) -> None:
        """Ring no more."""
        if self._timer is not None:
            self._timer.cancel()

    def _fire(self) -> None:
        self._timer = None
        self._callback()
