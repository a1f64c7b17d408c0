"""The backend contract: `Backend`, `BackendModel` and `BackendModelInstance`.

A batch and its responses are an `Execution` (`tritonnb.backends.execution`).

Objects and order of calls follow Triton's backend API (*tritonbackend.h*)::

    Backend.initialize
      Backend.complete                                           once a model version
      Backend.create_model -> BackendModel.initialize            unless `complete` has returned the model
        BackendModel.create_instance -> BackendModelInstance.initialize   once an instance
          BackendModelInstance.execute                           many times
        BackendModelInstance.finalize
      BackendModel.finalize
    Backend.finalize

Rules:

* Every instance has its own thread, which runs its ``initialize``, ``execute`` and ``finalize``. The event loop runs
  ``execute`` only if the model has the parameter `EXECUTE_ON_ANY_THREAD` and the instance is `thread_agnostic`. An
  instance is never called concurrently; different instances of a model are.
* ``execute`` responds to every request of the batch exactly once, in any order. An error response to one
  request does not affect the other requests of the batch.
* If ``execute`` raises an exception, every request without a response gets that error.
* Decoupled models respond through a `ResponseSender`, zero or more times, even after ``execute`` has returned.
* If `execute` raises `InstanceLostError`, what the instance keeps between executions is lost: sequences in its slots
  end with an error, and `recover` is called on its thread before the next execution.
* A writeable input array belongs to its request alone; a read-only array is shared and must not be written to
  (`tritonnb.core.ownership`). The list of requests is valid only during ``execute``.
* The contents of a response are copied when it is set or sent: its arrays may be views of inputs, or memory that the
  model uses again.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import ClassVar, Protocol

from tritonnb.backends.execution import Execution
from tritonnb.core.errors import InternalError
from tritonnb.core.messages import InferRequest
from tritonnb.core.protobuf import model_config_pb2 as pb
from tritonnb.scheduling.resources import Resource
from tritonnb.telemetry.custom_metrics import CustomMetrics


class ServerCalls(Protocol):
    """Calls from a model to the server that runs it; allowed from any thread except the server's event loop.

    Examples
    --------
    >>> ModelContext("double", 1, pb.ModelConfig(), Path("double")).server is None  # outside a server
    True
    """

    @property
    def metrics(self) -> CustomMetrics:
        """Custom metrics that models define."""

    def infer(self, request: InferRequest, *, decoupled: bool, cause: InferRequest | None = None) -> None:
        """Run a request; responses and errors are passed to ``request.respond`` on the server's event loop.

        If an instance makes the call on its own thread, a request that only this instance could execute fails.

        Parameters
        ----------
        request : InferRequest
        decoupled : bool
            Whether the caller accepts any number of responses.
        cause : InferRequest, optional
            The request whose trace includes this one.
        """

    def cancel(self, request: InferRequest) -> None:
        """Cancel a request when its responses are no longer needed."""

    def load_model(self, name: str, parameters: Mapping[str, str | bytes]) -> None:
        """Load a model, as the load API does; raise `TritonError` if that fails."""

    def unload_model(self, name: str, unload_dependents: bool) -> None:
        """Unload a model, as the unload API does; raise `TritonError` if that fails."""

    def is_model_ready(self, name: str, version: int) -> bool:
        """Return whether a model version is ready; -1 is the newest version."""


#: The ``max_batch_size`` of a model that supports batching and has none in its configuration.
DEFAULT_MAX_BATCH_SIZE = 4


@dataclass(frozen=True, slots=True)
class ModelContext:
    """The model version that a backend is to run.

    Attributes
    ----------
    name, version : str, int
    config : inference.ModelConfig
        Normalised, and completed by `Backend.auto_complete` where the backend implements it.
    directory : pathlib.Path
        The model's directory, ``REPOSITORY/NAME``.
    settings : mapping of str to str
        The backend's command-line settings (``--backend-config``), global ones included.
    server : ServerCalls or None
        The server that runs the model; None outside a server.

    Examples
    --------
    >>> context = ModelContext("double", 1, pb.ModelConfig(name="double"), Path("models/double"))
    >>> context.version_directory.as_posix(), context.default_max_batch_size
    ('models/double/1', 4)
    """

    name: str
    version: int
    config: pb.ModelConfig
    directory: Path
    settings: Mapping[str, str] = field(default_factory=dict)
    server: ServerCalls | None = None

    @property
    def version_directory(self) -> Path:
        """``REPOSITORY/NAME/VERSION``."""
        return self.directory / str(self.version)

    @property
    def default_max_batch_size(self) -> int:
        """The ``default-max-batch-size`` of ``--backend-config``."""
        # Triton passes this setting to every backend, whether it completes configurations or not.
        return int(self.settings.get("default-max-batch-size", DEFAULT_MAX_BATCH_SIZE))

    @property
    def parameters(self) -> dict[str, str]:
        """The ``parameters`` of the configuration, as strings."""
        # Triton's parameters are messages with one string, so a number or a boolean is a text for the backend to read.
        return {key: value.string_value for key, value in self.config.parameters.items()}


@dataclass(frozen=True, slots=True)
class InstanceSpec:
    """One instance of an ``instance_group``.

    Attributes
    ----------
    name : str
        ``<group name>_<index>``, as Triton names it in logs and errors.
    index : int
        Number of the instance in its model, counted over all instance groups.
    kind : str
        ``KIND_CPU``, ``KIND_GPU`` or ``KIND_MODEL``.
    device_id : int
        CUDA device of a ``KIND_GPU`` instance, else 0.
    resources, priority : tuple of Resource, int
        From the ``rate_limiter`` of its instance group.
    passive : bool
        Whether the instance is initialised but never executes a batch.

    Examples
    --------
    >>> InstanceSpec("double_0_0", 0, "KIND_CPU").device_id
    0
    """

    name: str
    index: int
    kind: str
    device_id: int = 0
    resources: tuple[Resource, ...] = ()
    priority: int = 0
    passive: bool = False


class InstanceLostError(InternalError):
    """An instance has lost what it keeps between executions, such as the state of sequences.

    The hint says why.
    """


#: The parameter by which a model permits the server's event loop to execute its quick batches. The author of the model
#: promises that it is quick and does not wait for the server. Triton ignores it.
EXECUTE_ON_ANY_THREAD = "EXECUTE_ON_ANY_THREAD"

#: Memory type (``CPU``, ``CPU_PINNED`` or ``GPU``) and number of the device.
MemoryPlace = tuple[str, int]


class BackendModelInstance(ABC):
    """One instance of a model, with its own thread.

    Examples
    --------
    >>> class EchoInstance(BackendModelInstance):
    ...     def execute(self, execution: Execution) -> None:
    ...         for index, request in enumerate(execution.requests):
    ...             execution.respond(index, list(request.inputs.values()))
    >>> EchoInstance().readiness_check() is None
    True
    """

    #: Whether an error response to a request counts as a failure in the statistics. Triton's Python
    #: backend reports such a request as a success; the others report a failure.
    error_responses_fail: bool = True
    #: Whether `execute` may run on another thread than `initialize`, still one batch at a time. The server makes use of
    #: it only for models with the parameter `EXECUTE_ON_ANY_THREAD`.
    thread_agnostic: bool = False
    #: What `memory_usage` returns; `initialize` may set it.
    memory: Mapping[MemoryPlace, int] = MappingProxyType({})

    def initialize(self) -> None:
        """Prepare to run; if this raises an exception, the model fails to load."""

    @abstractmethod
    def execute(self, execution: Execution) -> None:
        """Run the batch and respond to each of its requests exactly once."""

    def memory_usage(self) -> Mapping[MemoryPlace, int]:
        """Return the bytes that the instance allocated at initialization, by memory type and device: `memory`."""
        return self.memory

    def readiness_check(self) -> Callable[[], None] | None:
        """Return a readiness check; None, the default, if the instance is always ready.

        Returns
        -------
        callable or None
            Called for each readiness request, on another thread, even during `execute`, and given 5 seconds. It raises
            an exception if the instance is not ready. ``TRITONBACKEND_ModelInstanceReady`` of the backend API.
        """
        return None

    @property
    def process_id(self) -> int | None:
        """The ID of the model's process; None, the default, if that is the server's process."""
        return None

    def cancel(self, request: InferRequest) -> None:
        """Called when a request of any instance is cancelled: ``request.cancelled`` is true.

        Called on the server's event loop while the request has no final response; must return at once. Only instances
        whose models cannot see the request itself need it.
        """

    def watch(self, lost: Callable[[InstanceLostError], None]) -> None:
        """Called once, before `initialize`: how to report that the instance was lost between executions.

        Parameters
        ----------
        lost : callable
            Can be called from any thread.
        """

    def recover(self) -> bool:
        """Prepare to run again after the instance was lost; called on its thread.

        Returns
        -------
        bool
            False if that is not possible yet: `execute` tries again, and raises an error if it cannot run.
        """
        return True

    def finalize(self) -> None:
        """Free the resources of `initialize`; join threads that the instance started."""


class BackendModel(ABC):
    """One loaded version of a model.

    Parameters
    ----------
    context : ModelContext

    Examples
    --------
    >>> class EchoModel(BackendModel):
    ...     def create_instance(self, spec: InstanceSpec) -> BackendModelInstance:
    ...         raise NotImplementedError("see BackendModelInstance")
    >>> EchoModel(ModelContext("echo", 1, pb.ModelConfig(), Path("echo"))).context.name
    'echo'
    """

    #: Whether its instances may be initialised concurrently.
    parallel_instances: bool = False

    def __init__(self, context: ModelContext) -> None:
        self.context = context

    def initialize(self) -> None:
        """Load the data that instances share; if this raises an exception, the model fails to load."""

    def configure(self, context: ModelContext) -> None:
        """Take the validated configuration; called if `Backend.complete` returned the model, before any instance."""
        self.context = context

    @abstractmethod
    def create_instance(self, spec: InstanceSpec) -> BackendModelInstance:
        """Create an instance; its ``initialize`` is called later, on its own thread."""

    def finalize(self) -> None:
        """Free the resources of `initialize`."""


class Backend(ABC):
    """A backend for models of one kind, such as ``onnxruntime``; one object for the whole server.

    Examples
    --------
    >>> class EchoBackend(Backend):
    ...     name = "echo"
    ...
    ...     def create_model(self, context: ModelContext) -> BackendModel:
    ...         raise NotImplementedError("see BackendModel")
    >>> EchoBackend().default_instance_count("KIND_CPU")
    1
    """

    #: Name in ``backend:`` of *config.pbtxt* and in the entry point group ``tritonnb.backends``.
    name: ClassVar[str]

    #: Whether the backend implements ``batch_input`` and ``batch_output``.
    supports_batch_tensors: bool = False

    def initialize(self, settings: Mapping[str, str]) -> None:
        """Called once, before the first model, with the ``--backend-config`` settings."""

    def default_instance_count(self, kind: str) -> int:
        """Return the number of instances of an instance group without ``count``."""
        return 1

    def auto_complete(self, context: ModelContext) -> pb.ModelConfig | None:
        """Complete the configuration from the model itself.

        Returns
        -------
        inference.ModelConfig or None
            The completed configuration; ``context.config`` is a copy and may be changed. None, the default, if the
            backend cannot complete configurations: the model then needs a complete *config.pbtxt*.

        Raises
        ------
        TritonError
            If the configuration does not fit the model, which then fails to load.
        """
        return None

    def complete(self, context: ModelContext) -> tuple[pb.ModelConfig | None, BackendModel | None]:
        """Complete the configuration as `auto_complete`, possibly with an initialised model.

        A backend whose models complete their configuration as they are initialised returns the model, too:
        `create_model` is then not called, and the model is finalised if it is not used.

        Returns
        -------
        inference.ModelConfig or None, BackendModel or None
        """
        return self.auto_complete(context), None

    @abstractmethod
    def create_model(self, context: ModelContext) -> BackendModel:
        """Create a model; its ``initialize`` is called next."""

    def finalize(self) -> None:
        """Called once, after the last model was finalized."""
