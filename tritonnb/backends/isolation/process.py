"""The child process of an instance, as the server sees it: its channels, commands, output, and end."""

from __future__ import annotations

import contextlib
import functools
import os
import re
import select
import signal
import socket
import subprocess
import sys
import threading
import time
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import TextIO

from tritonnb.backends.contract import ServerCalls
from tritonnb.backends.isolation.channel import Channel, Header, Message, anonymous_file
from tritonnb.backends.isolation.codec import Packer, SharedOutput, decode_error
from tritonnb.backends.isolation.launch import TIMEOUT
from tritonnb.backends.isolation.model_calls import ChildCalls
from tritonnb.core.forks import call_in_children, fork_safe, release_descriptors

_PROGRAM = Path(__file__).parent / "child" / "start.py"
_CHUNK = 1 << 16
#: How long a process may take to end after it has closed its channels, in seconds.
_GRACE_S = 1.0
#: Where the thread was that crashed, in the report of `faulthandler`.
_CURRENT_FRAME = re.compile(
    r'^Current thread .*\n(?:  File ".*/(?:ctypes|multiprocessing|numpy)/.*\n)*'
    r'  File "(?P<file>.*)", line (?P<line>\d+) in (?P<function>.*)',
    re.MULTILINE,
)


#: The processes that are not closed, and those that create a backend or an instance now.
_processes: set[ChildProcess] = set()
_starting: set[ChildProcess] = set()
#: The servers that are stopping; the condition wakes instances that wait before they start a process again.
_stopping: weakref.WeakSet[ServerCalls] = weakref.WeakSet()
_stops = fork_safe(threading.Condition())


class ProcessEndedError(Exception):
    """The process ended, or was ended, before a command had returned.

    The text says why it was ended; it is empty if it ended by itself.
    """


