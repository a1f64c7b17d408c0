"""The event loop of an instance for ``async def execute``.

The coroutine of a model that returns its responses is run to completion on the instance's thread. The coroutine of a
decoupled model runs in the background, where it can handle further requests before it has responded to the first.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

logger = logging.getLogger(__name__)
T = TypeVar("T")


class CoroutineRunner:
    """A runner for the coroutines of one instance."""

    def __init__(self) -> None:
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None
        # Guards the transitions between a loop that runs in the background, on the instance's thread, and not at all.
        self._lock = threading.Lock()
        self._in_run = False
        self._waiting = 0

    def run(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine on this thread, and return its result.

        Tasks that it created and did not wait for continue in the background.
        """
        with self._lock:
            if self._loop is None:
                self._loop = asyncio.new_event_loop()
            # A loop can run on one thread only: the background thread steps aside while the instance's thread runs a
            # batch.
            self._pause(self._loop)
            self._in_run = True
        try:
            return self._loop.run_until_complete(coroutine)
        finally:
            with self._lock:
                self._in_run = False
                if self._waiting or asyncio.all_tasks(self._loop):
                    self._run_in_background(self._loop)

    def run_from_other_thread(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine on the event loop of the instance, and return its result to another thread."""
        with self._lock:
            if self._loop is None:
                self._loop = asyncio.new_event_loop()
            if self._thread is None and not self._in_run:
                self._run_in_background(self._loop)
            self._waiting += 1
            future = asyncio.run_coroutine_threadsafe(coroutine, self._loop)
        try:
            return future.result()
        finally:
            with self._lock:
                self._waiting -= 1

    def start(self, coroutine: Coroutine[Any, Any, object], on_error: Callable[[BaseException], None]) -> None:
        """Run a coroutine in the background.

        Parameters
        ----------
        coroutine : coroutine
        on_error : callable
            Called there with the exception, if the coroutine raises one.
        """
        with self._lock:
            if self._loop is None:
                self._loop = asyncio.new_event_loop()
            if self._thread is None:
                self._run_in_background(self._loop)
        asyncio.run_coroutine_threadsafe(_report_error(coroutine, on_error), self._loop)

    def close(self) -> None:
        """Stop and close the event loop."""
        with self._lock:
            if self._loop is not None:
                self._pause(self._loop)
                self._loop.close()

    def _run_in_background(self, loop: asyncio.AbstractEventLoop) -> None:
        # A daemon, because a coroutine of a model may never end, and must not keep the process alive.
        self._thread = threading.Thread(target=loop.run_forever, name="tritonnb coroutines", daemon=True)
        self._thread.start()

    def _pause(self, loop: asyncio.AbstractEventLoop) -> None:
        if self._thread is not None:
            loop.call_soon_threadsafe(loop.stop)
            self._thread.join()
            self._thread = None


async def _report_error(coroutine: Coroutine[Any, Any, object], on_error: Callable[[BaseException], None]) -> None:
    try:
        await coroutine
    # Even SystemExit: the requests of the batch still need an answer.
    except BaseException as error:
        logger.exception("execute of a decoupled model failed")
        on_error(error)
