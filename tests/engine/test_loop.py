"""Calls of the background loop return or raise, even while it stops."""

from __future__ import annotations

import asyncio
import gc
import signal
import sys
import threading
import weakref
from contextlib import suppress

import pytest

from tests.waiting import wait_for
from tritonnb.core.errors import UnavailableError
from tritonnb.engine.execution.loop import BackgroundLoop

#: SystemExit ends an event loop; Python ignores it in a thread, but pytest does not.
ENDED_BY_A_CALLBACK = pytest.mark.usefixtures("ignored_exit")


@pytest.fixture
def ignored_exit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(threading, "excepthook", lambda exit: None)


def test_waiting_caller_gets_an_error_when_the_loop_ends() -> None:
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
    assert [str(error) for error in outcome] == ["the server has been stopped"]


class Alarm(Exception):
    """The exception of a signal handler."""


def test_exception_in_a_signal_handler_cancels_the_pending_call() -> None:
    background = BackgroundLoop()
    cancelled = threading.Event()

    def ring(number: int, frame: object) -> None:
        raise Alarm

    async def forever() -> None:
        signal.pthread_kill(threading.get_ident(), signal.SIGUSR1)  # the caller's thread sleeps on
        try:
            await asyncio.get_running_loop().create_future()
        finally:
            cancelled.set()

    handler = signal.signal(signal.SIGUSR1, ring)
    try:
        with pytest.raises(Alarm):
            background.run(forever())
    finally:
        signal.signal(signal.SIGUSR1, handler)
    assert cancelled.wait(30)
    background.stop()


@ENDED_BY_A_CALLBACK
def test_call_after_the_loop_has_ended_gets_an_error() -> None:
    background = BackgroundLoop()
    held = threading.Event()
    background.loop.call_soon_threadsafe(held.wait)
    background.loop.call_soon_threadsafe(sys.exit)
    asker = threading.Timer(0, held.set)
    asker.start()
    with pytest.raises(UnavailableError, match="stopped"):
        background.run(asyncio.sleep(60))
    background.stop()


@ENDED_BY_A_CALLBACK
def test_event_loop_that_has_ended_can_be_stopped() -> None:
    background = BackgroundLoop()
    background.loop.call_soon_threadsafe(sys.exit)
    wait_for(background.loop.is_closed)
    background.stop()
    background.stop()
    assert not background.alive


def test_event_loop_cannot_wait_for_itself() -> None:
    background = BackgroundLoop()
    assert background.call(lambda: background.call(int)) == 0
    with pytest.raises(RuntimeError, match="cannot wait for itself"):
        background.call(lambda: background.run(asyncio.sleep(0)))
    background.stop()


def test_objects_of_a_failed_call_are_freed_immediately() -> None:
    class Large:
        """A stand-in for the objects in a frame on the loop."""

    def fail() -> None:
        held = Large()
        alive.append(weakref.ref(held))
        raise ValueError("no")

    alive: list[weakref.ref[Large]] = []
    background = BackgroundLoop()
    gc.disable()
    try:
        with suppress(ValueError):
            background.call(fail)
        background.call(lambda: None)  # the loop is done with the first
        assert alive[0]() is None
    finally:
        gc.enable()
        background.stop()
