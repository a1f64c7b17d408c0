"""Staying awake: with one client alone, the loop turns for a moment instead of going to sleep.

To wake a thread takes tens of microseconds, longer than many a small model runs. A client that asks again and
again would pay that twice a request: when its model has run, and when it asks the next time.
"""

from __future__ import annotations

import asyncio
import time

#: How long the loop turns: longer than a small model runs, or its client thinks; too short to be noticed otherwise.
STAY_NS = 50_000


class BusyPoller:
    """Keeps an event loop from sleeping.

    Parameters
    ----------
    loop : asyncio.AbstractEventLoop

    Attributes
    ----------
    turning : bool
        Whether the loop does not sleep just now.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._until_ns = 0
        self.turning = False

    def stay(self) -> None:
        """Turn from now on for `STAY_NS`; whatever else is ready is served meanwhile."""
        self._until_ns = time.monotonic_ns() + STAY_NS
        if not self.turning:
            self.turning = True
            self._loop.call_soon(self._turn)

    def _turn(self) -> None:
        if time.monotonic_ns() < self._until_ns:
            self._loop.call_soon(self._turn)
        else:
            self.turning = False
