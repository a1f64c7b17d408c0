"""The background loop: the one thread that owns sockets, schedulers, statistics and models.

The notebook's thread and the instance threads talk to it through `BackgroundLoop.call`,
`BackgroundLoop.run` and ``call_soon_threadsafe`` only, so a busy cell never stops the server and
the core needs no locks.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import threading
from collections.abc import Callable, Coroutine
from typing import Any, ParamSpec, TypeVar

from tritonnb.core.errors import UnavailableError

try:
    import uvloop
except ImportError:  # no wheel for this platform, such as Windows
    uvloop = None  # type: ignore[assignment]

P = ParamSpec("P")
T = TypeVar("T")

STOPPED = "the server has been stopped"
REPLACED = f"{STOPPED}: a later one replaced it (tnb.serve, or Server(replaces=...)), which is to be used instead"


def new_event_loop() -> asyncio.AbstractEventLoop:
    """Uvloop's loop where it exists, asyncio's otherwise."""
    return asyncio.new_event_loop() if uvloop is None else uvloop.new_event_loop()


class BackgroundLoop:
    """An event loop running in a daemon thread of its own.

    Attributes
    ----------
    loop : asyncio.AbstractEventLoop
    stopped_text : str
        The text of the error that calls after `stop` raise.
    """

    def __init__(self, name: str = "tritonnb") -> None:
        self.stopped_text = STOPPED
        self.loop = new_event_loop()
        self._ending = threading.Lock()
        self._ended = False
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    @property
    def alive(self) -> bool:
        """Whether the loop is running."""
        return self._thread.is_alive()

    def call(self, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Run a function on the loop and wait for what it returns or raises."""
        return self.run(_as_coroutine(function, *args, **kwargs))

    def run(
        self, coroutine: Coroutine[Any, Any, T], interval: float | None = None, report: Callable[[], None] | None = None
    ) -> T:
        """Run a coroutine on the loop and wait for what it returns or raises.

        An interrupt while waiting (``KeyboardInterrupt``) cancels the coroutine; the loop goes on.

        Parameters
        ----------
        coroutine : coroutine
        interval : float, optional
            Seconds between calls of ``report``.
        report : callable, optional
            Called on this thread while it waits.

        Raises
        ------
        RuntimeError
            If called from the loop's own thread, which would wait for ever.
        UnavailableError
            After `stop`.
        """
        if threading.current_thread() is self._thread:
            coroutine.close()
            raise RuntimeError("the server's own loop cannot wait for itself: use the async form")
        with self._ending:
            if self._ended:
                coroutine.close()
                raise UnavailableError(self.stopped_text)
            future = asyncio.run_coroutine_threadsafe(coroutine, self.loop)
        try:
            while report is not None and not concurrent.futures.wait([future], interval).done:
                report()
            return future.result()
        except concurrent.futures.CancelledError:
            if self._ended:
                raise UnavailableError(self.stopped_text) from None
            raise
        except KeyboardInterrupt:
            future.cancel()
            raise
        finally:
            del future  # what is raised holds this frame, and the future what is raised

    def stop(self) -> None:
        """End the loop and its thread; harmless when that has happened already."""
        with self._ending:
            if not self._ended:
                self._ended = True
                self.loop.call_soon_threadsafe(self.loop.stop)
        self._thread.join()

    def _run(self) -> None:
        asyncio.set_event_loop(self.loop)
        try:
            self.loop.run_forever()
        finally:
            with self._ending:
                self._ended = True
            # Callers whose function has not run yet get an error instead of waiting forever.
            self.loop.run_until_complete(_cancel_everything())
            self.loop.run_until_complete(self.loop.shutdown_asyncgens())
            self.loop.close()


async def _cancel_everything() -> None:
    await asyncio.sleep(0)  # the last call has become a task now
    others = asyncio.all_tasks() - {asyncio.current_task()}
    for task in others:
        task.cancel()
    await asyncio.gather(*others, return_exceptions=True)


async def _as_coroutine(function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    return function(*args, **kwargs)


async def run_in_thread(function: Callable[[], None]) -> None:
    """Run something slow off the loop, in a thread of its own.

    Executors refuse work once the interpreter is ending, and threads may; there it runs in place.
    """
    loop = asyncio.get_running_loop()
    done: asyncio.Future[None] = loop.create_future()

    def work() -> None:
        try:
            function()
        except BaseException as error:
            loop.call_soon_threadsafe(done.set_exception, error)
        else:
            loop.call_soon_threadsafe(done.set_result, None)

    try:
        threading.Thread(target=work, name="tritonnb", daemon=True).start()
    except RuntimeError:
        work()
    await done
