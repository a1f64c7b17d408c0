"""Copies: data can be copied and sent to another process; what belongs to this process refuses in a sentence."""

from __future__ import annotations

from typing import Any, NoReturn

from tritonnb.core.errors import UnsupportedError


class NotCopyableError(UnsupportedError, TypeError):
    """An object of this process cannot be copied; also a `TypeError`, which libraries expect of an object like this."""


class OfThisProcess:
    """A base of objects with threads, sockets or a server, of which a copy would be of no use."""

    def _not_copied(self) -> tuple[str, str]:
        """Return what the object is, and what to do instead of copying it."""
        raise NotImplementedError

    def __reduce_ex__(self, protocol: Any) -> NoReturn:
        what, remedy = self._not_copied()
        raise NotCopyableError(f"{what} cannot be copied or sent to another process: {remedy}")


def reach_server(url: str) -> str:
    """Return the remedy for the copy of a server or connection."""
    return f"pass its URL, and call tnb.connect('{url}') there" if url else "start it in the other process"


def reach_model(name: str, url: str) -> str:
    """Return the remedy for the copy of the handle of a model."""
    return f"pass the URL of its server, and call tnb.connect('{url}')['{name}'] there" if url else reach_server("")
