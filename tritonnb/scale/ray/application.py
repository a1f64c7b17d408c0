"""`app`: a model repository as a Ray Serve application."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from hashlib import blake2b
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tritonnb.core.errors import InvalidArgumentError
from tritonnb.core.json_types import Json
from tritonnb.core.version import VERSION
from tritonnb.scale.ray.options import EngineSettings, check_engine_options, model_names
from tritonnb.scale.ray.version import require_ray
from tritonnb.server.options import StrPath, paths_of

if TYPE_CHECKING:
    from ray.serve import Application

#: The limit of requests that Ray sends to a replica at the same time. Ray's default of 5 would hide the load from our
#: schedulers, which could not form larger batches.
MAX_ONGOING_REQUESTS = 100_000
_MODEL_OPTIONS = ("replicas", "autoscaling", "ray_actor_options")


def app(
    model_repository: StrPath | Sequence[StrPath],
    *,
    replicas: int = 1,
    autoscaling: Mapping[str, Any] | None = None,
    ray_actor_options: Mapping[str, Any] | None = None,
    models: Mapping[str, Mapping[str, Any]] | None = None,
    ingress_replicas: int = 1,
    retries: int = 1,
    drain_timeout: float = 60.0,
    direct: bool = False,
    bound: str | None = None,
    **engine_options: Any,
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
        Models with replicas of their own, and their ``replicas``, ``autoscaling`` and ``ray_actor_options``. The other
        replicas do not load them. An ensemble and the models of its steps have to be together.
    ingress_replicas : int, optional
        Processes that read requests and choose replicas.
    retries : int, optional
        How often a request without a sequence is sent to another replica when the replica that had it was lost. The
        lost replica may have executed it.
    drain_timeout : float, optional
        Seconds that a replica that is to go waits for its sequences and requests.
    direct : bool, optional
        Whether each replica also listens on ports of its own, on the node's address: see ``/v2/replicas``.
    bound : str, optional
        The address that Ray's proxies listen on: HTTP requests whose ``Host`` or ``Origin`` header names another
        machine are refused, so that a web page cannot use the server. By default any are accepted; `tritonnb.scale`
        sets it.
    **engine_options
        Options of the engine, as those of `tritonnb.Server`. ``model_control_mode`` is ``"explicit"`` here, with all
        models loaded.

    Returns
    -------
    ray.serve.Application
        For ``serve.run``.

    Raises
    ------
    UnavailableError
        If Ray is not installed, or too old.
    InvalidArgumentError
        If an option is invalid.

    Examples
    --------
    >>> from ray import serve  # doctest: +SKIP
    >>> serve.run(app("model_repository", replicas=2))  # doctest: +SKIP
    """
    require_ray()
    from ray import serve

    from tritonnb.scale.ray import deployments

    repositories = paths_of(model_repository)
    for repository in repositories:
        if not repository.is_dir():
            raise InvalidArgumentError(f"model repository '{repository}' is not a directory")
    check_engine_options(engine_options)
    placed = dict(models or {})
    _check_models(placed, repositories)
    options = _engine_options(engine_options, repositories, placed)
    paths = tuple(str(path.resolve()) for path in repositories)
    coordinator = _fixed(serve.deployment(name="coordinator", **_COORDINATOR)(deployments.Coordinator)).bind()

    def engine(name: str, settings: EngineSettings, place: Mapping[str, Any]) -> Any:
        deployment = serve.deployment(name=name, **_engine_deployment(place, drain_timeout))(deployments.Engine)
        return _fixed(deployment, settings).bind(settings, coordinator)

    everything = {"replicas": replicas, "autoscaling": autoscaling, "ray_actor_options": ray_actor_options}
    default = engine("engine", EngineSettings(paths, options, direct), everything)
    own = {
        model: engine(f"engine-{model}", EngineSettings(paths, {**options, "load_models": [model]}, direct), place)
        for model, place in placed.items()
    }
    ingress = serve.deployment(
        name="ingress",
        num_replicas=ingress_replicas,
        max_ongoing_requests=MAX_ONGOING_REQUESTS,
        ray_actor_options={"num_cpus": 0},
        logging_config=_LOGGING,
    )(serve.ingress(deployments.http_application)(deployments.Ingress))
    application: Application = _fixed(ingress, sorted(own), retries, bound).bind(
        default, own, coordinator, retries, bound
    )
    return application


def build(arguments: Mapping[str, Any]) -> Application:
    """Make the application from the ``args`` of a Serve configuration file; see `app`."""
    options = dict(arguments)
    repository = options.pop("model_repository", None)
    if repository is None:
        raise InvalidArgumentError("args of the Serve configuration: expected 'model_repository', got none")
    return app(repository, **options)


#: Ray's log has a line for each request and each call between deployments, which costs more than the call.
_LOGGING = {"enable_access_log": False}
_COORDINATOR = {
    "num_replicas": 1,
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


def _engine_deployment(place: Mapping[str, Any], drain_timeout: float) -> Json:
    from ray.serve.config import RequestRouterConfig

    options: Json = {
        "max_ongoing_requests": MAX_ONGOING_REQUESTS,
        "graceful_shutdown_timeout_s": drain_timeout,
        "request_router_config": RequestRouterConfig(request_router_class="tritonnb.scale.ray.router:TargetRouter"),
        "ray_actor_options": dict(place.get("ray_actor_options") or {}),
        "logging_config": _LOGGING,
    }
    autoscaling = place.get("autoscaling")
    if autoscaling is not None:
        return {**options, "autoscaling_config": dict(autoscaling)}
    return {**options, "num_replicas": place.get("replicas", 1)}


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


def _engine_options(keywords: Mapping[str, Any], repositories: Sequence[Path], placed: Mapping[str, Any]) -> Json:
    options = {"model_control_mode": "explicit", **keywords}
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