class ChildProcess:
    """A child process, its two channels, and the thread that reads the channel ``calls`` and the output.

    The process has a new interpreter, without the server's threads, and its own session, so that an interrupt of the
    notebook does not reach it. It ends when the server's process does: see `tritonnb.backends.isolation.child.main`.

    Parameters
    ----------
    name : str
        Name of the instance, or of the model before there is an instance.
    server : ServerCalls or None
    directory : str
        Its working directory; a model finds the files there that it found at the start, even if the process is started
        again after the server's process has changed its own.

    Attributes
    ----------
    pid : int
    model_calls : ChildCalls
    ended : callable or None
        Called on the reading thread when the process has ended, and all of it was read.
    has_ended : bool
        Whether that was noticed.
    """

    def __init__(self, name: str, server: ServerCalls | None, directory: str) -> None:
        with contextlib.ExitStack() as theirs, contextlib.ExitStack() as ours:
            work, calls = (_socket_pair(theirs, ours) for _ in range(2))
            alive, keep_alive = _pipe(theirs, ours)
            stdout, stderr = (_pipe(ours, theirs) for _ in range(2))
            report = anonymous_file()
            ours.callback(os.close, report)
            descriptors = (work[1].fileno(), calls[1].fileno(), alive, report)
            # Spawned and not forked: a fork would copy locks that other threads of the server hold. The program is run
            # by its path, since `-m` would import the whole package first.
            self._process = subprocess.Popen(
                [sys.executable, str(_PROGRAM), *map(str, descriptors)],
                pass_fds=descriptors,
                stdin=subprocess.DEVNULL,
                stdout=stdout[1],
                stderr=stderr[1],
                start_new_session=True,
                cwd=directory if os.path.isdir(directory) else None,
            )
            ours.callback(self._end, 0.0)
            self.pid = self._process.pid
            self._work, self._calls = Channel(work[0]), Channel(calls[0])
            # Readable when the process has ended; some systems have no such descriptor.
            self._exit = [os.pidfd_open(self.pid)] if hasattr(os, "pidfd_open") else []
            for descriptor in self._exit:
                ours.callback(os.close, descriptor)
            self._report = report
            self._open = [keep_alive, report, *self._exit]
            self._closing = threading.Lock()
            self._outputs = {"stdout": stdout[0], "stderr": stderr[0]}
            self._poller = _poller_of(self._work.fileno(), *self._exit)
            self.ended: Callable[[], None] | None = None
            self.has_ended = False
            self._server = server
            self.model_calls = ChildCalls(name, server, self._calls)
            ours.callback(self.model_calls.close)
            self._reader = threading.Thread(target=self._read, name=f"tritonnb calls of {name}", daemon=True)
            self._reader.start()  # the last step that can fail: there may be too many threads
            ours.pop_all()
        _processes.add(self)
        call_in_children(self._forked)

    def start(self, header: Header) -> Message:
        """Run a command that creates a part of the model: the same as `run`, but `end_starting` ends the process."""
        _starting.add(self)
        if self._server in _stopping:  # asked after that, so that no process is missed
            self.kill()
        try:
            return self.run(header)
        finally:
            _starting.discard(self)

    def run(
        self,
        header: Header,
        packer: Packer | None = None,
        shared: SharedOutput | None = None,
        timeout_s: float | None = None,
    ) -> Message:
        """Run a command in the child, and handle the calls of its model in the meantime.

        Parameters
        ----------
        header : list
        packer : Packer, optional
            Has the tensors.
        shared : SharedOutput, optional
            For large tensors of the packer.
        timeout_s : float, optional
            After this time the process is ended.

        Returns
        -------
        Message
            ``["returned", ...]``.

        Raises
        ------
        TritonError
            If the command raised it.
        ProcessEndedError
            If the process has ended.
        """
        deadline = None if timeout_s is None else time.monotonic() + timeout_s
        try:
            (packer or Packer()).send(self._work, header, shared)
            while (message := self._receive(deadline)) is not None:
                if message.header[0] == "returned":
                    return message
                if message.header[0] == "raised":
                    raise decode_error(message.header[1])
                self.model_calls.handle(message)
        except TimeoutError:
            self.kill()
            raise ProcessEndedError(f"The execution took longer than {TIMEOUT}, {timeout_s:g} s.") from None
        except ConnectionError:
            pass
        raise ProcessEndedError

    def _receive(self, deadline: float | None) -> Message | None:
        """Wait for a message on ``work``, until a time of `time.monotonic`; None if the process has ended."""
        work = self._work
        while (message := work.buffered()) is None:
            timeout = None if deadline is None else max(0.0, deadline - time.monotonic()) * 1000
            ready = {descriptor for descriptor, _ in self._poller.poll(timeout)}
            if not ready:
                raise TimeoutError
            # What it sent before it ended is read first.
            if work.fileno() not in ready or not work.fill():
                return None
        return message

    def _forked(self) -> None:
        """Release the descriptors in a forked child: the process would not see the end of the server otherwise."""
        channels = (self._work.fileno(), self._calls.fileno())
        release_descriptors([*channels, *self._open, *self._outputs.values()])

    def close(self, timeout_s: float = 0.0) -> None:
        """Wait until the process has ended, at most ``timeout_s`` seconds, then end it; its output is read first.

        Requests whose response senders the model has get an error.
        """
        self._end(timeout_s)
        _processes.discard(self)
        if threading.current_thread() is not self._reader:
            # The last output of a model that crashed is often the reason, so it is read to the end.
            self._reader.join()
        with self._closing:
            descriptors, self._open = self._open, []
        for descriptor in descriptors:
            os.close(descriptor)
        self._work.close()
        self.model_calls.close()

    def kill(self) -> None:
        """End the process at once; a command that it runs raises `ProcessEndedError`."""
        with contextlib.suppress(ProcessLookupError):
            self._process.kill()

    def is_of(self, server: ServerCalls) -> bool:
        """Return whether a server has started the process."""
        return self._server is server

    def _end(self, timeout: float) -> int:
        try:
            return self._process.wait(timeout)
        except subprocess.TimeoutExpired:
            self._process.kill()
            return self._process.wait()

    def describe_end(self) -> str:
        """Wait until the process has ended, and describe how: ``exit code 3``, or a signal and where the model was."""
        code = self._end(_GRACE_S)
        if code >= 0:
            return f"exit code {code}"
        frame = _CURRENT_FRAME.search(self._crash_report())
        place = f" (line {frame['line']} of {frame['file']}, in {frame['function']})" if frame is not None else ""
        return f"signal {signal.Signals(-code).name}{place}"

    def _crash_report(self) -> str:
        """Return the report of `faulthandler` when the process crashed; empty if it has not, or after `close`."""
        with self._closing:
            if self._report not in self._open:
                return ""
            return os.pread(self._report, _CHUNK, 0).decode(errors="replace")

    # --- the thread that reads ----------------------------------------------------------------

    def _read(self) -> None:
        """Read the channel ``calls`` and the output until the process has ended, and all of it was read."""
        readers: dict[int, Callable[[], bool]] = {self._calls.fileno(): self._read_calls}
        readers |= {file: functools.partial(_forward, file, stream) for stream, file in self._outputs.items()}
        poller = _poller_of(*readers, *self._exit)
        has_ended = False
        while readers:
            ready = {descriptor for descriptor, _ in poller.poll(0 if has_ended else None)}
            has_ended = has_ended or not ready.isdisjoint(self._exit)
            ready.difference_update(self._exit)
            if has_ended and not ready:  # processes that it started may keep its output open
                break
            for descriptor in ready:
                if not readers[descriptor]():
                    poller.unregister(descriptor)
                    del readers[descriptor]
        while self._outputs:  # forgotten before it is closed: a forked child would release another file of this number
            os.close(self._outputs.popitem()[1])
        self._calls.close()
        self.has_ended = True
        if self.ended is not None:
            self.ended()

    def _read_calls(self) -> bool:
        is_open = self._calls.fill()
        while (message := self._calls.buffered()) is not None:
            self.model_calls.handle(message)
        return is_open


