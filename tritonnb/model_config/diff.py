"""What changes between two configurations, and how much of the model that concerns."""

from __future__ import annotations

from typing import Any

from tritonnb.model_config.backend_selection import ENSEMBLE

#: Fields of which some changes need no new copy of the model.
_SCHEDULING = {"dynamic_batching", "sequence_batching", "instance_group"}
#: What a running sequence batcher can take over: the others decide on what the model is told.
_OF_SEQUENCES = ("max_sequence_idle_microseconds", "direct", "oldest")


def changed_fields(old: Any, new: Any) -> set[str]:
    """Names of the top-level fields in which two configurations differ."""
    return {
        field.name
        for field in old.DESCRIPTOR.fields
        if getattr(old, field.name) != getattr(new, field.name)
        or (field.has_presence and old.HasField(field.name) != new.HasField(field.name))
    }


def only_scheduling_changed(old: Any, new: Any) -> bool:
    """Whether a running model can take the new settings over in place."""
    changed = changed_fields(old, new)
    if not changed <= _SCHEDULING or old.platform == ENSEMBLE:
        return False
    return not changed_fields(_without_adjustable(old), _without_adjustable(new))


def _without_adjustable(config: Any) -> Any:
    """A configuration without what can be changed while it runs; whether it is of sequences stays visible."""
    result = type(config)()
    result.CopyFrom(config)
    result.ClearField("dynamic_batching")
    if result.HasField("sequence_batching"):
        for name in _OF_SEQUENCES:
            result.sequence_batching.ClearField(name)
    for group in result.instance_group:
        group.count = 0
    return result


def effect_of(running: Any, wanted: Any) -> str:
    """What it takes to run ``wanted`` instead: nothing, ``"in place"``, or that the model is ``"reloaded"``."""
    if not changed_fields(running, wanted):
        return "unchanged"
    return "in place" if only_scheduling_changed(running, wanted) else "reloaded"


def completed(wanted: Any, asked: Any, running: Any) -> Any:
    """A configuration with what a backend adds, as far as that is known without loading the model.

    Parameters
    ----------
    wanted : inference.ModelConfig
        As written, normalised.
    asked : inference.ModelConfig
        As written, normalised, when the running model was loaded.
    running : inference.ModelConfig
        What ``asked`` became: completed by the backend.

    Returns
    -------
    inference.ModelConfig
        What runs, except in the fields in which ``wanted`` asks for something else.
    """
    return replaced(running, wanted, changed_fields(asked, wanted))


def with_scheduling_of(config: Any, other: Any) -> Any:
    """A copy of ``config`` with the scheduling fields of ``other``."""
    return replaced(config, other, _SCHEDULING)


def replaced(config: Any, other: Any, names: set[str]) -> Any:
    """A copy of ``config`` with some top-level fields as they are in ``other``."""
    result, part = type(config)(), type(config)()
    result.CopyFrom(config)
    part.CopyFrom(other)
    for field in config.DESCRIPTOR.fields:
        (result if field.name in names else part).ClearField(field.name)
    result.MergeFrom(part)
    return result
