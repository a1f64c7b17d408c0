"""An event loop that moves from its own thread to that of a model instance, and back.

A request to a model on a thread of its own changes threads twice: from the event loop to the instance and back. Each
change takes longer than many models need for a batch. If very quick batches of a single instance follow each other
closely, the event loop moves to the thread of the instance, which leaves it to execute a batch and returns to it
afterwards. The model does not notice: no event loop runs on its thread while it executes.
"""

from __future__ import annotations

import asyncio
import threading
import time
from asyncio.events import _get_running_loop
from collections.abc import Callable
from contextlib import suppress
from queue import Empty, SimpleQueue
from typing import Any

#: How often the event loop's own thread looks after an event loop that has moved away, in ns.
LOOK_NS = 1_000_000
#: An event loop that nothing runs, since a batch takes longer than expected, moves back after this time, in ns.
LEFT_NS = 500_000
#: How long nothing runs an event loop at most, apart from the time that its own thread needs to wake up, in ns.
LONGEST_ABSENCE_NS = LEFT_NS + LOOK_NS
#: An event loop moves back if the instance has executed nothing for this time, in ns.
UNUSED_NS = 5_000_000
#: An event loop moves only if no other instance had work for this time, in ns: instances would wait for each other.
ALONE_NS = 2_000_000
#: How long the thread of an instance waits until the thread before has left the event loop, in seconds.
_PATIENCE_S = 0.001

#: The work of a thread, which identifies it.
Work = SimpleQueue[Any]


class MovableLoop:
    """Runs an event loop on one thread at a time.

    An event loop that something else runs, not `run`, stays where it is.

    Parameters
    ----------
    loop : asyncio.AbstractEventLoop
    """

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        #: The thread that runs the event loop has it.
        self._lock = threading.Lock()
        #: Where the event loop is or is about to move; None on its own thread.
        self._place: Work | None = None
        #: When a thread of an instance last began or stopped to run the event loop.
        self._changed_ns = 0
        #: The work of the thread that got a batch last, and since when no other one has got any.
        self._last: Work | None = None
        self._alone_since_ns = 0
        self._is_run = self._is_ended = False
        self._raised: BaseException | None = None
        self._wake: SimpleQueue[None] = SimpleQueue()

    # --- on the event loop's own thread -------------------------------------------------------

    def run(self) -> None:
        """Run the event loop until `end`, except while it is elsewhere.

        Raises
        ------
        BaseException
            What a callback has raised to end the event loop, such as SystemExit.
        """
        self._lock.acquire()
        self._is_run = True
        while not self._is_ended:
            self._loop.run_forever()
            if self._place is not None:
                self._changed_ns = time.monotonic_ns()
                self._lock.release()
                self._wait_until_it_moves_back()
        if self._raised is not None:
            raise self._raised

    def _wait_until_it_moves_back(self) -> None:
        while not self._is_to_move_back():
            with suppress(Empty):
                self._wake.get(timeout=LOOK_NS * 1e-9)
        self._place = None
        if not self._lock.acquire(blocking=False):
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._lock.acquire()

    def _is_to_move_back(self) -> bool:
        limit_ns = UNUSED_NS if self._lock.locked() else LEFT_NS
        return self._place is None or self._is_ended or time.monotonic_ns() - self._changed_ns > limit_ns

    # --- on any thread ------------------------------------------------------------------------

    def end(self) -> None:
        """End `run`."""
        self._is_ended = True
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._wake.put(None)

    def is_at(self, work: Work) -> bool:
        """Whether the event loop is at the thread with this work, or about to move there."""
        return self._place is work

    def leave(self) -> None:
        """Have the thread that runs the event loop leave it, since there is work where the event loop is to be."""
        if _get_running_loop() is self._loop:
            self._loop.stop()
        else:
            with suppress(RuntimeError):  # it is closed
                self._loop.call_soon_threadsafe(self._loop.stop)

    # --- on the event loop --------------------------------------------------------------------

    def prepare(self, work: Work, is_quick: bool) -> None:
        """Choose where the event loop is to be, before the thread with this work gets a batch.

        Parameters
        ----------
        work : queue.SimpleQueue
        is_quick : bool
            Whether the event loop may move to the thread. It does when the thread has got the batch (`leave`).
        """
        if work is not self._last:
            self._last, self._alone_since_ns = work, time.monotonic_ns()
            if self._place is not None:
                self.move_back(self._place)
                self._loop.stop()
        elif is_quick and self._place is None and self._is_run and self._is_alone():
            self._place = work

    def _is_alone(self) -> bool:
        return time.monotonic_ns() - self._alone_since_ns >= ALONE_NS

    # --- on the thread of an instance ---------------------------------------------------------

    def run_until_work(self, work: Work, first: Callable[[], None]) -> bool:
        """Call a function on the event loop, and run it until there is work.

        Parameters
        ----------
        work : queue.SimpleQueue
            The work of this thread.
        first : callable

        Returns
        -------
        bool
            Whether the function was, or will be called: False if the event loop is not here any more.
        """
        if not self._lock.acquire(timeout=_PATIENCE_S):
            return False
        try:
            if self._place is not work:
                return False
            self._changed_ns = time.monotonic_ns()
            self._loop.call_soon(first)
            while self._place is work and work.empty() and not self._is_ended:
                self._loop.run_forever()
        except BaseException as error:
            self._raised, self._is_ended = error, True
        finally:
            self._changed_ns = time.monotonic_ns()
            self._lock.release()
        return True

    def move_back(self, work: Work) -> None:
        """Move back to the event loop's own thread, if the event loop is at the thread with this work."""
        if self._place is work:
            self._place = None
            self._wake.put(None)
