"""The event loop on a background thread that owns sockets, schedulers, statistics and models.

It stays on its thread, and no other thread runs its code: what it owns needs no locks, and a busy cell does not stop
the server. Other threads use `BackgroundLoop.call`, `BackgroundLoop.run` and ``call_soon_threadsafe``.

This module must not be compiled: Python runs the handlers of signals between instructions of its interpreter, and the
main thread waits here.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import threading
import time
from collections.abc import Callable, Coroutine, Iterator
from queue import Empty, SimpleQueue
from typing import Any, ParamSpec, TypeVar

from tritonnb.core.errors import InternalError, UnavailableError
from tritonnb.core.failures import frames_to_notes
from tritonnb.core.forks import call_in_children, fork_safe, forked_text, keep_forever

try:
    import uvloop
except ImportError:  # such as on Windows
    uvloop = None  # type: ignore[assignment]

P = ParamSpec("P")
T = TypeVar("T")

#: How often a waiting thread handles signals, in seconds; a signal that another thread receives does not wake it.
SIGNAL_CHECK_S = 0.5
STOPPED = "the server has been stopped"
#: How often, and in seconds how long each time, a loop that ends waits for the tasks that it has cancelled.
_CANCELLATIONS, _CANCELLATION_S = 3, 1.0
REPLACED = f"{STOPPED}: a later one replaced it (tnb.serve, or Server(replaces=...)); use that one instead"


def new_event_loop() -> asyncio.AbstractEventLoop:
    """Create an event loop of uvloop if it is installed, otherwise of asyncio."""
    return asyncio.new_event_loop() if uvloop is None else uvloop.new_event_loop()


class ThreadState(threading.local):
    """What the code of a thread belongs to: here, since a compiled class cannot inherit from this class.

    Attributes
    ----------
    instance : Instance or None
        The model instance whose code runs. Without this default, a look in another thread raises an error inside.
    """

    instance: Any = None


class BackgroundLoop:
    """An event loop in its own daemon thread.

    Attributes
    ----------
    loop : asyncio.AbstractEventLoop
    stopped_text : str
        The message of the error that calls after `stop` raise.
    on_closed : callable
        Called on the loop's thread once the loop is closed: nothing that was passed to it later will run.
    url : str
        Where other processes reach what runs on the loop; empty if they do not.
    """

    def __init__(self, name: str = "tritonnb") -> None:
        self.stopped_text = STOPPED
        self.on_closed: Callable[[], None] = lambda: None
        self.url = ""
        self.loop = new_event_loop()
        self._stopping = fork_safe(threading.Lock())
        self._stopped = self._is_forked = False
        self._stop_requested: asyncio.Future[None] = self.loop.create_future()
        # A daemon: a notebook's kernel that ends does not stop its server first.
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()
        call_in_children(self.abandon)

    @property
    def alive(self) -> bool:
        """True if the loop is running."""
        return self._thread.is_alive() and not self._is_forked

    @property
    def _is_current(self) -> bool:
        return threading.current_thread() is self._thread and not self._is_forked

    def abandon(self) -> None:
        """Fail all calls from now on: this is a forked child, without the thread."""
        if self._is_forked:
            return
        self._is_forked = True
        if not self._stopped:
            self._stopped = True
            self.stopped_text = forked_text(self.url)
        # The handles of the loop share the parent's epoll instance, so they must not be closed here. A closed loop
        # takes its place: whatever would be put on the loop fails at once.
        keep_forever(self.loop)
        self.loop = asyncio.BaseEventLoop()  # has no descriptors, and writes nothing to the log
        self.loop.close()

    def call(self, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Run a function on the event loop and wait for its result; on the loop's own thread, call it."""
        if self._is_current:  # a handler of HTTP that the user has added asks the server for a model
            return function(*args, **kwargs)
        return self.run(_as_coroutine(function, *args, **kwargs))

    def run(
        self,
        coroutine: Coroutine[Any, Any, T],
        interval: float = SIGNAL_CHECK_S,
        report: Callable[[], None] = lambda: None,
    ) -> T:
        """Run a coroutine on the event loop and wait for its result.

        An exception while waiting (``KeyboardInterrupt``, or of another handler of a signal) cancels the coroutine; the
        event loop continues.

        Parameters
        ----------
        coroutine : coroutine
        interval : float, optional
            Seconds between calls of ``report``, and between checks for signals.
        report : callable, optional
            Called on this thread while it waits.

        Raises
        ------
        RuntimeError
            If called from the event loop's own thread, which would wait for itself.
        UnavailableError
            After `stop`.
        """
        if self._is_current:
            coroutine.close()  # otherwise Python warns that it was never awaited
            raise RuntimeError("the server's event loop cannot wait for itself: use the async form")
        # Under the lock, since `stop` could come after the question and before the hand-over, and a coroutine on a loop
        # that has ended waits for ever.
        with self._stopping:
            if self._stopped:
                coroutine.close()
                raise UnavailableError(self.stopped_text)
            future = asyncio.run_coroutine_threadsafe(coroutine, self.loop)
        try:
            # Not `future.result(interval)`: nobody could tell its TimeoutError from a TimeoutError of the coroutine.
            while not concurrent.futures.wait([future], interval).done:
                if self._is_forked:  # by the handler of a signal
                    raise UnavailableError(self.stopped_text)
                report()
            return future.result()
        except concurrent.futures.CancelledError:
            if self._stopped:
                raise UnavailableError(self.stopped_text) from None
            raise
        except BaseException:
            future.cancel()
            raise
        finally:
            del future  # breaks the reference cycle of exception, traceback, frame and future

    def stop(self) -> None:
        """Stop the event loop and end its thread; does nothing if it is stopped already."""
        with self._stopping:
            if not self._stopped:
                self._stopped = True
                # Not `loop.stop`, which would make `run_until_complete` raise.
                self.loop.call_soon_threadsafe(settle, self._stop_requested, None)
        self.join()

    def join(self) -> None:
        """Wait until the event loop has ended; not on its own thread, which cannot wait for itself."""
        # In a forked child the thread does not exist, and joining it would wait for ever.
        if threading.current_thread() is not self._thread and not self._is_forked:
            self._thread.join()

    def _run(self) -> None:
        asyncio.set_event_loop(self.loop)
        try:
            self.loop.run_until_complete(self._stop_requested)
        finally:
            with self._stopping:
                self._stopped = True
            # Callers whose function has not run yet get an error instead of waiting forever.
            try:
                self.loop.run_until_complete(_finish())
            finally:
                self.loop.close()
                self.on_closed()


