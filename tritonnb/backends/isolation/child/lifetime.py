"""The end of a child, and the limit of its memory.

A child ends when the server's process does, even if its model holds the interpreter lock.
The server's process holds the other end of a pipe that is never written to. When it ends, in whatever way, the kernel
sends SIGIO, which ends this process.
"""

from __future__ import annotations

import fcntl
import os
import resource
import signal


def end_with_parent(pipe: int) -> None:
    """End this process when the other end of a pipe is closed."""
    signal.signal(signal.SIGIO, signal.SIG_DFL)
    fcntl.fcntl(pipe, fcntl.F_SETOWN, os.getpid())
    fcntl.fcntl(pipe, fcntl.F_SETFL, fcntl.fcntl(pipe, fcntl.F_GETFL) | os.O_ASYNC | os.O_NONBLOCK)
    try:
        if not os.read(pipe, 1):  # it was closed before
            os._exit(1)
    except BlockingIOError:
        pass


def limit_memory(size: int) -> None:
    """Limit the address space of this process to ``size`` bytes; allocations beyond it raise MemoryError."""
    resource.setrlimit(resource.RLIMIT_AS, (size, size))
