"""An instance whose model runs in a child: starts the process, passes batches on, starts it again after a crash."""

from __future__ import annotations

import dataclasses
import functools
import logging
import threading
import time
from collections.abc import Callable

from tritonnb.backends.contract import BackendModelInstance, InstanceLostError, InstanceSpec, ModelContext
from tritonnb.backends.execution import Execution
from tritonnb.backends.isolation import codec
from tritonnb.backends.isolation.launch import context_command, open_command, read_limits
from tritonnb.backends.isolation.model_calls import not_healthy
from tritonnb.backends.isolation.process import ChildProcess, ProcessEndedError, stops_within
from tritonnb.backends.location import BackendLocation
from tritonnb.core.errors import InternalError, TritonError, UnavailableError
from tritonnb.core.messages import InferRequest, InferResponse
from tritonnb.core.ownership import read_only_view

_FIRST_S = 0.1
_LONGEST_S = 30.0


class Backoff:
    """The delay after failures without a success in between: none after the first, then doubled each time.

    Examples
    --------
    >>> backoff = Backoff()
    >>> for _ in range(4):
    ...     backoff.failed()
    ...     print(backoff.delay_s)
    0.0
    0.1
    0.2
    0.4
    """

    def __init__(self) -> None:
        self._failures = 0
        self._failed_at = 0.0

    @property
    def delay_s(self) -> float:
        """The time from the last failure to the next attempt, in seconds."""
        # The exponent is bounded, since a model that crashes for weeks would overflow the float.
        return 0.0 if self._failures < 2 else min(_LONGEST_S, _FIRST_S * 2.0 ** (min(self._failures, 60) - 2))

    def failed(self) -> None:
        """Increase the delay: the process has ended, or could not be started."""
        self._failures += 1
        self._failed_at = time.monotonic()

    def reset(self) -> None:
        """Reset the delay: the process has executed a batch."""
        self._failures = 0

    def is_due(self) -> bool:
        """Return whether the delay has passed."""
        return time.monotonic() >= self._failed_at + self.delay_s


logger = logging.getLogger(__name__)

#: The longest time that batches wait for the process, in seconds.
_LONGEST_WAIT_S = 10.0
#: How long a process may take to finalize its model, in seconds.
_FINALIZE_S = 10.0


