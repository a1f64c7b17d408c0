"""`connect`: a connection to any Triton, whose models have handles like those of a server of this process."""

from __future__ import annotations

import os
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, suppress
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from tritonnb.core.errors import InvalidArgumentError, NotFoundError, TritonError, UnavailableError
from tritonnb.core.failures import with_short_traceback
from tritonnb.core.json_types import Json
from tritonnb.core.protobuf import model_config_pb2 as pb
from tritonnb.core.suggestions import did_you_mean
from tritonnb.profile.access import TIMEOUT_S, Access
from tritonnb.profile.remote import RemoteModel
from tritonnb.profile.remote_server import GrpcServer, HttpServer, remote_server
from tritonnb.recording.recording import Recording
from tritonnb.remote.model import RemoteModelHandle
from tritonnb.remote.otlp_receiver import OtlpReceiver
from tritonnb.remote.record import record
from tritonnb.remote.replicas import is_deployment, record_replicas, replicas_of, statistics_by_replica
from tritonnb.telemetry.statistics_entry import StatisticsEntry

if TYPE_CHECKING:
    from tritonnb.notebook.replicas_view import ReplicasView

_CLOSED = "the connection has been closed"


def connect(
    url: str,
    metrics_url: str | None = None,
    *,
    headers: Mapping[str, str] | None = None,
    ssl: Any = None,
    timeout: float = TIMEOUT_S,
) -> Remote:
    """Connect to a server of the v2 protocol, such as Triton.

    Parameters
    ----------
    url : str
        ``http://HOST:PORT``, ``https://…``, ``grpc://HOST:PORT`` or ``grpcs://…``; without a scheme ``http``.
    metrics_url : str, optional
        URL of the metrics, such as ``http://HOST:8002/metrics``; for `Remote.metrics`.
    headers : mapping of str to str, optional
        Sent with every request, such as ``{"Authorization": "Bearer …"}``.
    ssl : ssl.SSLContext, grpc.ChannelCredentials or path, optional
        For ``https`` and ``grpcs``: a context (HTTP), credentials (gRPC), or a file with the certificates to trust.
    timeout : float, optional
        Seconds that the server may take to respond to a request that runs no model.

    Returns
    -------
    Remote

    Raises
    ------
    InvalidArgumentError
        If the URL is invalid, or the server refuses the credentials.
    UnavailableError
        If no server responds.

    Examples
    --------
    >>> remote = tnb.connect("http://triton:8000")  # doctest: +SKIP
    >>> remote["dense"].stats()["execution_count"]  # doctest: +SKIP
    """
    scheme, authority, prefix = RemoteModel.split(url)
    return Remote(remote_server(scheme, authority, prefix, Access(dict(headers or {}), ssl, timeout)), metrics_url)


