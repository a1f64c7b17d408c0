"""`load`: find a model, send requests to it in the background, and measure them on the client side."""

from __future__ import annotations

from collections.abc import Iterable

from tritonnb.client.address import Addressed, ModelAddress
from tritonnb.client.model import Model
from tritonnb.core.arguments import require_positive
from tritonnb.core.errors import InvalidArgumentError, UnavailableError
from tritonnb.core.failures import with_short_traceback
from tritonnb.core.grpcio import require_grpcio
from tritonnb.core.option_types import with_checked_types
from tritonnb.core.protobuf import model_config_pb2 as pb
from tritonnb.lab.load.examples import Inputs, Shapes, examples
from tritonnb.lab.load.http_target import HttpStreamTarget, HttpTarget
from tritonnb.lab.load.running_load import Load
from tritonnb.lab.load.targets import InProcessTarget, Target
from tritonnb.lab.load.workload import workload
from tritonnb.lab.simulation.arrivals import ClosedLoop
from tritonnb.recording.arrivals import Arrival
from tritonnb.server.model_handle import ModelHandle
from tritonnb.server.server import Server

#: A model, or a server and the name of a model: of this process, of a connection, or at a URL.
AnyModel = Model | Server | Addressed | ModelAddress | str


@with_short_traceback
@with_checked_types
def load(
    model: AnyModel,
    name: str | None = None,
    *,
    rate: float | None = None,
    arrivals: str | Iterable[Arrival | tuple[float, int]] | ClosedLoop | None = None,
    clients: int | None = None,
    duration: float | None = None,
    requests: int | None = None,
    rows: int | None = None,
    burst: int = 8,
    sequence_length: int | None = None,
    sequences: int = 4,
    inputs: Inputs = "random",
    shapes: Shapes | None = None,
    over: str | None = None,
    record: bool | None = None,
    grace: float = 60.0,
    seed: int = 0,
) -> Load:
    """Send requests to a model in the background.

    Give ``rate`` for an open loop, ``clients`` for a closed loop, or a list of arrivals.

    Parameters
    ----------
    model : ModelHandle, Server, RemoteModelHandle, Remote or str
        ``server["name"]``, ``remote["name"]`` of `connect`, or any server of the v2 protocol:
        ``http://HOST:PORT/v2/models/NAME`` or ``grpc://HOST:PORT/v2/models/NAME``. A server, and a URL without the path
        of a model, need ``name``, unless there is only one model. Without a scheme the protocol is HTTP, or the one of
        ``over``.
    name : str, optional
        Name of the model, if ``model`` does not determine it.
    rate : float, optional
        Requests per second of an open loop.
    arrivals : str, iterable of Arrival or of (time in µs, rows), or ClosedLoop, optional
        Arrival process of an open loop: ``"constant"`` (the default), ``"poisson"``, ``"burst"``; or a list of arrivals
        such as `Recording.arrivals`, whose shapes are ignored.
    clients : int, optional
        Number of clients of a closed loop: each waits for its response before it sends the next request.
    duration : float, optional
        Seconds. Without ``duration`` and ``requests`` the load runs until `Load.stop` and keeps the last 100,000
        responses.
    requests : int, optional
        Maximum number of requests.
    rows : int, optional
        Rows of each request; by default the rows of the given inputs, or 1 for generated inputs.
    burst : int, optional
        Requests per burst, for ``arrivals="burst"``.
    sequence_length : int, optional
        Number of requests per sequence; 0 sends no sequences. Each client of a closed loop sends one sequence after the
        other; an open loop sends ``sequences`` of them concurrently. Open sequences are ended at the end. By default 10
        for a model with ``sequence_batching`` and for an ensemble with such a step, and 0 for other models.
    sequences : int, optional
        Number of concurrent sequences of an open loop.
    inputs : str, mapping or sequence of mappings, optional
        ``"random"`` or ``"zero"`` tensors generated from the model's metadata, the tensors of a request by name, or
        several of these, sent in turn.
    shapes : mapping of str to sequence of int, optional
        The shape to use for inputs of variable dimensions, without the batch dimension.
    over : str, optional
        ``"process"`` to submit requests directly, ``"http"`` or ``"grpc"`` to send them to the server's endpoint. By
        default ``"process"`` for a model of this process, and the scheme of a URL. The responses of a decoupled model
        are measured one by one in each case: over HTTP by ``generate_stream``, which sends no sequences, priorities or
        timeouts, over gRPC by a stream for each request.
    record : bool, optional
        Record the server during the load, if it is in this process; by default if the load has an end.
    grace : float, optional
        Seconds without any response after which requests in flight count as failed, once all requests are sent or all
        clients of a closed loop with a limited number of requests are waiting.
    seed : int, optional
        Seed of random times and tensors.

    Returns
    -------
    Load
        Returned immediately; the load is running.

    Raises
    ------
    InvalidArgumentError
        If the arguments contradict each other or do not fit the model.
    UnavailableError
        If no server responds at the URL, or the server has no endpoint for ``over``.

    Examples
    --------
    >>> import tritonnb as tnb
    >>> with tnb.Server(port=0) as server:
    ...     @server.model(max_batch_size=4)
    ...     def double(X: tnb.FP32[1]) -> tnb.FP32[1]:
    ...         return X * 2
    ...     result = tnb.load(server["double"], rate=300, arrivals="poisson", requests=60, seed=1).wait()
    >>> result.sent
    60
    """
    require_positive(grace=grace)
    source = find_model(model, name, over)
    target = open_target(source, over)
    try:
        traffic = workload(
            rate=rate,
            arrivals=arrivals,
            clients=clients,
            duration=duration,
            requests=requests,
            rows=rows,
            burst=burst,
            sequence_length=sequence_length,
            sequences=sequences,
            seed=seed,
            stateful=target.stateful,
        )
        tensors = examples(target.spec, inputs, shapes or {}, seed)
        limit = target.spec.max_batch_size
        if rows is not None and rows > max(1, limit):
            raise InvalidArgumentError(
                f"rows for model '{target.spec.name}' expected at most {max(1, limit)} (max_batch_size), got {rows}"
            )
    except BaseException:
        target.close()
        raise
    recorded = traffic.ends if record is None else record
    return Load(target, traffic, tensors, source if recorded and not isinstance(source, ModelAddress) else None, grace)


