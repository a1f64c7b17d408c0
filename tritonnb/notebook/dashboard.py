"""``server.dashboard()``: a server's models, one of them opened in tabs.

One thread asks the server every quarter of a second and sends what has changed, so the dashboard goes on
while a cell runs; the browser's messages are only handed to that thread. A model that failed to load is among the
others with its reason and its configuration; once that is mended and applied, its traffic and batches come.
"""

from __future__ import annotations

import contextlib
import html
import queue
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, TypeVar
from weakref import WeakKeyDictionary

import ipywidgets as widgets

from tritonnb.core.errors import TritonError
from tritonnb.notebook.batch_view import LiveBatchView
from tritonnb.notebook.cards import model_card, server_card
from tritonnb.notebook.config_editor import ConfigEditor, edit_config, is_open
from tritonnb.notebook.static_fallback import LIVE, StaticFallback
from tritonnb.notebook.traffic import Traffic, open_traffic
from tritonnb.notebook.traffic import is_open as has_traffic

if TYPE_CHECKING:
    from tritonnb.server.model_handle import ModelHandle
    from tritonnb.server.server import Server

_EVERY_S = 0.25
W = TypeVar("W", ConfigEditor, Traffic)

#: The dashboards that are open, by server and the model that was asked for.
_open: WeakKeyDictionary[Server, dict[str | None, Dashboard]] = WeakKeyDictionary()


def open_dashboard(server: Server, model: str | None = None) -> Dashboard:
    """A dashboard that opens a model; the same one as long as it is not closed, so that a cell may run again."""
    dashboards = _open.setdefault(server, {})
    if model not in dashboards:
        dashboards[model] = Dashboard(server, model)
    elif model is not None:
        dashboards[model].show(model)
    return dashboards[model]


class Dashboard(StaticFallback, widgets.VBox):  # type: ignore[misc]
    """The widget; `close` ends it and everything that it opened.

    Parameters
    ----------
    server : Server
    model : str, optional
        The model that is opened first; by default any.
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
        self._jobs: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._work, name="tritonnb dashboard", daemon=True)
        super().__init__([self._card, self._choice, self._tabs])
        self.add_class(LIVE)
        self.add_class("tnb-dashboard")
        for each in (self._card, self._statistics):
            each.add_class("jp-RenderedHTMLCommon")  # tables look like those of other outputs
        try:
            self._refresh()
            if model is not None:
                self._choice.value = model
            self._open_chosen()
        except BaseException:
            self.close()
            raise
        self._choice.observe(lambda change: self._jobs.put(self._open_chosen), "value")
        self._thread.start()

    def show(self, model: str) -> None:
        """Open a model."""
        self._choice.value = model

    def close(self) -> None:
        """Take the dashboard away; server and models go on."""
        self._forget()
        self._jobs.put(None)
        if self._thread.is_alive() and threading.current_thread() is not self._thread:
            self._thread.join()
        self._close_view()
        for each in (*self._own, self._live, self._card, self._choice, self._statistics, self._tabs):
            each.close()
        super().close()

    def _forget(self) -> None:
        """The next call makes another one."""
        opened = _open.get(self._server, {})
        for model in [model for model, each in opened.items() if each is self]:
            del opened[model]

    def last_state(self) -> str:
        """Server, model and configuration as they were last."""
        config = "" if self._editor is None else self._editor.text
        return f"{self._card.value}{self._statistics.value}<pre>{html.escape(config)}</pre>"

    def refresh_last_state(self) -> bool:
        """Read the counters of the server and the model once more."""
        if self._server.alive:
            self._show_counters()
        return True

    # --- the thread -----------------------------------------------------------------------------

    def _work(self) -> None:
        while self._server.alive:
            try:
                job = self._jobs.get(timeout=_EVERY_S)
            except queue.Empty:
                job = self._refresh
            if job is None:
                return
            with contextlib.suppress(TritonError, RuntimeError):  # unloaded, or stopped, meanwhile
                job()
        self._forget()
        self._choice.disabled = True
        self._card.value = f"<p><b>The server has been stopped.</b> This is how it was last.</p>{self._card.value}"
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
        name = self._choice.value  # as it is now: while its options change it is another for a moment
        if name is None or (self._model is not None and self._model.name == name):
            return
        model = self._model = self._server[name]
        self._statistics.value = model_card(model)
        self._editor = self._opened(edit_config, is_open)
        self._show_live()
        tabs = {"Live": self._live, "Configuration": self._editor, "Statistics": self._statistics}
        self._tabs.children = tuple(tabs.values())
        self._tabs.titles = tuple(tabs)
        self._tabs.selected_index = 0
        self.keep_last_state(at_once=True)

    def _show_live(self) -> None:
        """Traffic and batches of the model; why there are none, if it failed to load."""
        assert self._model is not None
        self._close_view()
        model = self._model
        self._served = not self._server.call(self._server.engine.failure, model.name)
        if not self._served:
            self._live.children = (self._statistics,)
            return
        traffic = self._opened(open_traffic, has_traffic)
        if not model.config.HasField("ensemble_scheduling"):  # which has no batches of its own
            self._view = LiveBatchView(model)
        self._live.children = (traffic,) if self._view is None else (traffic, self._view)

    def _opened(self, open_one: Callable[[ModelHandle], W], is_already: Callable[[ModelHandle], bool]) -> W:
        """A widget of the model; what the dashboard opened, it closes."""
        assert self._model is not None
        shared = is_already(self._model)
        opened = open_one(self._model)
        if not shared:
            self._own.append(opened)
        return opened

    def _close_view(self) -> None:
        """Configurations stay open, with what was edited in them, and traffic goes on."""
        view, self._view = self._view, None
        self._live.children = ()
        if view is not None:
            view.close()
