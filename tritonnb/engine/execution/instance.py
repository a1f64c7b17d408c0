"""A model instance: a thread that runs the model, and decides nothing about batches.

The backend's ``initialize``, ``execute`` and ``finalize`` run on this thread; a completed batch wakes the event loop
once. One exception: if the model has the parameter `EXECUTE_ON_ANY_THREAD`, the event loop executes its quick batches
inline, which saves two thread switches.
"""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections.abc import Callable
from queue import SimpleQueue
from typing import Final, Protocol

from tritonnb.backends.contract import BackendModelInstance, InstanceLostError, InstanceSpec
from tritonnb.backends.execution import Execution, FailureLog
from tritonnb.core.errors import InternalError, TritonError, UnavailableError, UnsupportedError, strip_traceback
from tritonnb.core.messages import Caller
from tritonnb.engine.execution.loop import ThreadState, run_in_thread, settle
from tritonnb.scheduling.instances import RateLimiter

logger = logging.getLogger(__name__)

_this_thread: Final = ThreadState()

#: How long a readiness check may take, in seconds, as on Triton.
TIME_LIMIT_S = 5.0
#: The time between attempts to recover, in seconds.
RECOVERY_INTERVAL_S: Final = 1.0
#: An execution is quick if it takes less than this time, in ns: two changes of thread take half as long.
QUICK_EXECUTION_NS = 200_000
#: The share of its time that the event loop spends at most on inline executions that turn out not to be quick.
MAX_BLOCKED_SHARE = 0.1


class _Recovery:
    """Work of an instance's thread: recover after the instance was lost."""


_RECOVER: Final = _Recovery()


class InstanceDriver(Protocol):
    """The methods that an instance calls on the event loop."""

    def complete_execution(self, instance: Instance, execution: Execution, raised: TritonError | None) -> None:
        """Called after every execution; ``raised`` is the error that ``execute`` raised, or None."""

    def instance_lost(self, instance: Instance, error: InstanceLostError) -> None:
        """Called when the instance was lost between executions."""

    def instance_recovered(self, instance: Instance, is_running: bool) -> None:
        """Called when `BackendModelInstance.recover` has returned."""


