"""The names of a model's instances, and their order."""

from __future__ import annotations

import re
from typing import Any

from tritonnb.core.protobuf import model_config_pb2 as pb


def instances_of(model: str, config: pb.ModelConfig) -> list[str]:
    """The instances that a configuration tells of; those on GPUs depend on the machine and are not told.

    A simulation numbers the instances of all groups through, so several groups tell nothing either.
    """
    groups = config.instance_group
    if len(groups) != 1 or groups[0].gpus:
        return []
    name = groups[0].name or f"{model}_0"
    return [f"{name}_{number}" for number in range(max(1, groups[0].count))]


def natural(name: str) -> list[Any]:
    """A key for sorting that puts instance 10 after instance 9."""
    return [int(part) if part.isdigit() else part for part in re.split(r"(\d+)", name)]
