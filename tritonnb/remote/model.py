"""``remote["dense"]``: one model of another server."""

from __future__ import annotations

from collections.abc import Mapping
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import numpy.typing as npt

from tritonnb.core.failures import with_short_tracebacks
from tritonnb.core.json_types import Json
from tritonnb.core.protobuf import model_config_pb2 as pb
from tritonnb.inprocess.array_requests import request_of_call
from tritonnb.model_config.diagnose import ProblemContext
from tritonnb.model_config.editable_config import copy_of
from tritonnb.model_config.schema import ModelSpec
from tritonnb.model_config.validate import validate
from tritonnb.profile.remote import RemoteModel
from tritonnb.remote.config import RemoteConfig
from tritonnb.remote.infer import Outputs, infer
from tritonnb.telemetry.statistics_entry import StatisticsEntry

if TYPE_CHECKING:
    from tritonnb.figures.statistics import StatisticsPlot
    from tritonnb.notebook.config_editor import ConfigEditor
    from tritonnb.notebook.remote_view import RemoteBatchView, StatisticsView
    from tritonnb.notebook.traffic import Traffic
    from tritonnb.remote.connection import Remote
    from tritonnb.remote.otlp_receiver import OtlpReceiver


@with_short_tracebacks
class RemoteModelHandle:
    """A model of another server.

    Calling it runs one inference with NumPy arrays, over the network.

    Parameters
    ----------
    remote : Remote
    name : str
    version : int, optional
        By default -1: the server chooses.
    """

    def __init__(self, remote: Remote, name: str, version: int = -1) -> None:
        self._remote = remote
        self.name = name
        self.version = version
        self._address: RemoteModel = remote.address(name).sibling(name, version)
        self._spec: ModelSpec | None = None

    @property
    def address(self) -> RemoteModel:
        """The address of the model, for `load` and `sweep`.

        Raises
        ------
        UnavailableError
            If the connection has been closed.
        """
        self._remote.require_open()
        return self._address

    @property
    def server(self) -> Remote:
        """The connection."""
        return self._remote

    def __call__(self, *inputs: Mapping[str, npt.ArrayLike] | None, **options: Any) -> Outputs:
        """Run one inference; see `infer`."""
        return self.infer(*inputs, **options)

    def infer(
        self, *inputs: Mapping[str, npt.ArrayLike] | None, timeout: float | None = None, **options: Any
    ) -> Outputs:
        """Run one inference and wait for it.

        Parameters
        ----------
        inputs : mapping of str to array, optional
            Input tensors by name, with the batch dimension if ``max_batch_size`` is above 0.
        timeout : float, optional
            Time limit in seconds; by default that of the connection.
        **options
            More inputs by name, and the options of `ModelHandle.infer`.

        Returns
        -------
        dict of str to numpy.ndarray

        Raises
        ------
        TritonError
            If the request is invalid, or the server responds with an error or not in time.
        """
        if self._spec is None:
            self._spec = ModelSpec.from_config(self.running_config())
        return infer(self.address, request_of_call(self._spec, self.version, inputs, options), timeout)

    @property
    def ready(self) -> bool:
        """Whether a version of the model is ready."""
        return any(row["name"] == self.name and row.get("state") == "READY" for row in self._remote.index())

    def metadata(self) -> Json:
        """The model metadata of the v2 protocol."""
        return self.address.server.model_metadata(self.name, self.version)

    def stats(self) -> StatisticsEntry:
        """The entry of this model (by default its latest version) in the statistics extension.

        Returns
        -------
        dict
            As `ModelHandle.stats`.
        """
        return self.address.stats()

    @property
    def plot(self) -> StatisticsPlot:
        """Figures of the statistics: ``plot.batch_sizes()`` and ``plot.parts()``, with ``since=`` earlier `stats`."""
        from tritonnb.figures.statistics import StatisticsPlot  # importing matplotlib takes time

        return StatisticsPlot(self.stats())

    @property
    def config(self) -> RemoteConfig:
        """The configuration of the model, to read, change, apply and restore."""
        return RemoteConfig(self._remote, self.address)

    def edit(self) -> ConfigEditor:
        """A live editor of the configuration; what it applies is restored when it is closed.

        Returns
        -------
        ConfigEditor
            A widget. Every call returns the same widget until it is closed.
        """
        from tritonnb.notebook.remote_editor import edit_remote_config

        return edit_remote_config(self)

    def watch(self, receiver: OtlpReceiver | None = None) -> RemoteBatchView | StatisticsView:
        """A live view of the batches, or of the statistics without traces.

        Parameters
        ----------
        receiver : OtlpReceiver, optional
            To which the server sends its spans. The trace settings of the model are changed while the view is open.
            Without it, the view shows the differences of the statistics from second to second.

        Returns
        -------
        RemoteBatchView or StatisticsView
            A widget, which says which of the two it shows; `close` ends it.

        Raises
        ------
        TritonError
            If the server does not respond, or cannot trace.
        """
        from tritonnb.notebook.remote_view import RemoteBatchView, StatisticsView

        return StatisticsView(self) if receiver is None else RemoteBatchView(self, receiver)

    def traffic(self, **options: Any) -> Traffic:
        """A panel that sends traffic to the model; options of `tritonnb.load` as for `ModelHandle.traffic`."""
        from tritonnb.notebook.traffic import open_traffic

        return open_traffic(self, **options)

    @property
    def served(self) -> SimpleNamespace:
        """What is served: ``config`` and ``spec`` (inputs and outputs)."""
        config = self.running_config()
        return SimpleNamespace(config=config, spec=ModelSpec.from_config(config))

    # --- for the editor ---------------------------------------------------------------------------

    def running_config(self) -> pb.ModelConfig:
        """The running configuration."""
        return self.address.config()

    def load_failure(self) -> str:
        """Why the model failed to load; empty if it is served."""
        rows = [row for row in self._remote.index() if row["name"] == self.name]
        if any(row.get("state") == "READY" for row in rows):
            return ""
        return next((row["reason"] for row in rows if row.get("reason")), "")

    def check_config(self, config: pb.ModelConfig) -> pb.ModelConfig:
        """What the model would run under a configuration, as far as it can be checked without the server.

        Raises
        ------
        TritonError
            If the configuration is invalid.
        """
        checked = copy_of(config)
        checked.name = checked.name or self.name
        with ProblemContext(checked):
            validate(checked)
        return checked

    def __repr__(self) -> str:
        from tritonnb.notebook.remote_cards import remote_model_text

        return remote_model_text(self)

    def _repr_html_(self) -> str:
        from tritonnb.notebook.remote_cards import remote_model_card

        return remote_model_card(self)
