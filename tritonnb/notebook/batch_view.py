"""The batch view: batches of a model as they are formed, or as recorded; batch slots of a stateful model.

Live, a thread of the view checks ten times a second whether anything happened and sends what is new; the server's
loop only appends its events to a queue. Pausing, scrolling, zooming, stepping and saving happen in the browser, so
they work while a cell runs. The trait ``history`` is what a view shows when it is opened, with or without a kernel.
"""

from __future__ import annotations

import atexit
import html
import threading
import time
from collections import deque
from contextlib import suppress
from importlib import import_module
from itertools import repeat, starmap
from pathlib import Path
from typing import TYPE_CHECKING, Any

import anywidget
import ipywidgets as widgets
import traitlets

from tritonnb.core.errors import InvalidArgumentError, TritonError
from tritonnb.core.events import BatchSent, Packed, RequestArrived, pack, unpack
from tritonnb.core.protobuf import model_config_pb2 as pb
from tritonnb.notebook.es_modules import join_modules
from tritonnb.notebook.feed import MOST_BATCHES, MOST_PENDING, Feed, Json
from tritonnb.notebook.open_views import OpenViews
from tritonnb.notebook.static_fallback import LIVE, StaticFallback
from tritonnb.notebook.view_encoding import MODEL, TICKS
from tritonnb.runtime.models.served_model import ServedModel
from tritonnb.scheduling.sequence_batcher import SequenceBatcher

if TYPE_CHECKING:
    from tritonnb.recording.comparison import Comparison
    from tritonnb.recording.recording import Recording
    from tritonnb.server.model_handle import ModelHandle

_STATIC = Path(__file__).parent / "static"
#: The interval of deliveries: in sight, when not everything can be drawn, and out of sight.
_TICK_S, _BUSY_S, _UNSEEN_S = 0.1, 0.2, 1.0
_IDLE_NS, _REST_NS, _HISTORY_NS = 500_000_000, 3_000_000_000, 10_000_000_000
#: Events folded before other threads get the interpreter lock: less than a millisecond.
_EVENTS_PER_SLICE = 1000
#: Events from which the last state is drawn.
_RECENT = 2000
#: The share of time that may be spent on static figures for notebooks without a kernel.
_FIGURE_SHARE = 0.01
#: Draws the last state. It is imported early, because the import takes a while and would delay requests later.
_FIGURES = "tritonnb.figures.plot"
#: The maximum number of batches of a recording that are shown.
_MAX_RECORDED = 5000

#: The open live views.
open_batch_views: OpenViews[LiveBatchView] = OpenViews()


def watch(model: ModelHandle) -> LiveBatchView:
    """Return the live view of a model, the same one until it is closed or ends."""
    return open_batch_views.open(model.server, model.name, lambda: LiveBatchView(model))