class Instance:
    """A model instance and the thread that runs it.

    Parameters
    ----------
    spec : InstanceSpec
    backend_instance : BackendModelInstance
        Not initialised yet.
    loop : asyncio.AbstractEventLoop
        The event loop of the server.
    driver : InstanceDriver
    inline : bool, optional
        Whether the model permits the event loop to execute quick batches: it has `EXECUTE_ON_ANY_THREAD`.

    Attributes
    ----------
    busy : bool
        Whether an execution is assigned to it; maintained by the driver of the scheduler.
    awaits_recovery : bool
        Whether it was lost during its last execution and is not idle before it has recovered; maintained by the driver.
    pending_loss : InternalError or None
        The error of the requests in its slots, which end when the batch that it has been assigned has failed.
    limiter : RateLimiter or None
        The rate limiter that starts its batches; set when the instance has been created.
    """

    __deletable__ = ("backend_instance",)  # compiled classes have to say so

    def __init__(
        self,
        spec: InstanceSpec,
        backend_instance: BackendModelInstance,
        loop: asyncio.AbstractEventLoop,
        driver: InstanceDriver,
        inline: bool = False,
    ) -> None:
        self.spec = spec
        self.backend_instance = backend_instance
        self.busy = False
        self.awaits_recovery = False
        self.pending_loss: InternalError | None = None
        self.limiter: RateLimiter | None = None
        self._loop = loop
        self._driver = driver
        self._may_run_inline = inline
        self._is_executing_inline = False
        self._execution: Execution | None = None  # during an execution
        #: Whether the last execution was quick; the event loop executes the next batch only after this time.
        self._is_quick, self._inline_after_ns = False, 0
        #: Executions; recoveries, if the instance was lost; None at the end.
        self._work: SimpleQueue[Execution | _Recovery | None] = SimpleQueue()
        self._executed: SimpleQueue[tuple[Execution, TritonError | None]] = SimpleQueue()
        self._started: asyncio.Future[None] = loop.create_future()
        self._alone: asyncio.Future[TritonError | None] | None = None  # during `execute_alone`
        self._ready_check: asyncio.Task[None] | None = None  # one at a time, which concurrent callers share
        self._failures = FailureLog(spec.name, logger)
        # A daemon, since a model may never return from `execute`, and the interpreter has to exit all the same.
        self._worker = threading.Thread(target=self._run, name=f"tritonnb {spec.name}", daemon=True)

    async def start(self) -> None:
        """Start the thread and wait until the backend's instance is initialised.

        Raises
        ------
        Exception
            The exception that ``initialize`` raised; the thread has then ended.
        """
        self._worker.start()
        try:
            await self._started
        except asyncio.CancelledError:  # the event loop ends; the thread finalizes the instance by itself
            self._work.put(None)
            raise
        self._may_run_inline = self._may_run_inline and self.backend_instance.thread_agnostic

    def execute(self, execution: Execution) -> None:
        """Execute a batch on the idle instance, and report it to the driver."""
        if self.pending_loss is not None:  # it waited for the rate limiter while the instance was lost
            self._loop.call_soon(self._complete, execution, self.pending_loss)
        # Two switches of thread take longer than a model of a few microseconds: over one connection, an identity model
        # answers 5,553 requests per second on its thread and 11,745 inline (decision 150).
        elif self._may_run_inline and self._is_quick and time.monotonic_ns() >= self._inline_after_ns:
            # Not before the event loop has read from the sockets again, so that these requests are queued as they are
            # during an execution on the thread: what is called soon runs before that, what it calls soon afterwards.
            self._loop.call_soon(self._loop.call_soon, self._execute_inline, execution)
        else:
            self._pass_to_thread(execution)

    def _pass_to_thread(self, work: Execution | _Recovery) -> None:
        """Pass work to the thread once the event loop has read from the sockets what is there.

        The thread needs the interpreter lock, which the event loop holds until then; woken earlier, it would wait for
        it, and then compete for it.
        """
        self._loop.call_soon(self._work.put, work)

    def _execute_inline(self, execution: Execution) -> None:
        _this_thread.instance = self
        # With the instance known here, a call of the server by the model is refused; it would wait for itself.
        self._is_executing_inline = True
        error = self._execute(execution)
        self._is_executing_inline = False
        _this_thread.instance = None
        if not self._is_quick:
            # Some batches of a quick model have a longer input. Each blocks every endpoint once, and buys the event
            # loop ten times as long without such a surprise.
            blocked_ns = execution.exec_end_ns - execution.exec_start_ns
            self._inline_after_ns = execution.exec_end_ns + round(blocked_ns / MAX_BLOCKED_SHARE)
        self._complete(execution, error)

    def check_may_wait(self) -> None:
        """Execute no later batch inline, since the code of the model waits for the server.

        Raises
        ------
        UnsupportedError
            If the event loop executes a batch inline now: it would wait for itself.
        """
        # For good: a model that has waited once is not what its author promised.
        self._may_run_inline = False
        if self._is_executing_inline:
            raise UnsupportedError(
                f"model instance '{self.spec.name}' called the server while the server's event loop executed it, which "
                "would wait for itself: remove the parameter EXECUTE_ON_ANY_THREAD of a model that does so"
            )

    def caller(self) -> Caller | None:
        """Return what the model executes, as the caller of the request that it sends; called on its thread."""
        return None if self._execution is None else self._execution.caller()

    async def execute_alone(self, execution: Execution) -> TritonError | None:
        """Execute a batch without the scheduler, and wait; return the error that ``execute`` raised."""
        self._alone = self._loop.create_future()
        try:
            self._pass_to_thread(execution)
            return await self._alone
        finally:
            self._alone = None

    async def check_ready(self) -> None:
        """Check whether the backend's instance is ready, even while it executes a batch.

        Raises
        ------
        Exception
            If it is not ready.
        UnavailableError
            If the check takes too long; it continues, and later calls wait for the same result.
        """
        in_flight = self._ready_check is not None
        if self._ready_check is None:
            check = self.backend_instance.readiness_check()
            if check is None:
                return
            self._ready_check = self._loop.create_task(run_in_thread(check))  # since it may be slow
            self._ready_check.add_done_callback(self._ready_check_ended)
        try:
            # Shielded, since a caller that gives up must not cancel what other callers wait for.
            await asyncio.wait_for(asyncio.shield(self._ready_check), TIME_LIMIT_S)
        except TimeoutError:
            # Two texts, as on Triton: a caller learns whether it waited for a check that another caller began.
            kind = "in-flight" if in_flight else "user-defined"
            raise UnavailableError(f"Timed out waiting for {kind} is_ready() response") from None

    def _ready_check_ended(self, task: asyncio.Task[None]) -> None:
        self._ready_check = None
        if not task.cancelled():
            task.exception()  # otherwise asyncio logs an error that is never retrieved

    def recover_later(self) -> None:
        """Try again to recover, after a while; called on the event loop."""
        # Not on the thread itself: it would sleep while the server wants to end it.
        self._loop.call_later(RECOVERY_INTERVAL_S, self._work.put, _RECOVER)

    def end(self) -> None:
        """Finalize the instance after its last execution, and wait until its thread has ended.

        Not called on the thread of the event loop, so that it continues if the event loop ends meanwhile.
        """
        self._work.put(None)
        self._worker.join()

    def _run(self) -> None:
        _this_thread.instance = self
        started = self._started
        try:
            # Before `initialize`: a process can end as soon as it runs.
            self.backend_instance.watch(self._lost)
            self.backend_instance.initialize()
        # Even SystemExit, which once ended the event loop of a server from the `initialize` of a model.
        except BaseException as error:
            # Frees what the backend has allocated, even if this object continues to exist.
            del self.backend_instance
            self._call_on_loop(settle, started, strip_traceback(error))
            return
        self._call_on_loop(settle, started, None)
        while (work := self._work.get()) is not None:
            if isinstance(work, _Recovery):
                self._recover()
                continue
            self._executed.put((work, self._execute(work)))
            # Keep no reference to the batch: clients may unregister its shared memory after the response.
            del work
            self._call_on_loop(self._report)
        try:
            self.backend_instance.finalize()
        except BaseException:
            logger.exception("finalizing instance '%s' failed", self.spec.name)

    def _call_on_loop(self, function: Callable[..., None], *args: object) -> None:
        """Call a function on the event loop, unless it is closed: the server did not wait (`ExitTimeoutError`).

        The thread goes on, since the instance is still to be finalized.
        """
        try:  # noqa: SIM105, since `suppress` is interpreted
            self._loop.call_soon_threadsafe(function, *args)
        except RuntimeError:
            pass

    def _execute(self, execution: Execution) -> TritonError | None:
        # A backend whose work is elsewhere, such as in a process, has measured the execution itself.
        execution.exec_start_ns = execution.exec_start_ns or time.monotonic_ns()
        self._execution = execution
        try:
            self.backend_instance.execute(execution)
        except BaseException as error:  # even SystemExit, which must not end the instance's thread
            return self._describe(error, execution)
        finally:
            self._execution = None
            execution.exec_end_ns = execution.exec_end_ns or time.monotonic_ns()
            self._is_quick = execution.exec_end_ns - execution.exec_start_ns < QUICK_EXECUTION_NS
        return None

    def _describe(self, error: BaseException, execution: Execution) -> TritonError:
        try:
            return self._failures.convert(error, execution)
        except BaseException as raised:  # the exception is an object of the model, but the batch must be answered
            text = f"{type(error).__name__}, which cannot be described: {type(raised).__name__}"
            logger.error("instance '%s' failed: %s", self.spec.name, text)  # no traceback, which would contain it
            return InternalError(text)

    def _recover(self) -> None:
        try:
            is_running = self.backend_instance.recover()
        except BaseException:  # the thread has to go on: batches wait for it
            logger.exception("recovering instance '%s' failed", self.spec.name)
            is_running = False
        self._call_on_loop(self._driver.instance_recovered, self, is_running)

    def _lost(self, error: InstanceLostError) -> None:
        """Called on any thread when the instance was lost between executions."""
        self._call_on_loop(self._report_lost, error)

    def _report_lost(self, error: InstanceLostError) -> None:
        """Report the loss, then let the instance recover: batches that were sent before are executed before that."""
        self._driver.instance_lost(self, error)
        self._pass_to_thread(_RECOVER)

    def _report(self) -> None:
        execution, error = self._executed.get()
        self._complete(execution, error)

    def _complete(self, execution: Execution, error: TritonError | None) -> None:
        """Report an execution; called on the event loop, however it was executed."""
        if isinstance(error, InstanceLostError):
            self._pass_to_thread(_RECOVER)
        if self._alone is not None:
            self._alone.set_result(error)
        else:
            self._driver.complete_execution(self, execution, error)


def instance_that_waits() -> Instance | None:
    """Return the instance whose model runs on this thread and is about to wait for the server; None elsewhere.

    Raises
    ------
    UnsupportedError
        If the event loop runs on this thread, and would wait for itself.
    """
    # By thread, so that a library of the model that calls the server is recognised as well.
    instance: Instance | None = _this_thread.instance
    if instance is not None:
        instance.check_may_wait()
    return instance
