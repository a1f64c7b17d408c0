"""Version directories, and the version policy that selects from them."""

from __future__ import annotations

import logging
import re
from collections.abc import Sequence
from pathlib import Path

from tritonnb.core.protobuf import model_config_pb2 as pb

logger = logging.getLogger(__name__)

_VERSION = re.compile(r"0|[1-9][0-9]*")
#: Subdirectories of a model that are not versions.
_OTHER = {"warmup", "initial_state", "configs"}


def version_directories(directory: Path) -> list[int]:
    """The versions in a model directory, ascending; logs a warning for other directories."""
    versions: list[int] = []
    for entry in sorted(directory.iterdir()):
        if not entry.is_dir() or entry.name in _OTHER:
            continue
        if _VERSION.fullmatch(entry.name) and int(entry.name) < 2**63:
            versions.append(int(entry.name))
        else:
            logger.warning("ignoring version directory '%s' which fails to convert to integral number", entry.name)
    return sorted(versions)


def expected_versions(config: pb.ModelConfig, directory: Path) -> str:
    """The hint for a model without a version that ``version_policy`` selects: which directory is missing."""
    policy = config.version_policy
    if policy.WhichOneof("policy_choice") == "latest" and policy.latest.num_versions == 0:
        return "version_policy selects 0 versions: set num_versions to 1 or more"
    version = policy.specific.versions[0] if policy.specific.versions else 1
    names = sorted(entry.name for entry in directory.iterdir() if entry.is_dir() and entry.name not in _OTHER)
    file = config.default_model_filename
    content = f" with the file '{file}'" if file else ""
    return f"expected the directory '{directory / str(version)}'{content}, got the directories {names}"


def select_versions(config: pb.ModelConfig, present: Sequence[int]) -> list[int]:
    """The versions that ``version_policy`` selects, ascending.

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
