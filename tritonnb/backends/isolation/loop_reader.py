"""The event loop's interest in the socket of a child, which it keeps from one batch to the next."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Callable

from tritonnb.backends.isolation.channel import Channel

#: How long `LoopReader.close` waits for the event loop, which may have stopped, in seconds.
_CLOSE_S = 1.0


class LoopReader:
    """Calls a function on the event loop when the child has sent something.

    To register a socket and to remove it again takes longer than many batches, so it stays registered. When something
    arrives that no function waits for, it is removed and left unread: the thread that reads the socket now gets it.

    Parameters
    ----------
    loop : asyncio.AbstractEventLoop
    channel : Channel
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, channel: Channel) -> None:
        self._loop = loop
        self._channel = channel
        self._read: Callable[[], None] | None = None
        self._is_registered = False
        self._is_closed = False

    def call(self, read: Callable[[], None] | None) -> None:
        """Call ``read`` when something arrives, or nothing; called on the event loop."""
        self._read = read
        if read is not None and not (self._is_registered or self._is_closed):
            self._loop.add_reader(self._channel, self._readable)
            self._is_registered = True

    def close(self) -> None:
        """Remove the socket, which is to be closed; called on any thread."""
        if asyncio.events._get_running_loop() is self._loop:
            self._remove_for_ever()
            return
        removed = threading.Event()

        def remove() -> None:
            self._remove_for_ever()
            removed.set()

        with contextlib.suppress(RuntimeError):  # the event loop is closed
            self._loop.call_soon_threadsafe(remove)
            removed.wait(_CLOSE_S)

    def _readable(self) -> None:
        if self._read is None:
            self._remove()
        else:
            self._read()

    def _remove(self) -> None:
        if self._is_registered:
            self._loop.remove_reader(self._channel)
            self._is_registered = False

    def _remove_for_ever(self) -> None:
        self._is_closed = True
        self._remove()
