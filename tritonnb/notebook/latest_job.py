"""A thread for jobs of which only the newest matters."""

from __future__ import annotations

import atexit
import threading
from collections.abc import Callable


class LatestJob:
    """Runs the newest of the submitted jobs; one that has not begun is replaced by the next.

    The thread starts with a job and ends when there is none, so that an idle widget has no thread. When the interpreter
    exits, it waits for the thread (see `tritonnb.notebook.worker.Worker`).

    Parameters
    ----------
    name : str
        The thread's name.

    Examples
    --------
    >>> jobs, done = LatestJob("example"), []
    >>> jobs.submit(lambda: done.append(1))
    >>> jobs.join()
    >>> done
    [1]
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self._lock = threading.Lock()
        self._next: Callable[[], None] | None = None
        self._thread: threading.Thread | None = None

    def submit(self, job: Callable[[], None]) -> None:
        """Run a job soon, instead of one that was submitted before and has not begun."""
        with self._lock:
            self._next = job
            if self._thread is None:
                thread = threading.Thread(target=self._work, name=self._name, daemon=True)
                atexit.register(self.join)
                thread.start()  # it waits for the lock
                self._thread = thread  # `join` may be called on another thread, and needs one that was started

    @property
    def outdated(self) -> bool:
        """Whether a newer job waits: the running one may return early."""
        return self._next is not None

    def join(self) -> None:
        """Wait until no job runs or waits."""
        while (thread := self._thread) is not None:
            thread.join()

    def _work(self) -> None:
        while True:
            with self._lock:
                job, self._next = self._next, None
                if job is None:
                    self._thread = None
                    atexit.unregister(self.join)
                    return
            job()
