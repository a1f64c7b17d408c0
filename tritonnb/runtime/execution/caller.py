"""The thread of an in-process caller, which executes batches of the model that it waits for.

A call usually passes between threads four times: caller, event loop, instance, event loop, caller. If the scheduler
assigns the batch of a waiting caller to an instance that may run on any thread, the event loop passes the batch back to
the caller, which executes it and takes its response. The decision and the bookkeeping stay on the event loop, and the
instance stays serial: it counts as busy until the event loop has seen the report of the execution.
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable
from contextlib import suppress
from queue import SimpleQueue
from types import FrameType
from typing import TYPE_CHECKING

from tritonnb.core.errors import InternalError, TritonError
from tritonnb.core.messages import InferRequest, InferResponse, Respond, discard_response

if TYPE_CHECKING:
    from tritonnb.backends.execution import Execution
    from tritonnb.runtime.execution.instance import Instance
    from tritonnb.runtime.execution.loop_lock import LoopLock

_MAIN_THREAD = threading.main_thread().ident
#: Signals of timers, whose handlers raise exceptions to end what takes too long.
TIMERS = [number for number in signal.Signals if number.name in ("SIGALRM", "SIGVTALRM", "SIGPROF")]


class Caller:
    """Waits on its thread for the responses to one request, and executes batches meanwhile.

    The request refers to it, not the other way round: a cycle of references would have to be collected.

    Parameters
    ----------
    respond : callable
        Receives the responses, on the event loop or on this thread.
    cancel : callable
        Cancels the request; called on this thread.
    """

    __slots__ = ("_cancel", "_finished", "_has_left", "_offered", "_respond", "_wakes")

    def __init__(self, respond: Respond, cancel: Callable[[InferRequest], None]) -> None:
        self._respond = respond
        self._cancel = cancel
        self._wakes: SimpleQueue[None] = SimpleQueue()
        #: What `offer` has passed to the caller, until it begins to execute it.
        self._offered: list[tuple[Instance, Execution]] = []
        self._finished = False
        self._has_left = False

    def attach(self, request: InferRequest) -> None:
        """Become the caller of a request that is about to be submitted."""
        request.respond = self._receive
        request.caller = self

    # --- on the event loop --------------------------------------------------------------------

    def offer(self, instance: Instance, execution: Execution) -> bool:
        """Have the caller execute a batch with its request; False if it no longer waits."""
        if self._has_left:
            return False
        self._offered.append((instance, execution))
        self._wakes.put(None)
        if self._has_left:  # it was interrupted at the same time
            self._return_offered()
        return True

    def _receive(self, request: InferRequest, response: InferResponse) -> None:
        self._respond(request, response)
        if response.final:
            self._finished = True
            self._wakes.put(None)

    # --- on the thread of the caller ----------------------------------------------------------

    def wait(self, request: InferRequest) -> None:
        """Wait for the final response; an interrupt cancels the request.

        Raises
        ------
        KeyboardInterrupt
            What the signal handler raises. During an execution, the first interrupt takes effect at its end, since the
            batch may contain requests of others; a second one is raised in the model.
        """
        try:
            while not self._finished:
                self._wakes.get()
                if self._offered:
                    self._execute_offered(request)
        except KeyboardInterrupt:
            self._leave(request)
            raise

    def submit_here(self, request: InferRequest, lock: LoopLock, submit: Callable[[InferRequest], None]) -> bool:
        """Submit the request with the lock of the event loop, and execute its batch if it is sent at once.

        Returns
        -------
        bool
            Whether the request was submitted; otherwise, the lock is not available.

        Raises
        ------
        KeyboardInterrupt
            As `wait` does.
        """
        submitted = False

        def work(request: InferRequest, interrupts: _DeferredInterrupt | None) -> None:
            nonlocal submitted
            if not lock.acquire():
                return
            submitted = True
            try:
                submit(request)
                if self._offered and self._offered[0][0].may_block_loop:
                    instance, execution = self._offered.pop()
                    instance.complete_on_loop(execution, self._run(instance, execution, interrupts, is_on_loop=True))
            finally:
                lock.release()
                if not self._finished:
                    lock.resume_loop()

        try:
            self._with_deferred_interrupts(request, work)
        except KeyboardInterrupt:
            self._leave(request)
            raise
        return submitted

    def _execute_offered(self, request: InferRequest) -> None:
        self._with_deferred_interrupts(request, self._execute)

    def _with_deferred_interrupts(
        self, request: InferRequest, function: Callable[[InferRequest, _DeferredInterrupt | None], None]
    ) -> None:
        handler = signal.getsignal(signal.SIGINT) if threading.get_ident() == _MAIN_THREAD else None
        if not callable(handler):
            function(request, None)
            return
        interrupts = _DeferredInterrupt(lambda: self._cancel(request))
        signal.signal(signal.SIGINT, interrupts.handle)
        try:
            function(request, interrupts)
        finally:
            signal.signal(signal.SIGINT, handler)
        if interrupts.occurred:
            handler(signal.SIGINT, interrupts.frame)

    def _execute(self, request: InferRequest, interrupts: _DeferredInterrupt | None) -> None:
        instance, execution = self._offered.pop()
        failure = self._run(instance, execution, interrupts)
        if failure is None:
            self._take_response(request, execution)
        instance.put_result(execution, failure)
        del execution  # clients may unregister its shared memory after the response
        with suppress(RuntimeError):  # the event loop is closed
            instance.report()

    def _run(
        self, instance: Instance, execution: Execution, interrupts: _DeferredInterrupt | None, is_on_loop: bool = False
    ) -> TritonError | None:
        if interrupts is not None:
            interrupts.in_model = True
        try:
            return instance.run(execution, is_on_loop=is_on_loop)
        except BaseException as error:  # a second interrupt, outside the model's code
            return InternalError(f"{type(error).__name__}: {error}")
        finally:
            if interrupts is not None:
                interrupts.in_model = False

    def _take_response(self, request: InferRequest, execution: Execution) -> None:
        """Take the response to the own request without waiting for the event loop, which will discard it.

        Not if something else observes the responses (a trace, the response cache), or if it is an error.
        """
        if request.respond == self._receive:
            response = execution.responses[execution.requests.index(request)]
            if response is not None and response.error is None:
                request.respond = discard_response
                self._respond(request, response)
                self._finished = True

    def _leave(self, request: InferRequest) -> None:
        self._has_left = True
        self._return_offered()
        self._cancel(request)

    def _return_offered(self) -> None:
        """Have the instances execute what was offered and has not begun."""
        while self._offered:
            try:
                instance, execution = self._offered.pop()
            except IndexError:  # the other thread was faster
                return
            instance.execute_on_own_thread(execution)


def may_run_loop_code() -> bool:
    """Whether this thread may run the event loop's code: not if a timer's signal may raise an exception in it."""
    return threading.get_ident() != _MAIN_THREAD or not any(callable(signal.getsignal(timer)) for timer in TIMERS)


class _DeferredInterrupt:
    """A handler of SIGINT that cancels a request at the first interrupt, and stops the model at the second one.

    Attributes
    ----------
    in_model : bool
        Whether an interrupt may be raised.
    occurred : bool
        Whether there was an interrupt.
    frame : frame or None
        The stack frame of the first interrupt.
    """

    def __init__(self, cancel: Callable[[], None]) -> None:
        self.in_model = False
        self.occurred = False
        self.frame: FrameType | None = None
        self._cancel = cancel

    def handle(self, number: int, frame: FrameType | None) -> None:
        """Handle the signal."""
        if not self.occurred:
            self.occurred, self.frame = True, frame
            self._cancel()
        elif self.in_model:
            raise KeyboardInterrupt
