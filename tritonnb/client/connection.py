"""A connection to any Triton, and its models, with handles like the models of a server of this process."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, suppress
from typing import Any, ClassVar, Self

import numpy.typing as npt

from tritonnb.client.address import ModelAddress, only_model_name
from tritonnb.client.array_requests import Outputs, request_of_call
from tritonnb.client.check import findings, put_back
from tritonnb.client.index_text import state_text
from tritonnb.client.model import ModelViews
from tritonnb.client.remote_config import ChangedConfigs, RemoteConfig, checked_config
from tritonnb.client.v2_client import V2Client, V2HttpClient
from tritonnb.core.accessors import extensible
from tritonnb.core.arguments import require_positive
from tritonnb.core.copies import OfThisProcess, reach_server
from tritonnb.core.errors import InvalidArgumentError, NotFoundError, TritonError, UnavailableError
from tritonnb.core.failures import with_short_tracebacks
from tritonnb.core.forks import finalize
from tritonnb.core.json_types import Json
from tritonnb.core.named_models import NamedModels
from tritonnb.core.protobuf import model_config_pb2 as pb
from tritonnb.core.suggestions import did_you_mean
from tritonnb.model_config.schema import ModelSpec
from tritonnb.scheduling.from_config import describe_scheduling
from tritonnb.telemetry.statistics_entry import StatisticsEntry

#: What a closed connection says of itself.
CLOSED = "the connection has been closed"


@extensible
@with_short_tracebacks
class Remote(NamedModels, OfThisProcess):
    """A connection to a server; see `connect`.

    ``remote["name"]`` is a model, ``remote["name", 1]`` a version of it. Only methods whose documentation says so
    change the server. Configurations that were applied through the connection are restored when it is closed: use it in
    a ``with`` statement, or call `close`; otherwise, this happens when Python exits. If a process was killed, `check`
    of another connection finds its changes, and `restore` undoes them.

    Attributes
    ----------
    metrics_url : str or None
    extensions : sequence of str
        Of the protocol, that the server has.
    version : str
        Of the server, such as ``2.51.0``.

    Examples
    --------
    >>> import tritonnb as tnb
    >>> with tnb.Server(port=0) as server:
    ...     @server.model(max_batch_size=4)
    ...     def double(X: tnb.FP32[1]) -> tnb.FP32[1]:
    ...         return X * 2
    ...     with tnb.connect(server.url) as remote:
    ...         print(list(remote), remote["double"](X=[[21.0]])["OUTPUT"])
    ['double'] [[42.]]
    >>> with tnb.Server(port=0, model_control_mode="explicit") as server:
    ...     _ = server.model(double, max_batch_size=4)
    ...     remote = tnb.connect(server.url)
    ...     print(remote.ready(), remote.index(), remote.metadata()["name"], remote.address_of("double").path)
    ...     _ = remote["double"](X=[[1.0], [2.0]])
    ...     print(remote.stats("double")["model_stats"][0]["inference_count"])
    ...     remote.require_extension("trace")
    ...     print(remote.trace_settings("double")["trace_level"])
    ...     config = remote["double"].config
    ...     config.max_batch_size = 2
    ...     print(config.apply(), len(remote.check()), len(remote.restore()), len(remote.check()))
    ...     remote.require_open()
    ...     remote.close()
    True [{'name': 'double', 'version': '1', 'state': 'READY'}] triton /v2/models/double
    2
    ['OFF']
    reloaded 1 1 0
    """

    record: ClassVar[Callable[..., AbstractContextManager[Any]]]
    verdict: ClassVar[Callable[..., Any]]
    dashboard: ClassVar[Callable[..., Any]]
    _repr_html_: ClassVar[Callable[..., str]]

    def __init__(self, server: V2Client, metrics_url: str | None = None) -> None:
        self._server = server
        self.metrics_url = metrics_url
        metadata = server.metadata()
        self.extensions: Sequence[str] = metadata.get("extensions", ())
        self.version = str(metadata["version"])
        self.changed_configs = ChangedConfigs()
        self._finalizer = finalize(self, self.changed_configs.restore_all)

    def _not_copied(self) -> tuple[str, str]:
        return f"connection to {self.url}", reach_server(self.url)

    @property
    def url(self) -> str:
        """The URL of the server."""
        return self._server.url

    @property
    def server(self) -> V2Client:
        """The calls of the protocol.

        Raises
        ------
        UnavailableError
            If the connection has been closed.
        """
        self.require_open()
        return self._server

    @property
    def alive(self) -> bool:
        """True if the connection has not been closed."""
        return self._finalizer.alive

    def __getitem__(self, key: str | tuple[str, int]) -> RemoteModelHandle:
        """Return the model with a name, in its latest version unless one is given.

        Raises
        ------
        NotFoundError
            If the repository of the server has no such model.
        """
        name, version = (key, -1) if isinstance(key, str) else key
        models = {row["name"] for row in self.index()}
        if name not in models:
            names = ", ".join(map(repr, sorted(models))) or "none"
            raise NotFoundError(f"{self.url} has no model '{name}'{did_you_mean(name, models)}; it has {names}")
        return RemoteModelHandle(self, name, version)

    @property
    def models(self) -> list[str]:
        """Names of the models that are ready; ``for name in remote`` and ``len(remote)`` use them."""
        return self.server.ready_models()

    def address_of(self, name: str | None) -> ModelAddress:
        """Return the address of a model, for `load` and `sweep`; without a name, of the only one.

        Parameters
        ----------
        name : str or None

        Returns
        -------
        ModelAddress

        Raises
        ------
        InvalidArgumentError
            If there is no name, and the server has several models.
        """
        server = self.server
        return ModelAddress(server, name or only_model_name(server))

    def metadata(self) -> Json:
        """Return the server metadata of the v2 protocol: ``name``, ``version``, ``extensions``."""
        return self.server.metadata()

    def index(self) -> list[dict[str, str]]:
        """Return the models in the repository of the server: ``name``, ``version``, ``state``, ``reason``."""
        return self.server.index()

    def ready(self) -> bool:
        """Return whether the server and all of its models are ready."""
        return self.server.is_ready()

    def stats(self, name: str = "") -> Json:
        """Return the response of the statistics extension, for one model or for all: ``model_stats``.

        For a deployment (`tritonnb.scale`), the statistics of all replicas are added up; see `replica_stats`.

        Parameters
        ----------
        name : str, optional
        """
        return {"model_stats": self.server.statistics(name)}

    def replicas(self) -> list[Json]:
        """Return the replicas of a deployment; see `ScaledServer.replicas`.

        Raises
        ------
        InvalidArgumentError
            If the server is not a deployment, or the connection is over gRPC.

        Examples
        --------
        >>> with tnb.scale("model_repository", replicas=2) as deployment:  # doctest: +SKIP
        ...     print(len(deployment.connect().replicas()))
        """
        server = self.server
        if not isinstance(server, V2HttpClient):
            raise InvalidArgumentError(f"the replicas of {self.url} are listed over HTTP: connect to http://HOST:PORT")
        replicas: list[Json] = server.access.fetch_json(f"{self.url}/v2/replicas")
        return replicas

    def replica_stats(self) -> dict[str, list[StatisticsEntry]]:
        """Return the statistics of each replica of a deployment: the entries of its models, by replica ID.

        Examples
        --------
        >>> with tnb.scale("model_repository", replicas=2) as deployment:  # doctest: +SKIP
        ...     print(list(deployment.connect().replica_stats()))
        """
        response = self.server.access.fetch_json(f"{self.url}/v2/models/stats?replica=*")
        return {replica: document["model_stats"] for replica, document in response["replicas"].items()}

    def trace_settings(self, model: str = "") -> Json:
        """Return the trace settings of a model, or of the server.

        Parameters
        ----------
        model : str, optional

        Returns
        -------
        dict
            As the trace extension returns them.

        Raises
        ------
        UnavailableError
            If the server has no trace extension.
        """
        self.require_open()
        self.require_extension("trace")
        return self.server.trace_settings(model)

    def metrics(self) -> dict[str, float]:
        """Return the metrics of the server, by name with labels.

        Raises
        ------
        InvalidArgumentError
            If the connection has no ``metrics_url``.
        UnavailableError
            If nothing responds there.

        Examples
        --------
        >>> import tritonnb as tnb
        >>> with tnb.Server(port=0, metrics_port=0) as server:
        ...     with tnb.connect(server.url, f"http://127.0.0.1:{server.metrics_port}/metrics") as remote:
        ...         print("nv_cpu_utilization" in remote.metrics())
        True
        """
        if self.metrics_url is None:
            raise InvalidArgumentError(
                f"metrics() of {self.url} expected a metrics_url, got none: pass it to connect()"
            )
        from prometheus_client.parser import text_string_to_metric_families

        content, _ = self._server.access.fetch(self.metrics_url)
        samples = (sample for family in text_string_to_metric_families(content.decode()) for sample in family.samples)
        return {f"{sample.name}{_labels(sample.labels)}": float(sample.value) for sample in samples}

    def require_extension(self, name: str) -> None:
        """Raise an error if the server does not have an extension.

        Parameters
        ----------
        name : str

        Raises
        ------
        UnavailableError
            If it does not.
        """
        if name not in self.extensions:
            raise UnavailableError(f"{self.url} does not have the extension '{name}'")

    def check(self) -> list[str]:
        """Find changes that clients made to the server, if the protocol shows them, and known defects of its release.

        `connect` warns about them. A configuration that was applied by other means than this package is not found: the
        protocol does not say what the repository contains.

        Returns
        -------
        list of str
            A sentence for each model that is traced with its own settings, or runs a configuration that was applied
            over the network, or has a configuration that meets a known defect of Triton, and one if the server traces
            all models.

        Raises
        ------
        TritonError
            If the server does not permit these requests.
        """
        self.require_open()
        return [str(finding) for finding in findings(self.server, self.extensions, version=self.version)]

    def restore(self, model: str | None = None) -> list[str]:
        """Put back what was changed with this package, in this process or in another process that may be gone.

        A model that is traced with its own settings gets the server's, which also ends a recording in progress
        elsewhere. A model that runs a configuration that was applied, by `RemoteConfig.apply`, an editor, or a sweep,
        is loaded with the previous one.

        Parameters
        ----------
        model : str, optional
            By default all models that are ready.

        Returns
        -------
        list of str
            What was put back; empty if there was nothing.

        Raises
        ------
        TritonError
            If something could not be put back.
        """
        self.require_open()
        changes = findings(self.server, self.extensions, model)
        for finding in changes:
            self.changed_configs.keep(finding.model)
        return put_back(changes)

    def close(self) -> None:
        """Restore the configurations that were changed; a second call has no effect.

        Raises
        ------
        TritonError
            If one could not be restored.
        """
        failures = self._finalizer()
        if failures:
            raise failures[0]

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: object, error: object, trace: object) -> None:
        if error is None:
            self.close()
        else:  # the error of the block is the one to report
            with suppress(TritonError):
                self.close()

    def require_open(self) -> None:
        """Raise an error if the connection has been closed.

        Raises
        ------
        UnavailableError
            If it has.
        """
        if not self.alive:
            raise UnavailableError(f"{self.url}: {CLOSED}")

    def __repr__(self) -> str:
        if not self.alive:
            return f"<Remote {self.url}: {CLOSED}>"
        try:
            metadata, index = self.metadata(), self.index()
        except TritonError as error:
            return f"<Remote {self.url}: {error}>"
        lines = [f"{metadata['name']} {metadata['version']} at {self.url}"]
        for entry in index:
            state = state_text(entry) if "state" in entry else "not loaded"
            lines.append(f"  {entry['name']} {entry.get('version', '')}  {state}".rstrip())
        return "\n".join([*lines, *(f"  ! {text}" for text in findings_of(self))])


def _labels(labels: Mapping[str, str]) -> str:
    pairs = ",".join(f'{name}="{value}"' for name, value in labels.items())
    return f"{{{pairs}}}" if pairs else ""


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

    verdict: ClassVar[Callable[..., Any]]

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
            Time limit in seconds; by default the connection's limit.
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
        require_positive(timeout=timeout)
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


def findings_of(remote: Remote) -> list[str]:
    """Return the findings of `Remote.check`; empty if the server does not permit it."""
    try:
        return remote.check()
    except TritonError:
        return []


def not_ready_text(model: RemoteModelHandle, error: TritonError) -> str:
    """Return why a model is not ready: its load error, or the error of a request."""
    try:
        failure = model.load_failure()
    except TritonError:
        return str(error)
    return f"not ready: {failure}" if failure else str(error)
