"""The batch view: batches of a model as they form, or as they formed in a recording; slots of a stateful one.

Live, a thread of the view looks ten times a second whether something happened and sends what is new; the
server's loop only appends its events to a list for it. All that one does to the picture (pause, scrub, zoom,
step, export) happens in the browser, so it works while a cell runs. What a view shows when it opens, with
or without a kernel, is the trait ``history``.
"""

from __future__ import annotations

import atexit
import html
import threading
import time
import weakref
from collections import deque
from contextlib import suppress
from importlib import import_module
from itertools import islice, repeat, starmap
from pathlib import Path
from typing import TYPE_CHECKING, Any

import anywidget
import ipywidgets as widgets
import traitlets

from tritonnb.core.errors import InvalidArgumentError, TritonError
from tritonnb.core.events import BatchSent, Packed, RequestArrived, pack, unpack
from tritonnb.core.protobuf import model_config_pb2 as pb
from tritonnb.notebook.feed import MOST_BATCHES, MOST_PENDING, Feed, Json
from tritonnb.notebook.static_fallback import LIVE, StaticFallback
from tritonnb.notebook.view_encoding import MODEL, TICKS
from tritonnb.runtime.models.served_model import ServedModel
from tritonnb.scheduling.sequence_batcher import SequenceBatcher

if TYPE_CHECKING:
    from tritonnb.recording.comparison import Comparison
    from tritonnb.recording.recording import Recording
    from tritonnb.server.model_handle import ModelHandle

_STATIC = Path(__file__).parent / "static"
#: Joined to one module: a widget's module can import nothing that lies beside it.
_PARTS = ("story", "surface", "lanes", "export", "words", "view")
#: How often a view is told: in sight, where more happens than is drawn, and out of sight.
_TICK_S, _BUSY_S, _UNSEEN_S = 0.1, 0.2, 1.0
_IDLE_NS, _REST_NS, _HISTORY_NS = 500_000_000, 3_000_000_000, 10_000_000_000
#: Events folded before other threads have their turn: less than a millisecond.
_AT_ONCE = 1000
#: Events of which the last state is drawn.
_RECENT = 2000
#: Of the time, what pictures for who has no kernel may take.
_STILL_SHARE = 0.01
#: What draws the last state. Importing it takes a while, which is spent better before requests come than between them.
_FIGURES = "tritonnb.figures.plot"
#: Batches of a recording that are shown at most.
_LONGEST = 5000

#: The live views that are open, by server and model.
_open: weakref.WeakKeyDictionary[Any, dict[str, LiveBatchView]] = weakref.WeakKeyDictionary()


def watch(model: ModelHandle) -> LiveBatchView:
    """The live view of a model; the same one as long as it is not closed."""
    views = _open.setdefault(model.server, {})
    if model.name not in views or not views[model.name].live:
        views[model.name] = LiveBatchView(model)
    return views[model.name]


