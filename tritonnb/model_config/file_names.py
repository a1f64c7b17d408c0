"""The names in a load request, which come from outside: of the model, and of the files in its configuration."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import PurePosixPath

from tritonnb.core.errors import InvalidArgumentError, TritonError
from tritonnb.core.protobuf import model_config_pb2 as pb
from tritonnb.model_config.json_config import parse_json


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
    """Every field that names a file, and its value."""
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
