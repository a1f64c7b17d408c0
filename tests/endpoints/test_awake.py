"""A loop that stays awake for a moment, and then sleeps."""

from __future__ import annotations

import asyncio
import time

from tritonnb.endpoints.http.awake import STAY_NS, Awake


def test_the_loop_turns_for_a_moment_and_then_no_more():
    async def turns() -> tuple[int, int]:
        awake = Awake(asyncio.get_running_loop())
        began = time.monotonic_ns()
        awake.stay()
        awake.stay()
        count = 0
        while awake.turning:
            count += 1
            await asyncio.sleep(0)
        return count, time.monotonic_ns() - began

    count, took_ns = asyncio.run(turns())
    assert count > 1
    assert took_ns >= STAY_NS
