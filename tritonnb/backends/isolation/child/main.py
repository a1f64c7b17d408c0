"""The main loop of a child: commands of the server on the main thread, everything else on a second thread."""

from __future__ import annotations

import faulthandler
import fcntl
import logging
import os
import resource
import signal
import socket
import sys
import threading
import weakref
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from tritonnb.backends.contract import BackendModel, InstanceSpec, ModelContext
from tritonnb.backends.execution import FailureLog
from tritonnb.backends.isolation.channel import Channel, Message
from tritonnb.backends.isolation.child.execution import ChildExecution
from tritonnb.backends.isolation.child.server import ChildServerCalls, forward_logs
from tritonnb.backends.isolation.codec import Packer, SharedOutput, encode_error, encode_response
from tritonnb.backends.location import BackendLocation
from tritonnb.core.errors import InternalError
from tritonnb.core.messages import InferRequest, InferResponse
from tritonnb.core.protobuf import model_config_pb2 as pb

logger = logging.getLogger(__name__)

#: The kinds of instances, for the default number of instances of each.
KINDS = ("KIND_CPU", "KIND_GPU", "KIND_MODEL", "KIND_AUTO")


def end_with_parent(pipe: int) -> None:
    """End this process when the server's process ends, even if the model holds the interpreter lock.

    The server's process holds the other end of a pipe that is never written to. However it ends, the
    kernel sends SIGIO, which ends this process.
    """
    signal.signal(signal.SIGIO, signal.SIG_DFL)
    fcntl.fcntl(pipe, fcntl.F_SETOWN, os.getpid())
    fcntl.fcntl(pipe, fcntl.F_SETFL, fcntl.fcntl(pipe, fcntl.F_GETFL) | os.O_ASYNC | os.O_NONBLOCK)
    try:
        if not os.read(pipe, 1):  # it was closed before
            os._exit(1)
    except BlockingIOError:
        pass


def main(work: int, calls: int, alive: int, report: int) -> None:
    """Run a child.

    Parameters
    ----------
    work, calls : int
        Descriptors of the sockets.
    alive : int
        Descriptor of the pipe that is closed when the server's process ends.
    report : int
        Descriptor of the file for the report of a crash.
    """
    end_with_parent(alive)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # an interrupt is for the notebook
    faulthandler.enable(report)  # a crash writes where the model was
    for stream in (sys.stdout, sys.stderr):
        stream.reconfigure(line_buffering=True)  # type: ignore[union-attr]
    work_channel, calls_channel = (Channel(socket.socket(fileno=descriptor)) for descriptor in (work, calls))
    Child(work_channel, calls_channel).run()


