"""A higher threshold of the garbage collector while a live view is open.

A view creates objects that live until its next delivery. With Python's threshold of 700 they bring about collections of
all objects of the kernel, which stop every thread for a tenth of a second.
"""

from __future__ import annotations

import gc
import threading

#: New objects until a collection of new objects; also that of `tritonnb serve`.
THRESHOLD = 10_000


class RelaxedCollector:
    """Raises the threshold from the first `begin` to the last `end`, unless the collector is switched off."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._users = 0
        self._before = self._raised = gc.get_threshold()

    def begin(self) -> None:
        """Called when a view is opened."""
        with self._lock:
            self._users += 1
            if self._users == 1:
                new, *older = self._before = gc.get_threshold()
                if 0 < new < THRESHOLD:
                    gc.set_threshold(THRESHOLD, *older)
                self._raised = gc.get_threshold()

    def end(self) -> None:
        """Called when a view has ended; what the user has set meanwhile is kept."""
        with self._lock:
            self._users -= 1
            if not self._users and gc.get_threshold() == self._raised:
                gc.set_threshold(*self._before)


#: The one of this process.
collector = RelaxedCollector()
