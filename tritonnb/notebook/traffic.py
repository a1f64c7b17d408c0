"""``server["digits"].traffic()``: a panel that sends traffic to a model, until it is told to stop.

The figures come from the load itself, at most five times a second and while a cell runs, too. What the
user sets takes effect at once: the running load is stopped and another one begins.
"""

from __future__ import annotations

import html
import threading
import time
from contextlib import suppress
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

import ipywidgets
import numpy as np

from tritonnb.core.errors import TritonError
from tritonnb.notebook.static_fallback import LIVE, StaticFallback
from tritonnb.profile.load import load
from tritonnb.profile.result import COMPLETED, ERROR, INTENDED
from tritonnb.profile.running_load import Load
from tritonnb.profile.workload import SEQUENCE_LENGTH

if TYPE_CHECKING:
    from tritonnb.server.model_handle import ModelHandle
    from tritonnb.server.server import Server

#: Seconds between two updates, and how far back the rate and the latencies look.
_EVERY_S, _WINDOW_S = 0.2, 2.0
_OPEN, _CLOSED = "open loop", "closed loop"
_IDLE = "No traffic."
_NARROW = {"width": "11em"}

#: The panels that are open, by server and model: showing one twice shows the same.
_open: WeakKeyDictionary[Server, dict[str, Traffic]] = WeakKeyDictionary()


def open_traffic(model: ModelHandle, **options: Any) -> Traffic:
    """The panel of a model; the same one as long as it is not closed."""
    panels = _open.setdefault(model.server, {})
    if model.name not in panels:
        panels[model.name] = Traffic(model)
    panels[model.name].options |= options
    return panels[model.name]


def is_open(model: ModelHandle) -> bool:
    """Whether the model has a panel."""
    return model.name in _open.get(model.server, {})


