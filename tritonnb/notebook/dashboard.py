"""``server.dashboard()``: a server's models, one of them opened: live, over time, its configuration and statistics.

One worker thread asks the server four times a second and sends what has changed, the cards once a second, so the
dashboard is updated while a cell runs; browser messages are only passed to that thread. A model that failed to load is
listed with its reason and its configuration; once a corrected configuration is applied, its traffic panel and batch
view are opened.
"""

from __future__ import annotations

import contextlib
import html
import time
from collections.abc import Callable
from typing import Any, TypeVar

import anywidget
import traitlets

from tritonnb.core.errors import TritonError
from tritonnb.core.failures import with_short_traceback
from tritonnb.notebook.config_editor import ConfigEditor, edit_config
from tritonnb.notebook.containers import Group, Markup
from tritonnb.notebook.ensemble_view import Graph
from tritonnb.notebook.html_reprs import model_card, server_card, server_title
from tritonnb.notebook.live_batch_view import LiveBatchView, open_live_view
from tritonnb.notebook.server_monitor import ServerMonitor
from tritonnb.notebook.traffic import Traffic, open_traffic
from tritonnb.notebook.views import StaticFallback, close_disconnected, find_view, forget_view, is_connected, open_view
from tritonnb.notebook.widget_files import javascript, stylesheet
from tritonnb.notebook.worker import Job, Worker
from tritonnb.server.model_handle import ModelHandle
from tritonnb.server.server import Server

_POLL_S, _END_S = 0.25, 5.0
#: The share of time that may be spent on the picture for notebooks without a kernel.
_PICTURE_SHARE = 0.01
W = TypeVar("W", ConfigEditor, LiveBatchView, Traffic)


@with_short_traceback
def open_dashboard(server: Server, model: str | None = None) -> Dashboard:
    """Open a live view of the server's models: configuration, batches, traffic, statistics.

    Parameters
    ----------
    model : str, optional
        The model that is shown first.

    Returns
    -------
    Dashboard
        A widget. Every call with the same model returns the same widget until it is closed.

    Raises
    ------
    NotFoundError
        If the model does not exist.

    Examples
    --------
    >>> import tritonnb as tnb
    >>> with tnb.Server(port=0) as server:
    ...     server.dashboard().close()
    """
    if model is not None:
        _ = server[model]
    dashboard = open_view(Dashboard, server, model, lambda: Dashboard(server, model))
    if model is not None:
        dashboard.show(model)
    return dashboard


