"""Waiting for something long: it can be interrupted, and a notebook shows meanwhile how far it is."""

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
from typing import TypeVar

T = TypeVar("T")
#: How often who waits looks how far it is, in seconds. Who slept until the end instead would never
#: hear of an interrupt that came just before: only a signal that finds it asleep wakes a thread.
_LOOK_S = 0.2


def wait(finished: Future[T], timeout: float | None, told: Callable[[], str], stop: Callable[[], None]) -> T:
    """Wait for what is under way.

    Parameters
    ----------
    finished : concurrent.futures.Future
    timeout : float or None
        Seconds.
    told : callable
        How far it is, in words.
    stop : callable
        Called if an interrupt (``KeyboardInterrupt``) ends the waiting.

    Returns
    -------
    object
        The result of ``finished``.

    Raises
    ------
    TimeoutError
        If there is none by then, with how far it is.
    """
    end = math.inf if timeout is None else time.monotonic() + timeout
    try:
        with _line() as tell:
            while not finished.done() and (left := end - time.monotonic()) > 0:
                if not futures.wait([finished], min(left, _LOOK_S)).done:
                    tell(told())
            if not finished.done():
                raise TimeoutError(f"not over after {timeout:g} s, and going on: {told()}")
            return finished.result()
    except KeyboardInterrupt:
        stop()
        raise


@contextmanager
def _line() -> Iterator[Callable[[str], None]]:
    """A line of the notebook to tell the progress on: none before the first word, and empty after the end.

    Only the main thread has one: what waits on another thread is a part of something that has a line.
    """
    ipython = sys.modules.get("IPython")
    shell = ipython.get_ipython() if ipython is not None else None
    if getattr(shell, "kernel", None) is None or threading.current_thread() is not threading.main_thread():
        yield lambda text: None
        return
    from IPython.display import DisplayHandle

    line = DisplayHandle()
    said = ""

    def tell(text: str) -> None:
        nonlocal said
        if text != said:
            show: Callable[..., None] = line.update if said else line.display
            said = text  # before it is shown: who interrupts that shall find the line empty, too
            show(_line_data(text), raw=True)

    try:
        yield tell
    finally:
        if said:
            line.update(_line_data(""), raw=True)


def _line_data(text: str) -> dict[str, str]:
    return {"text/html": f"<i>{html.escape(text)}</i>" if text else "", "text/plain": text}