def wait_interruptibly(finished: SimpleQueue[None]) -> None:
    """Wait for an item of a queue; an exception of a signal handler ends the wait."""
    while True:
        try:
            return finished.get(timeout=SIGNAL_CHECK_S)
        except Empty:
            pass


async def _finish() -> None:
    await asyncio.sleep(0)  # so that the last call has become a task
    for _ in range(_CANCELLATIONS):
        others = asyncio.all_tasks() - {asyncio.current_task()}
        if not others:
            break
        for task in others:
            task.cancel()
        # A task that frees something in a thread waits for it after the first cancellation; the second ends the
        # waiting, and the thread goes on.
        ended, _ = await asyncio.wait(others, timeout=_CANCELLATION_S)
        for task in ended:
            if not task.cancelled():
                task.exception()  # otherwise asyncio logs an error that is never retrieved
    await asyncio.get_running_loop().shutdown_asyncgens()


async def _as_coroutine(function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    return function(*args, **kwargs)


async def run_in_thread(function: Callable[[], T], undo: Callable[[T], None] | None = None) -> T:
    """Run a slow function in its own thread, and return its result.

    A thread cannot be cancelled: if the caller is, the function continues, and ``undo`` then frees its result.
    When the interpreter is exiting, executors reject work, and threads may not start; the function then runs here.

    Parameters
    ----------
    function : callable
    undo : callable, optional
        Called on a thread with a result that nobody waits for any more.

    Raises
    ------
    Exception
        The exception of the function, as `as_exception` returns it.
    """
    loop = asyncio.get_running_loop()
    done: asyncio.Future[None] = loop.create_future()
    # A list, since its `pop` decides without a lock who owns the result.
    results: list[T] = []
    is_abandoned = threading.Event()

    def take_back() -> None:
        # The caller and the thread may both come here; only one of them gets the result.
        with contextlib.suppress(IndexError):
            result = results.pop()
            if undo is not None:
                undo(result)

    def work() -> None:
        failure: BaseException | None = None
        try:
            results.append(function())
        except BaseException as error:
            failure = error
        if is_abandoned.is_set():
            take_back()
        with contextlib.suppress(RuntimeError):  # the loop was closed meanwhile
            loop.call_soon_threadsafe(settle, done, failure)

    run_on_thread(work)
    try:
        await done
    except asyncio.CancelledError:
        is_abandoned.set()
        if results:
            run_on_thread(take_back)  # `undo` may be slow, and this is the event loop
        raise
    return results.pop()


def run_on_thread(function: Callable[[], None]) -> None:
    """Run a function in its own thread without waiting for it; here if no thread can start any more."""
    try:
        threading.Thread(target=function, name="tritonnb", daemon=True).start()
    except RuntimeError:
        function()


def stop_unused(stop: Callable[[], None]) -> None:
    """Stop an object that nobody refers to any more, or whose process ends.

    The garbage collector finds it on any thread, also on one for whose end ``stop`` waits: only the main thread waits.

    Parameters
    ----------
    stop : callable
    """
    if threading.current_thread() is threading.main_thread():
        stop()
    else:
        run_on_thread(stop)


def settle(done: asyncio.Future[None], failure: BaseException | None) -> None:
    """Set the result or the exception of a future, unless it was cancelled."""
    if done.cancelled():
        return
    if failure is None:
        done.set_result(None)
    else:
        done.set_exception(as_exception(failure))


def as_exception(error: BaseException) -> Exception:
    """Return an error that code on another thread has raised, so that a task can raise it.

    ``SystemExit`` and ``KeyboardInterrupt`` would end the event loop, ``CancelledError`` would look like a
    cancellation, and a future refuses ``StopIteration``: these become an `InternalError`.
    """
    # StopIteration in a model's `initialize` once left its load waiting for ever.
    if isinstance(error, Exception) and not isinstance(error, StopIteration):
        return error
    return InternalError(f"{type(error).__name__}: {error}", model_error=frames_to_notes(error))


class ThreadLimit:
    """A limit of the functions that run in threads at the same time; the others wait their turn.

    Parameters
    ----------
    count : int
    """

    def __init__(self, count: int) -> None:
        self._free = asyncio.Semaphore(count)
        self._refusal = ""
        self._interrupted: list[str] = []

    async def run(self, function: Callable[[], T], undo: Callable[[T], None] | None = None) -> T:
        """Run a slow function: `run_in_thread`.

        Raises
        ------
        UnavailableError
            After `refuse`.
        """
        async with self._free:
            # The server may have begun to stop while this waited for its turn.
            self.check()
            return await run_in_thread(function, undo)

    def refuse(self, reason: str) -> None:
        """Start no further function: work of several steps ends with an error before its next step."""
        self._refusal = reason

    def check(self, model: str = "") -> None:
        """Raise UnavailableError after `refuse`, and during `interrupting` the model."""
        if self._refusal:
            raise UnavailableError(self._refusal)
        if model in self._interrupted:
            raise UnavailableError("it was interrupted, since the model is to be unloaded")

    @contextlib.contextmanager
    def interrupting(self, model: str) -> Iterator[None]:
        """Let the work of several steps for a model end before its next step, while the block runs."""
        self._interrupted.append(model)
        try:
            yield
        finally:
            self._interrupted.remove(model)


class EarliestTimer:
    """A timer that calls a function at the earliest of the times that were set.

    Parameters
    ----------
    loop : asyncio.AbstractEventLoop
    callback : callable
        Called without arguments, possibly too early: it must then set the timer again. Event loops round
        timers to milliseconds; they call a shorter timer immediately, so the event loop runs until the time is reached.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, callback: Callable[[], None]) -> None:
        self._loop = loop
        self._callback = callback
        self._timer: asyncio.TimerHandle | None = None
        self._due_ns = 0

    def set(self, due_ns: int) -> None:
        """Call the function at a time of the monotonic clock, unless an earlier time is set."""
        if self._timer is not None:
            # The earlier call finds nothing to do and sets the timer again, which is cheaper than a timer for every
            # request.
            if self._due_ns <= due_ns:
                return
            self._timer.cancel()
        self._due_ns = due_ns
        self._timer = self._loop.call_later(max(0, due_ns - time.monotonic_ns()) * 1e-9, self._fire)

    def cancel(self) -> None:
        """Cancel the timer."""
        if self._timer is not None:
            self._timer.cancel()

    def _fire(self) -> None:
        self._timer = None
        self._callback()
