"""Wait for a long operation: interruptible, with its progress shown in a notebook."""

from __future__ import annotations

import html
import math
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent import futures
from concurrent.futures import Future
from contextlib import contextmanager
from typing import Any, TypeVar

from tritonnb.core.errors import UnavailableError

T = TypeVar("T")
#: Poll interval in seconds. A signal wakes only a thread that is waiting already, so never wait without a timeout.
_POLL_S = 0.2


def wait(finished: Future[T], timeout: float | None, progress: Callable[[], str], stop: Callable[[], None]) -> T:
    """Wait for the result of a future.

    Parameters
    ----------
    finished : concurrent.futures.Future
    timeout : float or None
        Seconds.
    progress : callable
        Returns the progress as a sentence.
    stop : callable
        Called if ``KeyboardInterrupt`` ends the waiting.

    Returns
    -------
    object
        The result of ``finished``.

    Raises
    ------
    TimeoutError
        If the result is missing by then; the message names the progress.
    """
    end = math.inf if timeout is None else time.monotonic() + timeout
    try:
        with _line() as show:
            while not finished.done() and (left := end - time.monotonic()) > 0:
                if not futures.wait([finished], min(left, _POLL_S)).done:
                    show(progress())
            if not finished.done():
                raise TimeoutError(f"not finished after {timeout:g} s and still running: {progress()}")
            return finished.result()
    except KeyboardInterrupt:
        stop()
        raise


def failed_future(what: str) -> Future[Any]:
    """Return what a forked child gets instead of the future of its parent, which no thread of the child completes."""
    future: Future[Any] = Future()
    future.set_exception(UnavailableError(f"{what}: it runs in the process that forked this one; wait for it there"))
    return future


@contextmanager
def shown_progress(title: str, total: int) -> Iterator[Callable[[], None]]:
    """Show in a notebook how many simulations are done, and the time that is left.

    Parameters
    ----------
    title : str
    total : int
        The number of simulations; more are counted if there are more.

    Yields
    ------
    callable
        Counts one simulation.
    """
    done, began_s = 0, time.monotonic()

    def step() -> None:
        nonlocal done
        done += 1
        most = max(total, done)
        show(f"{title}: {done} of {most} simulations{time_left(done, most, time.monotonic() - began_s)}")

    with _line() as show:
        yield step


def time_left(done: float, total: int, seconds: float) -> str:
    """Return an estimate of the time that the other steps take, as text; empty before the first and after the last.

    Examples
    --------
    >>> time_left(2, 6, seconds=3.0), time_left(0, 6, seconds=3.0)
    (', about 6 s left', '')
    """
    return f", about {seconds / done * (total - done):.0f} s left" if 0 < done < total else ""


@contextmanager
def _line() -> Iterator[Callable[[str], None]]:
    """Yield a function that shows the progress as a line of the notebook; the line is empty after the end.

    Outside a notebook, and on other threads than the main thread, nothing is shown.
    """
    ipython = sys.modules.get("IPython")
    shell = ipython.get_ipython() if ipython is not None else None
    if getattr(shell, "kernel", None) is None or threading.current_thread() is not threading.main_thread():
        yield lambda text: None
        return
    from IPython.display import DisplayHandle

    line = DisplayHandle()
    shown = ""

    def show(text: str) -> None:
        nonlocal shown
        if text != shown:
            update: Callable[..., None] = line.update if shown else line.display
            shown = text  # set first, so that the line is emptied even if an interrupt comes during the update
            update(_line_data(text), raw=True)

    try:
        yield show
    finally:
        if shown:
            line.update(_line_data(""), raw=True)


def _line_data(text: str) -> dict[str, str]:
    return {"text/html": f"<i>{html.escape(text)}</i>" if text else "", "text/plain": text}
