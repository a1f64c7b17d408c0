"""Busy polling: with a single client, the event loop polls for a moment instead of sleeping.

Waking a thread takes tens of microseconds, longer than a small model runs. A client that sends one request after the
other would pay this twice for each: after the model has run, and when the next request arrives.
"""

from __future__ import annotations

import asyncio
import time

#: How long the loop polls: longer than a small model or its client takes, even if the model has its own process,
#: and too short to cost noticeable processor time.
POLL_NS = 100_000


class BusyPoller:
    """A poller that keeps an event loop from sleeping.

    Parameters
    ----------
    loop : asyncio.AbstractEventLoop

    Attributes
    ----------
    polling : bool
        Whether the loop is polling.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._until_ns = 0
        self.polling = False

    def extend(self) -> None:
        """Poll for `POLL_NS` from now on; everything else on the loop runs in between."""
        self._until_ns = time.monotonic_ns() + POLL_NS
        if not self.polling:
            self.polling = True
            self._loop.call_soon(self._poll)

    def _poll(self) -> None:
        if time.monotonic_ns() < self._until_ns:
            self._loop.call_soon(self._poll)
        else:
            self.polling = False
