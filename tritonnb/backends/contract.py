"""The backend contract: `Backend`, `BackendModel`, `BackendModelInstance`, and the `Execution` of a batch.

The objects and the order of the calls are those of Triton's backend API (*tritonbackend.h*)::

    Backend.initialize
      Backend.create_model -> BackendModel.initialize            once a model version
        BackendModel.create_instance -> BackendModelInstance.initialize   once an instance
          BackendModelInstance.execute                           many times
        BackendModelInstance.finalize
      BackendModel.finalize
    Backend.finalize

Rules:

* Every instance has its own thread, which runs its ``initialize``, ``execute`` and ``finalize``. An instance is
  never called concurrently; different instances of a model are.
* ``execute`` responds to every request of the batch exactly once, in any order. An error response to one
  request does not affect the other requests of the batch.
* If ``execute`` raises an exception, every request without a response gets that error.
* Decoupled models respond through a `ResponseSender`, zero or more times, also after ``execute`` has returned.
* If `execute` raises `InstanceLostError`, what the instance keeps between executions is lost: sequences in its slots
  end with an error, and `recover` is called on its thread before the next execution.
* A writeable input array belongs to its request alone; a read-only array is shared and must not be written to
  (`tritonnb.core.ownership`). The list of requests is valid only during ``execute``.
* The contents of a response are copied when it is set or sent: its arrays may be views of inputs, or memory that the
  model uses again.
"""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import ClassVar, Protocol

from tritonnb.core.errors import InternalError, TritonError
from tritonnb.core.messages import InferRequest, InferResponse, ParameterValue, Tensor
from tritonnb.core.protobuf import model_config_pb2 as pb
from tritonnb.scheduling.resources import Resource
from tritonnb.telemetry.custom_metrics import CustomMetrics


