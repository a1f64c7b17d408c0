"""A stack for signal handlers in every thread, so that `faulthandler` also reports a stack that is full.

Without one, the handler has no stack to run on, and the process ends without a word: Python sets one up for the main
thread only. Compiled code does not check the depth of recursion.
"""

from __future__ import annotations

import contextlib
import ctypes
import sys
import threading
from collections.abc import Iterator

#: Bytes: enough for the registers of any processor, and for the report.
_SIZE = 1 << 17
_bootstrap = threading.Thread._bootstrap_inner  # type: ignore[attr-defined]


class _Stack(ctypes.Structure):
    _fields_ = (("pointer", ctypes.c_void_p), ("flags", ctypes.c_int), ("size", ctypes.c_size_t))


def _run_with_signal_stack(thread: threading.Thread) -> None:
    memory = ctypes.create_string_buffer(_SIZE)
    before = _Stack()
    libc = ctypes.CDLL(None)
    libc.sigaltstack(ctypes.byref(_Stack(ctypes.addressof(memory), 0, _SIZE)), ctypes.byref(before))
    try:
        _bootstrap(thread)
    finally:
        libc.sigaltstack(ctypes.byref(before), None)


@contextlib.contextmanager
def restored() -> Iterator[None]:
    """Leave the thread with the stack for signal handlers that it has now (Linux).

    OpenVINO's CPU plugin sets one on the thread that creates it, and frees it on the thread that destroys it. If these
    are different threads, the first one keeps an address that is no longer mapped, and its next signal ends the process
    without a word.
    """
    if sys.platform != "linux":
        yield
        return
    libc = ctypes.CDLL(None)
    before = _Stack()
    libc.sigaltstack(None, ctypes.byref(before))
    try:
        yield
    finally:
        libc.sigaltstack(ctypes.byref(before), None)


def install() -> None:
    """Give every thread that starts later a stack for signal handlers (Linux)."""
    if sys.platform == "linux":
        threading.Thread._bootstrap_inner = _run_with_signal_stack  # type: ignore[attr-defined]
