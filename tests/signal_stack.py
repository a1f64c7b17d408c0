"""A stack for signal handlers in every thread, so that `faulthandler` also reports a stack that is full.

Without one, the handler has no stack to run on, and the process ends without a word: Python sets one up for the main
thread only. Compiled code does not check the depth of recursion.
"""

from __future__ import annotations

import ctypes
import sys
import threading

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


def install() -> None:
    """Give every thread that starts later a stack for signal handlers (Linux)."""
    if sys.platform == "linux":
        threading.Thread._bootstrap_inner = _run_with_signal_stack  # type: ignore[attr-defined]
