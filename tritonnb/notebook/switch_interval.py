"""A shorter switch interval while a cell runs or a view works, so that they share the interpreter lock with the server.

A thread gets the interpreter lock after the switch interval, by default 5 ms, and a request crosses threads several
times. While a cell runs in a kernel that serves models, or a live view counts what has happened, the interval is
shorter, which slows the cell down by a few percent at most; otherwise the interval is restored.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from weakref import WeakSet

INTERVAL_S = 0.0005


class SharedInterpreter:
    """Shortens the switch interval from the start of a cell to its end; cells may be nested."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._before_s = sys.getswitchinterval()
        self._running = 0

    @contextmanager
    def shared(self) -> Iterator[None]:
        """The interval is short until the block ends; on any thread."""
        self.begin()
        try:
            yield
        finally:
            self.end()

    def begin(self, *info: Any) -> None:
        """Called when a cell starts."""
        with self._lock:
            if not self._running:
                self._before_s = sys.getswitchinterval()
                if self._before_s > INTERVAL_S:
                    sys.setswitchinterval(INTERVAL_S)
            self._running += 1

    def end(self, *info: Any) -> None:
        """Called when a cell has ended, even with an error."""
        with self._lock:
            self._running = max(0, self._running - 1)
            if not self._running and sys.getswitchinterval() < self._before_s:
                sys.setswitchinterval(self._before_s)


#: The one of this process.
interpreter = SharedInterpreter()
_shared: WeakSet[Any] = WeakSet()


def share_interpreter() -> None:
    """Shorten the switch interval during cells from now on; does nothing outside of IPython."""
    ipython = sys.modules.get("IPython")
    shell = ipython.get_ipython() if ipython is not None else None
    if shell is None or shell in _shared:
        return
    _shared.add(shell)
    interpreter.begin()  # called from a running cell
    shell.events.register("pre_run_cell", interpreter.begin)
    shell.events.register("post_run_cell", interpreter.end)
