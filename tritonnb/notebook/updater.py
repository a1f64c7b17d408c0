"""Views of other servers: what they show is read on a thread of its own."""

from __future__ import annotations

import atexit
import threading
from typing import Any

from tritonnb.core.errors import TritonError


class Updater:
    """A thread that calls a function until it fails, is stopped, or the interpreter exits."""

    def __init__(self, name: str, update: Any, failed: Any, interval_s: float) -> None:
        self._update, self._failed, self._interval_s = update, failed, interval_s
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        atexit.register(self.stop)  # a thread that is drawing must not be ended: see `Worker`
        self._thread.start()

    def stop(self) -> None:
        """End the thread, and wait for it."""
        self._stop.set()
        if threading.current_thread() is not self._thread:
            self._thread.join()

    def _run(self) -> None:
        while not self._stop.wait(self._interval_s):
            try:
                self._update()
            except TritonError as error:
                self._failed(error)
                break
        atexit.unregister(self.stop)
