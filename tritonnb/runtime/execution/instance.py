"""The thread of a model instance, which runs the model and makes no decisions.

The backend's ``initialize``, ``execute`` and ``finalize`` run on the instance's own thread. A completed batch wakes the
server's event loop once.
"""

from __future__ import annotations

import asyncio
import logging
import threading
import time
import traceback
from collections.abc import Callable
from queue import SimpleQueue
from typing import TYPE_CHECKING

from tritonnb.backends.contract import BackendModelInstance, Execution, InstanceSpec
from tritonnb.core.errors import InternalError, TritonError, strip_traceback
from tritonnb.core.failures import frames_to_notes, location_suffix
from tritonnb.runtime.execution.readiness import ReadinessCheck

if TYPE_CHECKING:
    from tritonnb.runtime.models.served_base import Served

logger = logging.getLogger(__name__)

_this_thread = threading.local()

Done = Callable[["Instance", Execution, TritonError | None], None]


class Instance:
    """A model instance and the thread that runs it.

    Parameters
    ----------
    spec : InstanceSpec
    backend_instance : BackendModelInstance
        Not initialised yet.
    loop : asyncio.AbstractEventLoop
        The event loop of the server.
    done : callable
        ``done(instance, execution, error)`` is called on the event loop after every execution; ``error`` is the error
        that ``execute`` raised, or None.

    Attributes
    ----------
    busy : bool
        Whether an execution is assigned to it; maintained by the served model.
    waits_for : list of Served
        The model versions whose responses the code on its thread waits for; maintained by `register_wait`.
    """

    def __init__(
        self,
        spec: InstanceSpec,
        backend_instance: BackendModelInstance,
        loop: asyncio.AbstractEventLoop,
        done: Done,
    ) -> None:
        self.spec = spec
        self.backend_instance = backend_instance
        self.busy = False
        self.waits_for: list[Served] = []
        self._loop = loop
        self._done = done
        self._work: SimpleQueue[Execution | None] = SimpleQueue()
        self._executed: SimpleQueue[tuple[Execution, TritonError | None]] = SimpleQueue()
        self._started: asyncio.Future[None] = loop.create_future()
        self._ended: asyncio.Future[None] = loop.create_future()
        self._readiness: ReadinessCheck | None = None
        self._failures: set[tuple[object, ...]] = set()
        self._thread = threading.Thread(target=self._run, name=f"tritonnb {spec.name}", daemon=True)

    async def start(self) -> None:
        """Start the thread and wait until the backend's instance is initialised.

        Raises
        ------
        Exception
            The exception that ``initialize`` raised; the thread has then ended.
        """
        self._thread.start()
        await self._started

    def execute(self, execution: Execution) -> None:
        """Execute a batch on the idle instance."""
        self._work.put(execution)

    async def execute_alone(self, execution: Execution) -> TritonError | None:
        """Execute a batch without the scheduler, and wait; returns the error that ``execute`` raised."""
        finished: asyncio.Future[TritonError | None] = self._loop.create_future()
        done, self._done = self._done, lambda instance, execution, error: finished.set_result(error)
        try:
            self._work.put(execution)
            return await finished
        finally:
            self._done = done

    async def check_ready(self) -> None:
        """Return if the backend's instance is ready; also while it executes a batch.

        Raises
        ------
        Exception
            If it is not ready.
        """
        if self._readiness is None:
            check = self.backend_instance.readiness_check()
            if check is None:
                return
            self._readiness = ReadinessCheck(check)
        await self._readiness.run()

    async def stop(self) -> None:
        """Finalize the instance after its last execution, and end its thread."""
        self._work.put(None)
        await self._ended

    def _run(self) -> None:
        _this_thread.instance = self
        started = self._started
        try:
            self.backend_instance.initialize()
        except BaseException as error:
            # Frees what the backend has allocated, even if this object continues to exist.
            del self.backend_instance
            self._loop.call_soon_threadsafe(_settle, started, strip_traceback(error))
            return
        self._loop.call_soon_threadsafe(_settle, started, None)
        next_execution, put_result = self._work.get, self._executed.put
        run, wake, report = self._execute, self._loop.call_soon_threadsafe, self._report
        while (execution := next_execution()) is not None:
            put_result((execution, run(execution)))
            # Keep no reference to the batch: clients may unregister its shared memory after the response.
            del execution
            try:
                wake(report)
            except RuntimeError:  # the event loop is closed, since the server did not wait (`ExitTimeoutError`)
                return
        try:
            self.backend_instance.finalize()
        except BaseException:
            logger.exception("finalizing instance '%s' failed", self.spec.name)
        self._loop.call_soon_threadsafe(_settle, self._ended, None)

    def _execute(self, execution: Execution) -> TritonError | None:
        execution.exec_start_ns = time.monotonic_ns()
        try:
            self.backend_instance.execute(execution)
        except TritonError as error:
            return strip_traceback(error)
        except BaseException as error:  # also SystemExit, which must not end the instance's thread
            self._log(error)
            model = next(request.model_name for request in execution.requests if not request.is_null)
            text = f"model '{model}': {type(error).__name__}: {error}{location_suffix(error)}"
            return InternalError(text, model_error=frames_to_notes(error))
        finally:
            execution.exec_end_ns = time.monotonic_ns()
        return None

    def _log(self, error: BaseException) -> None:
        """Log where a model failed, once for each place, so that not every batch is logged."""
        place = type(error), *(line for _, line in traceback.walk_tb(error.__traceback__))
        if place in self._failures:
            logger.debug("instance '%s' failed again: %s: %s", self.spec.name, type(error).__name__, error)
        else:
            self._failures.add(place)
            logger.error("instance '%s' failed", self.spec.name, exc_info=error)

    def _report(self) -> None:
        """Report an execution; called on the event loop."""
        execution, raised = self._executed.get()
        self._done(self, execution, raised)


def instance_of_this_thread() -> Instance | None:
    """The instance whose model runs on the current thread; None on other threads."""
    return getattr(_this_thread, "instance", None)


def _settle(future: asyncio.Future[None], error: BaseException | None) -> None:
    if future.cancelled():
        return
    if error is None:
        future.set_result(None)
    else:
        future.set_exception(error)
