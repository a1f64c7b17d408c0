"""``server["digits"].traffic()``: a panel that sends requests to a model until it is stopped.

The numbers shown come from the load itself; they are updated at most five times a second, also while a cell runs.
A changed control takes effect at once: the running load is stopped and a new one is started.
"""

from __future__ import annotations

import html
import threading
import time
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import ipywidgets
import numpy as np

from tritonnb.core.errors import TritonError
from tritonnb.notebook.open_views import OpenViews
from tritonnb.notebook.static_fallback import LIVE, StaticFallback
from tritonnb.profile.load import load
from tritonnb.profile.result import COMPLETED, ERROR, INTENDED
from tritonnb.profile.running_load import Load
from tritonnb.profile.workload import SEQUENCE_LENGTH

if TYPE_CHECKING:
    from tritonnb.remote.model import RemoteModelHandle
    from tritonnb.server.model_handle import ModelHandle

#: The update interval, and the window of the rate and the latencies.
_UPDATE_S, _WINDOW_S = 0.2, 2.0
_OPEN, _CLOSED = "open loop", "closed loop"
_IDLE = "No traffic."
_NARROW = {"width": "11em"}

#: The open panels.
open_panels: OpenViews[Traffic] = OpenViews()


def open_traffic(model: ModelHandle | RemoteModelHandle, **options: Any) -> Traffic:
    """Return the traffic panel of a model, the same one until it is closed."""
    panel = open_panels.open(model.server, model.name, lambda: Traffic(model))
    panel.options |= options
    return panel


