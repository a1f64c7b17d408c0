"""``async def execute``: the event loop of an instance.

A model that answers in return is run to its end on the instance's thread. A decoupled one goes on in the
background, where it may serve further requests before it has answered the first.
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
    """Runs the coroutines of one instance."""

    def __init__(self) -> None:
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None

    def run(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine on this thread; what it returns or raises. Tasks that it leaves go on in the background."""
        if self._loop is None:
            self._loop = asyncio.new_event_loop()
        self._pause(self._loop)
        try:
            return self._loop.run_until_complete(coroutine)
        finally:
            if asyncio.all_tasks(self._loop):
                self._go_on(self._loop)

    def start(self, coroutine: Coroutine[Any, Any, Any], failed: Callable[[BaseException], None]) -> None:
        """Run a coroutine in the background; ``failed`` is told there what it raised."""
        if self._loop is None:
            self._loop = asyncio.new_event_loop()
            self._go_on(self._loop)
        asyncio.run_coroutine_threadsafe(_watched(coroutine, failed), self._loop)

    def close(self) -> None:
        """End the loop, when nothing runs on it any more."""
        if self._loop is not None:
            self._pause(self._loop)
            self._loop.close()

    def _go_on(self, loop: asyncio.AbstractEventLoop) -> None:
        self._thread = threading.Thread(target=loop.run_forever, name="tritonnb coroutines", daemon=True)
        self._thread.start()

    def _pause(self, loop: asyncio.AbstractEventLoop) -> None:
        if self._thread is not None:
            loop.call_soon_threadsafe(loop.stop)
            self._thread.join()
            self._thread = None


async def _watched(coroutine: Coroutine[Any, Any, Any], failed: Callable[[BaseException], None]) -> None:
    try:
        await coroutine
    except BaseException as error:
        logger.exception("execute of a decoupled model failed")
        failed(error)
