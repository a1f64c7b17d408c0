"""A cell that keeps Python busy shares the interpreter with the server.

A thread that wants the interpreter lock gets it after the switch interval, 5 ms, and a request crosses threads
several times. While a cell runs in a kernel that serves, the interval is shorter, which costs the cell a
few parts in a hundred at most; between cells it is as it was.
"""

from __future__ import annotations

import sys
from typing import Any
from weakref import WeakSet

INTERVAL_S = 0.0005


class SharedInterpreter:
    """Shortens the switch interval from the beginning of a cell to its end; cells may run cells."""

    def __init__(self) -> None:
        self._before_s = sys.getswitchinterval()
        self._running = 0

    def begin(self, *info: Any) -> None:
        """A cell begins."""
        if not self._running:
            self._before_s = sys.getswitchinterval()
            if self._before_s > INTERVAL_S:
                sys.setswitchinterval(INTERVAL_S)
        self._running += 1

    def end(self, *info: Any) -> None:
        """A cell has ended, in whatever way."""
        self._running = max(0, self._running - 1)
        if not self._running and sys.getswitchinterval() < self._before_s:
            sys.setswitchinterval(self._before_s)


_shared: WeakSet[Any] = WeakSet()


def share_interpreter() -> None:
    """From now on let the server's threads in more often while a cell runs; nothing outside of IPython."""
    ipython = sys.modules.get("IPython")
    shell = ipython.get_ipython() if ipython is not None else None
    if shell is None or shell in _shared:
        return
    _shared.add(shell)
    shared = SharedInterpreter()
    shared.begin()  # this is a cell
    shell.events.register("pre_run_cell", shared.begin)
    shell.events.register("post_run_cell", shared.end)
