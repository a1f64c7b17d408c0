"""``server.dashboard()``: a server's models, one of them opened in tabs.

One worker thread asks the server every quarter of a second and sends what has changed, so the dashboard is updated
while a cell runs; browser messages are only passed to that thread. A model that failed to load is listed with its
reason and its configuration; once a corrected configuration is applied, its traffic panel and batch view are opened.
"""

from __future__ import annotations

import contextlib
import html
from collections.abc import Callable
from typing import TYPE_CHECKING, TypeVar

import ipywidgets as widgets

from tritonnb.core.errors import TritonError
from tritonnb.notebook.batch_view import LiveBatchView
from tritonnb.notebook.cards import model_card, server_card
from tritonnb.notebook.config_editor import ConfigEditor, edit_config, open_editors
from tritonnb.notebook.open_views import OpenViews
from tritonnb.notebook.static_fallback import LIVE, StaticFallback
from tritonnb.notebook.traffic import Traffic, open_panels, open_traffic
from tritonnb.notebook.worker import Job, Worker

if TYPE_CHECKING:
    from tritonnb.server.model_handle import ModelHandle
    from tritonnb.server.server import Server

_POLL_S = 0.25
W = TypeVar("W", ConfigEditor, Traffic)

#: The open dashboards, by server and the model with which they were opened.
open_dashboards: OpenViews[Dashboard] = OpenViews()


def open_dashboard(server: Server, model: str | None = None) -> Dashboard:
    """Return the dashboard with a model selected, the same one until it is closed, so that a cell can run again."""
    dashboard = open_dashboards.open(server, model, lambda: Dashboard(server, model))
    if model is not None:
        dashboard.show(model)
    return dashboard


class Dashboard(StaticFallback, widgets.VBox):  # type: ignore[misc]
    """The widget; `close` closes it and everything that it opened.

    Parameters
    ----------
    server : Server
    model : str, optional
        The model that is shown first; by default the first one.
    """

    def __init__(self, server: Server, model: str | None = None) -> None:
        self._server = server
        self._card = widgets.HTML()
        self._choice = widgets.Dropdown(description="model")
        self._statistics = widgets.HTML()
        self._tabs = widgets.Tab()
        self._model: ModelHandle | None = None
        self._served = False
        self._editor: ConfigEditor | None = None
        self._own: list[ConfigEditor | Traffic] = []
        self._view: LiveBatchView | None = None
        self._live = widgets.VBox()
        self._worker = Worker("tritonnb dashboard", self._run, self._refresh, _POLL_S)
        super().__init__([self._card, self._choice, self._tabs])
        self.add_class(LIVE)
        self.add_class("tnb-dashboard")
        for card in (self._card, self._statistics):
            card.add_class("jp-RenderedHTMLCommon")  # tables look like those of other outputs
        try:
            self._refresh()
            if model is not None:
                self._choice.value = model
            self._open_chosen()
        except BaseException:
            self.close()
            raise
        self._choice.observe(lambda change: self._worker.submit(self._open_chosen), "value")
        self._worker.start()

    def show(self, model: str) -> None:
        """Select a model."""
        self._choice.value = model

    def close(self) -> None:
        """Close the dashboard; the server and its models are not affected."""
        open_dashboards.remove(self._server, self)
        self._worker.stop()
        self._worker.join()
        self._close_view()
        for widget in (*self._own, self._live, self._card, self._choice, self._statistics, self._tabs):
            widget.close()
        super().close()

    def last_state(self) -> str:
        """Return the last state of server, model and configuration as HTML."""
        config = "" if self._editor is None else self._editor.text
        return f"{self._card.value}{self._statistics.value}<pre>{html.escape(config)}</pre>"

    def refresh_last_state(self) -> bool:
        """Read the counters of the server and the model again."""
        if self._server.alive:
            self._show_counters()
        return True

    # --- on the worker thread -------------------------------------------------------------------

    def _run(self, job: Job) -> None:
        if self._worker.stopped:
            return
        if self._server.alive:
            with contextlib.suppress(TritonError, RuntimeError):  # model unloaded or server stopped in the meantime
                job()
        if not self._server.alive:
            self._show_stopped()

    def _show_stopped(self) -> None:
        self._worker.stop()
        open_dashboards.remove(self._server, self)
        self._choice.disabled = True
        self._card.value = f"<p><b>The server has been stopped.</b> This is its last state.</p>{self._card.value}"
        self.keep_last_state(at_once=True)

    def _refresh(self) -> None:
        self._show_counters()
        failed = self._server.call(self._server.engine.failures)
        names = [*self._server, *failed]
        if list(self._choice.options) != names:
            chosen = self._choice.value
            self._choice.options = names
            self._choice.value = chosen if chosen in names else next(iter(names), None)
        if self._model is not None and self._model.name in names and (self._model.name not in failed) != self._served:
            self._show_live()
        self.keep_last_state()

    def _show_counters(self) -> None:
        self._card.value = server_card(self._server)
        if self._model is not None:
            self._statistics.value = model_card(self._model)

    def _open_chosen(self) -> None:
        # Read the current value: while the options are replaced, the event reports another one for a moment.
        name = self._choice.value
        if name is None or (self._model is not None and self._model.name == name):
            return
        model = self._model = self._server[name]
        self._statistics.value = model_card(model)
        self._editor = self._open_part(open_editors, edit_config)
        self._show_live()
        tabs = {"Live": self._live, "Configuration": self._editor, "Statistics": self._statistics}
        self._tabs.children = tuple(tabs.values())
        self._tabs.titles = tuple(tabs)
        self._tabs.selected_index = 0
        self.keep_last_state(at_once=True)

    def _show_live(self) -> None:
        """Show traffic and batches of the model, or the reason why it failed to load."""
        assert self._model is not None
        self._close_view()
        model = self._model
        if self._server.call(self._server.engine.failure, model.name):
            self._served = False
            self._live.children = (self._statistics,)
            return
        traffic = self._open_part(open_panels, open_traffic)
        if not model.config.HasField("ensemble_scheduling"):  # an ensemble has no batches of its own
            self._view = LiveBatchView(model)
        self._live.children = (traffic,) if self._view is None else (traffic, self._view)
        self._served = True  # last: if the model is not available yet, the next poll tries again

    def _open_part(self, registry: OpenViews[W], open_one: Callable[[ModelHandle], W]) -> W:
        """Open a widget of the model; the dashboard closes those that it opened itself."""
        assert self._model is not None
        shared = registry.find(self._server, self._model.name) is not None
        widget = open_one(self._model)
        if not shared:
            self._own.append(widget)
        return widget

    def _close_view(self) -> None:
        """Close the batch view; the editor with unsaved changes and the traffic panel stay open."""
        view, self._view = self._view, None
        self._live.children = ()
        if view is not None:
            view.close()
