"""Runs one recorded case with the configuration package only, without a server or a backend.

A case is a model directory (and those of the steps of an ensemble); what comes out is what Triton
answers to the load request, and what it writes to its log.
"""

from __future__ import annotations

import base64
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tritonnb.core.errors import TritonError
from tritonnb.model_config.backend_selection import find_library
from tritonnb.model_config.ensemble import StepModel, check_ensemble, check_no_cycle
from tritonnb.model_config.load import ConfigError, finalize_config, load_config
from tritonnb.model_config.model_files import check_data_files, select_versions, version_directories
from tritonnb.model_config.normalize import with_instance_groups

Case = dict[str, Any]


@dataclass
class Outcome:
    """The result of loading a model."""

    error: str = ""
    config: Any = None
    versions: tuple[int, ...] = ()
    log: list[str] = field(default_factory=list)
    is_valid: bool = True

    @property
    def verdict(self) -> str:
        return "fails" if self.error else "loads"


def lay_out(repository: Path, case: Case) -> None:
    """Write the model directories of a case."""
    models = {case.get("model_name", case["id"]): case, **case.get("extra_models", {})}
    for name, model in models.items():
        directory = repository / name
        directory.mkdir()
        if model.get("config_pbtxt") is not None:
            (directory / "config.pbtxt").write_bytes(model["config_pbtxt"].encode())
        for version in model.get("versions", ["1"]):
            (directory / version).mkdir()
            (directory / version / "model.py").touch()
        for path, content in model.get("files", {}).items():
            _write(directory / path, content, is_directory=path.endswith("/"))


def _write(path: Path, content: Any, is_directory: bool) -> None:
    if content is None:
        path.unlink()
        return
    (path if is_directory else path.parent).mkdir(parents=True, exist_ok=True)
    if not is_directory:
        path.write_bytes(base64.b64decode(content["base64"]) if isinstance(content, dict) else content.encode())


def load(repository: Path, name: str, override: str | None = None) -> Outcome:
    """Load a model as far as its configuration is concerned; only the python backend is installed."""
    try:
        loaded = load_config(repository / name, name, override=override)
    except ConfigError as error:
        return Outcome(error.client_message, log=error.log_lines)
    prefix = f"load failed for model '{name}': "
    config, directory = loaded.config, repository / name
    try:
        if config.HasField("ensemble_scheduling"):
            check_no_cycle(name, lambda model: _steps(repository, model))
            names = {step.model_name for step in config.ensemble_scheduling.step}
            models = {model: state for model in names if (state := _step(repository, model)) is not None}
            config.model_transaction_policy.decoupled = check_ensemble(config, models)
    except TritonError as error:
        return Outcome(f"{prefix}{error.message}\n", is_valid=False)
    versions = select_versions(config, version_directories(directory))
    if not versions:
        return Outcome(f"{prefix}at least one version must be available under the version policy of model '{name}'\n")
    if config.platform != "ensemble" and config.backend != "python":
        cause = (
            f"Invalid argument: unable to find backend library for backend '{config.backend}', try specifying "
            "runtime on the model configuration."
        )
        return Outcome(prefix + _for_each(versions, cause) + "\n")
    try:
        for version in versions:
            find_library(config, directory, version, Path("{BACKENDS}"))
        with_groups = with_instance_groups(config, gpus=(), default_instance_count=lambda kind: 1)
        finished = finalize_config(with_groups, directory)
        check_data_files(finished, directory)
    except TritonError as error:
        return Outcome(prefix + _for_each(versions, f"{error.status.label}: {error.message}") + "\n")
    return Outcome(config=finished, versions=tuple(versions))


def _for_each(versions: list[int], cause: str) -> str:
    return "".join(f"version {version} is at UNAVAILABLE state: {cause};" for version in reversed(versions))


def _steps(repository: Path, name: str) -> list[str]:
    try:
        config = load_config(repository / name, name).config
    except (ConfigError, OSError):
        return []
    return [step.model_name for step in config.ensemble_scheduling.step]


def _step(repository: Path, name: str) -> StepModel | None:
    if not (repository / name).is_dir():
        return None
    outcome = load(repository, name)
    if outcome.log:
        return None
    failure = outcome.error.partition(f"load failed for model '{name}': ")[2].rstrip("\n")
    return StepModel(outcome.config, outcome.versions, failure, outcome.is_valid)