class IsolatedInstance(BackendModelInstance):
    """The server's side of an instance in its own process.

    Parameters
    ----------
    location : BackendLocation
    context : ModelContext
    spec : InstanceSpec
    take_child : callable
        Returns a child in which the backend has been opened, or None.
    """

    def __init__(
        self,
        location: BackendLocation,
        context: ModelContext,
        spec: InstanceSpec,
        take_child: Callable[[], ChildProcess | None],
    ) -> None:
        self._take_child = take_child
        self._location = location
        self._context = context
        self._spec = spec
        self._timeout_s, _ = read_limits(context)
        self._is_stateful = context.config.HasField("sequence_batching")
        self._has_check = False
        self._child: ChildProcess | None = None
        self._inputs = codec.SharedOutput()
        self._backoff = Backoff()
        self._lock = threading.Lock()
        self._is_executing = False
        self._is_recovering = False
        self._lost: Callable[[InstanceLostError], None] = lambda error: None

    # --- the contract -------------------------------------------------------------------------

    def initialize(self) -> None:
        """Start the process, or start it again after it has ended, and initialise the model in it.

        Raises
        ------
        TritonError
            If that fails; the process has ended.
        """
        opened = self._take_child()
        child = opened or ChildProcess(self._spec.name, self._context.server, self._location.directory)
        try:
            if opened is None:
                child.start(open_command(self._location, self._context))
            child.model_calls.name = self._spec.name
            spec = dataclasses.astuple(dataclasses.replace(self._spec, resources=()))  # backends do not read them
            command = context_command("initialize", self._context, spec)
            _, self.error_responses_fail, self._has_check, usage = child.start(command).header
        except ProcessEndedError:
            hint = f"its process ended while it was initialised: {child.describe_end()}"
            child.close()
            raise InternalError(not_healthy(self._spec.name).message, hint=hint) from None
        except BaseException:
            child.close()
            raise
        # Not earlier: up to here the end of the process is an error of this method.
        child.ended = functools.partial(self._ended, child)
        # The region was shared with the process before this one.
        self._inputs.close()
        self.memory = {(kind, number): size for kind, number, size in usage}
        with self._lock:
            self._child = child
            self._is_recovering = False
        if child.has_ended:  # its reader may not have found it here
            self._ended(child)

    def watch(self, lost: Callable[[InstanceLostError], None]) -> None:
        """Report the end of the process between executions."""
        self._lost = lost

    @property
    def process_id(self) -> int | None:
        """The child's process; None while there is none."""
        child = self._child
        return None if child is None else child.pid

    def readiness_check(self) -> Callable[[], None]:
        """Return whether the process is alive and its instance is ready."""
        return self._check_ready

    def execute(self, execution: Execution) -> None:
        """Pass the batch on, and wait for the responses."""
        self._is_executing = True
        child = None
        try:
            child = self._require_child()
            try:
                self._execute(child, execution)
            except ProcessEndedError as ended:
                with self._lock:
                    # Released before the child is closed: closing waits for its reader, which may want the lock in
                    # `_ended`.
                    error = self._lose(child, str(ended))
                child.close()
                raise error from None
        finally:
            self._is_executing = False
            if child is not None and child.has_ended:  # its reader has left that to the execution
                self._ended(child)
        self._backoff.reset()

    def cancel(self, request: InferRequest) -> None:
        """Inform the child: its copy of the request does not change by itself."""
        child = self._child
        if child is not None:
            child.model_calls.cancelled(request)

    def recover(self) -> bool:
        """Start the process again, at once after the first crash, later with increasing delays.

        Once the delay is long, batches no longer wait: they fail until the process runs again. They also fail when the
        server stops, which would end each process at once.
        """
        server = self._context.server
        while self._child is None and self._backoff.delay_s <= _LONGEST_WAIT_S:
            if stops_within(server, self._backoff.delay_s):
                return False
            self._try_to_start()
        if self._child is None and self._backoff.is_due():
            self._try_to_start()
        return self._child is not None

    def finalize(self) -> None:
        """Finalize the model, and wait until its process has ended."""
        with self._lock:
            child, self._child = self._child, None
        if child is not None:
            try:
                # With a limit, since nobody can interrupt a `finalize` that hangs, but its process can be ended.
                child.run(["finalize"], timeout_s=_FINALIZE_S)
            except (ProcessEndedError, TritonError) as error:
                logger.error("finalizing instance '%s' failed: %s", self._spec.name, error)
            child.close(_FINALIZE_S)
        self._inputs.close()

    # --- executions ---------------------------------------------------------------------------

    def _execute(self, child: ChildProcess, execution: Execution) -> None:
        packer = codec.Packer()
        child.model_calls.current = execution  # from now on cancellations are passed on
        try:
            requests = [codec.encode_request(request, packer) for request in execution.requests]
            command = ["execute", execution.number, execution.size, requests]
            message = child.run(command, packer, self._inputs, self._timeout_s)
        except BaseException:  # such as OverflowError, of a parameter that no message can contain
            child.model_calls.current = None
            raise
        responses, rescheduled, updates, senders, times, reported, keeps_inputs, error = message.header[1:]
        # The child overwrites its region with the outputs of the next batch.
        copy = message.region is not None
        for index, encoded in enumerate(responses):
            if encoded is not None:
                execution.responses[index] = codec.decode_response(encoded, message.payload, copy=copy)
        execution.rescheduled.update(rescheduled)
        exec_start_ns, execution.compute_start_ns, execution.compute_end_ns, exec_end_ns = times
        if exec_end_ns:  # the backend has measured the execution itself
            execution.exec_start_ns, execution.exec_end_ns = exec_start_ns, exec_end_ns
        execution.reported.update(reported)
        for index, place in updates:
            states = execution.requests[index].states
            if states is not None:
                array = read_only_view(codec.unpack(place, message.payload, copy=copy).array)
                try:
                    states.update(place[0], array)
                except TritonError as refused:
                    if execution.responses[index] is None:  # a sender has it
                        raise
                    execution.responses[index] = InferResponse(error=refused)
        # The model has kept an array of its inputs, so this region is left to it, and the next batch gets another.
        if keeps_inputs:
            self._inputs.close()
        child.model_calls.keep_senders(execution, senders, error is not None)
        if error is not None:
            raise codec.decode_error(error)

    def _require_child(self) -> ChildProcess:
        """Return the process, started again if it ended; raises Triton's error if that is not possible."""
        with self._lock:
            child = self._child
        if child is not None:
            return child
        if self._is_recovering and self._is_stateful:
            # The batch was sent before the scheduler ended the sequences that the process had.
            raise not_healthy(self._spec.name)
        if self._backoff.is_due():
            self._try_to_start()
        if self._child is None:
            raise not_healthy(self._spec.name)
        return self._child

    def _check_ready(self) -> None:
        child = self._child
        if child is None:
            raise UnavailableError(not_healthy(self._spec.name).message)
        if self._has_check:
            child.model_calls.check_ready()

    # --- the process --------------------------------------------------------------------------

    def _try_to_start(self) -> None:
        try:
            self.initialize()
        except Exception as error:  # also OSError: there may be too many descriptors, processes or threads
            self._backoff.failed()
            logger.error("instance '%s' could not be started again: %s", self._spec.name, error)
        else:
            logger.info("instance '%s' runs again", self._spec.name)

    def _lose(self, child: ChildProcess, reason: str = "") -> InstanceLostError:
        """Handle the end of the process with the lock held; return the error of the batch that it executed."""
        self._child = None
        self._is_recovering = True
        self._backoff.failed()
        end = reason or f"its process ended: {child.describe_end()}"
        logger.error("Stub process '%s' is unhealthy and it will be restarted: %s", self._spec.name, end)
        healthy = not_healthy(self._spec.name).message
        return InstanceLostError(f"{healthy} {reason}" if reason else healthy, hint="" if reason else end)

    def _ended(self, child: ChildProcess) -> None:
        """Handle the end of the process, on the thread that reads its calls or after an execution."""
        with self._lock:
            if self._is_executing or self._child is not child:
                return  # the execution notices
            # With the lock held, so that no batch that is sent later comes before the recovery.
            self._lost(self._lose(child))
        child.close()