class Traffic(StaticFallback, ipywidgets.VBox):  # type: ignore[misc]
    """Controls for sending requests to a model.

    Parameters
    ----------
    model : ModelHandle

    Attributes
    ----------
    load : Load or None
        The current or the last load.
    options : dict of str to Any
        Arguments of `tritonnb.load` for which the panel has no control.
    """

    def __init__(self, model: ModelHandle | RemoteModelHandle) -> None:
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
                "Requests arrive independently of the responses",
                "Each client waits for its response before it sends the next request",
            ],
            style={"button_width": "8em"},
        )
        self.arrivals = ipywidgets.Dropdown(options=["poisson", "constant", "burst"], description="arrivals")
        self.rate = ipywidgets.FloatLogSlider(
            200, min=0, max=4, step=0.05, description="requests/s", readout_format=".0f", continuous_update=False
        )
        self.burst = ipywidgets.BoundedIntText(8, min=1, max=1000, description="per burst", layout=_NARROW)
        self.clients = ipywidgets.IntSlider(8, min=1, max=128, description="clients", continuous_update=False)
        self.rows = ipywidgets.BoundedIntText(
            1, min=1, max=max(1, model.served.spec.max_batch_size), description="rows per request", layout=_NARROW
        )
        self.sequence_length = ipywidgets.BoundedIntText(
            SEQUENCE_LENGTH,
            min=1,
            max=100_000,
            description="requests per sequence",
            layout={"width": "14em"},
            style={"description_width": "initial"},
        )
        self.http = ipywidgets.Checkbox(False, description="over HTTP", indent=False)
        if hasattr(model, "address"):  # another server is reached as its connection says
            self.http.layout.display = "none"
        self.status = ipywidgets.HTML(_IDLE)
        super().__init__([ipywidgets.HBox([self.running, self.loop]), ipywidgets.HBox(), self.status])
        self.add_class(LIVE)
        self.add_class("tnb-traffic")
        self._arrange()
        self.running.observe(self._switch, "value")
        for control in (self.loop, self.arrivals):
            control.observe(self._arrange, "value")
        for control in (*self._settings(), self.loop):
            control.observe(self._restart, "value")

    def close(self) -> None:
        """Stop the load and close the widgets."""
        open_panels.remove(self._model.server, self)
        if self.load is not None:
            self.load.stop()
        for widget in (self.running, self.loop, self.status, *self._settings(), *self.children):
            widget.close()
        super().close()

    def last_state(self) -> str:
        """Return the last numbers as HTML."""
        return f"<p><b>Traffic on '{html.escape(self._model.name)}'</b></p><p>{self.status.value}</p>"

    def _settings(self) -> list[ipywidgets.Widget]:
        return [self.arrivals, self.rate, self.burst, self.clients, self.rows, self.sequence_length, self.http]

    # --- user input ---------------------------------------------------------------------------

    def _arrange(self, change: object = None) -> None:
        """Show the controls that apply to the chosen kind of load."""
        open_loop = self.loop.value == _OPEN
        controls = [self.arrivals, self.rate] if open_loop else [self.clients]
        if open_loop and self.arrivals.value == "burst":
            controls.append(self.burst)
        controls.append(self.rows)
        if self._sequences:
            controls.append(self.sequence_length)
        self.children[1].children = [*controls, self.http]
        self.children[1].layout.flex_flow = "row wrap"

    def _switch(self, change: object) -> None:
        on = self.running.value
        self.running.description, self.running.icon = ("Stop", "stop") if on else ("Send", "play")
        previous = self.load
        if on:
            self._start()
        if previous is not None:
            previous.stop()

    def _restart(self, change: object) -> None:
        if self.running.value:
            self._switch(change)

    def _start(self) -> None:
        try:
            self.load = load(self._model, **self._load_options(), **self.options)
        except (TritonError, RuntimeError) as error:
            self.running.value = False
            self.status.value = f"<b>Not sent:</b> {html.escape(str(error))}"
        else:
            threading.Thread(target=self._follow, args=(self.load,), name="tritonnb-traffic", daemon=True).start()

    def _load_options(self) -> dict[str, Any]:
        options: dict[str, Any] = {"over": "http" if self.http.value else "process", "rows": self.rows.value}
        if self.loop.value == _OPEN:
            options |= {"rate": self.rate.value, "arrivals": self.arrivals.value, "burst": self.burst.value}
        else:
            options["clients"] = self.clients.value
        if self._sequences:
            options["sequence_length"] = self.sequence_length.value
        return options

    # --- display, on its own thread -----------------------------------------------------------

    def _follow(self, current: Load) -> None:
        while not current.done and current is self.load:
            self.status.value = describe(current)
            self.keep_last_state()
            with suppress(Exception):  # `_outcome` shows the exception that ended the load
                current.wait(_UPDATE_S)
        if current is self.load:
            self.running.value = False
            self.status.value = _outcome(current)
            self.keep_last_state(at_once=True)


def _outcome(ended: Load) -> str:
    try:
        return f"{_IDLE} Last: {html.escape(ended.result.verdict())}"
    except Exception as error:  # shown to the user, whatever it is
        return f"<b>The traffic ended:</b> {html.escape(str(error))}"


def describe(current: Load) -> str:
    """Return the numbers of a load over the last two seconds, as HTML."""
    counts = f"{current.sent:,} sent · {current.in_flight:,} in flight · {current.failed:,} failed"
    responses = current.latest_responses(20_000)
    recent = responses[responses[:, COMPLETED] > time.monotonic_ns() - _WINDOW_S * 1e9]
    succeeded = recent[recent[:, ERROR] == 0]
    if not len(succeeded):
        return f"{counts} · <i>no successful response in the last {_WINDOW_S:.0f} s</i>"
    rate = len(succeeded) / max(1e-3, min(_WINDOW_S, (time.monotonic_ns() - int(responses[0, INTENDED])) / 1e9))
    p50, p99 = np.percentile((succeeded[:, COMPLETED] - succeeded[:, INTENDED]) / 1e6, [50, 99])
    return f"{counts} · <b>{rate:,.0f} responses/s</b> · latency p50 <b>{p50:.2f} ms</b>, p99 <b>{p99:.2f} ms</b>"
