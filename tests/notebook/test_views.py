"""Widgets are opened once per server and model."""

from __future__ import annotations

import gc
import weakref

from tritonnb.notebook.views import find_view, forget_view, open_view
from tritonnb.server.server import Server


class View:
    """A stand-in for a widget."""


class Other(View):
    """A widget of another class."""


def test_view_is_opened_once_per_class_server_and_model() -> None:
    one, other = Server(), Server()
    view = open_view(View, one, "m", View)
    assert open_view(View, one, "m", View) is view
    assert len({view, open_view(View, one, "n", View), open_view(View, other, "m", View)}) == 3
    assert find_view(Other, one, "n") is None
    assert open_view(Other, one, "m", Other) is not view
    one.stop()
    other.stop()


def test_removed_view_is_opened_again() -> None:
    with Server() as server:
        view = open_view(View, server, "m", View)
        forget_view(server, View())
        assert find_view(View, server, "m") is view
        forget_view(server, view)
        assert find_view(View, server, "m") is None
        assert open_view(View, server, "m", View) is not view


def test_views_of_a_freed_server_are_forgotten() -> None:
    server = Server()
    view = weakref.ref(open_view(View, server, "m", View))
    server.stop()
    del server
    gc.collect()
    assert view() is None
