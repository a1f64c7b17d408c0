"""The defaults that Triton writes into a configuration."""

from __future__ import annotations

import copy
import functools
from collections.abc import Callable, MutableSequence, Sequence

from tritonnb.core.errors import InternalError, InvalidArgumentError
from tritonnb.core.protobuf import model_config_pb2 as pb
from tritonnb.model_config.backend_selection import ENSEMBLE

Kind = pb.ModelInstanceGroup.Kind
DEFAULT_SEQUENCE_IDLE_US = 1_000_000
#: Fields that `normalize` sets.
_NORMALIZED = (
    ("version_policy",),
    ("optimization",),
    ("dynamic_batching", "preferred_batch_size"),
    ("sequence_batching", "max_sequence_idle_microseconds"),
)
#: The kind that a backend prefers if the configuration has no instance group.
_PREFERRED_KIND = {"openvino": Kind.KIND_CPU, "python": Kind.KIND_CPU}


def normalize(config: pb.ModelConfig) -> None:
    """Write the defaults of version policy, batching, and optimization into a configuration."""
    if not config.HasField("version_policy"):
        config.version_policy.latest.num_versions = 1
    if config.HasField("dynamic_batching"):
        _default_preferred(config.dynamic_batching.preferred_batch_size, config)
    if config.HasField("sequence_batching"):
        sequence = config.sequence_batching
        if not sequence.max_sequence_idle_microseconds:
            sequence.max_sequence_idle_microseconds = DEFAULT_SEQUENCE_IDLE_US
        if sequence.HasField("oldest"):
            _default_preferred(sequence.oldest.preferred_batch_size, config)
    for step in config.ensemble_scheduling.step:
        step.model_namespace = ""  # without --model-namespacing there is only one
    if config.platform != ENSEMBLE:
        optimization = config.optimization
        for pinned in ("input_pinned_memory", "output_pinned_memory"):
            if not optimization.HasField(pinned):
                getattr(optimization, pinned).enable = True


def without_defaults(config: pb.ModelConfig) -> pb.ModelConfig:
    """Return a copy of a normalised configuration without the values that `normalize` would set again."""
    result = copy.deepcopy(config)
    for *parents, name in _NORMALIZED:
        if all(result.HasField(parent) for parent in parents):
            trial = copy.deepcopy(result)
            functools.reduce(getattr, parents, trial).ClearField(name)
            normalized = copy.deepcopy(trial)
            normalize(normalized)
            if normalized == config:
                result = trial
    return result


def without_outdated_sizes(edited: pb.ModelConfig, running: pb.ModelConfig) -> pb.ModelConfig:
    """Copy an edited configuration without the preferred sizes that `normalize` derived from a larger batch size.

    Parameters
    ----------
    edited : ModelConfig
    running : ModelConfig
        The normalised configuration that was edited.

    Examples
    --------
    >>> running = pb.ModelConfig(max_batch_size=8, dynamic_batching={"preferred_batch_size": [8]})
    >>> edited = pb.ModelConfig(max_batch_size=4, dynamic_batching={"preferred_batch_size": [8]})
    >>> without_outdated_sizes(edited, running).dynamic_batching.preferred_batch_size
    []
    """
    result = copy.deepcopy(edited)
    for batching in (result.dynamic_batching, result.sequence_batching.oldest):
        is_derived = list(batching.preferred_batch_size) == [running.max_batch_size]
        if is_derived and result.max_batch_size < running.max_batch_size:
            batching.ClearField("preferred_batch_size")
    return result


def with_instance_groups(
    config: pb.ModelConfig, *, gpus: Sequence[int], default_instance_count: Callable[[str], int]
) -> pb.ModelConfig:
    """Return a copy of a configuration with its ``instance_group`` resolved: names, kinds, counts, and GPUs.

    Parameters
    ----------
    config : inference.ModelConfig
        Not changed.
    gpus : sequence of int
        Available CUDA devices.
    default_instance_count : callable
        ``default_instance_count(kind)`` is used for groups without a count.

    Raises
    ------
    InvalidArgumentError, InternalError
        If a group is invalid, or requires devices that are not available.
    """
    config = copy.deepcopy(config)
    if config.platform == ENSEMBLE:
        return config
    if not config.instance_group:
        config.instance_group.add(name=config.name, kind=_PREFERRED_KIND.get(config.backend, Kind.KIND_AUTO))
    for index, group in enumerate(config.instance_group):
        if not group.name:
            group.name = f"{config.name}_{index}"
        if group.kind not in Kind.values():
            # Triton's message names the default for an unknown number.
            raise InternalError(f"instance group {group.name} of model {config.name} has unexpected kind KIND_AUTO")
        if group.kind == Kind.KIND_AUTO:
            available = bool(gpus) and all(gpu in gpus for gpu in group.gpus)
            group.kind = Kind.KIND_GPU if available else Kind.KIND_CPU
        if group.count < 1:
            group.count = default_instance_count(Kind.Name(group.kind))
        if group.kind == Kind.KIND_GPU and not group.gpus:
            group.gpus.extend(gpus)
        _check_group(config, group, gpus)
    return config


def _check_group(config: pb.ModelConfig, group: pb.ModelInstanceGroup, gpus: Sequence[int]) -> None:
    subject = f"instance group {group.name} of model {config.name}"
    if group.kind in (Kind.KIND_CPU, Kind.KIND_MODEL) and group.gpus:
        raise InvalidArgumentError(f"{subject} has kind {Kind.Name(group.kind)} but specifies one or more GPUs")
    if group.kind == Kind.KIND_GPU:
        if not group.gpus:
            reason = "specifies no GPUs" if gpus else "no GPUs are available"
            raise InvalidArgumentError(f"{subject} has kind KIND_GPU but {reason}")
        for gpu in group.gpus:
            if gpu not in gpus:
                raise InvalidArgumentError(
                    f"{subject} specifies invalid or unsupported gpu id {gpu}. GPUs with at least the minimum "
                    "required CUDA compute compatibility of 6.000000 are: " + ", ".join(map(str, gpus))
                )
    if group.profile and config.platform != "tensorrt_plan":
        raise InvalidArgumentError(
            f"{subject} and platform {config.platform}specifies profile field which is only supported for "
            "TensorRT models"
        )


def _default_preferred(sizes: MutableSequence[int], config: pb.ModelConfig) -> None:
    if not sizes and config.max_batch_size > 0:
        sizes.append(config.max_batch_size)
