"""Loading a model's configuration from its directory.

`load_config` runs before any version is created (Triton's *poll*), `finalize_config` for each version after the backend
has completed the configuration.
"""

from __future__ import annotations

import copy
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import TypeAlias

from tritonnb.core.errors import InternalError, InvalidArgumentError, Problem, Status, TritonError
from tritonnb.core.protobuf import model_config_pb2 as pb
from tritonnb.model_config.backend_selection import check_batch_strategy, fill_in_backend
from tritonnb.model_config.diagnose import problem_context, read_text
from tritonnb.model_config.json_config import parse_json
from tritonnb.model_config.model_files import read_labels
from tritonnb.model_config.normalize import normalize
from tritonnb.model_config.parse import ConfigSyntaxError
from tritonnb.model_config.validate import check_tensors, validate

#: A configuration that replaces the file: JSON, as in a load request, or a message.
Override: TypeAlias = str | pb.ModelConfig

_METRIC_TAG = re.compile(r"([A-Za-z0-9][A-Za-z0-9_]*)?")


class ConfigError(TritonError):
    """A model's directory or configuration is invalid.

    ``str()`` includes the cause; clients only get `client_message`, as from Triton.

    Attributes
    ----------
    cause : str
        What Triton logs after the words "Poll failed for model directory 'NAME'".
    client_message : str
    log_lines : list of str
        The lines that Triton logs, in order.

    Examples
    --------
    >>> ConfigError("m", "unexpected platform").cause
    'unexpected platform'
    """

    default_status = Status.INTERNAL

    def __init__(
        self,
        name: str,
        cause: str,
        log_lines: list[str] | None = None,
        *,
        hint: str = "",
        problems: Iterable[Problem] = (),
    ) -> None:
        self.cause = cause
        self.client_message = f"failed to load '{name}', failed to poll from model repository"
        self.log_lines = log_lines or [f"Poll failed for model directory '{name}': {cause}"]
        super().__init__(f"{self.client_message}: {cause}", hint=hint, problems=problems)

    @classmethod
    def not_polled(cls, name: str, ambiguous: bool = False, *, hint: str = "") -> ConfigError:
        """Return the error for a model that is not in any repository, or in more than one."""
        cause = "not unique across all model repositories" if ambiguous else "model not found in any model repository."
        return cls(name, cause, [f"failed to poll model '{name}': {cause}"], hint=hint)

    @classmethod
    def syntax(cls, name: str, path: Path, error: ConfigSyntaxError) -> ConfigError:
        """Return the error for a *config.pbtxt* that cannot be parsed."""
        parsing = f"Error parsing text-format inference.ModelConfig: {error.message}"
        polling = f"Poll failed for model directory '{name}': failed to read text proto from {path}"
        return cls(name, f"{path}:{error.message}", [parsing, polling], problems=error.problems)


@dataclass(frozen=True, slots=True)
class LoadedConfig:
    """A configuration as `load_config` returns it.

    Attributes
    ----------
    config : inference.ModelConfig
        Completed and normalised.
    is_given : bool
        True if there is a file or an override.
    text : str or None
        The file's text; None if the configuration comes from an override.
    """

    config: pb.ModelConfig
    is_given: bool = True
    text: str | None = None


def load_config(
    directory: Path,
    name: str,
    *,
    override: Override | None = None,
    custom_name: str | None = None,
    auto_complete: bool = True,
) -> LoadedConfig:
    """Read, complete, normalise and validate a model's configuration.

    Parameters
    ----------
    directory : pathlib.Path
        The model's directory.
    name : str
        The model's name, which is its directory's name.
    override : str or inference.ModelConfig, optional
        Configuration that replaces the file; a string is JSON.
    custom_name : str, optional
        ``--model-config-name``: read *configs/<custom_name>.pbtxt* if it exists.
    auto_complete : bool, optional
        If False, the file is required and tensors must be complete.

    Raises
    ------
    ConfigError
        If the configuration is rejected; see ``problems`` for the position in the file.
    """
    try:
        text = None if override is not None else _file_text(config_path(directory, custom_name), auto_complete)
        written = read_override(override) if override is not None else read_text(text or "").config
        with problem_context(written, text):
            config = _complete(written, directory, name)
            if not auto_complete:
                check_tensors(config)
    except ConfigSyntaxError as error:
        raise ConfigError.syntax(name, config_path(directory, custom_name), error) from error
    except TritonError as error:
        raise ConfigError(name, error.message, hint=error.hint, problems=error.problems) from error
    return LoadedConfig(config, override is not None or text is not None, text)


