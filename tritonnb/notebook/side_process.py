"""A process of low priority for simulations while a server works: on its threads, they would delay its requests.

All previews share one `SideProcess`. It starts with the first call, and ends when none has come for a minute, or with
the process that started it.
"""

from __future__ import annotations

import atexit
import os
import pickle
import subprocess
import sys
import threading
from collections.abc import Callable
from typing import ParamSpec, TypeVar, cast

from tritonnb.core.errors import TritonError, UnavailableError
from tritonnb.core.forks import call_in_children, fork_safe

P = ParamSpec("P")
T = TypeVar("T")

#: Seconds without a call after which the process ends.
_IDLE_S = 60.0
_TRIES = 2


class SideProcess:
    """A process that runs one call at a time.

    Examples
    --------
    >>> side = SideProcess()
    >>> side.call(divmod, 7, 2)
    (3, 1)
    >>> side.close()
    """

    def __init__(self) -> None:
        self._process: subprocess.Popen[bytes] | None = None
        self._idle: threading.Timer | None = None
        self._closing = False
        self._lock = fork_safe(threading.Lock())
        call_in_children(self._forked)

    def _forked(self) -> None:
        """Leave the process to the process that has started it."""
        self._process = self._idle = None

    def call(self, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Return the result of a function; function, arguments and result are pickled.

        Raises
        ------
        TritonError
            That the function has raised; or that the process has ended, or the function has failed otherwise.
        """
        call = pickle.dumps((function, args, kwargs))
        with self._lock:
            for _ in range(_TRIES):  # it may have been killed, for example where memory is short
                try:
                    result, error = self._answer(call)
                except (OSError, EOFError):
                    self._end()
                    if self._closing:
                        break
                    continue
                except BaseException:  # the next call would read the answer to this one
                    self._end()
                    raise
                if error is not None:
                    raise error
                return cast("T", result)
        raise UnavailableError(
            f"{function.__qualname__}: expected a result, got the end of the process that computes it"
        )

    def close(self) -> None:
        """End the process, and a call that it computes with an error; another call starts it again."""
        self._closing = True  # before the process is looked for: a call that has yet to start one sees it
        if (process := self._process) is not None:
            process.kill()  # before the lock, which a call holds until it is answered
        with self._lock:
            self._end()
            self._closing = False

    def _end_idle(self) -> None:
        with self._lock:
            self._end()

    def _answer(self, call: bytes) -> tuple[object, TritonError | None]:
        if self._process is None:
            path = os.pathsep.join(sys.path)
            self._process = subprocess.Popen(
                [sys.executable, "-m", __name__],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                env={**os.environ, "PYTHONPATH": path},
                start_new_session=True,  # an interrupt of a cell is not meant for it
            )
            atexit.register(self.close)
            if self._closing:  # it found no process to kill
                raise EOFError
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        if self._idle is not None:
            self._idle.cancel()
        self._process.stdin.write(call)
        self._process.stdin.flush()
        answer: tuple[object, TritonError | None] = pickle.load(self._process.stdout)
        # The process does not end itself: it would remain as a zombie, since nobody waits for it.
        self._idle = threading.Timer(_IDLE_S, self._end_idle)
        self._idle.daemon = True
        self._idle.start()
        return answer

    def _end(self) -> None:
        atexit.unregister(self.close)
        process, self._process = self._process, None
        if self._idle is not None:
            self._idle.cancel()
        if process is not None:
            process.kill()
            process.communicate()


#: Runs the previews of all editors.
previews = SideProcess()


def main() -> None:
    """Answer the calls that come in, until the other end is closed."""
    os.nice(19)
    calls, answers = os.fdopen(0, "rb"), os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # what is printed must not come among the answers
    while True:
        try:
            function, args, kwargs = pickle.load(calls)
        except EOFError:
            return
        answer: tuple[object, TritonError | None]
        try:
            answer = function(*args, **kwargs), None
        except TritonError as error:
            answer = None, error
        except Exception as error:  # the caller gets an answer in any case
            answer = None, UnavailableError(f"{function.__qualname__}: {type(error).__name__}: {error}")
        pickle.dump(answer, answers)
        answers.flush()


if __name__ == "__main__":
    main()
