"""The live batch view: a thread of the view sends what is new, ten times a second if every batch can be drawn.

A `BatchTracker` follows the events on the server's loop. The trait ``history`` is what a view shows when it is opened,
with or without a kernel.
"""

from __future__ import annotations

import threading
import time
import weakref
from collections.abc import Callable
from contextlib import suppress
from itertools import dropwhile, filterfalse
from typing import Any, TypeVar

from tritonnb.core.errors import TritonError
from tritonnb.core.events import BatchExecuted, BatchSent, InstanceStateChanged, ModelStateChanged, RequestArrived
from tritonnb.core.forks import call_in_children, fork_safe
from tritonnb.core.json_types import Json
from tritonnb.core.packed_events import Packed, members_of, unpack
from tritonnb.core.protobuf import model_config_pb2 as pb
from tritonnb.lab.load.load import load
from tritonnb.notebook.activity import ServerActivity
from tritonnb.notebook.batch_tracker import MOST_BATCHES, MOST_PENDING, BatchTracker, Delta
from tritonnb.notebook.batch_view import BatchView
from tritonnb.notebook.ensemble_view import EnsembleView
from tritonnb.notebook.view_encoding import DEPTH, MODEL, NUMBER, SERIAL, TIME
from tritonnb.notebook.view_session import ViewSession
from tritonnb.notebook.views import forget_view, is_connected, open_view
from tritonnb.notebook.worker import ViewThread
from tritonnb.recording.recording import Recording
from tritonnb.server.model_handle import ModelHandle
from tritonnb.telemetry.stream import EventHistory, Sink

T = TypeVar("T")

#: The interval of deliveries: in sight, when not everything can be drawn, and out of sight.
_TICK_S, _BUSY_S, _UNSEEN_S = 0.1, 0.4, 1.0
#: The interval at which events are taken if no output shows the view any more.
_ABSENT_S = 5.0
_IDLE_NS, _REST_NS, _HISTORY_NS = 500_000_000, 3_000_000_000, 10_000_000_000
#: Events that the last state is drawn from.
_RECENT = 2000
#: Paused outputs of all views that keep their events, at most: about 7 MB each. The first to be paused is released.
_MOST_HELD = 8
#: Events before and after those of a request that explain it: what the instances ran when it arrived.
_CONTEXT = 500
#: Requests that are sent if the user wants to see some, and their rate.
_FEW, _FEW_RATE = 20, 40.0
#: The share of time that may be spent on static figures for notebooks without a kernel.
_FIGURE_SHARE = 0.01


#: The paused outputs of all views, by view and name, in the order of pausing.
_holding: list[tuple[weakref.ref[LiveBatchView], str]] = []


def watch(model: ModelHandle) -> LiveBatchView | EnsembleView:
    """Open a live view of the batches; for a stateful model, of its batch slots; for an ensemble, of its graph.

    Returns
    -------
    LiveBatchView or EnsembleView
        A widget. Of a model that is no ensemble, every call returns the same widget until it is closed.

    Examples
    --------
    >>> import tritonnb as tnb
    >>> with tnb.Server(port=0) as server:
    ...     @server.model(max_batch_size=8)
    ...     def double(X: tnb.FP32[1]) -> tnb.FP32[1]:
    ...         return X * 2
    ...     server["double"].watch().close()
    """
    if model.config.HasField("ensemble_scheduling"):  # its steps have batches
        return EnsembleView(model)
    return open_live_view(model)


def open_live_view(model: ModelHandle) -> LiveBatchView:
    """Return the live view of a model that is no ensemble."""
    return open_view(LiveBatchView, model.server, model.name, lambda: LiveBatchView(model))