class Remote:
    """A connection to a server; see `connect`.

    ``remote["name"]`` is a model, ``remote["name", 1]`` a version of it. Nothing on the server is changed unless a
    method is called that says so. Configurations that were applied through the connection are restored when it is
    closed: use it in a ``with`` statement, or call `close`; otherwise that happens when Python exits.

    Attributes
    ----------
    server : HttpServer or GrpcServer
        The calls of the protocol.
    metrics_url : str or None
    """

    def __init__(self, server: HttpServer | GrpcServer, metrics_url: str | None = None) -> None:
        self.server = server
        self.metrics_url = metrics_url
        self._metadata = server.metadata()
        self._restorations: dict[str, Callable[[], object]] = {}
        self._finalizer = weakref.finalize(self, _restore, self._restorations)

    @property
    def url(self) -> str:
        """The URL of the server."""
        return self.server.url

    @property
    def alive(self) -> bool:
        """Whether the connection has not been closed."""
        return self._finalizer.alive

    @with_short_traceback
    def __getitem__(self, key: str | tuple[str, int]) -> RemoteModelHandle:
        """The model with a name, and its latest version unless one is given.

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

    def __iter__(self) -> Iterator[str]:
        """Names of the models that are ready."""
        return iter(dict.fromkeys(row["name"] for row in self.index() if row.get("state") == "READY"))

    def address(self, name: str | None) -> RemoteModel:
        """The address of a model, for `load` and `sweep`; without a name, of the only one."""
        return RemoteModel.parse(self.url, name, access=self.server.access)

    @with_short_traceback
    def metadata(self) -> Json:
        """Server metadata of the v2 protocol: ``name``, ``version``, ``extensions``."""
        self._require_open()
        return self.server.metadata()

    @with_short_traceback
    def index(self) -> list[dict[str, str]]:
        """The models in the repository of the server: ``name``, ``version``, ``state``, ``reason``."""
        self._require_open()
        return self.server.index()

    @with_short_traceback
    def ready(self) -> bool:
        """Whether the server and all of its models are ready."""
        self._require_open()
        return self.server.is_ready()

    @with_short_traceback
    def stats(self, name: str = "") -> Json:
        """The response of the statistics extension, for one model or for all: ``model_stats``.

        Of a deployment (`tritonnb.scale`) the statistics of all replicas are summed; see `replica_stats`.
        """
        self._require_open()
        return {"model_stats": self.server.statistics(name)}

    @with_short_traceback
    def replicas(self) -> list[Json]:
        """The replicas of a deployment; see `ScaledServer.replicas`.

        Raises
        ------
        InvalidArgumentError
            If the server is not a deployment, or the connection is over gRPC.
        """
        self._require_open()
        return replicas_of(self.server)

    @with_short_traceback
    def replica_stats(self) -> dict[str, list[StatisticsEntry]]:
        """The statistics of each replica of a deployment: the entries of its models, by the ID of the replica."""
        self._require_open()
        return statistics_by_replica(self.server)

    def dashboard(self) -> ReplicasView:
        """The replicas of a deployment: requests, queues and batch sizes of each, and where sequences live.

        Returns
        -------
        ReplicasView
            A widget, which is updated every second; `close` ends it.

        Raises
        ------
        InvalidArgumentError
            If the server is not a deployment, or the connection is over gRPC.
        """
        from tritonnb.notebook.replicas_view import ReplicasView

        self._require_open()
        return ReplicasView(self)

    @with_short_traceback
    def trace_settings(self, model: str = "") -> Json:
        """The trace settings of a model, or of the server."""
        self._require_open()
        self.require_extension("trace")
        return self.server.trace_settings(model)

    @with_short_traceback
    def metrics(self) -> dict[str, float]:
        """The metrics of the server, by name with labels.

        Raises
        ------
        InvalidArgumentError
            If the connection has no ``metrics_url``.
        UnavailableError
            If nothing responds there.
        """
        if self.metrics_url is None:
            raise InvalidArgumentError(
                f"metrics() of {self.url} expected a metrics_url, got none: pass it to connect()"
            )
        from prometheus_client.parser import text_string_to_metric_families

        content, _ = self.server.access.fetch(self.metrics_url)
        samples = (sample for family in text_string_to_metric_families(content.decode()) for sample in family.samples)
        return {f"{sample.name}{_labels(sample.labels)}": float(sample.value) for sample in samples}

    def record(
        self,
        models: str | Sequence[str] | None = None,
        *,
        trace_file: str | os.PathLike[str] | None = None,
        receiver: OtlpReceiver | None = None,
        trace_rate: int = 1,
        rows: bool = True,
        timeout: float = 15.0,
    ) -> AbstractContextManager[Recording]:
        """Record models during a ``with`` block.

        A deployment (`tritonnb.scale`) sends the events of all replicas, whose instances have the replica in their
        names. The clocks of several machines have to be synchronized.

        Another server is recorded by its trace extension. The trace settings of the server are changed for the block,
        and restored afterwards. The traces come from the trace file, if this process can read it, or from a receiver
        (trace mode ``opentelemetry``).

        Parameters
        ----------
        models : str or sequence of str, optional
            By default all models that are ready.
        trace_file : path, optional
            Where the trace file of the server is on this machine; by default the path in its trace settings.
        receiver : OtlpReceiver, optional
            To which the server sends its spans.
        trace_rate : int, optional
            Record one of so many requests; figures that need every request need 1.
        rows : bool, optional
            Record the shapes of inputs, too (level ``TENSORS``), to know the rows of requests. Triton then also writes
            the contents of all tensors to its trace file. Spans contain no shapes.
        timeout : float, optional
            Seconds to wait at the end for the traces of the requests that the server has counted.

        Returns
        -------
        context manager of Recording
            The recording is filled when the block ends.

        Raises
        ------
        TritonError
            If the server cannot trace, or its traces cannot be read; its settings are restored.

        Examples
        --------
        >>> with remote.record("dense") as rec:  # doctest: +SKIP
        ...     tnb.load(remote["dense"], rate=100, duration=5).wait()
        >>> rec.diagnoses()  # doctest: +SKIP
        """
        self._require_open()
        names = [models] if isinstance(models, str) else list(self) if models is None else list(models)
        if trace_file is None and receiver is None and is_deployment(self.server):
            return record_replicas(self.server, names)
        self.require_extension("trace")
        return record(
            self.server,
            names,
            trace_file=trace_file,
            receiver=receiver,
            trace_rate=trace_rate,
            rows=rows,
            timeout_s=timeout,
        )

    def require_extension(self, name: str) -> None:
        """Raise an error if the server does not have an extension.

        Raises
        ------
        UnavailableError
            If it does not.
        """
        if name not in self._metadata.get("extensions", ()):
            raise UnavailableError(f"{self.url} does not have the extension '{name}'")

    def restore_later(self, name: str, restore: Callable[[], object]) -> None:
        """Restore the configuration of a model when the connection is closed; the first call for a model counts."""
        self._restorations.setdefault(name, restore)

    def restore(self, name: str) -> None:
        """Restore the configuration that a model had before it was changed through this connection."""
        restore = self._restorations.pop(name, None)
        failures = _restore({name: restore}) if restore is not None else []
        if failures:
            raise failures[0]

    def keep(self, name: str) -> None:
        """Leave the changed configuration of a model on the server when the connection is closed."""
        self._restorations.pop(name, None)

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

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is None:
            self.close()
        else:  # the error of the block is the one to report
            with suppress(TritonError):
                self.close()

    def config_of(self, name: str) -> pb.ModelConfig:
        """The running configuration of a model."""
        self._require_open()
        return self.server.config(name)

    def _require_open(self) -> None:
        if not self.alive:
            raise UnavailableError(f"{self.url}: {_CLOSED}")

    def __repr__(self) -> str:
        from tritonnb.notebook.remote_cards import remote_text

        return remote_text(self) if self.alive else f"<Remote {self.url}: {_CLOSED}>"

    def _repr_html_(self) -> str:
        from tritonnb.notebook.remote_cards import remote_card

        return remote_card(self) if self.alive else f"<p><b>{self.url}</b>: {_CLOSED}</p>"


def _labels(labels: Mapping[str, str]) -> str:
    pairs = ",".join(f'{name}="{value}"' for name, value in labels.items())
    return f"{{{pairs}}}" if pairs else ""


def _restore(restorations: dict[str, Callable[[], object]]) -> list[TritonError]:
    """Restore all configurations; the errors of those that could not be restored."""
    failures: list[TritonError] = []
    while restorations:
        name, restore = restorations.popitem()
        try:
            restore()
        except TritonError as error:
            failures.append(UnavailableError(f"model '{name}': its configuration was not restored: {error.message}"))
    return failures