def read_override(override: Override) -> pb.ModelConfig:
    """Return a configuration as written, which the caller may change.

    Raises
    ------
    InvalidArgumentError
        If it is JSON, and invalid.
    """
    return parse_json(override) if isinstance(override, str) else copy.deepcopy(override)


def _complete(written: pb.ModelConfig, directory: Path, name: str) -> pb.ModelConfig:
    """Return a valid copy of the configuration as written, with backend fields and defaults."""
    config = copy.deepcopy(written)
    _check_agents(config)
    fill_in_backend(config, directory, name)
    normalize(config)
    validate(config)
    if config.name != name:
        raise InvalidArgumentError(
            f"unexpected directory name '{name}' for model '{config.name}', directory name must equal model name"
        )
    return config


def config_path(directory: Path, custom_name: str | None = None) -> Path:
    """Return the path of a model's configuration file, which need not exist."""
    custom = directory / "configs" / f"{custom_name}.pbtxt"
    return custom if custom_name and custom.is_file() else directory / "config.pbtxt"


def finalize_config(config: pb.ModelConfig, directory: Path) -> pb.ModelConfig:
    """Normalise and validate a configuration that the backend has completed.

    Parameters
    ----------
    config : inference.ModelConfig
        Not changed.
    directory : pathlib.Path
        The model's directory, which contains the label files.

    Raises
    ------
    TritonError
        For the first rule that is violated.
    """
    result = copy.deepcopy(config)
    normalize(result)
    validate(result)
    check_tensors(result)
    read_labels(result, directory)
    _check_metric_tags(result)
    check_batch_strategy(result, directory)
    return result


def _file_text(path: Path, auto_complete: bool) -> str | None:
    """Return the text of the configuration file; None if it does not exist and is not required."""
    try:
        return path.read_bytes().decode("utf-8", "surrogateescape")
    except OSError as error:
        if auto_complete and isinstance(error, FileNotFoundError):
            return None
        raise InternalError(f"failed to open text file for read {path}: {error.strerror}") from error


def _check_metric_tags(config: pb.ModelConfig) -> None:
    """Reject a tag that is not a valid Prometheus label after the prefix ``_``; Triton crashes on it."""
    for tag in config.metric_tags:
        if not _METRIC_TAG.fullmatch(tag):
            raise InvalidArgumentError(
                f"model '{config.name}': metric tag expected letters, digits and underscores, got '{tag}'"
            )


def _check_agents(config: pb.ModelConfig) -> None:
    for agent in config.model_repository_agents.agents:
        raise InvalidArgumentError(
            f"unable to find 'libtritonrepoagent_{agent.name}.so' for repo agent '{agent.name}', searched: "
            "/opt/tritonserver/repoagents"
        )


def check_model_name(name: str) -> None:
    """Check the name of a model that is to be loaded.

    Raises
    ------
    InvalidArgumentError
        If it is blank or a path; with Triton's text.
    """
    trimmed = name.strip()
    if not trimmed:
        raise InvalidArgumentError("Model name cannot be empty. Please enter a valid name to deploy.")
    if trimmed == ".." or "/" in trimmed:
        raise InvalidArgumentError(
            f"invalid model name '{name}', model name must not contain path traversal characters"
        )


def check_override(name: str, override: str) -> None:
    """Check that a configuration in a load request names only files in the model's directory.

    Otherwise a client could run any Python file or library of the machine as a model, and read any file as labels or
    as an initial state. The owner of a repository may name any file in a *config.pbtxt*.

    Parameters
    ----------
    name : str
        Of the model.
    override : str
        The configuration as JSON. If it cannot be parsed, nothing is checked: reading the model reports that.

    Raises
    ------
    InvalidArgumentError
        If a path is absolute or contains ``..``, or the backend is a path.
    """
    try:
        config = parse_json(override)
    except TritonError:
        return
    if "/" in config.backend or config.backend == "..":
        raise InvalidArgumentError(f"model '{name}': backend expected a name, got the path '{config.backend}'")
    for field, path in _files(config):
        if path.startswith("/") or ".." in PurePosixPath(path).parts:
            raise InvalidArgumentError(f"model '{name}': {field} expected a file of the model, got '{path}'")


def _files(config: pb.ModelConfig) -> Iterator[tuple[str, str]]:
    """Yield every field that names a file, and its value."""
    yield "runtime", config.runtime
    yield "default_model_filename", config.default_model_filename
    for path in config.cc_model_filenames.values():
        yield "cc_model_filenames", path
    for output in config.output:
        yield "label_filename", output.label_filename
    for sample in config.model_warmup:
        for tensor in sample.inputs.values():
            yield "input_data_file", tensor.input_data_file
    for state in config.sequence_batching.state:
        for initial in state.initial_state:
            yield "data_file", initial.data_file
