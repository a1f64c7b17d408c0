"""The widget of a debugger: what has happened until an event, the rules with their numbers, and breakpoints.

The picture is a `BatchView` that receives only past events: the browser has no information that the scheduler did not
have.
"""

from __future__ import annotations

import html
from collections.abc import Callable

import anywidget
import traitlets

from tritonnb.core.errors import TritonError
from tritonnb.core.events import BatchSent
from tritonnb.core.json_types import Json
from tritonnb.core.packed_events import pack
from tritonnb.lab.analysis.debugger import QUANTITIES, Debugger
from tritonnb.notebook.batch_view import BatchView
from tritonnb.notebook.containers import Group
from tritonnb.notebook.view_encoding import TICKS
from tritonnb.notebook.view_session import ViewSession
from tritonnb.notebook.views import StaticFallback
from tritonnb.notebook.widget_files import STATIC, join_modules, stylesheet
from tritonnb.recording.instance_names import natural_sort_key

#: The latest events that are drawn, and those that fill the width of the picture.
_MOST_EVENTS, _SHOWN_EVENTS = 2000, 60
_MARGIN = 0.02


class DebuggerPanel(anywidget.AnyWidget):
    """The controls, the event, the quantities, the rules and the breakpoints of a debugger.

    Attributes
    ----------
    state : dict
        ``position`` of ``total`` events, ``description``, ``quantities``, ``rules``, and a ``message``, which may be an
        ``error``.
    breakpoints : list of str
    """

    _esm = join_modules(STATIC / "debugger.js")
    _css = stylesheet("debugger")
    state = traitlets.Dict().tag(sync=True)
    breakpoints = traitlets.List(traitlets.Unicode()).tag(sync=True)


def view(debugger: Debugger) -> DebuggerView:
    """Open the debugger as a widget; a notebook shows it by itself.

    Examples
    --------
    >>> from tritonnb import fixed, simulate
    >>> view = simulate("max_batch_size: 8 dynamic_batching { }", [(0, 2), (0, 3)], fixed(10)).debug().view()
    """
    return DebuggerView(debugger)


