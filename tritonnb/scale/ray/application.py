"""`app`: a model repository as a Ray Serve application."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Mapping, Sequence
from hashlib import blake2b
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tritonnb.core.errors import InvalidArgumentError, UnavailableError
from tritonnb.core.json_types import Json
from tritonnb.core.suggestions import did_you_mean
from tritonnb.core.version import VERSION
from tritonnb.endpoints.endpoint_set import ListenOptions
from tritonnb.engine.options import EngineOptions, require_directories
from tritonnb.scale.endpoint_settings import LISTEN_OPTIONS, EndpointSettings, EngineSettings
from tritonnb.server.options import StrPath, paths_of

if TYPE_CHECKING:
    from ray.serve import Application


#: The first release with the request routers that sequences need.
NEEDED = (2, 56)
_INSTALL = 'pip install "tritonnb[ray]"'


def require_ray() -> None:
    """Check that Ray Serve is installed, and new enough.

    Raises
    ------
    UnavailableError
        If it is not.
    """
    try:
        version = metadata.version("ray")
    except metadata.PackageNotFoundError:
        raise UnavailableError(f"Ray Serve is not installed: {_INSTALL}") from None
    numbers = tuple(map(int, re.findall(r"\d+", version)[:2]))
    if numbers < NEEDED:
        needed = ".".join(map(str, NEEDED))
        raise UnavailableError(f"expected Ray {needed} or later, got {version}: {_INSTALL}")
    try:
        import ray.serve  # noqa: F401
    except ImportError as error:
        raise UnavailableError(f"Ray {version} is installed without Serve ({error}): {_INSTALL}") from None


#: The limit of requests that Ray sends to a replica at the same time. Ray's default of 5 would hide the load from our
#: schedulers, which could not form larger batches.
MAX_ONGOING_REQUESTS = 100_000
_MODEL_OPTIONS = ("replicas", "autoscaling", "ray_actor_options")
_ENGINE_OPTIONS = {option.name for option in dataclasses.fields(EngineOptions)} - {"model_repositories"}


def app(
    model_repository: StrPath | Sequence[StrPath],
    *,
    replicas: int = 1,
    autoscaling: Mapping[str, Any] | None = None,
    ray_actor_options: Mapping[str, Any] | None = None,
    models: Mapping[str, Mapping[str, Any]] | None = None,
    ingress_replicas: int = 1,
    retries: int = 1,
    direct: bool = False,
    host: str | None = None,
    grpc_host: str | None = None,
    allow_metrics: bool = True,
    **options: Any,
) -> Application:
    """Make a Ray Serve application that serves model repositories.

    Every replica is a whole server: it loads the models and runs their schedulers. ``instance_group`` and the batcher
    of a model's configuration apply inside each replica.

    Parameters
    ----------
    model_repository : path or sequence of paths
        In Triton's layout, at the same path on every node.
    replicas : int, optional
        Servers of the whole repository.
    autoscaling : mapping, optional
        Ray Serve's ``autoscaling_config``, instead of ``replicas``.
    ray_actor_options : mapping, optional
        Resources of each replica: ``{"num_cpus": 2, "num_gpus": 1, "resources": {…}}``.
    models : mapping of str to mapping, optional
        Models with their own replicas, and the ``replicas``, ``autoscaling`` and ``ray_actor_options``. The other
        replicas do not load them. An ensemble and the models of its steps have to be together.
    ingress_replicas : int, optional
        Processes that read requests and choose replicas.
    retries : int, optional
        How often a request without a sequence is sent to another replica when the replica that had it was lost. The
        lost replica may have executed it.
    direct : bool, optional
        Whether each replica also listens on its own ports, which ``/v2/replicas`` lists: on the node's address, or on
        its loopback interface if ``host`` (for gRPC, ``grpc_host``) is a loopback address.
    host : str, optional
        The address that Ray's HTTP proxies listen on: requests whose ``Host`` or ``Origin`` header names another
        machine are refused, so that a web page cannot use the server. By default any are accepted; `tritonnb.scale`
        sets it.
    grpc_host : str, optional
        The address on which gRPC is served. Ray's gRPC proxies listen on every interface; with ``"127.0.0.1"`` calls
        from other machines are refused. By default any are accepted; `tritonnb.scale` sets it.
    allow_metrics : bool, optional
        Whether ``/metrics`` has the metrics of all replicas.
    **options
        Other options of `tritonnb.Server`: ``http``, ``grpc``, ``metrics``, ``openai`` and those of the engine. Those
        that cannot be applied behind Ray Serve, such as TLS, are refused. ``model_control_mode`` is ``"explicit"``
        here, with all models loaded. ``exit_timeout`` are the seconds that a replica that is removed waits for its
        sequences and requests.

    Returns
    -------
    ray.serve.Application
        For ``serve.run``.

    Raises
    ------
    UnavailableError
        If Ray is not installed, or too old.
    InvalidArgumentError
        If an option is invalid, or cannot be applied.

    Examples
    --------
    >>> from ray import serve  # doctest: +SKIP
    >>> serve.run(app("model_repository", replicas=2))  # doctest: +SKIP
    """
    endpoints = EndpointSettings.from_options(options, host=host, grpc_host=grpc_host, allow_metrics=allow_metrics)
    settings = _engine_settings(model_repository, options, endpoints, models or {}, direct)
    everything = {"replicas": replicas, "autoscaling": autoscaling, "ray_actor_options": ray_actor_options}
    return _application(settings, everything, models or {}, ingress_replicas, retries)


def build(arguments: Mapping[str, Any]) -> Application:
    """Make the application from the ``args`` of a Serve configuration file; see `app`.

    The options that are groups are mappings there: ``http: {restricted_api: [[inference, key, secret]]}``.
    """
    options = {name: _group(name, value) for name, value in arguments.items()}
    repository = options.pop("model_repository", None)
    if repository is None:
        raise InvalidArgumentError("args of the Serve configuration: expected 'model_repository', got none")
    return app(repository, **options)


def _group(name: str, value: Any) -> Any:
    """Convert an option of a configuration file to the form that `app` takes."""
    defaults = EngineOptions() if name in _ENGINE_OPTIONS else ListenOptions()
    default: Any = getattr(defaults, name, None)
    if not dataclasses.is_dataclass(default) or not isinstance(value, Mapping):
        return value
    group: Any = type(default)
    members = {member.name for member in dataclasses.fields(group)}
    for member in value:
        if member not in members:
            raise InvalidArgumentError(f"{name}: expected {', '.join(sorted(members))}, got '{member}'")
    return group(**{member: _tuples(setting) for member, setting in value.items()})


def _tuples(value: Any) -> Any:
    return tuple(map(_tuples, value)) if isinstance(value, list) else value


def _engine_settings(
    model_repository: StrPath | Sequence[StrPath],
    options: Mapping[str, Any],
    endpoints: EndpointSettings,
    models: Mapping[str, Mapping[str, Any]],
    direct: bool,
) -> EngineSettings:
    """Return the settings of the replicas that serve the models without their own replicas.

    The options of the other groups differ in ``load_models`` only.

    Raises
    ------
    InvalidArgumentError
        If an option is unknown, invalid, or not applied behind Ray Serve.
    """
    for name in options:
        if name not in _ENGINE_OPTIONS | LISTEN_OPTIONS:
            hint = did_you_mean(name, sorted(_ENGINE_OPTIONS | LISTEN_OPTIONS))
            places = "tritonnb.scale.ray.app or tritonnb.Server"
            raise InvalidArgumentError(f"expected options of {places}, got '{name}'{hint}")
    repositories = paths_of(model_repository)
    require_directories(repositories)
    _check_models(models, repositories)
    engine = {name: value for name, value in options.items() if name in _ENGINE_OPTIONS}
    if engine.get("backend_directory") is not None:
        engine["backend_directory"] = Path(engine["backend_directory"]).resolve()
    if engine.get("allow_client_shm") and not direct:
        raise InvalidArgumentError(
            "allow_client_shm (--allow-client-shm) is not applied behind Ray Serve, whose replicas may be on other "
            "machines: expected False, got True; send the tensors in the requests, or set direct=True"
        )
    paths = tuple(str(path.resolve()) for path in repositories)
    settings = EngineSettings(paths, _with_models(engine, repositories, models), endpoints, direct)
    settings.engine_options()  # checks them
    return settings


def model_names(repositories: Sequence[Path]) -> list[str]:
    """Return the models in repositories, by name."""
    return sorted({entry.name for path in repositories for entry in path.iterdir() if entry.is_dir()})


def _check_models(placed: Mapping[str, Mapping[str, Any]], repositories: Sequence[Path]) -> None:
    known = model_names(repositories)
    for model, place in placed.items():
        if model not in known:
            raise InvalidArgumentError(f"models: expected models of the repository ({', '.join(known)}), got '{model}'")
        for name in place:
            if name not in _MODEL_OPTIONS:
                raise InvalidArgumentError(
                    f"models: expected {', '.join(_MODEL_OPTIONS)} for model '{model}', got '{name}'"
                )


def _with_models(options: Mapping[str, Any], repositories: Sequence[Path], placed: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options with the models that the default group loads."""
    options = {"model_control_mode": "explicit", **options}
    if options["model_control_mode"] != "explicit":
        if placed:
            raise InvalidArgumentError(
                f"models: expected model_control_mode='explicit', got '{options['model_control_mode']}': replicas of "
                "one model load that model only"
            )
        return options
    chosen = options.get("load_models", ["*"])
    names = model_names(repositories) if "*" in chosen else list(chosen)
    return {**options, "load_models": [name for name in names if name not in placed]}


