"""The protocol of a model, of a server in this process or elsewhere."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, ClassVar, Protocol, cast

from tritonnb.core.copies import OfThisProcess, reach_model
from tritonnb.core.protobuf import model_config_pb2 as pb
from tritonnb.telemetry.statistics_entry import StatisticsEntry


class Model(Protocol):
    """A model of a server: `ModelHandle` and `RemoteModelHandle`; their methods document themselves.

    Widgets, figures and load tests accept either.
    """

    name: str
    version: int

    @property
    def server(self) -> Any:
        """The server, or the connection."""

    @property
    def ready(self) -> bool:
        """True if the model is ready."""

    @property
    def config(self) -> Any:
        """The configuration, to read, change and apply."""

    def __call__(self, *inputs: Any, **options: Any) -> Any:
        """Run one inference."""

    def infer(self, *inputs: Any, **options: Any) -> Any:
        """Run one inference."""

    def metadata(self) -> Mapping[str, object]:
        """Return the model metadata of the v2 protocol."""

    def stats(self) -> StatisticsEntry:
        """Return the entry of the model in the statistics extension."""

    def running_config(self) -> pb.ModelConfig:
        """Return a copy of the running configuration."""

    def load_failure(self) -> str:
        """Return the reason why the model failed to load; empty if it is served."""

    def check_config(self, config: pb.ModelConfig) -> pb.ModelConfig:
        """Return the configuration that the model would run; nothing is changed."""


class ModelViews(OfThisProcess):
    """Attributes of both kinds of models that packages above provide: see `tritonnb.accessors`."""

    plot: ClassVar[Any]
    traffic: ClassVar[Callable[..., Any]]
    edit: ClassVar[Callable[..., Any]]
    watch: ClassVar[Callable[..., Any]]
    _repr_html_: ClassVar[Callable[..., str]]

    def _not_copied(self) -> tuple[str, str]:
        model = cast(Model, self)
        return f"model '{model.name}'", reach_model(model.name, model.server.url)