class Child:
    """A backend, a model and an instance in this process.

    Parameters
    ----------
    work, calls : Channel
    """

    def __init__(self, work: Channel, calls: Channel) -> None:
        self._server = ChildServerCalls(work, calls)
        self._output = SharedOutput()
        #: The model, if it was initialised to complete its configuration.
        self._completed: BackendModel | None = None
        #: The requests that can be cancelled, by number of the batch and index.
        self._requests: dict[tuple[int, int], InferRequest] = {}
        #: Those that were cancelled. A cancellation may arrive before its batch, which comes on the other channel.
        self._cancelled: set[tuple[int, int]] = set()
        self._commands: Mapping[str, Callable[[Message], None]] = {
            "open": self._open,
            "auto_complete": self._auto_complete,
            "initialize": self._initialize,
            "execute": self._execute,
            "finalize": self._finalize,
        }

    def run(self) -> None:
        """Run the commands of the server, the last of which is ``finalize``."""
        threading.Thread(target=self._read_calls, name="tritonnb calls", daemon=True).start()
        server = self._server
        kind = ""
        while kind != "finalize":
            message = server.work.receive()
            # The server is gone. Not `sys.exit`: there is nobody left to wait for threads of the model.
            if message is None:
                os._exit(1)
            kind = message.header[0]
            server.runs_command = True
            try:
                self._commands[kind](message)
            except ConnectionError:
                os._exit(1)
            except Exception as error:
                self._raised(error)
            del message  # the wait for the next command must not keep the inputs of this batch

    # --- commands -----------------------------------------------------------------------------

    def _open(self, message: Message) -> None:
        """Create the backend."""
        _, path, location, settings, levels, memory_bytes = message.header
        # In place, since modules that were imported already may hold the list.
        sys.path[:] = path
        forward_logs(self._server, levels)
        if memory_bytes is not None:
            # Allocations beyond it raise MemoryError.
            resource.setrlimit(resource.RLIMIT_AS, (memory_bytes, memory_bytes))
        name, entry_point, arguments, _ = location
        self._backend = BackendLocation(name, entry_point, tuple(arguments)).create()
        self._backend.initialize(settings)
        counts = {kind: self._backend.default_instance_count(kind) for kind in KINDS}
        self._return([self._backend.supports_batch_tensors, counts])

    def _auto_complete(self, message: Message) -> None:
        config, self._completed = self._backend.complete(self._context(message))
        self._return([None if config is None else config.SerializeToString()])

    def _initialize(self, message: Message) -> None:
        """Create the model and the instance."""
        context = self._context(message)
        spec = InstanceSpec(*message.header[6])
        states = context.config.sequence_batching.state
        self._state_names: dict[str, str] = {state.output_name: state.input_name for state in states}
        self._is_decoupled = bool(context.config.model_transaction_policy.decoupled)
        self._failures = FailureLog(spec.name, logger)
        if self._completed is None:
            self._model = self._backend.create_model(context)
            self._model.initialize()
        else:
            self._model = self._completed
            self._model.configure(context)
        instance = self._instance = self._model.create_instance(spec)
        instance.initialize()
        self._check = instance.readiness_check()
        usage = [[*place, size] for place, size in instance.memory_usage().items()]
        self._return([instance.error_responses_fail, self._check is not None, usage])

    def _context(self, message: Message) -> ModelContext:
        _, name, version, config, directory, settings, *_ = message.header
        return ModelContext(name, version, pb.ModelConfig.FromString(config), Path(directory), settings, self._server)

    def _execute(self, message: Message) -> None:
        # Its own array, to find out whether the model keeps inputs that are in shared memory.
        payload = message.payload if message.region is None else message.region.view()
        inputs = weakref.ref(payload)
        execution = ChildExecution(message.header, payload, self._state_names, self._output, self._send_response)
        number = execution.number
        self._requests.update(((number, index), request) for index, request in enumerate(execution.requests))
        if self._cancelled:
            self._cancel_early(number)
        error: list[Any] | None = None
        try:
            self._instance.execute(execution)
        except BaseException as raised:  # even SystemExit: it ends the batch, not the process
            error = encode_error(self._failures.convert(raised, execution))
        indices = range(len(execution.requests))
        # Those that the model has used, or may use later.
        senders = list(indices) if self._is_decoupled and error is None else sorted(execution.senders)
        for index in indices:
            if index not in senders or execution.sender(index).closed:
                self._requests.pop((number, index), None)
        result, packer, is_shared = execution.result(senders), execution.packer, message.region is not None
        del payload, execution, message
        self._return([*result, is_shared and inputs() is not None, error], packer)

    def _finalize(self, message: Message) -> None:
        self._instance.finalize()
        self._model.finalize()
        self._backend.finalize()
        self._return([])

    def _return(self, values: list[Any], packer: Packer | None = None) -> None:
        """Send the result of a command; later messages of the model belong to no command."""
        self._server.runs_command = False
        try:
            (packer or Packer()).send(self._server.work, ["returned", *values], self._output)
        except InternalError as error:  # there is not enough memory for the tensors
            self._raised(error)

    def _raised(self, error: Exception) -> None:
        self._server.runs_command = False
        self._server.work.send(["raised", encode_error(error)])

    # --- everything else ----------------------------------------------------------------------

    def _send_response(self, number: int, index: int, _: InferRequest, response: InferResponse) -> None:
        packer = Packer()
        self._server.send(["respond", number, index, encode_response(response, packer)], packer)
        if response.final:
            self._requests.pop((number, index), None)

    def _cancel(self, key: tuple[int, int]) -> None:
        request = self._requests.get(key)
        if request is not None:
            request.cancel()

    def _cancel_early(self, number: int) -> None:
        """Cancel requests of a batch that begins, and forget cancellations that came too late for earlier batches."""
        for key in list(self._cancelled):
            if key[0] <= number:
                self._cancel(key)
                self._cancelled.discard(key)

    def _read_calls(self) -> None:
        calls = self._server.calls
        while (message := calls.receive()) is not None:
            kind, *arguments = message.header
            if kind == "response":
                number, response, was_accepted = arguments
                self._server.receive(number, response, was_accepted, message.payload)
            elif kind == "reply":
                self._server.settle(*arguments)
            elif kind == "cancelled":
                self._cancelled.add((arguments[0], arguments[1]))  # first, since the batch may begin now
                self._cancel((arguments[0], arguments[1]))
            elif kind == "check_ready":
                threading.Thread(target=self._report_ready, args=arguments, daemon=True).start()
        os._exit(1)  # the server's process has ended

    def _report_ready(self, number: int) -> None:
        error: list[Any] | None = None
        try:
            if self._check is not None:
                self._check()
        except Exception as raised:
            error = encode_error(raised)
        self._server.send(["ready", number, error])
