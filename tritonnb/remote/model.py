"""``remote["dense"]``: one model of another server."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy.typing as npt

from tritonnb.client.address import ModelAddress
from tritonnb.client.array_requests import Outputs, request_of_call
from tritonnb.client.model import ModelViews
from tritonnb.core.accessors import extensible
from tritonnb.core.errors import TritonError
from tritonnb.core.failures import with_short_tracebacks
from tritonnb.core.json_types import Json
from tritonnb.core.protobuf import model_config_pb2 as pb
from tritonnb.model_config.schema import ModelSpec
from tritonnb.remote.config import RemoteConfig, checked_config
from tritonnb.remote.text import not_ready_text
from tritonnb.scheduling.from_config import describe_scheduling
from tritonnb.telemetry.statistics_entry import StatisticsEntry

if TYPE_CHECKING:
    from tritonnb.remote.connection import Remote


@extensible
@with_short_tracebacks
class RemoteModelHandle(ModelViews):
    """A model of another server.

    Calling it runs one inference with NumPy arrays, over the network.

    Parameters
    ----------
    remote : Remote
    name : str
    version : int, optional
        By default -1: the server chooses.

    Examples
    --------
    >>> import tritonnb as tnb
    >>> with tnb.Server(port=0, model_control_mode="explicit") as server, tnb.connect(server.url) as remote:
    ...     @server.model(max_batch_size=8)
    ...     def double(X: tnb.FP32[1]) -> tnb.FP32[1]:
    ...         return X * 2
    ...     model = remote["double"]
    ...     print(model.infer(X=[[1.5]])["OUTPUT"], model.stats()["inference_count"], model.metadata()["versions"])
    ...     config = model.running_config()
    ...     config.max_batch_size = 4
    ...     print(model.check_config(config).max_batch_size, repr(model.load_failure()))
    ...     print(model.address_of(None).path)
    [[3.]] 1 ['1']
    4 ''
    /v2/models/double
    """

    def __init__(self, remote: Remote, name: str, version: int = -1) -> None:
        self._remote = remote
        self.name = name
        self.version = version
        self._address = ModelAddress(remote.server, name, version)
        self._spec: ModelSpec | None = None

    @property
    def address(self) -> ModelAddress:
        """The address of the model, for `load` and `sweep`.

        Raises
        ------
        UnavailableError
            If the connection has been closed.
        """
        self._remote.require_open()
        return self._address

    def address_of(self, name: str | None) -> ModelAddress:
        """Return the address of this model; the name is ignored."""
        return self.address

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
        request, address = request_of_call(self._spec, self.version, inputs, options), self.address
        limit_s = address.server.access.timeout_s if timeout is None else timeout
        return address.server.infer(self.name, self.version, request, limit_s)

    @property
    def ready(self) -> bool:
        """True if a version of the model is ready."""
        return any(row["name"] == self.name and row.get("state") == "READY" for row in self._remote.index())

    def metadata(self) -> Json:
        """Return the model metadata of the v2 protocol."""
        return self.address.server.model_metadata(self.name, self.version)

    def stats(self) -> StatisticsEntry:
        """Return the entry of this model (by default its latest version) in the statistics extension.

        Returns
        -------
        dict
            As `ModelHandle.stats`.
        """
        return self.address.stats()

    @property
    def config(self) -> RemoteConfig:
        """The configuration of the model, to read, change, apply and restore."""
        return RemoteConfig(self._remote, self.address)

    # --- for the editor ---------------------------------------------------------------------------

    def running_config(self) -> pb.ModelConfig:
        """Return the running configuration."""
        return self.address.config()

    def load_failure(self) -> str:
        """Return the reason why the model failed to load; empty if it is served."""
        rows = [row for row in self._remote.index() if row["name"] == self.name]
        if any(row.get("state") == "READY" for row in rows):
            return ""
        return next((row["reason"] for row in rows if row.get("reason")), "")

    def check_config(self, config: pb.ModelConfig) -> pb.ModelConfig:
        """Return the configuration that the model would run, checked without the server.

        Parameters
        ----------
        config : ModelConfig

        Raises
        ------
        TritonError
            If the configuration is invalid.
        """
        return checked_config(config, self.running_config())

    def __repr__(self) -> str:
        title = f"model '{self.name}' at {self._remote.url}"
        try:
            stats, config = self.stats(), self.running_config()
        except TritonError as error:
            return f"{title}: {not_ready_text(self, error)}"
        counts = f"{stats['inference_count']} rows in {stats['execution_count']} executions"
        return f"{title} (version {stats['version']})\n  {describe_scheduling(config)}\n  {counts}"
