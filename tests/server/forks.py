"""Forked children in tests."""

from __future__ import annotations

import os
import select
import signal
from collections.abc import Callable

#: Seconds that a child has: enough on a loaded machine, and far less than a hang.
LIMIT_S = 40.0


def in_child(call: Callable[[], object], limit_s: float = LIMIT_S) -> str:
    """Call a function in a forked child; return its result as text, or its exception, or that it hangs."""
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            outcome = str(call())
        except BaseException as error:
            outcome = f"{type(error).__name__}: {error}"
        os.write(writer, outcome.encode()[:8000])
        os._exit(0)
    os.close(writer)
    ready, _, _ = select.select([reader], [], [], limit_s)
    outcome = os.read(reader, 8000).decode() if ready else "hangs"
    os.close(reader)
    if not ready:
        os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    return outcome