def end_starting(server: ServerCalls) -> None:
    """End the processes of a stopping server in which a model is being created, which may take long.

    Called on any thread; even processes that start later are ended.
    """
    with _stops:
        _stopping.add(server)
        _stops.notify_all()
    _kill(_starting, server)


def end_all(server: ServerCalls) -> None:
    """End the processes of a server whose models nobody waits for any more; called on any thread.

    A process that executes without an end, or that was stopped by a signal, would stay for ever, with its threads here.
    """
    _kill(_processes, server)


def _kill(processes: set[ChildProcess], server: ServerCalls) -> None:
    for child in list(processes):
        if child.is_of(server):
            child.kill()


def stops_within(server: ServerCalls | None, seconds: float) -> bool:
    """Wait, but not longer than until a server is stopping; return whether it is."""
    with _stops:
        return _stops.wait_for(lambda: server in _stopping, seconds)


def _poller_of(*descriptors: int) -> select.poll:
    # Not `select`, which refuses descriptors above 1,023; a server with many connections has them.
    poller = select.poll()
    for descriptor in descriptors:
        poller.register(descriptor, select.POLLIN)
    return poller


def _forward(descriptor: int, stream: str) -> bool:
    """Write the output of the child to the stream that `print` uses in the current cell; return False at its end."""
    data = os.read(descriptor, _CHUNK)
    output: TextIO | None = getattr(sys, stream)
    if output is not None:
        with contextlib.suppress(ValueError, OSError):  # the stream is closed
            output.write(data.decode(errors="replace"))
            output.flush()
    return bool(data)


def _socket_pair(theirs: contextlib.ExitStack, ours: contextlib.ExitStack) -> tuple[socket.socket, socket.socket]:
    own, other = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
    ours.callback(own.close)
    theirs.callback(other.close)
    return own, other


def _pipe(of_reader: contextlib.ExitStack, of_writer: contextlib.ExitStack) -> tuple[int, int]:
    reader, writer = os.pipe()
    of_reader.callback(os.close, reader)
    of_writer.callback(os.close, writer)
    return reader, writer
