"""Threads of widgets: their life cycle, a worker that runs all jobs, and one that runs only the newest.

Browser messages arrive on the kernel's main thread, which is blocked while a cell runs and must not wait for the
server. Widgets pass such work to their own threads.
"""

from __future__ import annotations

import atexit
import logging
import queue
import sys
import threading
from collections.abc import Callable

from tritonnb.core.browser import IN_BROWSER
from tritonnb.core.errors import UnavailableError
from tritonnb.core.forks import call_in_children, fork_safe

logger = logging.getLogger(__name__)

#: What a worker runs: a call without arguments; its result is ignored.
Job = Callable[[], object]


class ViewThread:
    """The daemon thread of a view. At exit, the interpreter ends its work and waits for it.

    Ending it inside Matplotlib's C++ code, while it draws a figure, would crash the process. In a forked child, where
    the thread does not exist, `join` returns at once.

    Parameters
    ----------
    name : str
        The thread's name.
    run : callable
        What it does.
    end : callable
        Makes ``run`` return soon; called when the interpreter exits.
    """

    def __init__(self, name: str, run: Callable[[], None], end: Callable[[], None]) -> None:
        self._target, self._end = run, end
        self._thread = _thread_type()(target=self._run, name=name, daemon=True)

    def start(self) -> None:
        """Start the thread."""
        atexit.register(self._exit)
        self._thread.start()

    def join(self) -> None:
        """Wait for the thread to end, except on the thread itself."""
        if self._thread.is_alive() and threading.current_thread() is not self._thread:
            self._thread.join()

    def _exit(self) -> None:
        self._end()
        self.join()

    def _run(self) -> None:
        try:
            self._target()
        finally:
            atexit.unregister(self._exit)


def _thread_type() -> type[threading.Thread]:
    """Return the class of threads whose widgets reach the browser: marimo's own in its notebooks."""
    marimo = sys.modules.get("marimo")
    thread: type[threading.Thread] = threading.Thread if marimo is None else marimo.Thread
    return thread


class Worker:
    """A thread that runs jobs in the order of submission.

    Parameters
    ----------
    name : str
        The thread's name.
    run : callable
        Called on the thread with each job; must call the job and handle its exceptions.
    poll : callable
        The job that is run whenever none was submitted for ``interval_s``.
    interval_s : float
        In seconds.

    Attributes
    ----------
    stopped : bool
        Whether `stop` has been called.
    """

    def __init__(self, name: str, run: Callable[[Job], None], poll: Job, interval_s: float) -> None:
        self._run = run
        self._poll = poll
        self._interval_s = interval_s
        self._jobs: queue.SimpleQueue[Job | None] = queue.SimpleQueue()
        self._submitting = fork_safe(threading.Lock())
        self.stopped = self._is_forked = False
        self._name = name
        self._thread = ViewThread(name, self._work, self.stop)
        call_in_children(self._forked)

    def _forked(self) -> None:
        self._is_forked = True

    def start(self) -> None:
        """Start the thread; jobs that were submitted before are run first."""
        self._thread.start()

    def submit(self, job: Job) -> bool:
        """Queue a job; return False, without running it, if the worker has been stopped.

        Raises
        ------
        UnavailableError
            In a forked child, which does not have the thread: nobody would run the job.
        """
        if self._is_forked:
            raise UnavailableError(f"{self._name}: it runs in the process that forked this one: open another one here")
        with self._submitting:
            if not self.stopped:
                self._jobs.put(job)
            return not self.stopped

    def stop(self) -> None:
        """Accept no more jobs; the thread ends after those that were submitted."""
        with self._submitting:
            self.stopped = True
            self._jobs.put(None)

    def join(self) -> None:
        """Wait for the thread to end, except on the thread itself."""
        self._thread.join()

    def close(self) -> None:
        """Run the jobs that were submitted, and end the thread."""
        self.stop()
        self.join()

    def _work(self) -> None:
        while True:
            try:
                job = self._jobs.get(timeout=self._interval_s)
            except queue.Empty:
                job = self._poll
            if job is None:
                break
            self._run(job)


class LatestOnlyWorker:
    """A worker that runs the newest of the submitted jobs; one that has not begun is replaced by the next.

    An exception of a job is logged, and the next job runs. The thread starts with a job and ends when there is none,
    so that an idle widget has no thread.

    Parameters
    ----------
    name : str
        The thread's name.

    Examples
    --------
    >>> jobs, done = LatestOnlyWorker("example"), []
    >>> jobs.submit(lambda: done.append(1))
    >>> jobs.join()
    >>> done
    [1]
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self._lock = fork_safe(threading.Lock())
        self._next: Callable[[], None] | None = None
        self._thread: ViewThread | None = None
        call_in_children(self._forked)

    def _forked(self) -> None:
        """Forget the thread in a forked child, which does not have it: `join` would wait for its end."""
        self._thread = None

    def submit(self, job: Callable[[], None]) -> None:
        """Run a job soon, instead of one that was submitted before and has not begun."""
        if IN_BROWSER:  # it has no threads
            self._next = job
            self._work()
            return
        with self._lock:
            self._next = job
            if self._thread is None:
                thread = ViewThread(self._name, self._work, lambda: None)
                thread.start()  # it waits for the lock
                self._thread = thread  # `join` may be called on another thread, and needs one that was started

    @property
    def outdated(self) -> bool:
        """True if a newer job waits: the running one may return early."""
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
                    return
            try:
                job()
            except BaseException:  # the thread must go on, or no other job would run and `join` would never return
                logger.exception("thread '%s': a job failed", self._name)
