"""Signals that stop ``tritonnb serve``."""

from __future__ import annotations

import signal
import socket


def stop_signals() -> socket.socket:
    """A socket that becomes readable when a signal to stop arrives.

    Python runs signal handlers on the main thread, which does not notice a signal that arrives just before it blocks,
    or on another thread. The byte is written to the socket at once, whatever the threads do.
    """
    reading, writing = socket.socketpair()
    writing.setblocking(False)
    signal.set_wakeup_fd(writing.detach())
    handle_stop_signals()
    return reading


def handle_stop_signals() -> None:
    """Have Python handle the signals; again, if a library has installed its own handlers meanwhile."""
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda number, frame: None)
