"""The operations on models that are in progress: loads, changes and unloads, each in its own task.

A caller that is cancelled only stops waiting: a client whose deadline has passed, an interrupted cell. The operation
itself continues, since a model that is loaded by half serves nobody and holds its threads and memory.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Coroutine
from typing import Any, TypeVar

from tritonnb.core.errors import TritonError, UnavailableError, error_message

logger = logging.getLogger(__name__)
T = TypeVar("T")


class Operations:
    """The operations in progress; used on the server's event loop."""

    def __init__(self) -> None:
        self._running: dict[asyncio.Task[Any], tuple[str, str]] = {}
        self._is_stopping = False
        self._given_up: asyncio.Future[None] | None = None  # once anybody has waited
        self._reason = ""

    async def run(self, name: str, verb: str, work: Coroutine[Any, Any, T]) -> T:
        """Run an operation on a model, which continues if the caller is cancelled.

        Parameters
        ----------
        name : str
        verb : str
            The operation as a participle: ``loaded``.
        work : coroutine

        Raises
        ------
        TritonError
            As raised by ``work``.
        UnavailableError
            If the server stops before it is complete.
        """
        loop = asyncio.get_running_loop()
        if self._given_up is None:
            self._given_up = loop.create_future()
        task = loop.create_task(self._undone_at_stop(name, verb, work))
        self._running[task] = name, verb
        task.add_done_callback(self._running.pop)
        try:
            # Unlike `asyncio.shield`, this also ends when the operation is given up.
            await asyncio.wait((task, self._given_up), return_when=asyncio.FIRST_COMPLETED)
        except asyncio.CancelledError:
            task.add_done_callback(_report)  # nobody else sees its error
            raise
        if task.done() and not task.cancelled():
            return task.result()
        del task, work  # the traceback refers to this frame, which must not refer to the model
        raise UnavailableError(f"{self._reason} while model '{name}' was being {verb}")

    async def _undone_at_stop(self, name: str, verb: str, work: Coroutine[Any, Any, T]) -> T:
        try:
            return await work
        except TritonError:
            if not self._is_stopping:
                raise
        # The stop is the cause, whatever the text of the error was. Raised here, it does not refer to that error: its
        # frames refer to the model, and a notebook keeps the last exception.
        raise UnavailableError(f"model '{name}' was not {verb}: the server is stopping")

    def unfinished(self) -> list[tuple[str, str]]:
        """Return the models of the operations in progress, with the verbs."""
        return list(self._running.values())

    async def wait(self) -> None:
        """Wait until no operation is in progress, because the server is stopping."""
        self._is_stopping = True
        while self._running:
            await asyncio.wait(list(self._running))

    def give_up(self, reason: str) -> None:
        """Answer the callers with an error that begins with a reason, and cancel the operations."""
        self._reason = reason
        if self._given_up is not None and not self._given_up.done():
            self._given_up.set_result(None)
        for task in list(self._running):
            task.cancel()


def _report(task: asyncio.Task[Any]) -> None:
    error = None if task.cancelled() else task.exception()
    if error is not None:
        level = logging.INFO if isinstance(error, UnavailableError) else logging.ERROR
        logger.log(level, "%s (its caller no longer waits)", error_message(error).strip())
