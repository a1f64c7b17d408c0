"""`NamedModels`: the base of servers, in this process or elsewhere, whose models are found by name."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator


class NamedModels(ABC):
    """A server that is iterated, and has a length, like a dictionary of its models that are ready.

    A server is true even if no model is ready.
    """

    @property
    @abstractmethod
    def models(self) -> list[str]:
        """Names of the models that are ready."""

    def __iter__(self) -> Iterator[str]:
        return iter(self.models)

    def __len__(self) -> int:
        return len(self.models)

    def __bool__(self) -> bool:
        return True
