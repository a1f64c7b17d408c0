"""Native backends: models that a shared library ``libtriton_<name>.so`` runs, and the threads for its events."""

from __future__ import annotations

import ctypes
import json
import logging
import threading
from collections.abc import Callable, Mapping
from pathlib import Path

from tritonnb.backends.contract import (
    Backend,
    BackendModel,
    BackendModelInstance,
    InstanceSpec,
    MemoryPlace,
    ModelContext,
)
from tritonnb.backends.execution import Execution
from tritonnb.backends.native import library
from tritonnb.backends.native.batch import NativeBatch
from tritonnb.core.errors import TritonError
from tritonnb.core.protobuf import model_config_pb2 as pb
from tritonnb.model_config.diff import merge_completed
from tritonnb.model_config.json_config import parse_json
from tritonnb.model_config.schema import ModelSpec
from tritonnb.model_config.to_json import config_to_json

logger = logging.getLogger("tritonnb.native")

#: TRITONSERVER_LogLevel, by position.
_LEVELS = (logging.INFO, logging.WARNING, logging.ERROR, logging.DEBUG)


class EventThread:
    """A thread that calls a handler for each event of a model.

    Parameters
    ----------
    model : int or None
        The handle of the model; None for log messages.
    handler : callable
        What it raises is logged.
    name : str
    """

    def __init__(self, model: int | None, handler: Callable[[library.Event], None], name: str) -> None:
        self._model = model
        self._handler = handler
        self._thread = threading.Thread(target=self._run, name=f"tritonnb {name}", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Handle the events so far, and end the thread."""
        library.load_shim().tnb_events_stop(self._model)
        self._thread.join()

    def _run(self) -> None:
        next_event = library.load_shim().tnb_events_next
        event = library.Event()
        pointer = ctypes.byref(event)
        # Blocks in C++ without the interpreter lock; ctypes takes the lock again only when there is an event.
        while next_event(self._model, pointer):
            try:
                self._handler(event)
            # The thread must survive: without it, no later request of the model would get its response.
            except Exception:
                logger.exception("an event of a native backend could not be handled")


class LogMessages:
    """The log messages of all native backends of the process, passed to `logging` while one of them is loaded."""

    def __init__(self) -> None:
        self._users = 0
        self._thread: EventThread | None = None
        self._lock = threading.Lock()

    def acquire(self) -> None:
        """Count a loaded backend."""
        with self._lock:
            self._users += 1
            if self._thread is None:
                self._thread = EventThread(None, _write, "native log")

    def release(self) -> None:
        """Count an unloaded backend; write the pending messages if it was the last backend."""
        with self._lock:
            self._users -= 1
            if not self._users and self._thread is not None:
                self._thread.stop()
                self._thread = None

    def refresh_levels(self) -> None:
        """Make backends discard the messages that would not be written."""
        # The levels are told to C++, so that a verbose backend does not wake this thread for messages that nobody
        # reads.
        enabled = sum(1 << number for number, level in enumerate(_LEVELS) if logger.isEnabledFor(level))
        library.load_shim().tnb_log_levels(enabled)


log_messages = LogMessages()


def _write(event: library.Event) -> None:
    level = _LEVELS[event.flags]
    if logger.isEnabledFor(level):
        text, file = event.text.decode(errors="replace"), event.file.decode(errors="replace")
        # A record of our own, so that the log shows file and line of the backend's C++ code.
        logger.handle(logger.makeRecord(logger.name, level, file, event.line, text, (), None))


def log_error(error: int | None, what: str) -> None:
    """Log the error that a function of the shim has returned, if it has; the error is deleted."""
    if error is not None:
        logger.error("%s: %s", what, library.take_error(error).message)


#: At most this many entries of a memory report are read.
_MEMORY_ENTRIES = 64

#: What Triton adds to the settings of a backend.
_DEFAULT_SETTINGS = {"auto-complete-config": "true", "default-max-batch-size": "4"}


class NativeBackend(Backend):
    """A shared library that implements Triton's backend interface.

    Parameters
    ----------
    path : pathlib.Path or str
        The library.
    name : str
        The name of the backend.
    """

    name = "native"
    supports_batch_tensors = True  # Triton's helpers for backends implement them

    def __init__(self, path: Path | str, name: str) -> None:
        self._path = Path(path)
        self._name = name

    def initialize(self, settings: Mapping[str, str]) -> None:
        """Load the library, and call its ``TRITONBACKEND_Initialize``."""
        self._library = library.load_shim()
        log_messages.acquire()
        log_messages.refresh_levels()
        config = json.dumps({"cmdline": {**_DEFAULT_SETTINGS, **settings}})
        try:
            self._handle: int | None = library.created(
                self._library.tnb_backend_open,
                self._name.encode(),
                library.unique_path(self._path).encode(),
                str(self._path.parent).encode(),
                config.encode(),
            )
        except TritonError as error:
            log_messages.release()
            raise type(error)(f"backend '{self._name}': {error.message}", error.status) from None

    def default_instance_count(self, kind: str) -> int:
        """Return the count that the backend prefers (``TRITONBACKEND_BackendAttributeAddPreferredInstanceGroup``)."""
        preferred: int = self._library.tnb_backend_preferred_count(self._handle, library.INSTANCE_KINDS.index(kind))
        return preferred or 1

    def auto_complete(self, context: ModelContext) -> pb.ModelConfig | None:
        """Initialise a model, read the configuration that it set, and finalise it."""
        config, model = self.complete(context)
        model.finalize()
        return config

    def complete(self, context: ModelContext) -> tuple[pb.ModelConfig, NativeModel]:
        """Initialise the model, and read the configuration that it set."""
        # As on Triton, the model that completes its configuration is the model that runs: its data may take minutes
        # to load, and most of the memory.
        model = NativeModel(context, self._handle, auto_complete=True)
        model.initialize()
        try:
            completed = self._library.tnb_model_config(model.handle).decode(errors="surrogateescape")
            return merge_completed(context.config, parse_json(completed)) or context.config, model
        except BaseException:
            model.finalize()
            raise

    def create_model(self, context: ModelContext) -> BackendModel:
        """Create a model; ``TRITONBACKEND_ModelInitialize`` is called next."""
        return NativeModel(context, self._handle)

    def finalize(self) -> None:
        """Call ``TRITONBACKEND_Finalize``; the library stays in memory."""
        log_error(self._library.tnb_backend_close(self._handle), f"finalizing backend '{self._name}' failed")
        log_messages.release()


class NativeModel(BackendModel):
    """A model of a native backend: a ``TRITONBACKEND_Model`` of the shim.

    Parameters
    ----------
    context : ModelContext
    backend : int or None
        The handle of the backend; None for a model that only a batching library sees.
    auto_complete : bool, optional
        Whether the backend may change the configuration.

    Attributes
    ----------
    handle : int
    pending : dict of int to NativeBatch
        The batches that the backend has, by the tokens of their requests.
    """

    def __init__(self, context: ModelContext, backend: int | None, auto_complete: bool = False) -> None:
        super().__init__(context)
        self._library = library.load_shim()
        if backend is not None:
            self.parallel_instances = self._library.tnb_backend_loads_in_parallel(backend)
        self.pending: dict[int, NativeBatch] = {}
        self._events: EventThread | None = None
        self.handle: int = self._library.tnb_model_new(
            backend, context.name.encode(), context.version, str(context.directory).encode(), auto_complete
        )
        self.configure(context)

    def configure(self, context: ModelContext) -> None:
        """Set the configuration that the backend sees."""
        self.context, config = context, context.config
        self._library.tnb_model_configure(
            self.handle, config_to_json(config).encode(), config.model_transaction_policy.decoupled
        )
        for state in config.sequence_batching.state:
            self._library.tnb_model_add_state(self.handle, state.output_name.encode())

    def initialize(self) -> None:
        """Call ``TRITONBACKEND_ModelInitialize``."""
        try:
            library.check(self._library.tnb_model_initialize(self.handle))
        except BaseException:
            self.finalize()
            raise
        self._events = EventThread(self.handle, self._handle_event, f"{self.context.name} events")

    def create_instance(self, spec: InstanceSpec) -> BackendModelInstance:
        """Create an instance."""
        return NativeInstance(self, spec)

    def finalize(self) -> None:
        """Call ``TRITONBACKEND_ModelFinalize``, if the model was initialised, and free the object."""
        if self._events is not None:
            # The thread first: it reads objects of the model, which are freed next.
            self._events.stop()
        # Only a model that was initialised may be finalised by the backend, but the object is freed in any case.
        error = self._library.tnb_model_finalize(self.handle, self._events is not None)
        log_error(error, f"finalizing model '{self.context.name}' failed")

    def _handle_event(self, event: library.Event) -> None:
        batch = self.pending.get(event.token)
        if batch is not None:
            batch.handle(event)
        # Freed even if nobody waits for it any more; the contents were copied when it was sent.
        if event.kind == library.RESPONSE:
            self._library.tnb_response_free(event.response)


class NativeInstance(BackendModelInstance):
    """An instance of a model of a native backend."""

    def __init__(self, model: NativeModel, spec: InstanceSpec) -> None:
        self._model = model
        self._spec = spec
        self._library = library.load_shim()
        config = model.context.config
        self._tensors = ModelSpec.from_config(config)
        self._decoupled = bool(config.model_transaction_policy.decoupled)

    def initialize(self) -> None:
        """Call ``TRITONBACKEND_ModelInstanceInitialize``."""
        spec = self._spec
        # The name of the host policy of an instance without a configured policy.
        policy = {"KIND_GPU": f"gpu_{spec.device_id}", "KIND_MODEL": "model"}.get(spec.kind, "cpu")
        self._handle: int = self._library.tnb_instance_new(
            self._model.handle,
            spec.name.encode(),
            library.INSTANCE_KINDS.index(spec.kind),
            spec.device_id,
            spec.passive,
            json.dumps({policy: {}}).encode(),
        )
        try:
            library.check(self._library.tnb_instance_initialize(self._handle))
        except BaseException:
            log_error(self._library.tnb_instance_finalize(self._handle, False), "")
            raise

    def execute(self, execution: Execution) -> None:
        """Call ``TRITONBACKEND_ModelInstanceExecute``, without the interpreter lock."""
        log_messages.refresh_levels()
        batch = NativeBatch(execution, self._tensors, self._model.pending, self._decoupled)
        handles = [batch.add(self._model.handle, index) for index in range(len(execution.requests))]
        statistics = library.BatchStatistics()
        error = self._library.tnb_instance_execute(
            self._handle, (ctypes.c_void_p * len(handles))(*handles), len(handles), ctypes.byref(statistics)
        )
        # If execute fails, the backend must not have released any request (tritonbackend.h), so the server still owns
        # all of them.
        failure = None if error is None else library.take_error(error)
        batch.collect(handles, failed=failure is not None)
        if statistics.reports:
            execution.exec_start_ns, execution.exec_end_ns = statistics.exec_start_ns, statistics.exec_end_ns
            execution.compute_start_ns = statistics.compute_start_ns
            execution.compute_end_ns = statistics.compute_end_ns
        if failure is not None:
            raise failure

    def memory_usage(self) -> Mapping[MemoryPlace, int]:
        """Return the memory that the backend reported for the instance and its model."""
        types = (ctypes.c_int32 * _MEMORY_ENTRIES)()
        devices = (ctypes.c_int64 * _MEMORY_ENTRIES)()
        sizes = (ctypes.c_uint64 * _MEMORY_ENTRIES)()
        count = self._library.tnb_instance_memory(self._handle, _MEMORY_ENTRIES, types, devices, sizes)
        usage: dict[MemoryPlace, int] = {}
        for entry in range(count):
            place = library.MEMORY_TYPES[types[entry]], devices[entry]
            # A backend may report a device several times, for example for weights and for buffers.
            usage[place] = usage.get(place, 0) + sizes[entry]
        return usage

    def readiness_check(self) -> Callable[[], None] | None:
        """Return ``TRITONBACKEND_ModelInstanceReady`` as a check, if the backend has it."""
        # A check that always succeeds would cost each readiness request a switch of threads.
        return self._check_ready if self._library.tnb_instance_reports_readiness(self._handle) else None

    def _check_ready(self) -> None:
        library.check(self._library.tnb_instance_ready(self._handle))

    def finalize(self) -> None:
        """Call ``TRITONBACKEND_ModelInstanceFinalize``."""
        error = self._library.tnb_instance_finalize(self._handle, True)
        log_error(error, f"finalizing instance '{self._spec.name}' failed")