class Dashboard(StaticFallback, Group):
    """The widget; `close` closes it and everything that it opened.

    Parameters
    ----------
    server : Server
    model : str, optional
        The model that is shown first; by default the first model.

    Examples
    --------
    >>> import tritonnb as tnb
    >>> with tnb.Server(port=0) as server:
    ...     @server.model(max_batch_size=8, dynamic_batching={})
    ...     def double(X: tnb.FP32[1]) -> tnb.FP32[1]:
    ...         return X * 2
    ...     dashboard = server.dashboard()
    ...     dashboard.show("double")
    ...     dashboard.close()
    """

    _css = stylesheet("group", "dashboard")

    def __init__(self, server: Server, model: str | None = None) -> None:
        self._server = server
        self._monitor = ServerMonitor(server)
        self._title, self._card, self._statistics = Markup(css_class="tnb-title"), Markup(), Markup()
        self._models, self._tiles, self._charts = ModelList(), Tiles(), Charts()
        self._graph = Graph(self._show_step)
        self._model: ModelHandle | None = None
        self._served = False
        self._editor: ConfigEditor | None = None
        self._own: dict[tuple[type, str], Any] = {}  # the parts that it has opened, by class and model
        self._view: LiveBatchView | None = None
        self._picture = ""
        self._picture_after_s = 0.0
        self._live, self._configuration = Group(), Group()
        tabs = {
            "Live": self._live, "Configuration": self._configuration,
            "Statistics": self._statistics, "Server": self._card,
        }  # fmt: skip
        self._tabs = Group(tuple(tabs.values()), titles=tuple(tabs))
        self._main = Group([self._tiles, self._tabs], css_class="tnb-main")
        self._body = Group([self._models, self._main], css_class="tnb-body")
        self._worker = Worker("tritonnb dashboard", self._run, self._refresh, _POLL_S)
        super().__init__([self._title, self._body], css_class="tnb-dashboard")
        try:
            self._monitor.update()
            self._models.models = self._monitor.models()
            self._models.selected = model or next(iter(self._names), "")
            self._open_selected()
            self._show_counters()
            self._refresh()
        except BaseException:
            self.close()
            raise
        self._models.observe(lambda change: self._worker.submit(self._open_selected), "selected")
        self._worker.start()

    def show(self, model: str) -> None:
        """Select a model."""
        self._models.selected = model

    def _show_step(self, model: str) -> None:
        if model in self._names:
            self.show(model)

    def close(self) -> None:
        """Close the dashboard; the server and its models are not affected."""
        forget_view(self._server, self)
        self._worker.close()
        self._monitor.close()
        parts = (self._title, self._card, self._statistics, self._models, self._tiles, self._charts, self._graph)
        groups = (self._tabs, self._live, self._configuration, self._main, self._body)
        for widget in (*parts, *groups):
            widget.close()
        self._close_view()
        for widget in self._own.values():
            widget.close()
        super().close()

    def last_state(self) -> str:
        """Return the last state of server, model and configuration as HTML, and the batches as a picture."""
        tiles = "".join(
            f"<li>{tile['label']}: <b>{tile['value']}</b> {tile['unit']} ({html.escape(tile['note'])})</li>"
            for tile in self._tiles.kept or self._tiles.tiles
        )
        config = "" if self._editor is None else f"<pre>{html.escape(self._editor.text)}</pre>"
        name = "" if self._model is None else f"<p><b>{html.escape(self._model.name)}</b></p>"
        moment = "<p>The last seconds with requests:</p>" if self._tiles.kept else ""
        return f"{name}{moment}<ul>{tiles}</ul>{self._picture}{self._statistics.value}{config}{self._card.value}"

    def refresh_last_state(self) -> bool:
        """Read the counters of the server and the model again, and draw the batches if no browser shows them."""
        if self._server.alive:
            self._show_counters()
        view = self._view
        # A view with its own output is flushed for that output.
        if view is not None and (view.refresh_last_state() if view in self._own.values() else not view.is_displayed):
            self._draw_picture()
        return True

    @property
    def _names(self) -> list[str]:
        return [model["name"] for model in self._models.models]

    # --- on the worker thread -------------------------------------------------------------------

    def _run(self, job: Job) -> None:
        if self._worker.stopped or close_disconnected(self):
            return
        if self._server.alive:
            with contextlib.suppress(TritonError, RuntimeError):  # model unloaded or server stopped in the meantime
                job()
        if not self._server.alive:
            self._show_stopped()

    def _show_stopped(self) -> None:
        self._worker.stop()
        forget_view(self._server, self)
        if self._view is not None:
            self._view.ended.wait(_END_S)  # it takes its last events
        self._draw_picture()
        self._models.ended = True
        self._tiles.tiles = self._tiles.kept or self._tiles.tiles
        self._charts.recent = self._charts.kept or self._charts.recent
        ended = "<p><b>The server has been stopped.</b> These are its last seconds with requests.</p>"
        self._title.value = f"{ended}{self._title.value}"
        self.keep_last_state(at_once=True)

    def _refresh(self) -> None:
        is_over = self._monitor.update()
        self._models.models = self._monitor.models()
        names = self._names
        if self._models.selected not in names:
            self._models.selected = next(iter(names), "")
        model = self._model
        if model is not None and model.name in names:
            if self._is_failed(model.name) == self._served:
                self._show_live()
            if is_over:
                self._show_counters()
            if is_over and self._served:
                self._show_activity(model)
            if time.monotonic() > self._picture_after_s and self._monitor.is_idle(model.name):
                self._draw_picture()
        self.keep_last_state()

    def _show_counters(self) -> None:
        self._title.value = server_title(self._server)
        self._card.value = server_card(self._server)
        if self._model is not None:
            self._statistics.value = model_card(self._model)

    def _show_activity(self, model: ModelHandle) -> None:
        self._charts.recent = self._monitor.recent(model.name)
        self._tiles.tiles = self._monitor.tiles(model.name)
        kept = self._monitor.last_busy(model.name)
        if kept:
            self._tiles.kept, self._charts.kept = self._monitor.tiles(model.name, kept), kept
        self._charts.series = self._monitor.series(model.name)
        self._charts.periods = self._monitor.periods(model.name)
        if self._graph in self._live.children:
            self._graph.graph = self._monitor.graph(model.name)

    def _is_failed(self, name: str) -> bool:
        return bool(self._server.call(self._server.engine.table.failure, name))

    def _draw_picture(self) -> None:
        """Draw the batches for notebooks without a kernel; it takes long, so it is not done often."""
        if self._view is None:
            return
        begin = time.monotonic()
        self._picture = self._view.last_state()
        self._picture_after_s = time.monotonic() + (time.monotonic() - begin) / _PICTURE_SHARE

    def _open_selected(self) -> None:
        name = self._models.selected
        if name not in self._names:
            return
        if self._model is None or self._model.name != name:
            model = self._model = self._server[name]
            self._statistics.value = model_card(model)
            self._editor = self._open_part(ConfigEditor, edit_config)
            self._configuration.children = (self._editor,)
            self._show_live()
            self.keep_last_state(at_once=True)
        self._models.shown = name

    def _show_live(self) -> None:
        """Show traffic and batches of the model, or the reason why it failed to load."""
        assert self._model is not None
        self._close_view()
        self._tiles.kept, self._charts.kept = [], {}
        model = self._model
        if self._is_failed(model.name):
            self._served = False
            self._tiles.tiles = []
            self._live.children = (self._statistics,)
            return
        picture: anywidget.AnyWidget
        traffic = self._open_part(Traffic, open_traffic)
        if model.config.HasField("ensemble_scheduling"):  # an ensemble itself has no batches
            picture = self._graph
            self._graph.graph = self._monitor.graph(model.name)
        else:
            picture = self._view = self._open_part(LiveBatchView, open_live_view)
        self._show_activity(model)
        self._live.children = (traffic, picture, self._charts)
        self._served = True  # last: if the model is not available yet, the next poll tries again

    def _open_part(self, kind: type[W], open_one: Callable[[ModelHandle], W]) -> W:
        """Open a widget of the model; the dashboard closes those that it opened itself."""
        assert self._model is not None
        key = kind, self._model.name
        own: W | None = self._own.get(key)
        if own is not None and is_connected(own):
            return own
        known = find_view(kind, self._server, self._model.name)
        widget = open_one(self._model)
        if widget is not known:
            self._own[key] = widget
        return widget

    def _close_view(self) -> None:
        """Close the batch view; the editor with unsaved changes and the traffic panel stay open."""
        view, self._view = self._view, None
        self._picture = ""
        self._live.children = ()
        if view is not None and view in self._own.values():
            self._own = {key: own for key, own in self._own.items() if own is not view}
            view.close()