class LiveBatchView(BatchView):
    """A `BatchView` of a served model; `close` ends it.

    Attributes
    ----------
    ended : threading.Event
        Set when no more events follow: the view was closed, the model unloaded, or the server stopped.

    Examples
    --------
    >>> import tritonnb as tnb
    >>> with tnb.Server(port=0) as server:
    ...     @server.model(max_batch_size=8, dynamic_batching={})
    ...     def double(X: tnb.FP32[1]) -> tnb.FP32[1]:
    ...         return X * 2
    ...     view = server["double"].watch()
    ...     view.send_a_few()
    ...     view.show_ghost("A simulation", [("double_0_0", 0, 5_000_000, 2)])
    ...     view.stop()
    ...     print(view.ended.is_set(), view.ghost["text"])
    ...     view.close()
    True A simulation
    """

    def __init__(self, model: ModelHandle) -> None:
        self._model = model
        self._server = model.server
        self._name = model.name
        self._session = self._begin()
        self._activity = ServerActivity.follow(model.server)
        self._stateful = self._session.config.HasField("sequence_batching")
        self._stop = threading.Event()
        self._encoding = fork_safe(
            threading.Lock()
        )  # deliveries are made on the view's thread and at the end of a cell
        self._busy = False
        self._flushed: object = None
        self._in_sight: dict[str, bool] = {}  # as reported by the browser, for every output that shows the view
        self._was_displayed = False
        self._held: dict[str, EventHistory] = {}  # the events of what each paused output shows
        self._last_events: EventHistory | None = None
        self.ended = threading.Event()
        super().__init__(self._session.history(), live=True)
        self._thread = ViewThread(f"tritonnb view {model.name}", self._update, self._end_at_exit)
        self.on_msg(_on_message)
        self._exits = False
        call_in_children(self._forked)
        self._thread.start()

    def _forked(self) -> None:
        """End the view in a forked child, where its thread does not exist."""
        self._stop, self.ended = threading.Event(), threading.Event()
        self._exits = True
        self.ended.set()

    def recording(self) -> Recording | None:
        """Return the newest events as a recording."""
        events = filterfalse(_is_of_life_cycle, self._on_loop(self._session.tracker.recent))  # often long after others
        return Recording(map(unpack, events), {self._name: self._session.config})

    def recording_of(self, batch: int) -> Recording | None:
        """Return the events around a batch, as a recording; None if they are not kept any more.

        Parameters
        ----------
        batch : int
            The number of a batch.
        """
        for history in (*self._held.copy().values(), self._last_events or self._on_loop(self._copy_events)):
            events = _around(history, self._name, batch)
            if events:
                return Recording(map(unpack, events), {self._name: self._session.config})
        return None

    def send_a_few(self) -> None:
        """Send a few requests with random data, for a view that shows none yet."""
        try:
            load(self._model, rate=_FEW_RATE, requests=_FEW, arrivals="poisson")
        except TritonError as error:
            self.notice = f"Not sent: {error.message}"

    def show_ghost(self, text: str, boxes: list[tuple[str, int, int, int]]) -> None:
        """Draw batches of a simulation behind the model's batches; an empty text removes them.

        Parameters
        ----------
        text : str
            What they are, in one sentence.
        boxes : list of tuple
            Instance, begin and end (monotonic clock, ns), and rows of each batch.
        """
        ticks = self._session.encoder.ticks
        encoded = [[instance, ticks(begin_ns), ticks(end_ns), rows] for instance, begin_ns, end_ns, rows in boxes]
        ghost = {"text": text, "boxes": encoded} if text else {}
        if ghost != self.ghost:
            self.ghost = ghost

    @property
    def is_displayed(self) -> bool:
        """True if a browser shows the view, even out of sight."""
        return bool(self._in_sight)

    def refresh_last_state(self) -> bool:
        """Send and save in ``history`` what happened up to now; return whether anything did.

        This is not necessary if a browser shows the view, or did: then the view's thread does it between cells.
        """
        if self._was_displayed:
            return False
        if not self._server.alive:
            self.stop()  # the view's thread would send its last state after the cell, perhaps while the kernel exits
        with suppress(TritonError, RuntimeError):  # model unloaded or server stopped: its events were followed
            self._server.call(self._read_state)  # until then the events of all completed requests are emitted
        counts = self._on_loop(self._session.tracker.catch_up)
        flushed, self._flushed = self._flushed, (counts.requests, counts.batches)
        if flushed == self._flushed:
            return False
        self.send(self._delivery())
        self._save_history()
        return True

    def stop(self) -> None:
        """Stop following the model; the view keeps showing the last state."""
        self._stop.set()
        self._thread.join()

    def _end_at_exit(self) -> None:
        """Stop sending before the interpreter closes its sockets: no one would receive the last state."""
        self._exits = True
        self._stop.set()

    def close(self) -> None:
        """Stop following the model, and close the view."""
        self.stop()
        super().close()

    def _begin(self) -> ViewSession:
        """Follow the model from the events on that the server remembers."""
        meanwhile: list[Packed] = []
        config, depth, history = self._server.call(self._attach, meanwhile.append)
        try:
            events = [packed for packed in history if packed[MODEL] == self._name]
            if not history.complete:
                events, depth = _since_known_depth(events, depth)
            else:
                depth, events = 0, list(dropwhile(_is_of_life_cycle, events))
            begin_ns = events[0][TIME] if events else time.monotonic_ns()
            session = ViewSession(self._name, config, begin_ns, depth=depth, recent=_RECENT, pause=_let_others_run)
            session.replay(events)
            self._server.call(self._take_over, session.tracker, meanwhile)
        except BaseException:  # an interrupt: nobody else would detach the list
            self._server.call(self._server.engine.stream.detach, meanwhile.append)
            raise
        return session

    # --- on the server's loop -----------------------------------------------------------------

    def _attach(self, sink: Sink) -> tuple[pb.ModelConfig, int, EventHistory]:
        engine = self._server.engine
        depth = engine.model(self._name).driver.queue_depth()
        engine.stream.attach(sink)
        return engine.configs()[self._name], depth, engine.stream.recent.copy()

    def _take_over(self, tracker: BatchTracker, meanwhile: list[Packed]) -> None:
        stream = self._server.engine.stream
        stream.detach(meanwhile.append)
        for packed in meanwhile:
            tracker.receive(packed)
        stream.attach(tracker.receive)

    def _read_state(self) -> Json:
        """Read the state that events lack: a changed configuration, the owners of slots, and the backlog."""
        served = self._server.engine.model(self._name)
        changed = {"meta": self._session.meta} if self._session.reconfigure(served.config) else {}
        sequences = served.driver.sequences
        if sequences is None or served.config.sequence_batching.iterative_sequence:
            return changed  # the view names generations by their requests, and knows their slots from the steps
        names = {instance.spec.index: instance.spec.name for instance in served.instances}
        in_slots, backlog = sequences.table.snapshot(time.monotonic_ns())
        owners = [
            [sequence, names[instance], slot, idle_ns / 1e6]
            for sequence, instance, slot, idle_ns in in_slots
            if instance in names
        ]
        shown = backlog[:MOST_PENDING]
        return {**changed, "slot_state": {"owners": owners, "backlog": shown, "omitted": len(backlog) - len(shown)}}

    def _read(self, with_state: bool, slots: Json, is_idle: bool, at_once: bool) -> tuple[Json, bool, Delta | None]:
        """Read at one moment the state that events lack, whether nothing happens, and the changes if they are due."""
        state = self._read_state() if with_state else {}
        # The idle time of sequences goes on without events.
        due = at_once or "meta" in state or (is_idle and with_state and state.get("slot_state", {}) != slots)
        tracker = self._session.tracker
        is_quiet = tracker.quiet
        return state, is_quiet, None if is_quiet and not due else tracker.take_changes(time.monotonic_ns())

    def _copy_events(self) -> EventHistory:
        return self._server.engine.stream.recent.copy()

    # --- on the view's thread -----------------------------------------------------------------

    @property
    def _tick_s(self) -> float:
        """Seconds until the next delivery. A view out of sight gets some: the browser can report only between cells."""
        if self._is_absent:
            return _ABSENT_S
        if self._in_sight and not any(self._in_sight.values()):
            return _UNSEEN_S
        return _BUSY_S if self._busy else _TICK_S

    @property
    def _is_absent(self) -> bool:
        """True if all outputs that showed the view were removed."""
        return self._was_displayed and not self._in_sight

    def _report_sight(self, output: str, in_sight: bool | None) -> None:
        """Follow whether an output shows the view in sight; None if it was removed."""
        if self._is_absent and in_sight is not None:
            self._save_history()  # deliveries were not sent
        if in_sight is None:
            self._held.pop(output, None)
        outputs = {name: seen for name, seen in self._in_sight.items() if name != output}
        self._in_sight = outputs if in_sight is None else {**outputs, output: in_sight}
        self._was_displayed = True

    def _hold(self, output: str, is_paused: bool) -> None:
        """Keep the events of what a paused output shows, and tell it from when on there are any."""
        self._held.pop(output, None)
        if not is_paused:
            return
        history = self._held[output] = self._last_events or self._on_loop(self._copy_events)
        self.send({"held": {"view": output, "from": self._kept_from(history)}})
        views = [(view, name) for ref, name in _holding if (view := ref()) is not None and name in view._held]
        views = [*(known for known in views if known != (self, output)), (self, output)]
        _holding[:] = [(weakref.ref(view), name) for view, name in views[-_MOST_HELD:]]
        for view, name in views[:-_MOST_HELD]:
            view._release(name)

    def _release(self, output: str) -> None:
        """Keep no events for a paused output any more, and tell it that nothing in it can be explained."""
        if self._held.pop(output, None) is not None:
            self.send({"held": {"view": output, "from": self._session.encoder.ticks(time.monotonic_ns())}})

    def _kept_from(self, history: EventHistory) -> int:
        """Return the time in ticks from which on a history has all events."""
        first = next(iter(history), None)
        return 0 if first is None or history.complete else self._session.encoder.ticks(first[TIME])

    def _update(self) -> None:
        try:
            self._follow()
        finally:
            self._exits = self._exits or not is_connected(self)
            self._finish()
            if not is_connected(self):
                super().close()

    def _follow(self) -> None:
        sent_ns = saved_ns = read_ns = figure_ns = counted = 0
        interval: int | None = None
        unsaved = undrawn = False
        slots: Json = {}
        numbers: Json = {}
        while not self._stop.wait(self._tick_s) and is_connected(self):
            now = time.monotonic_ns()
            known_interval, interval = interval, self._activity.update()
            known = numbers
            if interval != known_interval:
                numbers = self._recent_numbers()
            with self._encoding:
                try:
                    with_state = self._stateful or now - read_ns > _IDLE_NS
                    state, is_quiet, changes = self._server.call(
                        self._read, with_state, slots, now - sent_ns > _IDLE_NS, numbers != known
                    )
                except (TritonError, RuntimeError):  # model unloaded or server stopped
                    return
                delivery = {**self._session.encode(changes), **state} if changes is not None else {}
            if with_state:
                read_ns, slots = now, state.get("slot_state", {})
            if "meta" in state:
                numbers = self._recent_numbers()
            if delivery:
                undrawn = undrawn or not is_quiet
                if numbers != known:
                    delivery["recent"] = numbers
                if not self._is_absent:
                    self.send(delivery)
                batches, now = self._session.tracker.counts.batches, self._session.now_ns
                self._busy = (batches - counted) * _TICK_S > MOST_BATCHES * (now - sent_ns) / 1e9
                counted, sent_ns, unsaved = batches, now, True
            elif undrawn and not self._is_absent and now - sent_ns > _REST_NS and now > figure_ns:  # the model is idle
                self.keep_last_state(at_once=True)
                figure_ns = now + int((time.monotonic_ns() - now) / _FIGURE_SHARE)
                undrawn = False
            if unsaved and now - saved_ns > _HISTORY_NS:
                self._save_history(slots)
                saved_ns, unsaved = now, False

    def _recent_numbers(self) -> Json:
        """Return the numbers and the problems of the last seconds that are over."""
        numbers = self._activity.recent(self._name, self._session.config)
        return {**numbers, "problem": self._activity.problem(self._name)}

    def _delivery(self) -> Json:
        with self._encoding:
            tracker = self._session.tracker
            return self._session.encode(self._on_loop(lambda: tracker.take_changes(time.monotonic_ns())))

    def _on_loop(self, function: Callable[[], T]) -> T:
        try:
            return self._server.call(function)
        except (TritonError, RuntimeError):  # the server was stopped: it makes no more events
            return function()

    def _save_history(self, slots: Json | None = None) -> None:
        with self._encoding:
            history = self._session.history()
        if self._last_events is not None:
            history["kept"] = self._kept_from(self._last_events)
        self.history = history if slots is None else {**history, "slot_state": slots}

    def _finish(self) -> None:
        with suppress(TritonError, RuntimeError):  # model unloaded or server stopped
            self._server.call(self._server.engine.stream.detach, self._session.tracker.receive)
            self._server.call(self._read_state)
        if not self._exits:
            self.send(self._delivery())
            self._last_events = self._on_loop(self._copy_events)
            self._save_history()
            if not self._stop.is_set() or not self._server.alive:
                self.notice = f"Ended at {time.strftime('%H:%M:%S')}: the server was stopped, or the model unloaded."
            self.live = False
            self.keep_last_state(at_once=True)
        self._activity.close()
        forget_view(self._server, self)
        self.ended.set()


