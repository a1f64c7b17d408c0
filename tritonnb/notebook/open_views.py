"""Widgets that are opened once per server and model: opening one again returns the same widget."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Generic, TypeVar
from weakref import WeakKeyDictionary

from tritonnb.server.server import Server

if TYPE_CHECKING:
    from tritonnb.remote.connection import Remote


W = TypeVar("W")


class OpenViews(Generic[W]):
    """The open widgets of one class, by server and model.

    A widget removes itself when it is closed, or when its server was stopped. A server that is no longer used is freed
    together with its widgets.
    """

    def __init__(self) -> None:
        self._views: WeakKeyDictionary[Server | Remote, dict[str | None, W]] = WeakKeyDictionary()

    def find(self, server: Server | Remote, model: str | None) -> W | None:
        """Return the open widget of a model, or None."""
        return self._views.get(server, {}).get(model)

    def open(self, server: Server | Remote, model: str | None, create: Callable[[], W]) -> W:
        """Return the open widget of a model; create it if there is none."""
        views = self._views.setdefault(server, {})
        if model not in views:
            views[model] = create()
        return views[model]

    def remove(self, server: Server | Remote, view: W) -> None:
        """Forget a widget; the next `open` creates another one."""
        views = self._views.get(server, {})
        for model in [model for model, other in views.items() if other is view]:
            del views[model]
