"""Threads that wait for events of native backends: responses that are sent later, and log messages."""

from __future__ import annotations

import ctypes
import logging
import threading
from collections.abc import Callable

from tritonnb.backends.native import library

logger = logging.getLogger("tritonnb.native")

#: TRITONSERVER_LogLevel, by position.
_LEVELS = (logging.INFO, logging.WARNING, logging.ERROR, logging.DEBUG)

Handler = Callable[[library.Event], None]


class EventThread:
    """A thread that calls a handler for each event of a model.

    Parameters
    ----------
    model : int or None
        The handle of the model; None for log messages.
    handler : callable
        What it raises is logged.
    name : str
    """

    def __init__(self, model: int | None, handler: Handler, name: str) -> None:
        self._model = model
        self._handler = handler
        self._thread = threading.Thread(target=self._run, name=f"tritonnb {name}", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Handle the events so far, and end the thread."""
        library.load_shim().tnb_events_stop(self._model)
        self._thread.join()

    def _run(self) -> None:
        next_event = library.load_shim().tnb_events_next
        event = library.Event()
        pointer = ctypes.byref(event)
        while next_event(self._model, pointer):
            try:
                self._handler(event)
            except Exception:
                logger.exception("an event of a native backend could not be handled")


class LogMessages:
    """The log messages of all native backends of the process, passed to `logging` while one of them is loaded."""

    def __init__(self) -> None:
        self._users = 0
        self._thread: EventThread | None = None
        self._lock = threading.Lock()

    def acquire(self) -> None:
        """Count a loaded backend."""
        with self._lock:
            self._users += 1
            if self._thread is None:
                self._thread = EventThread(None, _write, "native log")

    def release(self) -> None:
        """Count an unloaded backend; write the pending messages if it was the last one."""
        with self._lock:
            self._users -= 1
            if not self._users and self._thread is not None:
                self._thread.stop()
                self._thread = None

    def refresh_levels(self) -> None:
        """Make backends discard the messages that would not be written."""
        enabled = sum(1 << number for number, level in enumerate(_LEVELS) if logger.isEnabledFor(level))
        library.load_shim().tnb_log_levels(enabled)


log_messages = LogMessages()


def _write(event: library.Event) -> None:
    level = _LEVELS[event.flags]
    if logger.isEnabledFor(level):
        text, file = event.text.decode(errors="replace"), event.file.decode(errors="replace")
        logger.handle(logger.makeRecord(logger.name, level, file, event.line, text, (), None))
