"""The thread of a model instance, which runs the model and makes no decisions.

The backend's ``initialize``, ``execute`` and ``finalize`` run on the instance's own thread. A completed batch wakes the
server's event loop once. Four cases save two changes of thread: a waiting in-process caller executes a quick batch,
the event loop executes a very quick one (both `BackendModelInstance.any_thread`), the event loop moves to the
instance's thread (`MovableLoop`), and it waits itself for a model in another process (`BackendModelInstance.begin`).
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import sys
import threading
import time
from collections.abc import Callable
from queue import SimpleQueue
from typing import TYPE_CHECKING, Protocol

from tritonnb.backends.contract import BackendModelInstance, InstanceLostError, InstanceSpec
from tritonnb.backends.execution import Execution
from tritonnb.backends.failure_log import FailureLog
from tritonnb.core.errors import InternalError, TritonError, UnsupportedError, strip_traceback
from tritonnb.runtime.execution.movable_loop import LONGEST_ABSENCE_NS, MovableLoop
from tritonnb.runtime.execution.readiness import ReadinessCheck

if TYPE_CHECKING:
    from tritonnb.runtime.models.served_base import Served

logger = logging.getLogger(__name__)

_this_thread = threading.local()

#: The time between attempts to recover, in seconds.
RECOVERY_INTERVAL_S = 1.0
#: Longer executions gain nothing from being passed to a caller, whose thread they would block, in ns.
QUICK_EXECUTION_NS = 1_000_000
#: Longer executions gain little if the event loop waits for them, in ns: two changes of thread take half as long.
LOOP_EXECUTION_NS = 200_000
#: Longer executions during which the event loop turns out to do nothing else are at most this part of its time.
BLOCKED_PART = 0.1
#: The event loop moves to an instance whose last execution ended less than this time ago, in ns.
RAPID_NS = 1_000_000
#: Work of a thread: try again to recover.
_RECOVER = InstanceLostError("is to recover")

Done = Callable[["Instance", Execution, TritonError | None], None]


class InstanceObserver(Protocol):
    """What is called, on the event loop, when an instance loses what it keeps between executions."""

    def instance_lost(self, instance: Instance, error: InstanceLostError) -> None:
        """The instance was lost between executions."""

    def instance_recovered(self, instance: Instance, is_running: bool) -> None:
        """`BackendModelInstance.recover` has returned."""


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
    observer : InstanceObserver, optional
    movable_loop : MovableLoop, optional
        The event loop, if it may move to the instance's thread.

    Attributes
    ----------
    busy : bool
        Whether an execution is assigned to it; maintained by the served model.
    awaits_recovery : bool
        Whether it was lost during its last execution and is not idle before it has recovered; maintained likewise.
    pending_loss : InternalError or None
        The error of the requests in its slots, which end when the batch that it has been assigned has failed.
    any_thread : bool
        Whether quick executions may run on the event loop and on threads of callers; maintained by the served model.
    passes_to_callers : bool
        Whether waiting callers may take their responses before the event loop sees them; maintained likewise.
    waits_for : list of Served
        The model versions whose responses the code on its thread waits for; maintained by `register_wait`.
    """

    __deletable__ = ("backend_instance",)  # compiled classes have to say so

    def __init__(
        self,
        spec: InstanceSpec,
        backend_instance: BackendModelInstance,
        loop: asyncio.AbstractEventLoop,
        done: Done,
        observer: InstanceObserver | None = None,
        movable_loop: MovableLoop | None = None,
    ) -> None:
        self.spec = spec
        self.backend_instance = backend_instance
        self.busy = False
        self.awaits_recovery = False
        self.pending_loss: InternalError | None = None
        self.any_thread = False
        self.passes_to_callers = False
        self._last_execution_ns = sys.maxsize
        self._last_end_ns = 0
        self._is_on_loop = False
        self._off_loop_until_ns = 0
        self.waits_for: list[Served] = []
        self._loop = loop
        self._done = done
        self._observer = observer
        self._movable_loop = movable_loop or MovableLoop(loop)
        #: Executions; an error, if the instance was lost between them; None at the end.
        self._work: SimpleQueue[Execution | InstanceLostError | None] = SimpleQueue()
        self._executed: SimpleQueue[tuple[Execution, TritonError | None]] = SimpleQueue()
        self._started: asyncio.Future[None] = loop.create_future()
        self._ended: asyncio.Future[None] = loop.create_future()
        self._readiness: ReadinessCheck | None = None
        self._failures = FailureLog(spec.name, logger)
        self._worker = threading.Thread(target=self._run, name=f"tritonnb {spec.name}", daemon=True)

    async def start(self) -> None:
        """Start the thread and wait until the backend's instance is initialised.

        Raises
        ------
        Exception
            The exception that ``initialize`` raised; the thread has then ended.
        """
        self._worker.start()
        await self._started

    def execute(self, execution: Execution) -> None:
        """Execute a batch on the idle instance."""
        if self.pending_loss is not None:  # it waited for the rate limiter while the instance was lost
            self._executed.put((execution, self.pending_loss))
            self._loop.call_soon(self._report)
        elif self.any_thread and (self._pass_to_caller(execution) or self._leave_to_loop(execution)):
            pass
        elif not self.backend_instance.begin(execution, self._ended_on_loop, self._assign):
            self._movable_loop.prepare(self._work, self._is_rapid())
            self._assign(execution)

    def _assign(self, work: Execution | InstanceLostError | None) -> None:
        """Give its thread work, which stops to run the event loop then; called on any thread."""
        self._work.put(work)
        if self._movable_loop.is_at(self._work):
            self._movable_loop.leave()

    def _is_rapid(self) -> bool:
        return self.may_block_loop and time.monotonic_ns() - self._last_end_ns < RAPID_NS

    def _pass_to_caller(self, execution: Execution) -> bool:
        if not self.passes_to_callers or self._last_execution_ns >= QUICK_EXECUTION_NS:
            return False
        caller = execution.requests[0].caller
        return caller is not None and caller.offer(self, execution)

    @property
    def may_block_loop(self) -> bool:
        """Whether the event loop may do nothing else during the next execution."""
        return self._last_execution_ns < LOOP_EXECUTION_NS and time.monotonic_ns() >= self._off_loop_until_ns

    def _leave_to_loop(self, execution: Execution) -> bool:
        """Have the event loop execute a batch after its next look at the sockets: requests that it reads are queued."""
        if not self.may_block_loop:
            return False
        # What is called soon runs before the sockets are read again, what that calls soon runs afterwards.
        self._loop.call_soon(self._loop.call_soon, self._execute_on_loop, execution)
        return True

    def _execute_on_loop(self, execution: Execution) -> None:
        self.complete_on_loop(execution, self.run(execution, is_on_loop=True))

    def complete_on_loop(self, execution: Execution, failure: TritonError | None) -> None:
        """Count an execution that `run` has executed on the event loop, and respond."""
        self._limit_blocking(self._last_execution_ns)
        if isinstance(failure, InstanceLostError):
            self._assign(failure)
        self._done(self, execution, failure)

    def _limit_blocking(self, blocked_ns: int) -> None:
        """Leave the event loop alone for a while, if the last execution was not very quick and blocked it."""
        if self._last_execution_ns >= LOOP_EXECUTION_NS:
            until_ns = self._last_end_ns + round(blocked_ns / BLOCKED_PART)
            self._off_loop_until_ns = max(self._off_loop_until_ns, until_ns)

    def check_may_wait(self) -> None:
        """Have its later batches run on its own thread, since the code of its model waits for the server.

        Raises
        ------
        UnsupportedError
            If the event loop executes its batch now: it would wait for itself.
        """
        self._off_loop_until_ns = sys.maxsize
        if self._is_on_loop:
            raise UnsupportedError(
                f"model instance '{self.spec.name}' called the server while the server's event loop executed it, which "
                "would wait for itself: remove the parameter EXECUTE_ON_ANY_THREAD of a Python model that does so"
            )

    def execute_on_own_thread(self, execution: Execution) -> None:
        """Execute a batch that was passed to a caller which no longer waits; called on any thread."""
        self._assign(execution)

    async def execute_alone(self, execution: Execution) -> TritonError | None:
        """Execute a batch without the scheduler, and wait; returns the error that ``execute`` raised."""
        finished: asyncio.Future[TritonError | None] = self._loop.create_future()
        done, self._done = self._done, lambda instance, execution, error: finished.set_result(error)
        try:
            self._assign(execution)
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

    def recover_later(self) -> None:
        """Try again to recover, after a while; called on the event loop."""
        self._loop.call_later(RECOVERY_INTERVAL_S, self._assign, _RECOVER)

    async def stop(self) -> None:
        """Finalize the instance after its last execution, and end its thread."""
        self._assign(None)
        await self._ended

    def _run(self) -> None:
        _this_thread.instance = self
        started = self._started
        try:
            self.backend_instance.watch(self._lost)
            self.backend_instance.initialize()
        except BaseException as error:
            # Frees what the backend has allocated, even if this object continues to exist.
            del self.backend_instance
            self._loop.call_soon_threadsafe(_settle, started, strip_traceback(error))
            return
        self._loop.call_soon_threadsafe(_settle, started, None)
        while (execution := self._work.get()) is not None:
            if isinstance(execution, InstanceLostError):  # it was lost between executions, or is to try again
                self._movable_loop.move_back(self._work)
                self._recover()
                continue
            loop_was_here = self._movable_loop.is_at(self._work)
            self.put_result(execution, self._execute(execution))
            # Keep no reference to the batch: clients may unregister its shared memory after the response.
            del execution
            try:
                if not (loop_was_here and self._run_loop()):
                    self.report()
            except RuntimeError:  # the event loop is closed, since the server did not wait (`ExitTimeoutError`)
                return
        self._movable_loop.move_back(self._work)
        try:
            self.backend_instance.finalize()
        except BaseException:
            logger.exception("finalizing instance '%s' failed", self.spec.name)
        self._loop.call_soon_threadsafe(_settle, self._ended, None)

    def _run_loop(self) -> bool:
        """Report an execution and run the event loop until there is work; False if the event loop is not here now."""
        if self._last_execution_ns >= LOOP_EXECUTION_NS:
            self._limit_blocking(min(self._last_execution_ns, LONGEST_ABSENCE_NS))
            self._movable_loop.move_back(self._work)
            return False
        _this_thread.instance = None
        try:
            return self._movable_loop.run_until_work(self._work, self._report)
        finally:
            _this_thread.instance = self

    def run(self, execution: Execution, *, is_on_loop: bool = False) -> TritonError | None:
        """Execute a batch on the thread of a caller or of the event loop.

        Parameters
        ----------
        execution : Execution
        is_on_loop : bool, optional
            Whether the event loop does nothing else meanwhile.

        Returns
        -------
        TritonError or None
            What ``execute`` raised.
        """
        before = instance_of_this_thread()
        _this_thread.instance = self
        self._is_on_loop = is_on_loop
        try:
            return self._execute(execution)
        finally:
            _this_thread.instance = before
            self._is_on_loop = False

    def put_result(self, execution: Execution, failure: TritonError | None) -> None:
        """Store the result of an execution for `report`; called on the thread that has executed it."""
        self._executed.put((execution, failure))
        if isinstance(failure, InstanceLostError):
            self._assign(failure)

    def report(self) -> None:
        """Wake the event loop, which counts the execution and responds; called on the same thread, afterwards.

        Raises
        ------
        RuntimeError
            If the event loop is closed.
        """
        self._loop.call_soon_threadsafe(self._report)

    def _execute(self, execution: Execution) -> TritonError | None:
        execution.exec_start_ns = execution.exec_start_ns or time.monotonic_ns()
        try:
            self.backend_instance.execute(execution)
        except BaseException as error:  # also SystemExit, which must not end the instance's thread
            return self._convert(error, execution)
        finally:
            execution.exec_end_ns = execution.exec_end_ns or time.monotonic_ns()
            self._last_end_ns = execution.exec_end_ns
            self._last_execution_ns = self._last_end_ns - execution.exec_start_ns
        return None

    def _convert(self, error: BaseException, execution: Execution) -> TritonError:
        return strip_traceback(error) if isinstance(error, TritonError) else self._failures.convert(error, execution)

    def _ended_on_loop(self, execution: Execution, raised: BaseException | None) -> None:
        """Report an execution for which the event loop has waited."""
        execution.exec_end_ns = execution.exec_end_ns or time.monotonic_ns()
        self._done(self, execution, None if raised is None else self._convert(raised, execution))

    def _recover(self) -> None:
        is_running = self.backend_instance.recover()
        if self._observer is not None:
            with contextlib.suppress(RuntimeError):  # the event loop is closed
                self._loop.call_soon_threadsafe(self._observer.instance_recovered, self, is_running)

    def _lost(self, error: InstanceLostError) -> None:
        """The instance was lost between executions; called on any thread."""
        with contextlib.suppress(RuntimeError):  # the event loop is closed
            self._loop.call_soon_threadsafe(self._report_lost, error)

    def _report_lost(self, error: InstanceLostError) -> None:
        """Report the loss, then let the instance recover: batches that were sent before are executed before that."""
        if self._observer is not None:
            self._observer.instance_lost(self, error)
        self._assign(error)

    def _report(self) -> None:
        """Report an execution; called on the event loop."""
        execution, raised = self._executed.get()
        self._done(self, execution, raised)


def instance_of_this_thread() -> Instance | None:
    """The instance whose model runs on the current thread; None on other threads."""
    return getattr(_this_thread, "instance", None)


def instance_that_waits() -> Instance | None:
    """The instance whose model runs on the current thread and is about to wait for the server; None on other threads.

    Raises
    ------
    UnsupportedError
        If the thread is that of the event loop, which would wait for itself.
    """
    instance = instance_of_this_thread()
    if instance is not None:
        instance.check_may_wait()
    return instance


def _settle(future: asyncio.Future[None], error: BaseException | None) -> None:
    if future.cancelled():
        return
    if error is None:
        future.set_result(None)
    else:
        future.set_exception(error)