class DebuggerView(StaticFallback, Group):
    """A debugger as a widget; use `Debugger.view`.

    A debugger at the beginning is moved to the first event at which its rules have a choice.

    Attributes
    ----------
    panel : DebuggerPanel
    picture : BatchView

    Examples
    --------
    >>> from tritonnb import fixed, simulate
    >>> recording = simulate("max_batch_size: 8 dynamic_batching { }", [(0, 2), (0, 3)], fixed(10))
    >>> debugger = recording.debug()
    >>> view = debugger.view()
    >>> debugger.position, debugger.description
    (1, '0.000 ms: request 1 arrives (2 rows)')
    >>> view.perform({"action": "step"})
    >>> debugger.position
    2
    >>> view.close()
    """

    def __init__(self, debugger: Debugger) -> None:
        self._debugger = debugger
        if not debugger.position:
            _go_to_first_choice(debugger)
        self.panel = DebuggerPanel()
        self.picture = BatchView(self._history(), moment=self._moment())
        super().__init__([self.panel, self.picture])
        self._outputs = 0
        self._show_state("")
        self.panel.on_msg(lambda panel, content, buffers: self.perform(content))

    def __repr__(self) -> str:
        return repr(self._debugger)

    def perform(self, content: Json) -> None:
        """Carry out an action of the browser: ``action``, and a ``condition`` if it has one.

        Parameters
        ----------
        content : dict
        """
        debugger, condition = self._debugger, str(content.get("condition", ""))
        actions: dict[str, Callable[[], object]] = {
            "step": lambda: debugger.step() or "This is the last event.",
            "back": lambda: debugger.step(-1) or "This is the beginning.",
            "resume": lambda: self._describe_stop(debugger.resume(), "end"),
            "reverse": lambda: self._describe_stop(debugger.reverse(), "beginning"),
            "restart": debugger.restart,
            "add": lambda: debugger.add_breakpoint(condition),
            "remove": lambda: debugger.remove_breakpoint(condition),
        }
        if content.get("action") in ("shown", "removed"):
            self._outputs += 1 if content["action"] == "shown" else -1
            if not self._outputs:  # the last output that shows it was removed, as when its cell runs again
                self.close()
        if content.get("action") not in actions:
            return
        try:
            outcome = actions[content["action"]]()
            self._show_state(outcome if isinstance(outcome, str) else "")
        except TritonError as error:
            self._show_state(error.message, is_error=True)

    def close(self) -> None:
        """Close the widget; the debugger is not affected."""
        super().close()
        for widget in (self.panel, self.picture):
            widget.close()

    def last_state(self) -> str:
        """Return the event and the rules as HTML."""
        return f"<pre>{html.escape(repr(self._debugger))}</pre>"

    def _describe_stop(self, is_reached: bool, end: str) -> str:
        if not is_reached:
            return f"No breakpoint was reached: this is the {end}."
        numbers = [str(number) for number, _ in self._debugger.reached]
        return f"Stopped at breakpoint {', '.join(numbers)}: {self._debugger.reached[0][1]}"

    def _show_state(self, message: str, *, is_error: bool = False) -> None:
        debugger, state = self._debugger, self._debugger.state
        self.panel.breakpoints = debugger.breakpoints
        self.panel.state = {
            "position": debugger.position,
            "total": len(debugger.events),
            "description": debugger.description,
            "quantities": [[name, state.quantities.get(name), meaning] for name, meaning in QUANTITIES.items()],
            "rules": [[row.rule, row.meaning, row.numbers, row.applies] for row in state.rules],
            "idle": bool(state.quantities.get("idle", 1)),
            "message": message,
            "error": is_error,
        }
        self.picture.moment = self._moment()
        self.picture.history = self._history()
        self.keep_last_state(at_once=True)

    def _history(self) -> Json:
        """Return the past events, for the picture."""
        debugger = self._debugger
        event = debugger.event
        now_ns = debugger.begin_ns if event is None else event.time_ns
        events = debugger.events[: debugger.position][-_MOST_EVENTS:]
        session = ViewSession(debugger.model, debugger.config, debugger.begin_ns, keep=_MOST_EVENTS, limited=False)
        session.meta["simulated"] = debugger.simulated
        if not debugger.position:
            session.meta["note"] = "Nothing has happened yet."
        session.tracker.fold(map(pack, events))
        session.flush(now_ns)
        history = session.history()
        # All lanes are there from the start, so that the picture keeps its height.
        names = {event.instance for event in debugger.events if isinstance(event, BatchSent)}
        history["instances"] = sorted(names.union(history["instances"]), key=natural_sort_key)
        return {**history, "reset": True, "position": debugger.position}

    def _moment(self) -> Json:
        """Return the time span of the picture, which stays while the events in it are stepped through."""
        debugger = self._debugger
        first = max(0, debugger.position - 1) // _SHOWN_EVENTS * _SHOWN_EVENTS
        shown = debugger.events[first : first + _SHOWN_EVENTS]
        from_ms, to_ms = ((event.time_ns - debugger.begin_ns) / 1e6 for event in (shown[0], shown[-1]))
        now_ms = 0.0 if debugger.event is None else (debugger.event.time_ns - debugger.begin_ns) / 1e6
        span_ms = max((to_ms - from_ms) * (1 + 2 * _MARGIN), 1 / TICKS * 100)
        return {"from": from_ms - _MARGIN * span_ms, "span": span_ms, "cursor": now_ms}


def _go_to_first_choice(debugger: Debugger) -> None:
    """Go to the first event after which a request waits and rules apply; to the first event if there is none."""
    for _ in range(min(len(debugger.events), _SHOWN_EVENTS)):
        debugger.step()
        if debugger.state.rules:
            return
    debugger.restart()
    debugger.step()