class ServerCalls(Protocol):
    """Calls from a model to the server that runs it; allowed from any thread except the server's event loop."""

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
        """Cancel a request: its responses are not needed any more."""

    def load_model(self, name: str, parameters: Mapping[str, str | bytes]) -> None:
        """Load a model, as the load API does; raises `TritonError` if that fails."""

    def unload_model(self, name: str, unload_dependents: bool) -> None:
        """Unload a model, as the unload API does; raises `TritonError` if that fails."""

    def is_model_ready(self, name: str, version: int) -> bool:
        """Whether a model version is ready; -1 is the newest version."""


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
    def parameters(self) -> dict[str, str]:
        """The ``parameters`` of the configuration, as strings."""
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
    """

    name: str
    index: int
    kind: str
    device_id: int = 0
    resources: tuple[Resource, ...] = ()
    priority: int = 0
    passive: bool = False


class InstanceLostError(InternalError):
    """An instance has lost what it keeps between executions, such as the states of sequences.

    The hint says why.
    """


#: Memory type (``CPU``, ``CPU_PINNED`` or ``GPU``) and number of the device.
MemoryPlace = tuple[str, int]

Deliver = Callable[[InferRequest, InferResponse], None]
#: The execution has ended, with the error that `BackendModelInstance.execute` would have raised.
Ended = Callable[["Execution", BaseException | None], None]
#: The execution is continued by `BackendModelInstance.execute`, on the instance's thread.
Continues = Callable[["Execution"], None]


class ResponseSender:
    """Sends the responses of one request, any number if the model is decoupled; can be used from any thread.

    Attributes
    ----------
    closed : bool
        Whether the final response was sent.
    """

    __slots__ = ("_deliver", "_request", "closed")

    def __init__(self, request: InferRequest, deliver: Deliver) -> None:
        self._request = request
        self._deliver = deliver
        self.closed = False

    def send(self, response: InferResponse) -> None:
        """Send one response.

        Raises
        ------
        InternalError
            If the final response was already sent.
        """
        if self.closed:
            raise InternalError("Unable to send response. Response sender has been closed.")
        self.closed = response.final
        response = response.copy()
        if self._request.step is not None and not response.final:
            self._request.step.throttle()
        self._deliver(self._request, response)


class Execution:
    """The execution of one batch on one instance.

    Attributes
    ----------
    requests : list of InferRequest
        The requests of the batch, including null requests (`InferRequest.is_null`), whose responses are discarded.
    size : int
        Number of rows of all requests together.
    number : int
        Number of the batch in the server's event stream.
    responses : list of InferResponse or None
        One for each request, set by `respond`, `fail` and `answer`.
    reported : dict of int to bool
        By index of the request, whether it was successful, where the backend says so itself: otherwise a request with
        an error response has failed.
    rescheduled : set of int
        Indices of the requests that `reschedule` was called for: they are executed again instead of answered.
    senders : dict of int to ResponseSender
        The response senders that `sender` has created, by index of the request.
    exec_start_ns, compute_start_ns, compute_end_ns, exec_end_ns : int
        Timestamps of the monotonic clock in ns. In the statistics extension, ``compute_input`` is the time between
        the first two, ``compute_infer`` between the middle two, ``compute_output`` between the last two. A backend
        that measures the execution itself sets all of them in ``execute``.
    """

    __slots__ = (
        "_deliver",
        "compute_end_ns",
        "compute_start_ns",
        "exec_end_ns",
        "exec_start_ns",
        "number",
        "reported",
        "requests",
        "rescheduled",
        "responses",
        "senders",
        "size",
    )

    def __init__(self, requests: list[InferRequest], size: int, deliver: Deliver, number: int = 0) -> None:
        self.requests = requests
        self.size = size
        self.number = number
        self.responses: list[InferResponse | None] = [None] * len(requests)
        self.reported: dict[int, bool] = {}
        self.rescheduled: set[int] = set()
        self.senders: dict[int, ResponseSender] = {}
        self.exec_start_ns = self.compute_start_ns = self.compute_end_ns = self.exec_end_ns = 0
        self._deliver = deliver

    def compute_started(self) -> None:
        """Record the time: the inputs are gathered, and the model begins to run."""
        self.compute_start_ns = time.monotonic_ns()

    def compute_ended(self) -> None:
        """Record the time: the model has run, and the outputs are about to be scattered."""
        self.compute_end_ns = time.monotonic_ns()

    def respond(self, index: int, outputs: list[Tensor], parameters: dict[str, ParameterValue] | None = None) -> None:
        """Set the response to a request of the batch.

        Parameters
        ----------
        index : int
            Index of the request in `requests`.
        outputs : list of Tensor
            Copied. Outputs that the request did not ask for are left out.
        parameters : dict, optional
            Response parameters.

        Raises
        ------
        InternalError
            If the request already has a response.
        """
        requested = self.requests[index].requested_outputs
        if requested is not None:
            outputs = [output for output in outputs if output.name in requested]
        self.answer(index, InferResponse(outputs, parameters=parameters))

    def fail(self, index: int, error: TritonError) -> None:
        """Set an error as the response to request ``index`` of the batch."""
        self.answer(index, InferResponse(error=error))

    def reschedule(self, index: int) -> None:
        """Execute request ``index`` again instead of responding to it (iterative sequences).

        ``TRITONSERVER_REQUEST_RELEASE_RESCHEDULE`` of the backend API.
        """
        self.rescheduled.add(index)

    def sender(self, index: int) -> ResponseSender:
        """The response sender of request ``index``, which may send responses after ``execute`` has returned."""
        if index not in self.senders:
            self.senders[index] = ResponseSender(self.requests[index], self._deliver)
        return self.senders[index]

    def answer(self, index: int, response: InferResponse) -> None:
        """Set the response to request ``index`` of the batch; its contents are copied.

        The object belongs to the request from now on: no other request may get the same one.

        Raises
        ------
        InternalError
            If the request already has a response.
        """
        if self.responses[index] is not None:
            raise InternalError(f"request {index} of the batch: expected one response, got a second one")
        response.copy_contents()
        self.responses[index] = response


class BackendModelInstance(ABC):
    """One instance of a model, with its own thread."""

    #: Whether an error response to a request counts as a failure in the statistics. Triton's Python
    #: backend reports such a request as a success; the others report a failure.
    error_responses_fail: bool = True

    def initialize(self) -> None:
        """Prepare to run; if this raises an exception, the model fails to load."""

    @abstractmethod
    def execute(self, execution: Execution) -> None:
        """Run the batch and respond to each of its requests exactly once."""

    def begin(self, execution: Execution, ended: Ended, continues: Continues) -> bool:
        """Begin to execute a batch, if the model runs elsewhere and the event loop can wait for it.

        This saves the changes to the instance's thread and back. Called on the server's event loop, on which one of the
        two functions is to be called later; must return at once.

        Parameters
        ----------
        execution : Execution
        ended : callable
        continues : callable
            For what the event loop cannot do. `execute` is called with the same execution.

        Returns
        -------
        bool
            False, the default, if the execution has not begun: `execute` is called.
        """
        return False

    def memory_usage(self) -> Mapping[MemoryPlace, int]:
        """Bytes that the instance allocated when it was initialised, by memory type and device, as far as known."""
        return {}

    def readiness_check(self) -> Callable[[], None] | None:
        """What reports whether the instance is ready; None, the default, if it always is.

        Returns
        -------
        callable or None
            Called for each readiness request, on another thread, also during `execute`, and given 5 seconds. It raises
            an exception if the instance is not ready. ``TRITONBACKEND_ModelInstanceReady`` of the backend API.
        """
        return None

    @property
    def process_id(self) -> int | None:
        """The process of its own in which the model runs; None, the default, if it runs in the server's process."""
        return None

    def cancel(self, request: InferRequest) -> None:
        """A request of this instance, or of another one, was cancelled: ``request.cancelled`` is true.

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
        """Free what `initialize` allocated; join threads that the instance started."""


class BackendModel(ABC):
    """One loaded version of a model.

    Parameters
    ----------
    context : ModelContext
    """

    #: Whether its instances may be initialised concurrently.
    parallel_instances: ClassVar[bool] = False

    def __init__(self, context: ModelContext) -> None:
        self.context = context

    def initialize(self) -> None:
        """Load what the instances share; if this raises an exception, the model fails to load."""

    @abstractmethod
    def create_instance(self, spec: InstanceSpec) -> BackendModelInstance:
        """Create an instance; its ``initialize`` is called later, on its own thread."""

    def finalize(self) -> None:
        """Free what `initialize` allocated."""


class Backend(ABC):
    """Runs models of one kind, such as ``onnxruntime``; one object for the whole server."""

    #: Name in ``backend:`` of *config.pbtxt* and in the entry point group ``tritonnb.backends``.
    name: ClassVar[str]

    #: Whether the backend implements ``batch_input`` and ``batch_output``.
    supports_batch_tensors: bool = False

    def initialize(self, settings: Mapping[str, str]) -> None:
        """Called once, before the first model, with the ``--backend-config`` settings."""

    def default_instance_count(self, kind: str) -> int:
        """Number of instances of an instance group without ``count``."""
        return 1

    def auto_complete(self, context: ModelContext) -> pb.ModelConfig | None:
        """Complete the configuration from the model itself.

        Returns
        -------
        inference.ModelConfig or None
            A completed copy of ``context.config``. None, the default, if the backend cannot complete configurations:
            the model then needs a complete *config.pbtxt*.

        Raises
        ------
        TritonError
            If the configuration does not fit the model, which then fails to load.
        """
        return None

    @abstractmethod
    def create_model(self, context: ModelContext) -> BackendModel:
        """Create a model; its ``initialize`` is called next."""

    def finalize(self) -> None:
        """Called once, after the last model was finalized."""
