"""The backend contract: Backend, BackendModel, BackendModelInstance, and the Execution they answer.

The objects and their order are those of Triton's backend API (*tritonbackend.h*)::

    Backend.initialize
      Backend.create_model -> BackendModel.initialize            once a model version
        BackendModel.create_instance -> BackendModelInstance.initialize   once an instance
          BackendModelInstance.execute                           many times
        BackendModelInstance.finalize
      BackendModel.finalize
    Backend.finalize

Rules:

* Every instance has a thread of its own: ``initialize``, ``execute`` and ``finalize`` of one
  instance run on it, so an instance is never called twice at once; different instances are.
* ``execute`` answers every request of the batch exactly once, in any order. An error answer to one
  request leaves its neighbours alone.
* An exception out of ``execute`` becomes the answer to every request not answered yet.
* Decoupled models answer through a `ResponseSender`, zero or more times, also after ``execute``.
* Inputs that are writeable belong to the request, which nobody else sees; others may not be written to
  (`tritonnb.core.ownership`). The list of requests is valid only during ``execute``.
* A response is copied when it is given: its arrays may be views of inputs, or memory that the model uses again.
"""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, Protocol

from tritonnb.core.errors import InternalError, TritonError
from tritonnb.core.messages import InferRequest, InferResponse, ParameterValue, Tensor
from tritonnb.scheduling.rate_limiter import Resource
from tritonnb.telemetry.custom_metrics import CustomMetrics


class ServerCalls(Protocol):
    """What a model may ask of the server that runs it, from any thread but the server's loop."""

    @property
    def metrics(self) -> CustomMetrics:
        """The metrics that models define."""

    def infer(self, request: InferRequest, *, decoupled: bool, cause: InferRequest | None = None) -> None:
        """Have a request run; errors, too, come through ``request.respond``, on the server's loop.

        On an instance's own thread the instance waits: a request that only it could answer fails.

        Parameters
        ----------
        request : InferRequest
        decoupled : bool
            Any number of responses is welcome.
        cause : InferRequest, optional
            The request in whose trace this one belongs.
        """

    def cancel(self, request: InferRequest) -> None:
        """Nobody waits for the request any more."""

    def load_model(self, name: str, parameters: Mapping[str, str | bytes]) -> None:
        """Load a model, as the load API does; raises `TritonError`."""

    def unload_model(self, name: str, unload_dependents: bool) -> None:
        """Unload a model, as the unload API does; raises `TritonError`."""

    def is_model_ready(self, name: str, version: int) -> bool:
        """Whether a model is ready; version -1 is the newest."""