class Traffic(StaticFallback, ipywidgets.VBox):  # type: ignore[misc]
    """Controls of the traffic on a model.

    Parameters
    ----------
    model : ModelHandle

    Attributes
    ----------
    load : Load or None
        The traffic that is under way, or was last.
    options : dict of str to Any
        Of `tritonnb.load`, for what the panel has no control for.
    """

    def __init__(self, model: ModelHandle) -> None:
        self.load: Load | None = None
        self.options: dict[str, Any] = {}
        self._model = model
        self._sequences = bool(model.served.config.HasField("sequence_batching"))
        self.running = ipywidgets.ToggleButton(
            description="Send", icon="play", tooltip="Start or stop the traffic", layout={"width": "8em"}
        )
        self.loop = ipywidgets.ToggleButtons(
            options=[_OPEN, _CLOSED],
            tooltips=[
                "Requests come when they come",
                "Clients wait for their answers before they send again",
            ],
            style={"button_width": "8em"},
        )
        self.arrivals = ipywidgets.Dropdown(options=["poisson", "constant", "burst"], description="arrivals")
        self.rate = ipywidgets.FloatLogSlider(
            200, min=0, max=4, step=0.05, description="requests/s", readout_format=".0f", continuous_update=False
        )
        self.burst = ipywidgets.BoundedIntText(8, min=1, max=1000, description="per burst", layout=_NARROW)
        self.clients = ipywidgets.IntSlider(8, min=1, max=128, description="clients", continuous_update=False)
        self.size = ipywidgets.BoundedIntText(
            1, min=1, max=max(1, model.served.spec.max_batch_size), description="rows each", layout=_NARROW
        )
        self.sequence_length = ipywidgets.BoundedIntText(
            SEQUENCE_LENGTH,
            min=1,
            max=100_000,
            description="requests a sequence",
            layout={"width": "14em"},
            style={"description_width": "initial"},
        )
        self.http = ipywidgets.Checkbox(False, description="over HTTP", indent=False)
        self.status = ipywidgets.HTML(_IDLE)
        super().__init__([ipywidgets.HBox([self.running, self.loop]), ipywidgets.HBox(), self.status])
        self.add_class(LIVE)
        self.add_class("tnb-traffic")
        self._arrange()
        self.running.observe(self._switch, "value")
        for each in (self.loop, self.arrivals):
            each.observe(self._arrange, "value")
        for each in (*self._settings(), self.loop):
            each.observe(self._again, "value")

    def close(self) -> None:
        """Stop the traffic and free the widgets."""
        _open.get(self._model.server, {}).pop(self._model.name, None)
        if self.load is not None:
            self.load.stop()
        for each in (self.running, self.loop, self.status, *self._settings(), *self.children):
            each.close()
        super().close()

    def last_state(self) -> str:
        """The figures as they were last."""
        return f"<p><b>Traffic on '{html.escape(self._model.name)}'</b></p><p>{self.status.value}</p>"

    def _settings(self) -> list[ipywidgets.Widget]:
        return [self.arrivals, self.rate, self.burst, self.clients, self.size, self.sequence_length, self.http]

    # --- what the user did --------------------------------------------------------------------

    def _arrange(self, change: object = None) -> None:
        """Show the controls that mean something."""
        open_loop = self.loop.value == _OPEN
        shown = [self.arrivals, self.rate] if open_loop else [self.clients]
        if open_loop and self.arrivals.value == "burst":
            shown.append(self.burst)
        shown.append(self.size)
        if self._sequences:
            shown.append(self.sequence_length)
        self.children[1].children = [*shown, self.http]
        self.children[1].layout.flex_flow = "row wrap"

    def _switch(self, change: object) -> None:
        on = self.running.value
        self.running.description, self.running.icon = ("Stop", "stop") if on else ("Send", "play")
        previous = self.load
        if on:
            self._start()
        if previous is not None:
            previous.stop()

    def _again(self, change: object) -> None:
        if self.running.value:
            self._switch(change)

    def _start(self) -> None:
        try:
            self.load = load(self._model, **self._asked(), **self.options)
        except (TritonError, RuntimeError) as error:
            self.running.value = False
            self.status.value = f"<b>Not sent:</b> {html.escape(str(error))}"
        else:
            threading.Thread(target=self._follow, args=(self.load,), name="tritonnb-traffic", daemon=True).start()

    def _asked(self) -> dict[str, Any]:
        asked: dict[str, Any] = {"over": "http" if self.http.value else "process", "size": self.size.value}
        if self.loop.value == _OPEN:
            asked |= {"rate": self.rate.value, "arrivals": self.arrivals.value, "burst": self.burst.value}
        else:
            asked["clients"] = self.clients.value
        if self._sequences:
            asked["sequence_length"] = self.sequence_length.value
        return asked

    # --- what is seen: on a thread of its own -------------------------------------------------

    def _follow(self, followed: Load) -> None:
        while not followed.done and followed is self.load:
            self.status.value = describe(followed)
            self.keep_last_state()
            with suppress(Exception):  # it goes on, or what it ended with is told below
                followed.wait(_EVERY_S)
        if followed is self.load:
            self.running.value = False
            self.status.value = _outcome(followed)
            self.keep_last_state(at_once=True)


def _outcome(ended: Load) -> str:
    try:
        return f"{_IDLE} Last: {html.escape(ended.result.verdict())}"
    except Exception as error:  # whatever ended the traffic, the user is told
        return f"<b>The traffic ended:</b> {html.escape(str(error))}"


def describe(followed: Load) -> str:
    """A load's figures of the last two seconds, as HTML."""
    counts = f"{followed.sent:,} sent · {followed.in_flight:,} in flight · {followed.failed:,} failed"
    answers = followed.latest_responses(20_000)
    recent = answers[answers[:, COMPLETED] > time.monotonic_ns() - _WINDOW_S * 1e9]
    good = recent[recent[:, ERROR] == 0]
    if not len(good):
        return f"{counts} · <i>nothing was answered in the last {_WINDOW_S:.0f} s</i>"
    rate = len(good) / max(1e-3, min(_WINDOW_S, (time.monotonic_ns() - int(answers[0, INTENDED])) / 1e9))
    p50, p99 = np.percentile((good[:, COMPLETED] - good[:, INTENDED]) / 1e6, [50, 99])
    return f"{counts} · <b>{rate:,.0f} answers/s</b> · latency p50 <b>{p50:.2f} ms</b>, p99 <b>{p99:.2f} ms</b>"