def compare(comparison: Comparison) -> ComparisonView:
    """Return both runs of a comparison with linked time, one below the other, and differing batches marked."""
    runs = (comparison.before, comparison.after)
    until = max((end - begin) * TICKS // 1_000_000 for begin, end in (run.span_ns for run in runs))
    views = [view(run) for run in runs]
    for shown, numbers in zip(views, comparison.changed_batches(), strict=True):
        batches = shown.history["batches"]
        differs = [number in numbers for number in batches.get("n", ())]
        shown.history = {**shown.history, "now": until, "batches": {**batches, "differs": differs}}
    widgets.jslink((views[0], "moment"), (views[1], "moment"))
    difference = comparison.difference()
    table = widgets.HTML(comparison._repr_html_())
    table.add_class("jp-RenderedHTMLCommon")  # looks like those of other outputs
    names = [html.escape(name.capitalize() if comparison.recorded else name) for name in comparison.names]
    before = widgets.HTML(f"<b>{names[0]}</b>")
    after = widgets.HTML(f"<b>{names[1]}</b>: {html.escape(difference)}")
    return ComparisonView(comparison, [table, before, views[0], after, views[1]])


def view(recording: Recording) -> BatchView:
    """Return the view of a recording of one model.

    Raises
    ------
    InvalidArgumentError
        If the recording has no model or several.
    """
    models = sorted({event.model for event in recording.events if isinstance(event, RequestArrived | BatchSent)})
    if len(models) != 1:
        got = f"{', '.join(models)}; select one with rec.for_model()" if models else "none"
        raise InvalidArgumentError(f"batch view: expected a recording of one model, got {got}")
    selected = recording.for_model(models[0])
    begin, end = selected.span_ns
    config = selected.configs.get(models[0], pb.ModelConfig())
    feed = Feed(models[0], config, begin, keep=_MAX_RECORDED, sample=False)
    feed.fold(map(pack, selected.events))
    feed.flush(end)
    return BatchView(feed.history(end), selected)


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
    """

    _esm = join_modules(_STATIC / "batch_view" / "view.js")
    _css = _STATIC / "batch_view.css"
    history = traitlets.Dict().tag(sync=True)
    live = traitlets.Bool(False).tag(sync=True)
    moment = traitlets.Dict().tag(sync=True)

    def __init__(self, history: Json, recording: Recording | None = None, **traits: Any) -> None:
        self._recording = recording
        super().__init__(history=history, **traits)
        self.add_class(LIVE)

    def __repr__(self) -> str:
        return f"<{type(self).__name__} of '{self.history['meta']['model']}'>"

    def recording(self) -> Recording | None:
        """Return what is shown as a recording, or None if there is none."""
        return self._recording

    def svg(self) -> str:
        """Return a static figure of what is shown, for print and for notebooks that are opened without a kernel."""
        recording = self.recording()
        if recording is None or not recording.batches:
            return ""
        return recording.plot.svg(self._figure(recording))

    def last_state(self) -> str:
        """Return the static figure with its description as HTML."""
        return self.last_data()["text/html"]

    def last_data(self) -> dict[str, str]:
        """Return the static figure with its description by MIME type."""
        recording = self.recording()
        if recording is None or not recording.batches:
            text = f"{self.history['meta']['model']}: no batch has been formed yet."
            return {"text/html": f"<p>{html.escape(text)}</p>", "text/plain": text}
        data: dict[str, str] = getattr(recording.plot, self._figure(recording))()._repr_mimebundle_()
        return data

    def refresh_last_state(self) -> bool:
        """Return False: a recording does not change."""
        return False

    def _figure(self, recording: Recording) -> str:
        return "slots" if recording.slot_occupancy else "timeline"


class ComparisonView(StaticFallback, widgets.VBox):  # type: ignore[misc]
    """Both runs of a comparison, one below the other."""

    def __init__(self, comparison: Comparison, children: list[widgets.Widget]) -> None:
        self._comparison = comparison
        super().__init__(children)

    def __repr__(self) -> str:
        return repr(self._comparison)

    def last_state(self) -> str:
        """Return the table and both timelines as HTML."""
        return self.last_data()["text/html"]

    def last_data(self) -> dict[str, str]:
        """Return the table and both timelines by MIME type."""
        figure: dict[str, str] = self._comparison.plot()._repr_mimebundle_()
        return figure | {
            "text/html": self._comparison._repr_html_() + figure["text/html"],
            "text/plain": f"{self._comparison!r}\n{figure['text/plain']}",
        }

    def refresh_last_state(self) -> bool:
        """Return False: a comparison does not change."""
        return False


class LiveBatchView(BatchView):
    """A `BatchView` of a served model; `close` ends it.

    Attributes
    ----------
    ended : threading.Event
        Set when no more events follow: the view was closed, the model unloaded, or the server stopped.
    """

    def __init__(self, model: ModelHandle) -> None:
        self._server = model.server
        self._name = model.name
        self._events: deque[Packed] = deque()
        self._recent: deque[Packed] = deque(maxlen=_RECENT)
        self._feed = self._server.call(self._begin)
        self._stateful = self._feed.config.HasField("sequence_batching")
        self._stop = threading.Event()
        self._folding = threading.Lock()  # events are folded on the view's thread and at the end of a cell
        self._busy = False
        self._flushed: object = None
        self._in_sight: dict[str, bool] = {}  # as reported by the browser, for every output that shows the view
        self.ended = threading.Event()
        super().__init__(self._feed.history(time.monotonic_ns()), live=True)
        import_module(_FIGURES)
        self._thread = threading.Thread(target=self._update, name=f"tritonnb view {model.name}", daemon=True)
        self.on_msg(_on_message)
        atexit.register(self.stop)  # a kernel that exits closes its sockets: stop sending before
        self._thread.start()

    def recording(self) -> Recording | None:
        """Return the newest events as a recording."""
        from tritonnb.recording.recording import Recording

        return Recording(map(unpack, list(self._recent)), {self._name: self._feed.config})

    def refresh_last_state(self) -> bool:
        """Fold the events up to now, and save them in ``history``; return whether there were any.

        Not necessary if a browser shows the view: then the view's thread does it between cells.
        """
        if self._in_sight:
            return False
        with suppress(TritonError, RuntimeError):  # model unloaded or server stopped: its events are here
            self._server.call(self._read_state)  # until then the events of all completed requests are emitted
        self._drain()
        flushed, self._flushed = self._flushed, self._feed.counts.total
        if flushed == self._flushed:
            return False
        now = time.monotonic_ns()
        self.send(self._flush(now))
        self._save_history(now)
        return True

    def stop(self) -> None:
        """Stop following the model; the view keeps showing the last state."""
        self._stop.set()
        if threading.current_thread() is not self._thread:
            self._thread.join()

    def close(self) -> None:
        """Stop following the model, and close the view."""
        self.stop()
        super().close()

    # --- on the server's loop -----------------------------------------------------------------

    def _begin(self) -> Feed:
        engine = self._server.engine
        served = engine.model(self._name)
        depth = served.scheduler.queue_depth() if isinstance(served, ServedModel) else 0
        feed = Feed(self._name, engine.configs()[self._name], time.monotonic_ns(), depth=depth)
        engine.stream.attach(self._events.append)
        return feed

    def _read_state(self) -> Json:
        """What events do not contain: a changed configuration, the owners of slots, and the backlog."""
        served = self._server.engine.model(self._name)
        changed = {"meta": self._feed.meta} if self._feed.reconfigure(served.config) else {}
        if not isinstance(served, ServedModel) or not isinstance(served.scheduler, SequenceBatcher):
            return changed
        names = {instance.spec.index: instance.spec.name for instance in served.instances}
        in_slots, backlog = served.scheduler.snapshot(time.monotonic_ns())
        owners = [
            [sequence, names[instance], slot, idle_ns / 1e6]
            for sequence, instance, slot, idle_ns in in_slots
            if instance in names
        ]
        shown = backlog[:MOST_PENDING]
        return {**changed, "slot_state": {"owners": owners, "backlog": shown, "omitted": len(backlog) - len(shown)}}

    # --- on the view's thread -----------------------------------------------------------------

    @property
    def _tick_s(self) -> float:
        """Seconds until the next delivery. A view out of sight gets some: the browser can report only between cells."""
        if self._in_sight and not any(self._in_sight.values()):
            return _UNSEEN_S
        return _BUSY_S if self._busy else _TICK_S

    def _update(self) -> None:
        try:
            self._follow()
        finally:
            self._finish()

    def _follow(self) -> None:
        sent_ns = saved_ns = read_ns = figure_ns = counted = 0
        unsaved = undrawn = False
        slots: Json = {}
        while not self._stop.wait(self._tick_s):
            now = time.monotonic_ns()
            before, state = slots, {}
            if self._stateful or now - read_ns > _IDLE_NS:
                try:
                    state = self._server.call(self._read_state)
                except (TritonError, RuntimeError):  # model unloaded or server stopped
                    return
                read_ns, slots = now, state.get("slot_state", {})
            self._drain()
            # The idle time of sequences goes on when there are no events.
            if not self._feed.quiet or "meta" in state or (slots != before and now - sent_ns > _IDLE_NS):
                undrawn = undrawn or not self._feed.quiet
                now = time.monotonic_ns()
                self.send({**self._flush(now), **state})
                batches = self._feed.counts.batches
                self._busy = (batches - counted) * _TICK_S > MOST_BATCHES * (now - sent_ns) / 1e9
                counted, sent_ns, unsaved = batches, now, True
            elif undrawn and now - sent_ns > _REST_NS and now > figure_ns:  # draw figures while the model is idle
                self.keep_last_state(at_once=True)
                figure_ns = now + int((time.monotonic_ns() - now) / _FIGURE_SHARE)
                undrawn = False
            if unsaved and now - saved_ns > _HISTORY_NS:
                self._save_history(sent_ns, slots)
                saved_ns, unsaved = now, False

    def _drain(self) -> None:
        with self._folding:
            packed = starmap(self._events.popleft, repeat((), len(self._events)))
            own = [event for event in packed if event[MODEL] == self._name]
            self._recent.extend(own[-_RECENT:])
            for start in range(0, len(own), _EVENTS_PER_SLICE):
                self._feed.fold(own[start : start + _EVENTS_PER_SLICE])
                time.sleep(0)  # let other threads run before the switch interval is over

    def _flush(self, now_ns: int) -> Json:
        with self._folding:
            return self._feed.flush(now_ns)

    def _save_history(self, now_ns: int, slots: Json | None = None) -> None:
        with self._folding:
            history = self._feed.history(now_ns)
        self.history = history if slots is None else {**history, "slot_state": slots}

    def _finish(self) -> None:
        with suppress(TritonError, RuntimeError):  # model unloaded or server stopped
            self._server.call(self._server.engine.stream.detach, self._events.append)
            self._server.call(self._read_state)
        self._drain()
        now = time.monotonic_ns()
        self.send(self._flush(now))
        self._save_history(now)
        self.live = False
        open_batch_views.remove(self._server, self)
        self.keep_last_state(at_once=True)
        atexit.unregister(self.stop)
        self.ended.set()


def _on_message(view: LiveBatchView, content: Json, buffers: Any) -> None:
    if "in_sight" in content:
        view._in_sight = {**view._in_sight, str(content["view"]): bool(content["in_sight"])}
