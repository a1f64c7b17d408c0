"""A loop that stays awake for a moment, and then sleeps."""

from __future__ import annotations

import asyncio
import time

from tritonnb.endpoints.http.transport.busy_poll import STAY_NS, BusyPoller


def test_the_loop_turns_for_a_moment_and_then_no_more():
    async def turned_ns() -> int:
        awake = BusyPoller(asyncio.get_running_loop())
        began = time.monotonic_ns()
        awake.stay()
        assert awake.turning
        while awake.turning:
            await asyncio.sleep(0)
        return time.monotonic_ns() - began

    assert asyncio.run(turned_ns()) >= STAY_NS
