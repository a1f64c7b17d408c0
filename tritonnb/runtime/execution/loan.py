"""The event loop on loan: threads that call models in quick succession do its work themselves.

A call usually changes from its thread to the event loop and back, and each change takes as long as the work for the
call. Instead, the event loop can lend all that it owns: it waits inside a callback for a moment, and the thread that
has borrowed it may do whatever runs on the event loop, without another change of threads. Only one thread has it at a
time, so the core still needs no locks. Sockets and timers wait until the end of the loan.
"""

from __future__ import annotations

import asyncio
import threading
import time
from asyncio.events import _get_running_loop, _set_running_loop
from collections import deque
from contextlib import suppress
from queue import Empty, SimpleQueue

#: How long the event loop waits at most, and how long while nobody uses the loan, in ns.
LOAN_NS, UNUSED_NS = 1_000_000, 300_000
#: The time between the end of a call and the next one, if they come in quick succession, in ns.
SUCCESSION_NS = 300_000
#: How long the event loop lends nothing after it was needed otherwise, in ns.
PAUSE_NS = 1_000_000
#: How long a thread waits for a loan, in seconds, since the event loop may be busy or stopped.
_PATIENCE_S = 0.05


class Loan:
    """Lends an event loop to other threads.

    Parameters
    ----------
    loop : asyncio.AbstractEventLoop
    """

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        #: Held by the event loop or by the thread that has borrowed it.
        self._owner = threading.Lock()
        self._owner.acquire()
        self._is_lent = False
        self._until_ns = 0
        self._last_call_ns = 0
        self._paused_until_ns = 0
        self._before: asyncio.AbstractEventLoop | None = None
        self._returned: SimpleQueue[None] = SimpleQueue()
        #: Where threads wait for their loans, which begin one after the other.
        self._waiting: deque[SimpleQueue[None]] = deque()

    # --- on threads that call models ----------------------------------------------------------

    @property
    def is_worthwhile(self) -> bool:
        """Whether calls come in quick succession, which `call_ended` is told of, and nothing else does."""
        now = time.monotonic_ns()
        return now - self._last_call_ns < SUCCESSION_NS and now >= self._paused_until_ns

    def call_ended(self) -> None:
        """A call has ended."""
        self._last_call_ns = time.monotonic_ns()

    def pause(self) -> None:
        """Lend nothing for a moment: requests of others arrive, too, which would have to wait."""
        self._paused_until_ns = time.monotonic_ns() + PAUSE_NS

    def borrow(self) -> bool:
        """Borrow the event loop, until `end`; False if it is not available."""
        if self._is_lent and time.monotonic_ns() > self._until_ns:
            self.give_back()
        if not (self._is_lent or self._ask()) or not self._owner.acquire(blocking=False):
            return False
        self._before = _get_running_loop()
        _set_running_loop(self._loop)
        return True

    def _ask(self) -> bool:
        """Ask the event loop for a loan and wait."""
        begun: SimpleQueue[None] = SimpleQueue()
        self._waiting.append(begun)
        try:
            self._loop.call_soon_threadsafe(self._lend)
            begun.get(timeout=_PATIENCE_S)
        except (RuntimeError, Empty):  # it is closed, or busy
            with suppress(ValueError):
                self._waiting.remove(begun)
            return False
        return True

    def end(self) -> None:
        """Let the next thread borrow the event loop."""
        _set_running_loop(self._before)
        self._owner.release()

    def give_back(self) -> None:
        """End the loan, if there is one: something waits for the event loop."""
        if self._is_lent:
            self._is_lent = False
            self._returned.put(None)

    # --- on the event loop --------------------------------------------------------------------

    def _lend(self) -> None:
        """Lend the event loop to the thread that has waited longest, and wait."""
        try:
            begun = self._waiting.popleft()
        except IndexError:  # it waits no longer
            return
        self._until_ns = time.monotonic_ns() + LOAN_NS
        self._is_lent = True
        self._owner.release()
        begun.put(None)
        self._wait_for_end()
        self._is_lent = False
        self._owner.acquire()
        while not self._returned.empty():
            self._returned.get()

    def _wait_for_end(self) -> None:
        is_used = True
        while is_used and time.monotonic_ns() < self._until_ns:
            before = self._last_call_ns
            try:
                self._returned.get(timeout=UNUSED_NS * 1e-9)
            except Empty:
                is_used = self._last_call_ns != before
            else:
                return
