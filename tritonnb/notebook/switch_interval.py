"""A shorter switch interval while a cell runs or a view works, so that they share the interpreter lock with the server.

A thread gets the interpreter lock after the switch interval, by default 5 ms, and a request crosses threads several
times. While a cell runs in a kernel that serves models, the interval is shorter, which slows the cell down by a few
percent at most. While a live view counts what has happened, which takes some milliseconds of a second, it is shorter
still, unless the server is busy: then switching itself costs more than waiting. Otherwise the interval is restored.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from weakref import WeakSet

#: The switch interval while a cell runs or a view works beside a busy server, and while a view works, in seconds.
CELL_S, VIEW_S = 0.0005, 0.00005


class SharedInterpreter:
    """Shortens the switch interval while a cell runs or a view works; cells may be nested."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._before_s = sys.getswitchinterval()
        self._shorter: list[float] = []

    @contextmanager
    def shared(self, is_busy: bool = False) -> Iterator[None]:
        """The interval is short until the block ends, as for a cell if the server is busy; on any thread."""
        interval_s = CELL_S if is_busy else VIEW_S
        self._shorten(interval_s)
        try:
            yield
        finally:
            self._restore(interval_s)

    def begin(self, *info: Any) -> None:
        """Called when a cell starts."""
        self._shorten(CELL_S)

    def end(self, *info: Any) -> None:
        """Called when a cell has ended, even with an error."""
        self._restore(CELL_S)

    def _shorten(self, interval_s: float) -> None:
        with self._lock:
            if not self._shorter:
                self._before_s = round(sys.getswitchinterval(), 6)  # Python cuts off what is below a microsecond
            self._shorter.append(interval_s)
            sys.setswitchinterval(min(self._before_s, *self._shorter))

    def _restore(self, interval_s: float) -> None:
        with self._lock:
            if interval_s not in self._shorter:  # a cell that began before the hook was installed
                return
            self._shorter.remove(interval_s)
            if self._shorter:
                sys.setswitchinterval(min(self._before_s, *self._shorter))
            elif sys.getswitchinterval() < self._before_s:
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