def _is_of_life_cycle(packed: Packed) -> bool:
    return packed[0] in {ModelStateChanged.__name__, InstanceStateChanged.__name__}


def _since_known_depth(events: list[Packed], depth: int) -> tuple[list[Packed], int]:
    """Return the events since the first batch, and the depth that it left in the queue; no event if there is none.

    Parameters
    ----------
    events : list of tuple
        The remembered events of a model, without the first, which are forgotten.
    depth : int
        The number of requests that wait now.
    """
    for at, packed in enumerate(events):
        if packed[0] == BatchSent.__name__:
            return events[at + 1 :], packed[DEPTH]
    return [], depth


def _around(history: EventHistory, model: str, number: int) -> list[Packed]:
    """Return the events of a model around a batch: from before its oldest request until after its end.

    Parameters
    ----------
    history : EventHistory
    model : str
    number : int
        Of the batch.
    """
    events = [packed for packed in history if packed[MODEL] == model]
    sent = executed = None
    for at, packed in enumerate(events):
        if packed[0] == BatchSent.__name__ and packed[NUMBER] == number:
            sent = at
        elif packed[0] == BatchExecuted.__name__ and packed[NUMBER] == number:
            executed = at
            break
    if sent is None or executed is None:
        return []
    members = set(members_of(events[sent]))
    arrived = (at for at in range(sent) if events[at][0] == RequestArrived.__name__ and events[at][SERIAL] in members)
    return events[max(0, next(arrived, sent) - _CONTEXT) : executed + _CONTEXT]


def _let_others_run() -> None:
    """Give the interpreter lock to a thread that waits for it, without its waiting for the switch interval.

    It does not sleep for 0 seconds, because it would often get the lock again before the other thread wakes up.
    """
    time.sleep(20e-6)


def _on_message(view: LiveBatchView, content: Json, buffers: Any) -> None:
    if "try" in content:
        view.send_a_few()
    if "hold" in content:
        view._hold(str(content["view"]), bool(content["hold"]))
    if "in_sight" in content:
        view._report_sight(str(content["view"]), content["in_sight"])
