"""Forks: what a child process inherits and must leave alone, and what its parent's objects say there.

A child has a copy of the memory and of the descriptors, but only the thread that forked. A call that waits for another
thread would wait forever, a lock that another thread held stays locked, a listening socket keeps its port open after
the parent's end, and a finalizer deletes what the parent uses. Objects with threads, descriptors or files register
here.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import logging
import os
import socket
import weakref
from collections import Counter
from collections.abc import Callable, Iterable
from types import MethodType
from typing import Any, TypeVar

from tritonnb.core.errors import UnavailableError

L = TypeVar("L")

#: The directories that list the open descriptors of a process, on Linux and on macOS.
_DESCRIPTORS = ("/proc/self/fd", "/dev/fd")
#: Descriptors that are tried if the directory cannot be read.
_MOST_DESCRIPTORS = 65_536


#: Objects that are of no use in a forked child, and the functions that are called there with them.
_inherited: weakref.WeakKeyDictionary[Any, Callable[[Any], None]] = weakref.WeakKeyDictionary()
_locks: weakref.WeakSet[Any] = weakref.WeakSet()
#: The locks of log handlers that are held during a fork, and the seconds that it waits for each.
_held: list[Any] = []
_LOG_S = 1.0
#: How many endpoints of this process listen on each port.
ports: Counter[int] = Counter()


def forked_text(url: str) -> str:
    """Return the message of calls, in a forked child, to a server of its parent.

    Examples
    --------
    >>> print(forked_text(""))
    the server runs in the process that forked this one, without its threads: call it over HTTP, or start this process \
with the method 'spawn' and serve the model in it
    """
    where = f" (tnb.connect('{url}'))" if url else ""
    return (
        f"the server runs in the process that forked this one, without its threads: call it over HTTP{where}, or start "
        "this process with the method 'spawn' and serve the model in it"
    )


def call_in_children(method: Callable[[], None]) -> None:
    """Call a method of an object in every child that is forked while the object exists.

    It releases what belongs to the parent, without waiting; later calls of the object should fail.
    """
    assert isinstance(method, MethodType)
    _inherited[method.__self__] = method.__func__


def fork_safe(lock: L) -> L:
    """Return a lock after arranging that it is free in forked children, even if another thread of the parent holds it.

    The child may find what the lock guards half changed. The alternative, to hold all locks while the process forks,
    would let a fork wait for models that are being loaded.
    """
    _locks.add(lock)
    return lock


def finalize(owner: object, function: Callable[..., Any], *args: object) -> weakref.finalize[Any, Any]:
    """Return a finalizer as ``weakref.finalize`` does; in a forked child it does nothing.

    Parameters
    ----------
    owner : object
    function : callable
        Called with ``args`` when the owner is freed or Python exits.
    """
    return weakref.finalize(owner, _call_in, os.getpid(), function, args)


def _call_in(process: int, function: Callable[..., Any], args: tuple[object, ...]) -> Any:
    return function(*args) if os.getpid() == process else None


def require_process(process: int, what: str) -> None:
    """Raise an error if this is not the process with an ID, but a forked child of it.

    Parameters
    ----------
    process : int
    what : str
        What only that process may do.

    Raises
    ------
    UnavailableError
        If it is another process.
    """
    if os.getpid() != process:
        raise UnavailableError(f"{what}: expected the process that began it, got one that was forked meanwhile")


def keep_forever(inherited: object) -> None:
    """Never free an object of the parent: its C++ threads do not exist in the child, and their owner would join them.

    Even a reference from this module would be dropped when the interpreter of the child exits.
    """
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(inherited))


def release_descriptors(descriptors: Iterable[int]) -> None:
    """Close descriptors of the parent in the child.

    Their numbers stay in use, for */dev/null*: whoever closes them later would close a file of the child's otherwise.
    """
    inherited = list(descriptors)
    try:
        null = os.open(os.devnull, os.O_RDWR | os.O_CLOEXEC)
    except OSError:
        if not inherited:
            return
        # No number is left: closing a descriptor makes room, and the file gets its number, which is the only free one.
        os.close(inherited.pop())
        null = os.open(os.devnull, os.O_RDWR | os.O_CLOEXEC)
        inherited.append(null)
    for descriptor in inherited:
        with contextlib.suppress(OSError):  # closed already
            os.fstat(descriptor)
            os.dup2(null, descriptor, inheritable=False)
    if null not in inherited:
        os.close(null)


def _sockets_on(listening: Counter[int]) -> list[int]:
    """Return the descriptors of the sockets on these ports: listening sockets, and accepted connections.

    They are found by their addresses, since those of grpcio, and connections that are just being accepted, have no
    object of Python.
    """
    found = []
    for name in _descriptors():
        with contextlib.suppress(OSError):  # no socket, or closed: the list has its own descriptor
            connection = socket.socket(fileno=int(name))
            try:
                is_ip = connection.family in (socket.AF_INET, socket.AF_INET6)
                if is_ip and connection.type == socket.SOCK_STREAM and listening[connection.getsockname()[1]] > 0:
                    found.append(connection.fileno())
            finally:
                connection.detach()
    return found


def _descriptors() -> Iterable[int | str]:
    """Return the numbers of this process's descriptors, or what they can be."""
    for path in _DESCRIPTORS:
        with contextlib.suppress(OSError):  # no such directory, or no descriptor is left to read it
            return os.listdir(path)
    return range(min(os.sysconf("SC_OPEN_MAX"), _MOST_DESCRIPTORS))


def _hold_log() -> None:
    """Let no thread be in the middle of a log line while the process forks.

    Python frees the locks of handlers in the child, but not the lock of the file that they write to.
    """
    if _inherited:
        handlers = dict.fromkeys(handler for name in ("", "tritonnb") for handler in logging.getLogger(name).handlers)
        # With a limit: the holder of one lock may wait for another.
        _held.extend(lock for handler in handlers if (lock := handler.lock) and lock.acquire(timeout=_LOG_S))


def _release_log() -> None:
    while _held:
        _held.pop().release()


def _forked() -> None:
    if _inherited:
        # Garbage of the parent must stay garbage. To free a gRPC channel or a model of OpenVINO that is part of a cycle
        # waits for threads that the child does not have, at whatever moment the collector finds it.
        gc.freeze()
    _held.clear()  # logging has made them anew
    for lock in list(_locks):
        lock._at_fork_reinit()  # as Python's own modules do
    # First of all: whoever is not told would wait for threads that the child does not have.
    for inherited, function in list(_inherited.items()):
        with contextlib.suppress(Exception):  # the others must be told, and there is nobody to report to
            function(inherited)
    if +ports:
        release_descriptors(_sockets_on(ports))
        ports.clear()


if hasattr(os, "register_at_fork"):  # not on Windows
    os.register_at_fork(before=_hold_log, after_in_parent=_release_log, after_in_child=_forked)