class ModelList(anywidget.AnyWidget):
    """The models of a server, one of them selected.

    Attributes
    ----------
    models : list of dict
        ``name``, ``state``, ``reason``, ``scheduling``, ``rate`` and ``errors`` (requests/s), ``problem``, and
        ``curve``, the rates of the last intervals.
    selected : str
        The model that was selected in the browser, or by `Dashboard.show`.
    shown : str
        The model that the dashboard shows: the selected one as soon as the kernel could react.
    """

    _esm = javascript("model_list")
    _css = stylesheet("dashboard")
    models = traitlets.List(traitlets.Dict()).tag(sync=True)
    selected = traitlets.Unicode().tag(sync=True)
    shown = traitlets.Unicode().tag(sync=True)
    ended = traitlets.Bool(False).tag(sync=True)


class Tiles(anywidget.AnyWidget):
    """The most important numbers: a list of ``label``, ``value``, ``unit``, ``note`` and ``level``.

    The level is empty, ``"warning"`` or ``"error"``. A page without a kernel shows ``kept``, the tiles of the last
    seconds with requests.
    """

    _esm = javascript("tiles")
    tiles = traitlets.List(traitlets.Dict()).tag(sync=True)
    kept = traitlets.List(traitlets.Dict()).tag(sync=True)


class Charts(anywidget.AnyWidget):
    """Throughput, latency percentiles and utilization over time.

    Attributes
    ----------
    series : dict
        By interval: ``time`` (seconds since the epoch), ``rate``, ``errors``, ``p50_ms``, ``p99_ms``, ``n``, ``busy``.
    recent : dict
        The same of the last seconds together, as the tiles show them.
    kept : dict
        The same of the last seconds with requests, for a page without a kernel.
    periods : list of dict
        The applied configurations with their numbers: see `ServerMonitor.periods`.
    """

    _esm = javascript("charts")
    series = traitlets.Dict().tag(sync=True)
    recent = traitlets.Dict().tag(sync=True)
    kept = traitlets.Dict().tag(sync=True)
    periods = traitlets.List(traitlets.Dict()).tag(sync=True)
