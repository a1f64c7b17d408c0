"""Waiting for what raises no event."""

from __future__ import annotations

import threading
from collections.abc import Callable


def wait_for(condition: Callable[[], object]) -> None:
    """Wait until a condition holds; the test's own time limit applies.

    The pauses leave the interpreter lock and the processor to the threads and processes that it depends on.
    """
    pause = threading.Event()
    while not condition():
        pause.wait(0.005)
