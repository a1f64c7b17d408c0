"""The batch view: batches of a model, or the batch slots of a stateful model, over time; here of recordings.

Pausing, scrolling, zooming, stepping and saving happen in the browser, so they work while a cell runs.
"""

from __future__ import annotations

import html
from collections.abc import Callable
from functools import partial
from typing import Any
from weakref import WeakKeyDictionary

import anywidget
import traitlets

from tritonnb.core.errors import InvalidArgumentError
from tritonnb.core.events import BatchSent, Event, RequestArrived
from tritonnb.core.failures import with_short_traceback
from tritonnb.core.json_types import Json
from tritonnb.lab.analysis.comparison import Comparison
from tritonnb.lab.figures.palette import style_sheet
from tritonnb.notebook.blame_panel import answer_request
from tritonnb.notebook.containers import Group, Markup
from tritonnb.notebook.view_encoding import TICKS
from tritonnb.notebook.view_session import recorded_history
from tritonnb.notebook.views import StaticFallback, can_share, is_connected
from tritonnb.notebook.widget_files import STATIC, javascript
from tritonnb.notebook.worker import LatestOnlyWorker
from tritonnb.recording.recording import Recording

#: Batches of a static figure: of more, boxes are too narrow to be read.
_MOST_BATCHES = 24
#: The views of recordings, and the events that they show.
_open_views: WeakKeyDictionary[Recording, tuple[list[Event], BatchView]] = WeakKeyDictionary()


@with_short_traceback
def view(recording: Recording) -> BatchView:
    """Open the recording in the widget of `ModelHandle.watch`, to step, zoom and export.

    Returns
    -------
    BatchView
        Every call returns the same widget until it is closed.

    Raises
    ------
    InvalidArgumentError
        If the recording is not of exactly one model; see `for_model`.

    Examples
    --------
    >>> from tritonnb import fixed, simulate
    >>> recording = simulate("max_batch_size: 8 dynamic_batching { }", [(0, 2), (0, 3)], fixed(10))
    >>> view = recording.view()
    """
    recording.require_every_request("view()")
    events, shown = _open_views.get(recording, (None, None))
    # It may have been closed, or opened while the recording was in progress.
    if shown is None or events is not recording.events or not (is_connected(shown) and can_share()):
        shown = _new_view(recording)
        _open_views[recording] = recording.events, shown
    return shown


def _new_view(recording: Recording) -> BatchView:
    models = sorted({event.model for event in recording.events if isinstance(event, RequestArrived | BatchSent)})
    if len(models) != 1:
        got = f"{', '.join(models)}; select one with rec.for_model()" if models else "none"
        raise InvalidArgumentError(f"batch view: expected a recording of one model, got {got}")
    selected = recording.for_model(models[0])
    return BatchView(recorded_history(selected), selected)


class BatchView(StaticFallback, anywidget.AnyWidget):
    """A widget that shows batches, or slots, over time.

    Attributes
    ----------
    history : dict
        What a view shows when it is opened.
    live : bool
        Whether more events may follow.
    moment : dict
        The time span that is shown, to link views in the browser.
    blame : dict
        The causes of the latency of the request that was selected last: see `answer_request`.
    ghost : dict
        The batches under a draft of the configuration: ``text``, and ``boxes`` of instance, begin, end and rows.
    notice : str
        Why something that the user wanted was not done, or why a live view has ended.

    Examples
    --------
    >>> from tritonnb import fixed, simulate
    >>> recording = simulate("max_batch_size: 8 dynamic_batching { }", [(0, 2), (0, 3)], fixed(10))
    >>> view = recording.view()
    >>> len(view.recording().batches), view.svg().lstrip()[:4]
    (2, '<svg')
    >>> view.close()
    """

    _esm = javascript("batch_view")
    _css = style_sheet(".tnb-batch-view") + (STATIC / "batch_view.css").read_text("utf-8")
    history = traitlets.Dict().tag(sync=True)
    live = traitlets.Bool(False).tag(sync=True)
    moment = traitlets.Dict().tag(sync=True)
    blame = traitlets.Dict().tag(sync=True)
    ghost = traitlets.Dict().tag(sync=True)
    notice = traitlets.Unicode().tag(sync=True)

    def __init__(self, history: Json, recording: Recording | None = None, **traits: Any) -> None:
        self._recording = recording
        self._blaming = LatestOnlyWorker("tritonnb blame")
        self._searching = LatestOnlyWorker("tritonnb remedies")  # its simulations keep no other request waiting
        super().__init__(history=history, **traits)
        self.on_msg(_on_blame)

    def __repr__(self) -> str:
        return f"<{type(self).__name__} of '{self.history['meta']['model']}'>"

    def recording(self) -> Recording | None:
        """Return the displayed recording, or None if there is none."""
        return self._recording

    def recording_of(self, batch: int) -> Recording | None:
        """Return a recording that has the events around a batch."""
        return self._recording

    def svg(self) -> str:
        """Return a static figure of the display, for print and for notebooks without a kernel."""
        recording = self.recording()
        if recording is None or not recording.batches:
            return ""
        figure: str = recording.plot.svg(self._figure(recording))
        return figure

    def last_state(self) -> str:
        """Return the static figure with its description as HTML."""
        return self.last_data()["text/html"]

    def last_data(self) -> dict[str, str]:
        """Return the static figure with its description by MIME type."""
        recording = self.recording()
        if recording is None or not recording.batches:
            text = f"{self.history['meta']['model']}: no batch has been formed yet."
            return {"text/html": f"<p>{html.escape(text)}</p>", "text/plain": text}
        part = readable_part(recording, newest=self.live)
        data = _drawn(lambda: getattr(part.plot, self._figure(part))(), recording.verdict)
        if part is recording:
            return data
        where = "the newest" if self.live else "around the slowest request"
        caption = f"{len(part.batches)} of {len(recording.batches)} batches, {where}. {recording.verdict()}"
        return data | {
            "text/html": f"<p>{html.escape(caption)}</p>{data['text/html']}",
            "text/plain": f"{caption}\n{data['text/plain']}",
        }

    def refresh_last_state(self) -> bool:
        """Return False: a recording does not change."""
        return False

    def _figure(self, recording: Recording) -> str:
        return "slots" if recording.slot_occupancy else "timeline"


