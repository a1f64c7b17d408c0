"""The lock of the event loop: a thread that calls models rapidly runs the code of the event loop itself.

A call usually changes from its thread to the event loop and back, and each change takes as long as the work for the
call. Instead, the event loop can suspend itself: it waits inside a callback for a moment, and a thread that has the
lock meanwhile may do whatever runs on the event loop, without another change of threads. Only one thread has it at a
time, so nothing else needs a lock. Sockets and timers wait until the event loop continues.
"""

from __future__ import annotations

import asyncio
import threading
import time
from asyncio.events import _get_running_loop, _set_running_loop
from collections import deque
from contextlib import suppress
from queue import Empty, SimpleQueue

#: How long the event loop is suspended at most, and how long while no thread uses the lock, in ns.
SUSPENDED_NS, UNUSED_NS = 1_000_000, 300_000
#: The longest time between the end of a call and the next one, if calls are rapid, in ns.
RAPID_NS = 300_000
#: How long the event loop is not suspended after it was needed for other requests, in ns.
NEEDED_NS = 1_000_000
#: How long a thread waits for the lock, in seconds, since the event loop may be busy or stopped.
_PATIENCE_S = 0.05


class LoopLock:
    """The lock of an event loop, which normally has it itself.

    Parameters
    ----------
    loop : asyncio.AbstractEventLoop
    """

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._lock = threading.Lock()
        self._lock.acquire()
        self._is_suspended = False
        self._suspended_until_ns = self._needed_until_ns = 0
        self._last_call_ns = 0
        self._running_before: asyncio.AbstractEventLoop | None = None
        self._resumed: SimpleQueue[None] = SimpleQueue()
        #: Where threads wait until the event loop is suspended for them, one after the other.
        self._waiting: deque[SimpleQueue[None]] = deque()

    # --- on threads that call models ----------------------------------------------------------

    @property
    def is_worthwhile(self) -> bool:
        """Whether calls are rapid (`call_ended`) and no other requests need the event loop (`loop_is_needed`)."""
        now = time.monotonic_ns()
        return now - self._last_call_ns < RAPID_NS and now >= self._needed_until_ns

    def call_ended(self) -> None:
        """Note the end of a call."""
        self._last_call_ns = time.monotonic_ns()

    def acquire(self) -> bool:
        """Take the lock, which makes this thread the event loop's; False if it is not available."""
        if self._is_suspended and time.monotonic_ns() > self._suspended_until_ns:
            self.resume_loop()
        if not (self._is_suspended or self._wait_until_suspended()) or not self._lock.acquire(blocking=False):
            return False
        self._running_before = _get_running_loop()
        _set_running_loop(self._loop)
        return True

    def _wait_until_suspended(self) -> bool:
        suspended: SimpleQueue[None] = SimpleQueue()
        self._waiting.append(suspended)
        try:
            self._loop.call_soon_threadsafe(self._suspend)
            suspended.get(timeout=_PATIENCE_S)
        except (RuntimeError, Empty):  # it is closed, or busy
            with suppress(ValueError):
                self._waiting.remove(suspended)
            return False
        return True

    def release(self) -> None:
        """Release the lock; the event loop stays suspended for the next call."""
        _set_running_loop(self._running_before)
        self._lock.release()

    def resume_loop(self) -> None:
        """Have the event loop continue, if it is suspended: something waits for it."""
        if self._is_suspended:
            self._is_suspended = False
            self._resumed.put(None)

    # --- on the event loop --------------------------------------------------------------------

    def loop_is_needed(self) -> None:
        """Do not suspend the event loop for a moment: others send requests, too, which would have to wait."""
        self._needed_until_ns = time.monotonic_ns() + NEEDED_NS

    def _suspend(self) -> None:
        """Wait, without the lock, for the thread that has waited longest."""
        try:
            suspended = self._waiting.popleft()
        except IndexError:  # it waits no longer
            return
        self._suspended_until_ns = time.monotonic_ns() + SUSPENDED_NS
        self._is_suspended = True
        self._lock.release()
        suspended.put(None)
        self._wait_until_resumed()
        self._is_suspended = False
        self._lock.acquire()
        while not self._resumed.empty():
            self._resumed.get()

    def _wait_until_resumed(self) -> None:
        is_used = True
        while is_used and time.monotonic_ns() < self._suspended_until_ns:
            before = self._last_call_ns
            try:
                self._resumed.get(timeout=UNUSED_NS * 1e-9)
            except Empty:
                is_used = self._last_call_ns != before
            else:
                return