def find_model(model: AnyModel, name: str | None = None, over: str | None = None) -> ModelHandle | ModelAddress:
    """Find a model.

    Parameters
    ----------
    model : ModelHandle, Server, ModelAddress or str
        ``server["NAME"]``, a server, or a URL: ``HOST:PORT``, ``http://HOST:PORT`` or ``grpc://HOST:PORT``, each
        optionally with ``/v2/models/NAME`` and ``/versions/VERSION``.
    name : str, optional
        Name of the model, if ``model`` does not determine it.
    over : str, optional
        ``"process"``, ``"http"`` or ``"grpc"``; see `load`.

    Raises
    ------
    InvalidArgumentError
        If it is none of these, or does not determine one model.
    UnavailableError
        If the list of models is needed from a server that does not respond.
    """
    if over not in (None, "process", "http", "grpc"):
        raise InvalidArgumentError(f"over expected 'process', 'http' or 'grpc', got {over!r}")
    if isinstance(model, ModelAddress):
        return model
    if isinstance(model, Addressed):
        return model.address_of(name)
    if isinstance(model, str):
        if over == "process":
            raise InvalidArgumentError(f"over='process' expected a model of this process, got the URL '{model}'")
        return ModelAddress.parse(model, name, over)
    if isinstance(model, Server):
        return _find_on_server(model, name)
    if not isinstance(model, ModelHandle):
        raise InvalidArgumentError(
            f"model expected server['NAME'] or http://HOST:PORT/v2/models/NAME, got {type(model).__name__}"
        )
    if name not in (None, model.name):
        raise InvalidArgumentError(
            f"name expected '{model.name}', the name of the given model, got '{name}': give one of them"
        )
    return model


def open_target(model: ModelHandle | ModelAddress, over: str | None) -> Target:
    """Create the target of a load: one that streams if the model is decoupled.

    Raises
    ------
    InvalidArgumentError
        If the server does not know the model.
    UnavailableError
        If no server responds at the URL.
    UnsupportedError
        If the protocol cannot stream the requests that the model needs.
    """
    if not isinstance(model, ModelAddress):
        if over is None or over == "process":
            return InProcessTarget(model)
        model = remote_model(model, over)
    config = model.config()
    decoupled = config.model_transaction_policy.decoupled
    if model.protocol != "grpc":
        return (HttpStreamTarget if decoupled else HttpTarget)(model, config)
    require_grpcio("a load over gRPC")
    from tritonnb.lab.load.grpc_target import GrpcStreamTarget, GrpcTarget

    return (GrpcStreamTarget if decoupled else GrpcTarget)(model, config)


def remote_model(model: ModelHandle, over: str) -> ModelAddress:
    """Return the address of a model of this process at the HTTP or gRPC endpoint of its server."""
    server = model.server
    authority = server.url.rpartition("://")[2]
    if over == "grpc":
        if server.grpc_port is None:
            raise UnavailableError(
                "over='grpc' expected a server with a gRPC endpoint, got one without: start it with grpc_port=0"
            )
        authority = f"127.0.0.1:{server.grpc_port}"
    elif not server.url:
        raise UnavailableError(
            "over='http' expected a server with an HTTP endpoint, got one without: start it with http_port=0"
        )
    return ModelAddress.parse(f"{over}://{authority}", model.name).sibling(model.name, model.version)


def config_of(model: ModelHandle | ModelAddress) -> pb.ModelConfig:
    """Return the configuration of the running model."""
    return model.config() if isinstance(model, ModelAddress) else model.served.config


def step_of(ensemble: ModelHandle | ModelAddress, name: str) -> ModelHandle | ModelAddress:
    """Return a model of the server of a model: that model itself, or another one."""
    if name == ensemble.name:
        return ensemble
    if isinstance(ensemble, ModelAddress):
        return ensemble.sibling(name, -1)
    return ModelHandle(ensemble.server, name)


def _find_on_server(server: Server, name: str | None) -> ModelHandle:
    names = sorted(server)
    if name is None and len(names) != 1:
        listed = ", ".join(map(repr, names)) or "none"
        raise InvalidArgumentError(f"model expected server['NAME'] with one of the models {listed}, got a server")
    return server[name or names[0]]
