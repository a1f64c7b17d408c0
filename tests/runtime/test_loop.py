"""The background loop answers whoever asks it, also while it ends."""

from __future__ import annotations

import asyncio
import threading

import pytest

from tritonnb.core.errors import UnavailableError
from tritonnb.runtime.loop import BackgroundLoop


def test_who_waits_when_the_loop_ends_is_told():
    background = BackgroundLoop()
    begun = threading.Event()
    outcome: list[BaseException] = []

    async def forever() -> None:
        begun.set()
        await asyncio.get_running_loop().create_future()

    def ask() -> None:
        try:
            background.run(forever())
        except UnavailableError as error:
            outcome.append(error)

    asker = threading.Thread(target=ask)
    asker.start()
    begun.wait()
    background.stop()
    asker.join(30)
    assert [str(each) for each in outcome] == ["the server has been stopped"]


def test_who_asks_after_the_loop_was_told_to_stop_is_told():
    background = BackgroundLoop()
    held = threading.Event()
    background.loop.call_soon_threadsafe(held.wait)
    background.loop.call_soon_threadsafe(background.loop.stop)
    asker = threading.Timer(0, held.set)
    asker.start()
    with pytest.raises(UnavailableError, match="stopped"):
        background.run(asyncio.sleep(60))
    background.stop()


def test_a_loop_that_has_ended_by_itself_can_still_be_stopped():
    background = BackgroundLoop()
    background.loop.call_soon_threadsafe(background.loop.stop)
    while not background.loop.is_closed():
        pass
    background.stop()
    background.stop()
    assert not background.alive


def test_a_loop_cannot_wait_for_itself():
    background = BackgroundLoop()
    with pytest.raises(RuntimeError, match="own loop"):
        background.call(lambda: background.call(int))
    background.stop()
