"""The event loop waits for a batch, so that the instance's thread need not: two changes of thread less."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable

from tritonnb.backends.contract import Continues, Ended
from tritonnb.backends.execution import Execution
from tritonnb.backends.isolation.channel import Message
from tritonnb.backends.isolation.connection import Connection
from tritonnb.backends.isolation.loop_reader import LoopReader

#: Processes the result of the batch; may raise the error of the execution.
Complete = Callable[[Connection, Execution, Message], None]


class LoopWait:
    """A batch that the child executes, and that returns without calls of the model, and with small tensors.

    Anything else that the child sends, its end and the time limit are left to the instance's thread, which continues.
    Methods are called on the event loop, except `give_up_soon`. The child's socket is read by nothing else meanwhile.

    Parameters
    ----------
    connection : Connection
        Has sent the batch.
    execution : Execution
    complete, ended, continues : callable
    timeout_s : float or None
        The time limit of the execution.

    Attributes
    ----------
    connection : Connection
    execution : Execution
    deadline : float or None
        The end of the time limit, a time of `time.monotonic`.
    received : Message or None
        The first message, if the thread is to continue with it.
    is_waiting : bool
        Whether the event loop waits.
    """

    def __init__(
        self,
        connection: Connection,
        execution: Execution,
        complete: Complete,
        ended: Ended,
        continues: Continues,
        timeout_s: float | None,
    ) -> None:
        self.connection = connection
        self.execution = execution
        self.deadline = None if timeout_s is None else time.monotonic() + timeout_s
        self.received: Message | None = None
        self.is_waiting = True
        self._complete = complete
        self._ended = ended
        self._continues = continues
        self._loop = asyncio.get_running_loop()
        self._timer = None if timeout_s is None else self._loop.call_later(timeout_s, self.give_up)
        if connection.loop_reader is None:
            connection.loop_reader = LoopReader(self._loop, connection.work)
        self._reader = connection.loop_reader
        self._reader.call(self._read)

    def give_up(self) -> None:
        """Let the instance's thread continue, unless the batch has ended."""
        if self.is_waiting:
            self._stop()
            self._continues(self.execution)

    def give_up_soon(self) -> None:
        """The same, called on another thread."""
        with contextlib.suppress(RuntimeError):  # the event loop is closed
            self._loop.call_soon_threadsafe(self.give_up)

    def _stop(self) -> None:
        self.is_waiting = False
        self._reader.call(None)
        if self._timer is not None:
            self._timer.cancel()

    def _read(self) -> None:
        work = self.connection.work
        is_open = work.fill()
        message = work.buffered()
        if message is not None and message.header[0] == "returned" and message.region is None:
            self._stop()
            error: BaseException | None = None
            try:
                self._complete(self.connection, self.execution, message)
            except Exception as raised:
                error = raised
            self._ended(self.execution, error)
        elif message is not None or not is_open:
            self.received = message
            self.give_up()
