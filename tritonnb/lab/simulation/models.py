"""The models of a simulated server: their configurations, and the model that clients send requests to."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol, TypeAlias, runtime_checkable

from tritonnb.core.errors import InvalidArgumentError
from tritonnb.core.protobuf import model_config_pb2 as pb
from tritonnb.lab.simulation.calls import CallingService
from tritonnb.lab.simulation.service import Service
from tritonnb.model_config.ensemble import StepModel, check_ensemble, check_ensemble_scheduling, check_no_cycle
from tritonnb.model_config.read import AnyConfig, read_config


@runtime_checkable
class RunningServer(Protocol):
    """A `Server`, without an import of what it runs on, which the playground does not have."""

    engine: Any

    def call(self, function: Any, /, *arguments: Any) -> Any:
        """Call a function on the event loop of the server."""


#: A model repository, a running server, or configurations: by name, or with names.
Models: TypeAlias = str | os.PathLike[str] | RunningServer | Mapping[str, AnyConfig] | Iterable[AnyConfig]


def read_models(models: Models) -> dict[str, pb.ModelConfig]:
    """Return the configurations of models by name.

    Raises
    ------
    InvalidArgumentError
        If there are none, or one cannot be read.
    """
    configs = list(_configs(models))
    by_name = {config.name: config for config in configs}
    if not by_name:
        raise InvalidArgumentError(
            f"simulation expected a model repository, a server, or a dict of configurations by name, got {models!r}"
        )
    if len(by_name) < len(configs):
        raise InvalidArgumentError(
            f"simulation expected models with different names, got {[config.name for config in configs]}"
        )
    return by_name


def _configs(models: Models) -> Iterable[pb.ModelConfig]:
    if isinstance(models, RunningServer):
        configs: dict[str, pb.ModelConfig] = models.call(models.engine.configs)
        return configs.values()
    if isinstance(models, Mapping):
        return [_named(read_config(config, name=name), name) for name, config in models.items()]
    if isinstance(models, str | os.PathLike):
        files = sorted(Path(models).glob("*/config.pbtxt"))
        return [read_config(file, name=file.parent.name) for file in files]
    return [read_config(config) for config in models] if isinstance(models, Iterable) else []


def _named(config: pb.ModelConfig, name: str) -> pb.ModelConfig:
    if config.name != name:
        raise InvalidArgumentError(f"model '{name}': configuration expected the name '{name}', got '{config.name}'")
    return config


def entry_model(configs: Mapping[str, pb.ModelConfig], services: Mapping[str, Service], model: str | None) -> str:
    """Return the name of the model that clients send requests to.

    Parameters
    ----------
    configs : dict of str to ModelConfig
    services : dict of str to Service
    model : str or None
        None for the only ensemble or calling model that is not below another one, or the only model.

    Raises
    ------
    InvalidArgumentError
        If there is no such model, or several could be meant.
    """
    if model is None:
        below = {name: models_below(config, services.get(name)) for name, config in configs.items()}
        inner = {step for steps in below.values() for step in steps}
        entries = [name for name, steps in below.items() if steps and name not in inner] or list(configs)
        if len(entries) == 1:
            return entries[0]
        raise InvalidArgumentError(f"simulation expected the option model, one of {', '.join(entries)}")
    if model not in configs:
        raise InvalidArgumentError(f"model expected one of {', '.join(configs)}, got {model!r}")
    return model


def needed_models(
    configs: Mapping[str, pb.ModelConfig], entries: Iterable[str], services: Mapping[str, Service]
) -> dict[str, pb.ModelConfig]:
    """Return the models that requests to some models run, each after its steps and the models that it calls.

    Raises
    ------
    InvalidArgumentError
        If the model of a step or its service time is missing, an ensemble does not match the models of its steps, or a
        model calls itself through others.
    """
    needed: dict[str, pb.ModelConfig] = {}

    def below(name: str) -> Sequence[str]:
        return models_below(configs[name], services.get(name)) if name in configs else ()

    def add(name: str) -> None:
        if name in needed:
            return
        config, is_ensemble = configs[name], configs[name].HasField("ensemble_scheduling")
        if is_ensemble:
            check_ensemble_scheduling(config)
        elif name not in services:
            raise InvalidArgumentError(f"model '{name}': simulation expected its service time, got none")
        check_no_cycle(name, below, "ensembles" if is_ensemble else "models that call others")
        for step in below(name):
            if step not in configs:
                raise InvalidArgumentError(
                    f"model '{name}': simulation expected the configuration of its step '{step}', got none"
                )
            add(step)
        if is_ensemble:
            check_steps(config, configs)
        needed[name] = config

    for entry in entries:
        add(entry)
    return needed


def check_steps(config: pb.ModelConfig, configs: Mapping[str, pb.ModelConfig]) -> None:
    """Check that an ensemble matches the models of its steps.

    Raises
    ------
    InvalidArgumentError
        If it does not.
    """
    steps = {name: configs[name] for name in step_names(config)}
    # A simulation needs no tensors, so configurations may lack them; a server fills them in.
    if all(step.input and step.output for step in steps.values()):
        versions = {step.model_name: max(1, step.model_version) for step in config.ensemble_scheduling.step}
        check_ensemble(config, {name: StepModel(step, (versions[name],)) for name, step in steps.items()})


def models_below(config: pb.ModelConfig, service: Service | None) -> Sequence[str]:
    """Return the models of an ensemble's steps, or those that a model calls."""
    return service.models if isinstance(service, CallingService) else step_names(config)


def step_names(config: pb.ModelConfig) -> list[str]:
    """Return the names of the models of an ensemble's steps, without duplicates; empty for other models."""
    return list(dict.fromkeys(step.model_name for step in config.ensemble_scheduling.step))
