"""The configurations that were changed through a connection, and are restored with it."""

from __future__ import annotations

from collections.abc import Callable

from tritonnb.core.errors import TritonError, UnavailableError


class ChangedConfigs:
    """Restores the configurations of models."""

    def __init__(self) -> None:
        self._restorations: dict[str, Callable[[], object]] = {}

    def add(self, name: str, restore: Callable[[], object]) -> bool:
        """Remember what restores the configuration of a model, and return True; later calls for it return False."""
        return self._restorations.setdefault(name, restore) is restore

    def keep(self, name: str) -> None:
        """Forget a model: its configuration stays."""
        self._restorations.pop(name, None)

    def restore(self, name: str) -> None:
        """Restore the configuration of a model, if it was changed.

        Raises
        ------
        UnavailableError
            If that failed.
        """
        restore = self._restorations.pop(name, None)
        try:
            if restore is not None:
                restore()
        except TritonError as error:
            raise UnavailableError(f"model '{name}': its configuration was not restored: {error.message}") from None

    def restore_all(self) -> list[TritonError]:
        """Restore all configurations; return the errors of those that could not be restored."""
        failures: list[TritonError] = []
        for name in list(self._restorations):
            try:
                self.restore(name)
            except TritonError as error:
                failures.append(error)
        return failures