@dataclass(frozen=True, slots=True)
class ModelContext:
    """What a backend is told of a model version.

    Attributes
    ----------
    name, version : str, int
    config : inference.ModelConfig
        Normalised; completed by the backend itself where it offers that.
    directory : pathlib.Path
        The model's directory, ``REPOSITORY/NAME``.
    settings : mapping of str to str
        The backend's command-line settings (``--backend-config``), global ones included.
    server : ServerCalls or None
        The server that runs it.
    """

    name: str
    version: int
    config: Any
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
        Number of the instance in its model, over all groups.
    kind : str
        ``KIND_CPU``, ``KIND_GPU`` or ``KIND_MODEL``.
    device_id : int
        CUDA device of a ``KIND_GPU`` instance, else 0.
    resources, priority : tuple of Resource, int
        What the ``rate_limiter`` of its group says.
    passive : bool
        Whether it is initialised and never runs anything.
    """

    name: str
    index: int
    kind: str
    device_id: int = 0
    resources: tuple[Resource, ...] = ()
    priority: int = 0
    passive: bool = False


#: Where memory is: ``CPU``, ``CPU_PINNED`` or ``GPU``, and the number of the device.
MemoryPlace = tuple[str, int]

Deliver = Callable[[InferRequest, InferResponse], None]


class ResponseSender:
    """Sends the responses of one request, any number of them if the model is decoupled; may be used from any thread.

    Attributes
    ----------
    closed : bool
        The final response was sent.
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
            If the final response was sent before.
        """
        if self.closed:
            raise InternalError("Unable to send response. Response sender has been closed.")
        self.closed = response.final
        response = response.copy()
        if self._request.step is not None and not response.final:
            self._request.step.throttle()
        self._deliver(self._request, response)


class Execution:
    """A batch on its way through one instance.

    Attributes
    ----------
    requests : list of InferRequest
        Null requests (`InferRequest.is_null`) included; their answers are thrown away.
    size : int
        Rows of all requests together.
    number : int
        The batch's number in the server's event stream.
    responses : list of InferResponse or None
        Filled by `respond` and `fail`, one for each request.
    rescheduled : set of int
        Filled by `reschedule`: the numbers of requests that run again instead.
    senders : dict of int to ResponseSender
        Those that were asked for, by the number of the request.
    exec_start_ns, compute_start_ns, compute_end_ns, exec_end_ns : int
        Monotonic stamps. compute_input lies between the first two, compute_infer between the
        middle two, compute_output between the last two (statistics extension).
    """

    __slots__ = (
        "_deliver",
        "compute_end_ns",
        "compute_start_ns",
        "exec_end_ns",
        "exec_start_ns",
        "number",
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
        self.rescheduled: set[int] = set()
        self.senders: dict[int, ResponseSender] = {}
        self.exec_start_ns = self.compute_start_ns = self.compute_end_ns = self.exec_end_ns = 0
        self._deliver = deliver

    def compute_started(self) -> None:
        """The inputs are gathered; the model begins to run."""
        self.compute_start_ns = time.monotonic_ns()

    def compute_ended(self) -> None:
        """The model has run; the outputs are about to be scattered."""
        self.compute_end_ns = time.monotonic_ns()

    def respond(self, index: int, outputs: list[Tensor], parameters: dict[str, ParameterValue] | None = None) -> None:
        """Answer request number ``index`` of the batch.

        Outputs that the request did not ask for are left out.
        """
        requested = self.requests[index].requested_outputs
        if requested is not None:
            outputs = [each for each in outputs if each.name in requested]
        self.answer(index, InferResponse(outputs, parameters=parameters))

    def fail(self, index: int, error: TritonError) -> None:
        """Answer request number ``index`` of the batch with an error."""
        self.answer(index, InferResponse(error=error))

    def reschedule(self, index: int) -> None:
        """Have request number ``index`` executed again instead of answered (iterative sequences).

        ``TRITONSERVER_REQUEST_RELEASE_RESCHEDULE`` of the backend API.
        """
        self.rescheduled.add(index)

    def sender(self, index: int) -> ResponseSender:
        """The response sender of request number ``index``, whose responses are then not waited for by ``execute``."""
        if index not in self.senders:
            self.senders[index] = ResponseSender(self.requests[index], self._deliver)
        return self.senders[index]

    def answer(self, index: int, response: InferResponse) -> None:
        """Answer request number ``index`` of the batch with a response, whose contents are copied.

        No other request may be given the same object.
        """
        if self.responses[index] is not None:
            raise InternalError(f"request {index} of the batch was answered twice")
        response.copy_contents()
        self.responses[index] = response


class BackendModelInstance(ABC):
    """One copy of a model, with a thread of its own."""

    #: Whether an error answer to a request counts as a failure in the statistics. Triton's Python
    #: backend reports such a request as a success; the others report a failure.
    error_responses_fail: ClassVar[bool] = True

    def initialize(self) -> None:
        """Prepare to run; an exception here fails the load."""

    @abstractmethod
    def execute(self, execution: Execution) -> None:
        """Run the batch and answer each of its requests exactly once."""

    def memory_usage(self) -> Mapping[MemoryPlace, int]:
        """Bytes that the instance took when it was initialised, as far as the backend can tell."""
        return {}

    def finalize(self) -> None:
        """Free what `initialize` took; join threads that the instance started."""


class BackendModel(ABC):
    """One loaded version of a model."""

    #: Whether its instances may be initialised at the same time.
    parallel_instances: ClassVar[bool] = False

    def __init__(self, context: ModelContext) -> None:
        self.context = context

    def initialize(self) -> None:
        """Load what the instances share; an exception here fails the load."""

    @abstractmethod
    def create_instance(self, spec: InstanceSpec) -> BackendModelInstance:
        """A new instance; its ``initialize`` runs later, on its own thread."""

    def finalize(self) -> None:
        """Free what `initialize` took."""


class Backend(ABC):
    """A way of running models, such as ``onnxruntime``; one object for the whole server."""

    #: Name in ``backend:`` of *config.pbtxt* and in the entry point group ``tritonnb.backends``.
    name: ClassVar[str]

    #: Whether it makes sense of ``batch_input`` and ``batch_output``.
    takes_batch_tensors: ClassVar[bool] = False

    def initialize(self, settings: Mapping[str, str]) -> None:
        """Called once, before the first model, with the ``--backend-config`` settings."""

    def default_instance_count(self, kind: str) -> int:
        """Instances of a group that does not say how many."""
        return 1

    def auto_complete(self, context: ModelContext) -> Any:
        """The configuration with what the model itself tells filled in.

        Returns
        -------
        inference.ModelConfig or None
            A completed copy of ``context.config``; None if the backend cannot tell, as by default: then
            the model must have been given a configuration.

        Raises
        ------
        TritonError
            If configuration and model contradict each other; fails the load.
        """
        return None

    @abstractmethod
    def create_model(self, context: ModelContext) -> BackendModel:
        """A new model; its ``initialize`` runs next."""

    def finalize(self) -> None:
        """Called once, after the last model is gone."""
