"""A shorter switch interval while a cell runs, so that a busy cell shares the interpreter lock with the server.

A thread gets the interpreter lock after the switch interval, by default 5 ms, and a request crosses threads several
times. While a cell runs in a kernel that serves models, the interval is shorter, which slows the cell down by a few
percent at most; between cells the interval is restored.
"""

from __future__ import annotations

import sys
from typing import Any
from weakref import WeakSet

INTERVAL_S = 0.0005


class SharedInterpreter:
    """Shortens the switch interval from the start of a cell to its end; cells may be nested."""

    def __init__(self) -> None:
        self._before_s = sys.getswitchinterval()
        self._running = 0

    def begin(self, *info: Any) -> None:
        """Called when a cell starts."""
        if not self._running:
            self._before_s = sys.getswitchinterval()
            if self._before_s > INTERVAL_S:
                sys.setswitchinterval(INTERVAL_S)
        self._running += 1

    def end(self, *info: Any) -> None:
        """Called when a cell has ended, even with an error."""
        self._running = max(0, self._running - 1)
        if not self._running and sys.getswitchinterval() < self._before_s:
            sys.setswitchinterval(self._before_s)


_shared: WeakSet[Any] = WeakSet()


def share_interpreter() -> None:
    """Shorten the switch interval during cells from now on; does nothing outside of IPython."""
    ipython = sys.modules.get("IPython")
    shell = ipython.get_ipython() if ipython is not None else None
    if shell is None or shell in _shared:
        return
    _shared.add(shell)
    shared = SharedInterpreter()
    shared.begin()  # called from a running cell
    shell.events.register("pre_run_cell", shared.begin)
    shell.events.register("post_run_cell", shared.end)
