"""``server["ocr"].watch()`` of an ensemble: its graph, and the batches of its steps on one time axis."""

from __future__ import annotations

import html
from collections.abc import Callable

import anywidget
import traitlets

from tritonnb.core.json_types import Json
from tritonnb.notebook.containers import Markup
from tritonnb.notebook.server_monitor import ServerMonitor
from tritonnb.notebook.step_batches import MOST_EVENTS, StepBatches, newest_requests
from tritonnb.notebook.views import PolledView
from tritonnb.notebook.widget_files import javascript, stylesheet
from tritonnb.server.model_handle import ModelHandle


class Graph(anywidget.AnyWidget):
    """The graph of an ensemble: ``nodes`` with their texts, ``edges``, and a ``description``; ``lit`` names steps.

    Parameters
    ----------
    select : callable
        Called on the main thread with the model of a step that was clicked.
    """

    _esm = javascript("ensemble_graph")
    _css = stylesheet("dashboard")
    graph = traitlets.Dict().tag(sync=True)
    lit = traitlets.Dict().tag(sync=True)

    def __init__(self, select: Callable[[str], object]) -> None:
        super().__init__()
        self.on_msg(lambda graph, content, buffers: select(str(content.get("select", ""))))


class EnsembleView(PolledView):
    """The graph of a served ensemble and the batches of its steps, renewed every second.

    A request that is selected lights up in both; the live view of a step that was clicked is below them.
    """

    def __init__(self, model: ModelHandle) -> None:
        self._model = model
        self._monitor = ServerMonitor(model.server)
        self._monitor.update()
        self._graph = Graph(lambda name: self._worker.submit(lambda: self._show_step(name)))
        self._graph.graph = self._monitor.graph(model.name)
        self._batches = StepBatches()
        self._batches.picture = self._newest()
        status = Markup(f"<b>{html.escape(model.name)}</b>: select a step to see its batches.")
        super().__init__(f"tritonnb view {model.name}", status, [self._graph, self._batches], shared="lit")

    def refresh(self) -> None:
        """Read the queues, the times of the steps and the newest requests; called on the thread of the view."""
        if self._monitor.update():
            self._graph.graph = self._monitor.graph(self._model.name)
            self._batches.picture = self._newest()
            self.keep_last_state()

    def last_state(self) -> str:
        """Return the graph in words as HTML."""
        return f"<p>{html.escape(self._graph.graph['description'])}</p>"

    def _newest(self) -> Json:
        engine = self._model.server.engine
        events = self._model.server.call(engine.stream.recent.copy, MOST_EVENTS)
        return newest_requests(events, self._model.name, self._monitor.models_below(self._model.name))

    def close(self) -> None:
        """Stop reading, and close the view."""
        super().close()
        self._monitor.close()

    def _show_step(self, name: str) -> None:
        steps: list[Json] = self._graph.graph["nodes"]
        if any(node["label"] == name and node["step"] >= 0 for node in steps):
            # Not in `_parts`: the step's own view stays open when this view is closed.
            self.children = (self.status, self._graph, self._batches, ModelHandle(self._model.server, name).watch())