def _application(
    settings: EngineSettings,
    everything: Mapping[str, Any],
    models: Mapping[str, Mapping[str, Any]],
    ingress_replicas: int,
    retries: int,
) -> Application:
    """Return the deployments, with the default group and the models with their own replicas."""
    require_ray()
    from ray import serve

    from tritonnb.scale.ray import deployments

    exit_timeout = settings.engine_options().exit_timeout
    coordinator = _fixed(
        serve.deployment(name="coordinator", num_replicas=1, **_WITHOUT_MODELS)(deployments.CoordinatorDeployment)
    ).bind()

    def engine(name: str, place: Mapping[str, Any], **other: Any) -> Any:
        of_group = dataclasses.replace(settings, options={**settings.options, **other})
        deployment = serve.deployment(name=name, **_engine_deployment(place, exit_timeout))(
            deployments.EngineDeployment
        )
        return _fixed(deployment, dataclasses.asdict(of_group)).bind(of_group, coordinator)

    default = engine("engine", everything)
    own = {model: engine(f"engine-{model}", place, load_models=[model]) for model, place in models.items()}
    ingress = serve.deployment(
        name="ingress",
        num_replicas=ingress_replicas,
        graceful_shutdown_timeout_s=exit_timeout,
        **_WITHOUT_MODELS,
    )(serve.ingress(deployments.http_application)(deployments.IngressDeployment))
    application: Application = _fixed(ingress, sorted(own), retries, dataclasses.asdict(settings.endpoints)).bind(
        default, own, coordinator, retries, settings.endpoints
    )
    return application


