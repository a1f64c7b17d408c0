"""What changes between two configurations, and how much of the model that concerns."""

from __future__ import annotations

from typing import Any

#: Fields whose change needs no new copy of the model.
_SCHEDULING = {"dynamic_batching"}


def changed_fields(old: Any, new: Any) -> set[str]:
    """Names of the top-level fields in which two configurations differ."""
    return {
        field.name
        for field in old.DESCRIPTOR.fields
        if getattr(old, field.name) != getattr(new, field.name)
        or (field.has_presence and old.HasField(field.name) != new.HasField(field.name))
    }


def only_scheduling_changed(old: Any, new: Any) -> bool:
    """Whether a running scheduler can take the new settings over in place."""
    both_batch = old.HasField("dynamic_batching") and new.HasField("dynamic_batching")
    return both_batch and changed_fields(old, new) <= _SCHEDULING
