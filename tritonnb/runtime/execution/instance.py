"""An instance thread: it runs the model and decides nothing.

The backend's ``initialize``, ``execute`` and ``finalize`` all happen on the instance's own thread.
A finished batch wakes the server's loop once.
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
        The server's.
    done : callable
        ``done(instance, execution, error)`` is called on the loop after every execution; ``error``
        is what ``execute`` raised.

    Attributes
    ----------
    busy : bool
        Whether work is meant for it that is not done; kept by its user.
    waits_for : list of Served
        The model versions whose answers the code on its thread waits for; `register_wait` maintains it.
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
            Whatever ``initialize`` raised; the thread has ended then.
        """
        self._thread.start()
        await self._started

    def execute(self, execution: Execution) -> None:
        """Hand a batch to the idle instance."""
        self._work.put(execution)

    async def execute_alone(self, execution: Execution) -> TritonError | None:
        """Run a batch past the scheduler, while nothing else runs; what ``execute`` raised."""
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
        """Finalize the instance after the work handed to it, and end its thread."""
        self._work.put(None)
        await self._ended

    def _run(self) -> None:
        _this_thread.instance = self
        started = self._started
        try:
            self.backend_instance.initialize()
        except BaseException as error:
            # What it took so far is free now, however long this object lives.
            del self.backend_instance
            self._loop.call_soon_threadsafe(_settle, started, strip_traceback(error))
            return
        self._loop.call_soon_threadsafe(_settle, started, None)
        next_execution, hand_back = self._work.get, self._executed.put
        run, wake, report = self._execute, self._loop.call_soon_threadsafe, self._report
        while (execution := next_execution()) is not None:
            hand_back((execution, run(execution)))
            # Nothing of the batch lives here once it is answered: clients unregister its shared memory then.
            del execution
            try:
                wake(report)
            except RuntimeError:  # the server did not wait for this execution (`ExitTimeoutError`): its loop is closed
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
        except BaseException as error:  # a model's sys.exit() must not end the instance's thread
            self._log(error)
            model = next(each.model_name for each in execution.requests if not each.is_null)
            text = f"model '{model}': {type(error).__name__}: {error}{location_suffix(error)}"
            return InternalError(text, model_error=frames_to_notes(error))
        finally:
            execution.exec_end_ns = time.monotonic_ns()
        return None

    def _log(self, error: BaseException) -> None:
        """Log where a model failed, once for each place: otherwise every batch would log it."""
        place = type(error), *(line for _, line in traceback.walk_tb(error.__traceback__))
        if place in self._failures:
            logger.debug("instance '%s' failed again: %s: %s", self.spec.name, type(error).__name__, error)
        else:
            self._failures.add(place)
            logger.error("instance '%s' failed", self.spec.name, exc_info=error)

    def _report(self) -> None:
        """On the loop."""
        execution, raised = self._executed.get()
        self._done(self, execution, raised)


def instance_of_this_thread() -> Instance | None:
    """The instance whose model runs on the current thread, if there is one."""
    return getattr(_this_thread, "instance", None)


def _settle(future: asyncio.Future[None], error: BaseException | None) -> None:
    if future.cancelled():
        return
    if error is None:
        future.set_result(None)
    else:
        future.set_exception(error)