def compare(comparison: Comparison) -> ComparisonView:
    """Both runs of a comparison, one below the other, what differs marked; both follow what one does to either."""
    runs = (comparison.before, comparison.after)
    until = max((each.span_ns[1] - each.span_ns[0]) * TICKS // 1_000_000 for each in runs)
    views = [view(each) for each in runs]
    for each, numbers in zip(views, comparison.changed_batches(), strict=True):
        batches = each.history["batches"]
        differs = [number in numbers for number in batches.get("n", ())]
        each.history = {**each.history, "now": until, "batches": {**batches, "differs": differs}}
    widgets.jslink((views[0], "moment"), (views[1], "moment"))
    difference = comparison.difference()
    table = widgets.HTML(comparison._repr_html_())
    table.add_class("jp-RenderedHTMLCommon")  # looks like those of other outputs
    names = [html.escape(each.capitalize() if comparison.recorded else each) for each in comparison.names]
    before = widgets.HTML(f"<b>{names[0]}</b>")
    after = widgets.HTML(f"<b>{names[1]}</b>: {html.escape(difference)}")
    return ComparisonView(comparison, [table, before, views[0], after, views[1]])


def view(recording: Recording) -> BatchView:
    """The view of a recording of one model.

    Raises
    ------
    InvalidArgumentError
        If it is of no model or of several.
    """
    models = sorted({each.model for each in recording.events if isinstance(each, RequestArrived | BatchSent)})
    if len(models) != 1:
        found = f"{', '.join(models)}: use rec.for_model()" if models else "no model"
        raise InvalidArgumentError(f"a view shows one model, and this is a recording of {found}")
    one = recording.for_model(models[0])
    begin, end = one.span_ns
    config = one.configs.get(models[0], pb.ModelConfig())
    feed = Feed(models[0], config, begin, keep=_LONGEST, sample=False)
    feed.take(map(pack, one.events))
    feed.flush(end)
    return BatchView(feed.history(end), one)


class BatchView(StaticFallback, anywidget.AnyWidget):
    """A widget that shows batches, or slots, over time.

    Attributes
    ----------
    history : dict
        What a view shows when it opens.
    live : bool
        Whether more is to come.
    moment : dict
        The time that is looked at, to link views in the browser.
    """

    _esm = "\n".join((_STATIC / "batch_view" / f"{part}.js").read_text("utf-8") for part in _PARTS)
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
        """What is shown, as a recording; None if that is nothing yet."""
        return self._recording

    def svg(self) -> str:
        """A still twin of what is shown, for paper and for who opens the notebook without a kernel."""
        recording = self.recording()
        if recording is None or not recording.batches:
            return ""
        return recording.plot.svg(self._figure(recording))

    def last_state(self) -> str:
        """The still twin with its description, as HTML."""
        return self.last_data()["text/html"]

    def last_data(self) -> dict[str, str]:
        """The still twin with its description, by MIME type."""
        recording = self.recording()
        if recording is None or not recording.batches:
            words = f"{self.history['meta']['model']}: no batch was seen yet."
            return {"text/html": f"<p>{html.escape(words)}</p>", "text/plain": words}
        shown: dict[str, str] = getattr(recording.plot, self._figure(recording))()._repr_mimebundle_()
        return shown

    def refresh_last_state(self) -> bool:
        """A recording does not change."""
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
        """The table and both timelines, as HTML."""
        return self.last_data()["text/html"]

    def last_data(self) -> dict[str, str]:
        """The table and both timelines, by MIME type."""
        figure: dict[str, str] = self._comparison.plot()._repr_mimebundle_()
        return figure | {
            "text/html": self._comparison._repr_html_() + figure["text/html"],
            "text/plain": f"{self._comparison!r}\n{figure['text/plain']}",
        }

    def refresh_last_state(self) -> bool:
        """A comparison does not change."""
        return False


class LiveBatchView(BatchView):
    """A `BatchView` of a model that is being served; `close` ends it.

    Attributes
    ----------
    ended : threading.Event
        Set when there is no more to come: it was closed, or the model or the server is gone.
    """

    def __init__(self, model: ModelHandle) -> None:
        self._server = model.server
        self._name = model.name
        self._events: deque[Packed] = deque()
        self._recent: deque[Packed] = deque(maxlen=_RECENT)
        self._feed = self._server.call(self._begin)
        self._stateful = self._feed.config.HasField("sequence_batching")
        self._stop = threading.Event()
        self._folding = threading.Lock()  # the view's thread and the end of a cell both fold events
        self._busy = False
        self._drawn: object = None
        self._in_sight: dict[str, bool] = {}  # as browsers say, of every place where it is shown
        self.ended = threading.Event()
        super().__init__(self._feed.history(time.monotonic_ns()), live=True)
        import_module(_FIGURES)
        self._thread = threading.Thread(target=self._update, name=f"tritonnb view {model.name}", daemon=True)
        self.on_msg(_on_message)
        atexit.register(self.stop)  # a kernel that ends closes its sockets: nothing may be sent any more
        self._thread.start()

    def recording(self) -> Recording | None:
        """The newest of what was seen."""
        from tritonnb.recording.recording import Recording

        return Recording(map(unpack, list(self._recent)), {self._name: self._feed.config})

    def refresh_last_state(self) -> bool:
        """Fold what has happened, and save it in ``history`` too.

        Where a browser shows the view, the kernel goes on, so there is time for it between cells.
        """
        if self._in_sight:
            return False
        with suppress(TritonError, RuntimeError):  # the model or the server is gone, and its events are here
            self._server.call(self._look)  # the loop has emitted the events of every request that is answered
        self._drain()
        drawn, self._drawn = self._drawn, self._feed.counts.total
        if drawn == self._drawn:
            return False
        now = time.monotonic_ns()
        self.send(self._flush(now))
        self._save_history(now)
        return True

    def stop(self) -> None:
        """Watch no more; what was seen stays in sight."""
        self._stop.set()
        if threading.current_thread() is not self._thread:
            self._thread.join()

    def close(self) -> None:
        """Watch no more, and take the view away."""
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

    def _look(self) -> Json:
        """What no event tells: a changed configuration, who owns which slot now, and who waits in the backlog."""
        served = self._server.engine.model(self._name)
        changed = {"meta": self._feed.meta} if self._feed.reconfigured(served.config) else {}
        if not isinstance(served, ServedModel) or not isinstance(served.scheduler, SequenceBatcher):
            return changed
        table = served.scheduler.table
        now, idle = time.monotonic_ns(), table.max_sequence_idle_ns
        names = {each.spec.index: each.spec.name for each in served.instances}
        owners = [
            [each.id, names[each.slot.instance], each.slot.index, (each.seen_ns + idle - now) / 1e6]
            for each in table.known.values()
            if each.slot is not None and each.slot.instance in names
        ]
        backlog = [each.id for each in islice(table.backlog, MOST_PENDING)]
        return {**changed, "seen": {"owners": owners, "backlog": backlog, "behind": len(table.backlog) - len(backlog)}}

    # --- on the view's thread -----------------------------------------------------------------

    @property
    def _tick_s(self) -> float:
        """A browser's word comes only between cells, so that also a view that was out of sight is told."""
        if self._in_sight and not any(self._in_sight.values()):
            return _UNSEEN_S
        return _BUSY_S if self._busy else _TICK_S

    def _update(self) -> None:
        try:
            self._follow()
        finally:
            self._finish()

    def _follow(self) -> None:
        sent_ns = saved_ns = looked_ns = kept_ns = counted = 0
        stale = unkept = False
        seen: Json = {}
        while not self._stop.wait(self._tick_s):
            now = time.monotonic_ns()
            before, told = seen, {}
            if self._stateful or now - looked_ns > _IDLE_NS:
                try:
                    told = self._server.call(self._look)
                except (TritonError, RuntimeError):  # the model or the server is gone
                    return
                looked_ns, seen = now, told.get("seen", {})
            self._drain()
            # Where nothing happens, idle sequences still come nearer to losing their slots.
            if not self._feed.quiet or "meta" in told or (seen != before and now - sent_ns > _IDLE_NS):
                unkept = unkept or not self._feed.quiet
                now = time.monotonic_ns()
                self.send({**self._flush(now), **told})
                batches = self._feed.counts.batches
                self._busy = (batches - counted) * _TICK_S > MOST_BATCHES * (now - sent_ns) / 1e9
                counted, sent_ns, stale = batches, now, True
            elif unkept and now - sent_ns > _REST_NS and now > kept_ns:  # a figure is drawn when there is time for it
                self.keep_last_state(at_once=True)
                kept_ns = now + int((time.monotonic_ns() - now) / _STILL_SHARE)
                unkept = False
            if stale and now - saved_ns > _HISTORY_NS:
                self._save_history(sent_ns, seen)
                saved_ns, stale = now, False

    def _drain(self) -> None:
        with self._folding:
            packed = starmap(self._events.popleft, repeat((), len(self._events)))
            mine = [each for each in packed if each[MODEL] == self._name]
            self._recent.extend(mine[-_RECENT:])
            for at in range(0, len(mine), _AT_ONCE):
                self._feed.take(mine[at : at + _AT_ONCE])
                time.sleep(0)  # whoever waits for the interpreter need not wait for its switch interval

    def _flush(self, now_ns: int) -> Json:
        with self._folding:
            return self._feed.flush(now_ns)

    def _save_history(self, now_ns: int, seen: Json | None = None) -> None:
        with self._folding:
            history = self._feed.history(now_ns)
        self.history = history if seen is None else {**history, "seen": seen}

    def _finish(self) -> None:
        with suppress(TritonError, RuntimeError):  # the model or the server is gone
            self._server.call(self._server.engine.stream.detach, self._events.append)
            self._server.call(self._look)
        self._drain()
        now = time.monotonic_ns()
        self.send(self._flush(now))
        self._save_history(now)
        self.live = False
        self.keep_last_state(at_once=True)
        atexit.unregister(self.stop)
        self.ended.set()


def _on_message(view: LiveBatchView, content: Json, buffers: Any) -> None:
    if "in_sight" in content:
        view._in_sight = {**view._in_sight, str(content["view"]): bool(content["in_sight"])}
