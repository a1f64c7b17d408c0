"""Names of instances and of the replicas that they belong to, as recordings contain them."""

from __future__ import annotations

import re

from tritonnb.core.protobuf import model_config_pb2 as pb

_REPLICA = "replica "


def instance_on(replica: int | str, instance: str) -> str:
    """Return the name of an instance in a recording of several replicas.

    Examples
    --------
    >>> instance_on(2, "m_0_0"), replica_of(instance_on(2, "m_0_0")), replica_of("m_0_0")
    ('replica 2: m_0_0', '2', '')
    """
    return f"{_REPLICA}{replica}: {instance}"


def replica_of(instance: str) -> str:
    """Return the replica in the name of an instance; empty if the recording is of one server."""
    replica, separator, _ = instance.removeprefix(_REPLICA).partition(": ")
    return replica if separator and instance.startswith(_REPLICA) else ""


def instances_of(model: str, config: pb.ModelConfig) -> list[str]:
    """Return the names of the instances that a configuration determines.

    Empty for instances on GPUs, whose number depends on the machine, and for several instance groups, whose names in a
    simulation differ from the server's instances.
    """
    groups = config.instance_group
    if len(groups) != 1 or groups[0].gpus:
        return []
    name = groups[0].name or f"{model}_0"
    return [f"{name}_{number}" for number in range(max(1, groups[0].count))]


def natural_sort_key(name: str) -> list[object]:
    """Sort key that puts instance 10 after instance 9."""
    # Numbers are compared by their length and digits: a stranger's name may have more digits than `int` reads.
    parts: list[object] = [*re.split(r"0*([0-9]+)", name)]
    parts[1::2] = [(len(digits), digits) for digits in map(str, parts[1::2])]
    return parts
