"""The differences of two configurations, and whether the change requires loading the model again."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from typing import Any

from tritonnb.core.errors import InvalidArgumentError
from tritonnb.core.protobuf import model_config_pb2 as pb
from tritonnb.model_config.backend_selection import ENSEMBLE

#: Fields with changes that can be applied to a running model.
SCHEDULING = {"dynamic_batching", "sequence_batching", "instance_group"}
#: Fields that a running sequence batcher can change; the others affect the control inputs of the model.
_SEQUENCE_SCHEDULING = ("max_sequence_idle_microseconds", "direct", "oldest")
#: Characters of a value in the description of a change.
_VALUE = 60


def changed_fields(old: pb.ModelConfig, new: pb.ModelConfig) -> set[str]:
    """Return the names of the top-level fields that differ between two configurations."""
    return {
        field.name
        for field in old.DESCRIPTOR.fields
        if getattr(old, field.name) != getattr(new, field.name)
        or (field.has_presence and old.HasField(field.name) != new.HasField(field.name))
    }


def describe_changes(before: pb.ModelConfig, after: pb.ModelConfig) -> str:
    """Describe the fields that differ between two configurations, the innermost.

    Examples
    --------
    >>> describe_changes(pb.ModelConfig(max_batch_size=4), pb.ModelConfig(max_batch_size=8))
    'max_batch_size: 4 → 8'
    """
    return "; ".join(_changes(before, after, ""))


def _changes(before: Any, after: Any, prefix: str) -> Iterator[str]:
    for name in sorted(changed_fields(before, after)):
        field = before.DESCRIPTOR.fields_by_name[name]
        old, new = getattr(before, name), getattr(after, name)
        if field.has_presence and before.HasField(name) and after.HasField(name) and field.message_type is not None:
            yield from _changes(old, new, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}: {_value(old)} → {_value(new)}"


def _value(value: object) -> str:
    text = " ".join(str(value).split()) or "none"
    return text if len(text) <= _VALUE else f"{text[: _VALUE - 1]}…"


def _without_adjustable(config: pb.ModelConfig) -> pb.ModelConfig:
    """Return a copy without the settings that can be changed while it runs; ``sequence_batching`` stays present."""
    result = copy.deepcopy(config)
    result.ClearField("dynamic_batching")
    if result.HasField("sequence_batching"):
        for name in _SEQUENCE_SCHEDULING:
            result.sequence_batching.ClearField(name)
    for group in result.instance_group:
        group.count = 0
    return result


def effect_of(running: pb.ModelConfig, wanted: pb.ModelConfig) -> str:
    """Return the effect of changing the configuration on the model: ``"unchanged"``, ``"in place"`` or ``"reloaded"``.

    Parameters
    ----------
    running, wanted : inference.ModelConfig
    """
    if not changed_fields(running, wanted):
        return "unchanged"
    if running.platform == ENSEMBLE or changed_fields(_without_adjustable(running), _without_adjustable(wanted)):
        return "reloaded"
    return "in place"


def completed(wanted: pb.ModelConfig, requested: pb.ModelConfig, running: pb.ModelConfig) -> pb.ModelConfig:
    """Predict what a backend would complete a configuration to, without loading the model.

    Parameters
    ----------
    wanted : inference.ModelConfig
        As written, normalised.
    requested : inference.ModelConfig
        The configuration that the running model was loaded with, as written, normalised.
    running : inference.ModelConfig
        ``requested`` as the backend completed it.

    Returns
    -------
    inference.ModelConfig
        ``running``, with the fields of ``wanted`` that differ from ``requested``.
    """
    return replaced(running, wanted, changed_fields(requested, wanted))


def replaced(config: pb.ModelConfig, other: pb.ModelConfig, names: set[str]) -> pb.ModelConfig:
    """Return a copy of ``config`` with some top-level fields taken from ``other``."""
    result, part = copy.deepcopy(config), copy.deepcopy(other)
    for field in config.DESCRIPTOR.fields:
        (result if field.name in names else part).ClearField(field.name)
    result.MergeFrom(part)
    return result


def omitted_tensors(config: pb.ModelConfig, before: pb.ModelConfig) -> set[str]:
    """Return the fields of tensors, ``input`` and ``output``, that ``before`` has and ``config`` lacks altogether."""
    return {kind for kind in ("input", "output") if getattr(before, kind) and not getattr(config, kind)}


def require_tensors(config: pb.ModelConfig, before: pb.ModelConfig) -> None:
    """Reject a configuration without any inputs or any outputs in place of one that has them.

    Raises
    ------
    InvalidArgumentError
        With the names of the tensors that would be lost, and how to change single fields.
    """
    lost = [
        f"{kind} '{tensor.name}'"
        for kind in sorted(omitted_tensors(config, before))
        for tensor in getattr(before, kind)
    ]
    if lost:
        raise InvalidArgumentError(
            f"model '{config.name}': expected a whole configuration, since it replaces the present one, "
            f"got one without {', '.join(lost)}",
            hint=f'to change single fields: config = server["{config.name}"].config; config.max_batch_size = 8; '
            "config.apply()",
        )


def merge_completed(config: pb.ModelConfig, completed: pb.ModelConfig) -> pb.ModelConfig | None:
    """Return the configuration with the accepted fields of the completed one; the others are discarded.

    None if the completed one has another scheduler: Triton then ignores it and reports no error.
    """
    merged = replaced(config, completed, {"max_batch_size", "input", "output"})
    scheduler, completed_scheduler = config.WhichOneof("scheduling_choice"), completed.WhichOneof("scheduling_choice")
    if scheduler is None and completed_scheduler is not None:
        merged = replaced(merged, completed, {completed_scheduler})
    elif scheduler != completed_scheduler:
        return None
    if completed.HasField("model_transaction_policy"):
        merged.model_transaction_policy.decoupled = completed.model_transaction_policy.decoupled
    return merged
