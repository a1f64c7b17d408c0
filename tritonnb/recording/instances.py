"""The names of a model's instances, and their order."""

from __future__ import annotations

import re

from tritonnb.core.protobuf import model_config_pb2 as pb


def instances_of(model: str, config: pb.ModelConfig) -> list[str]:
    """The names of the instances that a configuration determines.

    Empty for instances on GPUs, whose number depends on the machine, and for several instance groups, whose names in a
    simulation differ from those of the server.
    """
    groups = config.instance_group
    if len(groups) != 1 or groups[0].gpus:
        return []
    name = groups[0].name or f"{model}_0"
    return [f"{name}_{number}" for number in range(max(1, groups[0].count))]


def natural_sort_key(name: str) -> list[object]:
    """Sort key that puts instance 10 after instance 9."""
    return [int(part) if part.isdigit() else part for part in re.split(r"(\d+)", name)]
