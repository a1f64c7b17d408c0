"""The files next to *config.pbtxt*: version directories, labels, initial states, and warm-up data.

Checked when a version of the model is created; paths are relative to the model's directory.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Sequence
from pathlib import Path

from tritonnb.core.datatypes import BY_NUMBER
from tritonnb.core.errors import InternalError, InvalidArgumentError
from tritonnb.core.protobuf import model_config_pb2 as pb
from tritonnb.core.shapes import element_count

logger = logging.getLogger(__name__)

_VERSION = re.compile(r"0|[1-9][0-9]*")
#: Subdirectories of a model that are not versions.
_OTHER = {"warmup", "initial_state", "configs"}


def version_directories(directory: Path) -> list[int]:
    """Return the versions in a model directory, ascending; logs a warning for other directories."""
    versions: list[int] = []
    for entry in sorted(directory.iterdir()):
        if not entry.is_dir() or entry.name in _OTHER:
            continue
        if _VERSION.fullmatch(entry.name) and int(entry.name) < 2**63:
            versions.append(int(entry.name))
        else:
            zeros = entry.name.startswith("0")
            reason = "contains leading zeros in its directory name" if zeros else "fails to convert to integral number"
            logger.warning("ignore version directory '%s' which %s", entry.name, reason)
    return sorted(versions)


def expected_versions(config: pb.ModelConfig, directory: Path) -> str:
    """Return the hint for a model without a version that ``version_policy`` selects: which directory is missing."""
    policy = config.version_policy
    if policy.WhichOneof("policy_choice") == "latest" and policy.latest.num_versions == 0:
        return "version_policy selects 0 versions: set num_versions to 1 or more"
    version = policy.specific.versions[0] if policy.specific.versions else 1
    names = sorted(entry.name for entry in directory.iterdir() if entry.is_dir() and entry.name not in _OTHER)
    file = config.default_model_filename
    content = f" with the file '{file}'" if file else ""
    return f"expected the directory '{directory / str(version)}'{content}, got the directories {names}"


def select_versions(config: pb.ModelConfig, present: Sequence[int]) -> list[int]:
    """Return the versions that ``version_policy`` selects, ascending.

    Examples
    --------
    >>> from tritonclient.grpc.model_config_pb2 import ModelConfig, ModelVersionPolicy
    >>> latest = ModelVersionPolicy(latest=ModelVersionPolicy.Latest(num_versions=2))
    >>> select_versions(ModelConfig(version_policy=latest), [1, 2, 3])
    [2, 3]
    """
    policy = config.version_policy
    choice = policy.WhichOneof("policy_choice")
    ordered = sorted(present)
    if choice == "specific":
        for version in policy.specific.versions:
            if version not in ordered:
                logger.warning(
                    "version %d is specified for model '%s', but the version directory is not present",
                    version,
                    config.name,
                )
        return [version for version in ordered if version in policy.specific.versions]
    if choice == "latest":
        count = policy.latest.num_versions
        return ordered[-count:] if count > 0 else []
    return ordered


def read_labels(config: pb.ModelConfig, directory: Path) -> dict[str, list[str]]:
    """Return the lines of the label file of every output that has one.

    Raises
    ------
    InternalError
        If a file cannot be read.
    """
    return {
        output.name: _read(directory, output.label_filename).decode("utf-8", "replace").splitlines()
        for output in config.output
        if output.label_filename
    }


def model_file(directory: Path, name: str) -> Path:
    """Return the path of a configured file: below the directory even if its name begins with a slash."""
    return directory / name.lstrip("/")


def _read(directory: Path, name: str) -> bytes:
    path = model_file(directory, name)
    try:
        return path.read_bytes()
    except (OSError, ValueError) as error:  # ValueError: the path contains a NUL
        reason = error.strerror if isinstance(error, OSError) else str(error)
        raise InternalError(f"failed to open text file for read {path}: {reason}") from error


def check_data_files(config: pb.ModelConfig, directory: Path) -> None:
    """Check the samples of ``model_warmup`` that run, and the initial states.

    Raises
    ------
    InvalidArgumentError, InternalError
        If a sample or a state is invalid, or its file cannot be read.
    """
    for sample in config.model_warmup:
        if sample.batch_size:
            check_warmup_sample(sample, directory)
    check_initial_states(config, directory)


def check_initial_states(config: pb.ModelConfig, directory: Path) -> None:
    """Check the ``initial_state`` of every implicit state.

    Raises
    ------
    InvalidArgumentError, InternalError
        If a shape or the size of the data is wrong.
    """
    seen: set[str] = set()
    for state in config.sequence_batching.state:
        name = state.input_name
        if len(state.initial_state) > 1:
            raise InvalidArgumentError(
                f"initial_state field for state input '{name}' must contain exactly one or zero element. "
                f"Found '{len(state.initial_state)}' elements."
            )
        if state.initial_state:
            _check_initial_state(state, seen, directory)
            seen.add(name)


def _check_initial_state(state: pb.ModelSequenceBatching.State, seen: set[str], directory: Path) -> None:
    name, initial = state.input_name, state.initial_state[0]
    if initial.data_type != state.data_type:
        raise InvalidArgumentError(
            f"The data type used for 'initial_state' field of state '{name}' does not match the state data type."
        )
    if not initial.name:
        raise InvalidArgumentError(f"Field 'name' must be set when using initial_state for state input '{name}'.")
    if name in seen:
        raise InvalidArgumentError(f"State input name '{name}' specified more than once.")
    if len(initial.dims) != len(state.dims):
        raise InvalidArgumentError(
            "Number of dimensions in 'initial_state' doesn't match the size of 'state' dimensions for state "
            f"input '{name}'. {len(initial.dims)} != {len(state.dims)}"
        )
    for dim, state_dim in zip(initial.dims, state.dims, strict=True):
        if dim == -1:
            raise InvalidArgumentError(
                f"'initial_state' field for state input name '{name}' contains variable dimensions."
            )
        if state_dim not in (-1, dim):
            raise InvalidArgumentError(
                f"'initial_state' dim for input name '{name}' doesn't match 'state' dim description. "
                f"{dim} != {state_dim}"
            )
    choice = initial.WhichOneof("state_data")
    if choice is None:
        raise InvalidArgumentError(f"initial_state setting expects state'{name}' to have state_data set")
    if choice == "data_file" and (shortage := _shortage(initial, "initial_state", initial.data_file, directory)):
        raise InvalidArgumentError(f"{shortage}.")


def _shortage(
    data: pb.ModelWarmup.Input | pb.ModelSequenceBatching.InitialState, setting: str, file: str, directory: Path
) -> str:
    """Return the message for a file in the folder of a setting that is too small for a tensor; empty if it is not."""
    content = _read(directory, f"{setting}/{file}")
    datatype = BY_NUMBER.get(data.data_type)
    # As Triton computes it: 0 for strings.
    expected = element_count(data.dims) * (4 if datatype is None else datatype.itemsize) if data.dims else 0
    if len(content) >= expected:
        return ""
    # Triton's message also lacks the space before "only".
    return f"{setting} setting expects {expected} bytes, but the data provided from {file}only has {len(content)} bytes"


def check_warmup_sample(sample: pb.ModelWarmup, directory: Path) -> None:
    """Check the shapes and the data files of an entry of ``model_warmup``.

    Raises
    ------
    InvalidArgumentError, InternalError
        If a shape is not fixed, or data is missing or too short.
    """
    inputs = sorted(sample.inputs.items())
    for name, data in inputs:
        if min(data.dims, default=0) < 0:
            raise InvalidArgumentError(
                f"warmup setting expects all variable-size dimensions are specified for input '{name}'"
            )
    for name, data in inputs:
        choice = data.WhichOneof("input_data_type")
        if choice is None:
            raise InvalidArgumentError(
                f"[request id: <id_unknown>] warmup setting expects input '{name}' to have input_data_type set"
            )
        if choice == "input_data_file" and (shortage := _shortage(data, "warmup", data.input_data_file, directory)):
            raise InvalidArgumentError(f"[request id: <id_unknown>] {shortage}")
