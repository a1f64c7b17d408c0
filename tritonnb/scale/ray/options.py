"""The settings of the deployments of an application, as values that travel to other machines."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tritonnb.core.errors import InvalidArgumentError
from tritonnb.core.suggestions import did_you_mean
from tritonnb.runtime.options import EngineOptions, require_directories
from tritonnb.scale.endpoint_settings import LISTEN_OPTIONS, EndpointSettings
from tritonnb.server.options import StrPath, paths_of

_MODEL_OPTIONS = ("replicas", "autoscaling", "ray_actor_options")
_ENGINE_OPTIONS = {option.name for option in dataclasses.fields(EngineOptions)} - {"model_repositories"}


@dataclass(frozen=True, slots=True)
class EngineSettings:
    """The options of the engine of each replica of a group, and of its endpoints.

    Attributes
    ----------
    repositories : tuple of str
        Absolute paths, on every node.
    options : mapping
        Fields of `EngineOptions`.
    endpoints : EndpointSettings
    direct : bool
        Whether a replica also listens on its own ports.
    """

    repositories: tuple[str, ...]
    options: Mapping[str, Any]
    endpoints: EndpointSettings = field(default_factory=EndpointSettings)
    direct: bool = False

    def engine_options(self) -> EngineOptions:
        """Return the options of the engine.

        Raises
        ------
        InvalidArgumentError
            If one is invalid.
        """
        return EngineOptions(tuple(map(Path, self.repositories)), **self.options)


@dataclass(frozen=True, slots=True)
class DeploymentPlan:
    """The settings of the groups of replicas and of the ingress.

    Attributes
    ----------
    default : EngineSettings
        Of the replicas that serve the models without their own replicas.
    placed : mapping of str to EngineSettings
        By model.
    """

    default: EngineSettings
    placed: Mapping[str, EngineSettings]

    @property
    def endpoints(self) -> EndpointSettings:
        """The settings of the ingress."""
        return self.default.endpoints

    @property
    def exit_timeout(self) -> float:
        """The seconds for which a stopping replica waits for its sequences and requests."""
        return self.default.engine_options().exit_timeout

    @classmethod
    def from_options(
        cls,
        model_repository: StrPath | Sequence[StrPath],
        options: Mapping[str, Any],
        endpoints: EndpointSettings,
        models: Mapping[str, Mapping[str, Any]],
        direct: bool,
    ) -> DeploymentPlan:
        """Apply every option, or refuse it.

        Parameters
        ----------
        model_repository : path or sequence of paths
        options : mapping of str to object
            Keyword arguments of `tritonnb.Server`.
        endpoints : EndpointSettings
            With the options of the endpoints among them.
        models, direct
            As of `tritonnb.scale.ray.app`.

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
        engine = _with_models(engine, repositories, models)
        paths = tuple(str(path.resolve()) for path in repositories)
        default = EngineSettings(paths, engine, endpoints, direct)
        default.engine_options()  # checks them
        own = {
            model: dataclasses.replace(default, options={**engine, "load_models": [model]}) for model in sorted(models)
        }
        return cls(default, own)


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
