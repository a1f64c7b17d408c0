"""Widgets are opened once per server and model."""

from __future__ import annotations

import gc

from tritonnb.notebook.views import OpenViews
from tritonnb.server.server import Server


class View:
    """A stand-in for a widget."""


def test_view_is_opened_once_per_server_and_model() -> None:
    views: OpenViews[View] = OpenViews()
    one, other = Server(), Server()
    view = views.open(one, "m", View)
    assert views.open(one, "m", View) is view
    assert len({view, views.open(one, "n", View), views.open(other, "m", View)}) == 3
    one.stop()
    other.stop()


def test_removed_view_is_opened_again() -> None:
    views: OpenViews[View] = OpenViews()
    with Server() as server:
        view = views.open(server, "m", View)
        views.remove(server, View())
        assert views.find(server, "m") is view
        views.remove(server, view)
        assert views.find(server, "m") is None
        assert views.open(server, "m", View) is not view


def test_views_of_a_freed_server_are_forgotten() -> None:
    views: OpenViews[View] = OpenViews()
    server = Server()
    views.open(server, "m", View)
    server.stop()
    del server
    gc.collect()
    assert len(views._views) == 0
