"""`scale`: a model repository on a Ray cluster, from a notebook."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Self

from tritonnb.client.connect import connect
from tritonnb.client.connection import Remote
from tritonnb.client.options import ConnectionOptions
from tritonnb.core.copies import OfThisProcess, reach_server
from tritonnb.core.failures import with_short_traceback, with_short_tracebacks
from tritonnb.core.json_types import Json
from tritonnb.engine.options import EngineOptions
from tritonnb.scale.endpoint_settings import check_grpc_host
from tritonnb.server.options import StrPath

if TYPE_CHECKING:
    from ray.serve import Application


@with_short_traceback
def scale(
    model_repository: StrPath | Sequence[StrPath],
    *,
    address: str | None = None,
    host: str = "127.0.0.1",
    port: int | None = None,
    grpc_port: int | None = None,
    grpc_host: str = "",
    every_node: bool = False,
    name: str = "tritonnb",
    **options: Any,
) -> ScaledServer:
    """Serve a model repository with several replicas, on Ray Serve.

    The models, the v2 protocol and the clients are those of `serve`. The requests of a sequence go to one replica.
    Needs the extra ``ray``.

    Parameters
    ----------
    model_repository : path or sequence of paths
        At the same path on every node.
    address : str, optional
        Of a Ray cluster: ``"auto"`` for one on this machine, ``"HOST:6379"``, ``"ray://HOST:10001"``. By default the
        cluster that this process is connected to, the one in ``RAY_ADDRESS``, or a new one on this machine.
    host : str, optional
        The address that Ray's HTTP proxies listen on.
    port : int, optional
        HTTP port; 0 for any free port. By default 8000 or the next free port.
    grpc_port : int, optional
        gRPC port; 0 for any free port. By default gRPC is off.
    grpc_host : str, optional
        By default ``host``. Ray's gRPC proxies listen on every interface: with a loopback address, calls from other
        machines are refused; the address of one other interface is an error.
    every_node : bool, optional
        Whether every node has a proxy; by default only the head node has one.
    name : str, optional
        Of the Serve application.
    **options
        ``replicas``, ``autoscaling``, ``models`` and the other arguments of `tritonnb.scale.ray.app`, which include
        those of `tritonnb.Server`: ``http=HttpOptions(...)``, ``openai=OpenAiOptions(...)``, ``trace``, ….

    Returns
    -------
    ScaledServer

    Raises
    ------
    InvalidArgumentError
        If an option is invalid, or cannot be applied behind Ray Serve.
    UnavailableError
        If Ray is missing or too old, no cluster responds, or a port is taken.
    InternalError
        If the replicas do not start.

    Examples
    --------
    >>> deployment = tnb.scale("model_repository", replicas=2)  # doctest: +SKIP
    >>> deployment.connect()["accumulator"].stats()["inference_count"]  # doctest: +SKIP
    """
    from tritonnb.scale.ray.application import app
    from tritonnb.scale.ray.cluster import connect_ray, run, start_serve

    if grpc_port is not None:
        check_grpc_host(grpc_host or host)
    options |= {"host": host, "grpc_host": grpc_host or host}
    application = app(model_repository, **options)
    connected = connect_ray(address)
    try:
        http, grpc = start_serve(host, port, grpc_port, every_node)
        run(application, name)
    except BaseException:
        if connected:
            import ray

            ray.shutdown()
        raise
    restricted = options["http"].restricted_api if options.get("http") else ()
    return ScaledServer(
        name,
        host,
        http,
        grpc,
        connected,
        lambda replicas: app(model_repository, **{**options, **replicas}),
        {header: value for _, header, value in restricted},
        options.get("exit_timeout", EngineOptions().exit_timeout),
    )


@with_short_tracebacks
class ScaledServer(OfThisProcess):
    """A model repository that Ray Serve serves; made by `scale`.

    Attributes
    ----------
    name : str
        Of the Serve application.
    port : int
    grpc_port : int or None

    Examples
    --------
    >>> deployment = tnb.scale("model_repository", replicas=2)  # doctest: +SKIP
    >>> deployment.scale_to(4)  # doctest: +SKIP
    >>> [replica["state"] for replica in deployment.replicas()]  # doctest: +SKIP
    >>> deployment.connect()["accumulator"].stats()["inference_count"]  # doctest: +SKIP
    >>> deployment.stop()  # doctest: +SKIP
    """

    def __init__(
        self,
        name: str,
        host: str,
        port: int,
        grpc_port: int | None,
        owns_connection: bool,
        make_application: Callable[[Mapping[str, Any]], Application],
        headers: Mapping[str, str],
        exit_timeout: float,
    ) -> None:
        self.name = name
        self._make_application = make_application
        self.port = port
        self.grpc_port = grpc_port
        self._host = "127.0.0.1" if host in ("", "0.0.0.0", "::") else host
        self._owns_connection = owns_connection
        self._headers = headers
        self._exit_timeout = exit_timeout

    def _not_copied(self) -> tuple[str, str]:
        return f"deployment '{self.name}'", reach_server(f"http://{self._host}:{self.port}")

    @property
    def url(self) -> str:
        """The URL of the v2 protocol over HTTP."""
        return f"http://{self._host}:{self.port}"

    @property
    def grpc_url(self) -> str:
        """The address for gRPC clients; empty without gRPC."""
        return "" if self.grpc_port is None else f"{self._host}:{self.grpc_port}"

    def connect(self) -> Remote:
        """Connect to the deployment: handles of models, statistics, recordings, a dashboard; see `tritonnb.connect`.

        The connection sends the headers that restricted APIs require.
        """
        return connect(self.url, f"{self.url}/metrics", headers=self._headers)

    def replicas(self) -> list[Json]:
        """Return the replicas: where they run, how many requests they have, which sequences live on them.

        Returns
        -------
        list of dict
            ``replica``, ``group``, ``node``, ``state``, ``in_flight``, ``queued``, ``sequences``, ``url``,
            ``grpc_url``. Replicas report every second.
        """
        replicas: list[Json] = ConnectionOptions(self._headers).fetch_json(f"{self.url}/v2/replicas")
        return replicas

    def scale_to(self, replicas: int) -> None:
        """Change the number of replicas of the whole repository, and wait until the new replicas run.

        Live sequences do not move: a draining replica serves its sequences until they end, or until ``exit_timeout``.

        Parameters
        ----------
        replicas : int
        """
        from tritonnb.scale.ray.cluster import run

        run(self._make_application({"replicas": replicas}), self.name)

    def stop(self) -> None:
        """Stop the replicas, and Serve with them.

        Requests in progress are answered, at most for ``exit_timeout``; new ones are refused. A cluster that `scale`
        started is ended. A second call has no effect.
        """
        import ray

        from tritonnb.scale.ray.cluster import stop_serve

        if ray.is_initialized():
            stop_serve(self.name, self._exit_timeout)
            if self._owns_connection:
                ray.shutdown()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: object, error: object, trace: object) -> None:
        self.stop()

    def __repr__(self) -> str:
        grpc = f", gRPC {self.grpc_url}" if self.grpc_url else ""
        return f"<ScaledServer '{self.name}' {self.url}{grpc}>"
