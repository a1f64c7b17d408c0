"""The interfaces of an engine and its models that the endpoints use.

These are protocols because mypyc would check the type of a class on every call.
"""

from __future__ import annotations

from typing import Protocol

from tritonnb.core.messages import InferRequest
from tritonnb.core.protobuf import model_config_pb2 as pb
from tritonnb.engine.shared_memory import SharedMemory
from tritonnb.engine.submission import Receiver
from tritonnb.model_config.schema import ModelSpec
from tritonnb.telemetry.tracing import Tracer


class ResponseModel(Protocol):
    """The model of a response, as the response writers see it."""

    name: str
    version: int
    config: pb.ModelConfig
    spec: ModelSpec
    #: The lines of the ``label_filename`` of each output that has one.
    output_labels: dict[str, list[str]]


class InferenceModel(ResponseModel, Receiver, Protocol):
    """A model that requests are read for and submitted to."""

    decoupled: bool

    def check(self, request: InferRequest, /) -> None:
        """Raise an error if the model does not accept the request."""


class Models(Protocol):
    """The models of an engine (`ModelTable`)."""

    def get(self, name: str, version: int = -1, /) -> InferenceModel:
        """Return a model version that is ready; -1 is the newest."""


class InferenceEngine(Protocol):
    """The part of an engine that inferences use."""

    @property
    def table(self) -> Models:
        """The models."""

    @property
    def tracer(self) -> Tracer:
        """Selects the requests that are traced."""

    @property
    def shared_memory(self) -> SharedMemory:
        """The regions that clients have registered."""
