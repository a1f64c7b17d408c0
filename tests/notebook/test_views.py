"""Widgets are opened once per server and model."""

from __future__ import annotations

import gc
import sys
import threading
import time
import weakref
from types import SimpleNamespace
from typing import Any

import pytest
from ipywidgets.widgets.widget import _instances

import tritonnb as tnb
from tests.waiting import wait_for
from tritonnb.notebook import views
from tritonnb.notebook.config_editor import ConfigEditor
from tritonnb.notebook.containers import Markup
from tritonnb.notebook.live_batch_view import LiveBatchView
from tritonnb.notebook.traffic import Traffic
from tritonnb.notebook.views import StaticFallback, find_view, forget_view, open_view
from tritonnb.server.server import Server


def widgets() -> list[Any]:
    """The open widgets."""
    return list(_instances.values())


class View:
    """A stand-in for a widget."""

    comm = SimpleNamespace(_closed=False)


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


@pytest.mark.parametrize("kind", [LiveBatchView, Traffic, ConfigEditor])
def test_view_that_its_host_has_closed_is_opened_again(kind: Any) -> None:
    """marimo closes the comms of the widgets of a cell that runs again, and the cell asks for its view again."""
    methods = {LiveBatchView: "watch", Traffic: "traffic", ConfigEditor: "edit"}
    with Server(port=0) as server:

        @server.model(max_batch_size=8)
        def double(X: tnb.FP32[1]) -> tnb.FP32[1]:
            return X * 2

        dashboard = server.dashboard()
        first = getattr(server["double"], methods[kind])()
        for view in (first, dashboard):
            view.comm.close()
        again = getattr(server["double"], methods[kind])()
        assert again is not first
        assert first.comm is None
        assert again is find_view(kind, server, "double")
        assert server.dashboard() is not dashboard


@pytest.mark.parametrize(
    "view",
    ["server['double'].watch()", "server.dashboard()", "server['double'].edit()", "remote['double'].watch()",
     "remote.dashboard()", "server['double'].traffic()"],
)  # fmt: skip
def test_view_that_its_host_has_closed_ends(view: str) -> None:
    """marimo closes the comms of a cell that runs again, and reports an error for each later message."""
    with Server(port=0) as server:

        @server.model(max_batch_size=8)
        def double(X: tnb.FP32[1]) -> tnb.FP32[1]:
            return X * 2

        with tnb.connect(server.url) as remote:
            before = set(widgets())
            opened = eval(view, {"server": server, "remote": remote})
            if isinstance(opened, Traffic):
                opened.sending = True
            comms = [widget.comm for widget in set(widgets()) - before]
            sent: list[Any] = []
            for comm in comms:
                comm.close()
                comm.send = lambda *args, **options: sent.append(options)
            server["double"](X=[[1.0]])
            wait_for(lambda: opened.comm is None)
            assert len(sent) <= 1  # a message that was being written


def test_cells_of_marimo_do_not_share_views(monkeypatch: pytest.MonkeyPatch) -> None:
    """A widget belongs to the cell that has created it: when that cell runs again, other cells would lose it."""
    marimo = SimpleNamespace(running_in_notebook=lambda: True, Thread=threading.Thread)
    monkeypatch.setitem(sys.modules, "marimo", marimo)
    rec = tnb.simulate("max_batch_size: 8 dynamic_batching { }", [(0, 2), (0, 3)], tnb.fixed(10))
    assert rec.view() is not rec.view()
    with Server(port=0) as server:

        @server.model(max_batch_size=8)
        def double(X: tnb.FP32[1]) -> tnb.FP32[1]:
            return X * 2

        panel = server["double"].traffic()
        dashboard = server.dashboard()
        assert find_view(Traffic, server, "double") is not panel
        assert dashboard._open_part(Traffic, Traffic) is find_view(Traffic, server, "double")  # as for its next model
        dashboard.comm.close()
        server.dashboard()
        assert dashboard.comm is None  # it was closed, with its parts
        assert panel.comm is not None


def test_view_of_a_recording_that_its_host_has_closed_is_opened_again() -> None:
    rec = tnb.simulate("max_batch_size: 8 dynamic_batching { }", [(0, 2), (0, 3)], tnb.fixed(10))
    first = rec.view()
    first.comm.close()
    assert rec.view() is not first


class Text(StaticFallback, Markup):
    """A widget with a last state as long as its text."""

    def last_state(self) -> str:
        return str(self.value)


@pytest.mark.parametrize(("size", "most"), [(10, 25), (50_000, 6)])
def test_large_last_state_is_sent_less_often(monkeypatch: pytest.MonkeyPatch, size: int, most: int) -> None:
    sent: list[Any] = []
    clock = SimpleNamespace(now=0, strftime=time.strftime)
    clock.monotonic = lambda: clock.now
    monkeypatch.setattr(views, "time", clock)
    monkeypatch.setattr(views, "display", lambda data, **options: sent.append(data))
    widget = Text()
    widget._display_id = "shown"
    for clock.now in range(1, 51):
        widget.value = str(clock.now) * size
        widget.keep_last_state()
    assert 0 < len(sent) <= most
    widget.keep_last_state(at_once=True)
    assert widget.value in sent[-1]["text/html"]
    widget.close()
