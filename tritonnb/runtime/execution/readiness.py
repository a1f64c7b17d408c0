"""The readiness of an instance: what its backend reports on request, within a time limit."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from tritonnb.core.errors import TritonError, UnavailableError
from tritonnb.runtime.execution.loop import run_in_thread

#: How long a check may take, in seconds, as on Triton.
TIME_LIMIT_S = 5.0


class ReadinessCheck:
    """Calls the readiness check of a backend instance; one call at a time, which concurrent callers share.

    Parameters
    ----------
    check : callable
        Raises an exception if the instance is not ready. Called on a thread of its own, since it may be slow.
    """

    def __init__(self, check: Callable[[], None]) -> None:
        self._check = check
        self._running: asyncio.Task[None] | None = None

    async def run(self) -> None:
        """Return if the instance is ready.

        Raises
        ------
        Exception
            What the check raised.
        UnavailableError
            If it takes too long; it continues, and later calls wait for the same result.
        """
        in_flight = self._running is not None
        if self._running is None:
            self._running = asyncio.get_running_loop().create_task(run_in_thread(self._check))
            self._running.add_done_callback(self._ended)
        try:
            await asyncio.wait_for(asyncio.shield(self._running), TIME_LIMIT_S)
        except TimeoutError:
            kind = "in-flight" if in_flight else "user-defined"
            raise UnavailableError(f"Timed out waiting for {kind} is_ready() response") from None

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._running = None
        if not task.cancelled():
            task.exception()  # otherwise asyncio logs an error that is never retrieved


def readiness_text(error: BaseException) -> str:
    """The reason why an instance is not ready, for the log."""
    return error.message if isinstance(error, TritonError) else f"{type(error).__name__}: {error}"