def _drawn(draw: Callable[[], Any], describe: Callable[[], str]) -> dict[str, str]:
    """Return a figure by MIME type; without Matplotlib, which browsers lack, a text instead."""
    try:
        data: dict[str, str] = draw()._repr_mimebundle_()
    except ModuleNotFoundError:
        text = describe()
        return {"text/html": f"<p>{html.escape(text)}</p>", "text/plain": text}
    return data


def readable_part(recording: Recording, *, newest: bool) -> Recording:
    """Return the part of a recording that a static figure can show batch by batch.

    Parameters
    ----------
    recording : Recording
        With a batch.
    newest : bool
        Whether it is the newest part; otherwise it is around the slowest request.
    """
    batches = sorted(recording.batches, key=lambda batch: (batch.sent_ns, batch.number))
    if len(batches) <= _MOST_BATCHES:
        return recording
    first = len(batches) - _MOST_BATCHES
    if not newest:
        slowest = max(recording.requests, key=lambda request: request.latency_ns).batch
        place = next(place for place, batch in enumerate(batches) if batch.number == slowest)
        first = min(first, max(0, place - _MOST_BATCHES // 2))
    shown = batches[first : first + _MOST_BATCHES]
    begin_ns = shown[0].exec_start_ns - min(shown[0].queue_ns, shown[-1].exec_end_ns - shown[0].exec_start_ns)
    end_ns = max(batch.exec_end_ns for batch in shown)
    return recording.between(*((time_ns - recording.origin_ns) / 1e6 for time_ns in (begin_ns, end_ns)))


def _on_blame(view: BatchView, content: Json, buffers: Any) -> None:
    """Split the latency of a request that the user selected, without blocking the main thread."""
    if "blame" in content:
        batch, label = int(content["blame"]["batch"]), str(content["blame"]["request"])
        show = partial(setattr, view, "blame")

        def search(find: Callable[[], Json]) -> None:
            def show_newest() -> None:
                answer = find()
                if not view._searching.outdated:
                    show(answer)

            view._searching.submit(show_newest)

        view._blaming.submit(lambda: answer_request(view.recording_of(batch), batch, label, show, search))


def compare(comparison: Comparison) -> ComparisonView:
    """Open both runs in the widget of `Recording.view`, one below the other, on the same time axis.

    Batches that differ are marked.

    Returns
    -------
    ComparisonView

    Examples
    --------
    >>> from tritonnb import constant, fixed, simulate
    >>> recording = simulate("max_batch_size: 4 dynamic_batching { }", constant(200, 1), fixed(8))
    >>> view = recording.what_if(count=2).view()
    """
    runs = (comparison.before, comparison.after)
    until = max((end - begin) * TICKS // 1_000_000 for begin, end in (run.span_ns for run in runs))
    views = [_new_view(run) for run in runs]
    for shown, numbers in zip(views, comparison.changed_batches(), strict=True):
        batches = shown.history["batches"]
        differs = [number in numbers for number in batches.get("n", ())]
        spans = [list(span) for span in shown.history["spans"]]
        if spans and spans[-1][1] == shown.history["now"]:
            spans[-1][1] = until  # the shorter run is known until then: nothing happened any more
        batches = {**batches, "differs": differs}
        shown.history = {**shown.history, "now": until, "spans": spans, "batches": batches}
    difference = comparison.difference()
    names = [html.escape(name.capitalize() if comparison.recorded else name) for name in comparison.names]
    before = Markup(f"<b>{names[0]}</b>")
    after = Markup(f"<b>{names[1]}</b>: {html.escape(difference)}")
    return ComparisonView(comparison, [Markup(comparison._repr_html_()), before, views[0], after, views[1]])


class ComparisonView(StaticFallback, Group):
    """Both runs of a comparison, one below the other."""

    def __init__(self, comparison: Comparison, children: list[anywidget.AnyWidget]) -> None:
        self._comparison = comparison
        super().__init__(children, shared="moment")

    def __repr__(self) -> str:
        return repr(self._comparison)

    def last_state(self) -> str:
        """Return the table and both timelines as HTML."""
        return self.last_data()["text/html"]

    def last_data(self) -> dict[str, str]:
        """Return the table and both timelines by MIME type."""
        # A lambda, since reading `plot` already needs Matplotlib.
        figure = _drawn(lambda: self._comparison.plot(), self._comparison.difference)
        return figure | {
            "text/html": self._comparison._repr_html_() + figure["text/html"],
            "text/plain": f"{self._comparison!r}\n{figure['text/plain']}",
        }

    def refresh_last_state(self) -> bool:
        """Return False: a comparison does not change."""
        return False
