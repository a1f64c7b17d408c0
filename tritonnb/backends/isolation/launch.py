"""What a child needs to create the backend, the model and the instance."""

from __future__ import annotations

import logging
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from tritonnb.backends.contract import InstanceSpec, ModelContext
from tritonnb.backends.isolation.channel import Header
from tritonnb.backends.isolation.settings import Limits
from tritonnb.backends.location import BackendLocation

#: The loggers whose levels a child takes over: the root, and that of this package.
_LOGGERS = ("", "tritonnb")


@dataclass(frozen=True, slots=True)
class Launch:
    """The backend of a child.

    Attributes
    ----------
    location : BackendLocation
    settings : mapping of str to str
        Its command-line settings.
    limits : Limits
    """

    location: BackendLocation
    settings: Mapping[str, str]
    limits: Limits

    def open_command(self) -> Header:
        """The command that creates the backend."""
        location = self.location
        levels = {name: logging.getLogger(name or None).getEffectiveLevel() for name in _LOGGERS}
        return [
            "open",
            [entry for entry in sys.path if isinstance(entry, str)],
            [location.name, location.entry_point, location.arguments],
            dict(self.settings),
            levels,
            self.limits.memory_bytes,
        ]


def context_command(kind: str, context: ModelContext, *arguments: Any) -> tuple[Header, bytes]:
    """A command for a model: its header, and its configuration as the payload."""
    header = [kind, context.name, context.version, str(context.directory), dict(context.settings), *arguments]
    return header, context.config.SerializeToString()


def spec_fields(spec: InstanceSpec) -> list[Any]:
    """The fields of an instance that its backend reads."""
    return [spec.name, spec.index, spec.kind, spec.device_id, [], spec.priority, spec.passive]