#: Ray's log has a line for each request and each call between deployments, which costs more than the call.
_LOGGING = {"enable_access_log": False}
_WITHOUT_MODELS: Json = {
    "max_ongoing_requests": MAX_ONGOING_REQUESTS,
    "ray_actor_options": {"num_cpus": 0},
    "logging_config": _LOGGING,
}


def _fixed(deployment: Any, *arguments: object) -> Any:
    """Set the version of a deployment: Ray replaces all replicas of one whose version differs from the running one.

    Without a version, each `serve.run` has another one, and a change of the number of replicas would end all sequences.
    """
    deployment._version = blake2b(repr((VERSION, arguments)).encode(), digest_size=8).hexdigest()
    return deployment


def _engine_deployment(place: Mapping[str, Any], exit_timeout: float) -> Json:
    from ray.serve.config import RequestRouterConfig

    options: Json = {
        "max_ongoing_requests": MAX_ONGOING_REQUESTS,
        "graceful_shutdown_timeout_s": exit_timeout,
        "request_router_config": RequestRouterConfig(request_router_class="tritonnb.scale.ray.router:TargetRouter"),
        "ray_actor_options": dict(place.get("ray_actor_options") or {}),
        "logging_config": _LOGGING,
    }
    autoscaling = place.get("autoscaling")
    if autoscaling is not None:
        return {**options, "autoscaling_config": dict(autoscaling)}
    return {**options, "num_replicas": place.get("replicas", 1)}
