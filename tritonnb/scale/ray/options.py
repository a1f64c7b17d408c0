"""What an engine deployment runs, as values that travel to other machines."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tritonnb.core.errors import InvalidArgumentError
from tritonnb.runtime.options import EngineOptions


@dataclass(frozen=True, slots=True)
class EngineSettings:
    """The options of the engine of each replica.

    Attributes
    ----------
    repositories : tuple of str
        Absolute paths, on every node.
    options : mapping
        Fields of `EngineOptions`.
    direct : bool
        Whether a replica also listens on ports of its own.
    """

    repositories: tuple[str, ...]
    options: Mapping[str, Any]
    direct: bool = False

    def engine_options(self) -> EngineOptions:
        """The options of the engine.

        Raises
        ------
        InvalidArgumentError
            If one is unknown or invalid.
        """
        return EngineOptions(tuple(map(Path, self.repositories)), **self.options)

    def node_id(self) -> str:
        """The node that this process runs on."""
        import ray

        return str(ray.get_runtime_context().get_node_id())

    def direct_host(self) -> str:
        """The address of this node."""
        import ray

        return str(ray.util.get_node_ip_address())


def check_engine_options(options: Mapping[str, Any]) -> None:
    """Check keyword arguments for the engine.

    Raises
    ------
    InvalidArgumentError
        If one is not a field of `EngineOptions`.
    """
    known = {field.name for field in dataclasses.fields(EngineOptions)} - {"model_repositories"}
    for name in options:
        if name not in known:
            raise InvalidArgumentError(f"app(): expected options of the engine, got '{name}'; see tritonnb.Server")


def model_names(repositories: Sequence[Path]) -> list[str]:
    """The models in repositories, by name."""
    return sorted({entry.name for path in repositories for entry in path.iterdir() if entry.is_dir()})
