"""``server["digits"].traffic()``: a panel that sends requests to a model until it is stopped.

The numbers shown come from the load itself; they are updated at most five times a second, even while a cell runs.
A changed setting takes effect at once: the running load is stopped and a new load is started.
"""

from __future__ import annotations

import html
import threading
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import Any

import anywidget
import numpy as np
import numpy.typing as npt
import traitlets

from tritonnb.client.model import Model
from tritonnb.core.errors import InvalidArgumentError, TritonError
from tritonnb.core.forks import fork_safe
from tritonnb.core.protobuf import model_config_pb2 as pb
from tritonnb.lab.load.load import load
from tritonnb.lab.load.result import COMPLETED, ERROR, INTENDED
from tritonnb.lab.load.running_load import Load
from tritonnb.lab.load.workload import SEQUENCE_LENGTH
from tritonnb.notebook.views import StaticFallback, close_disconnected, forget_view, open_view
from tritonnb.notebook.widget_files import javascript, stylesheet
from tritonnb.notebook.worker import ViewThread
from tritonnb.server.model_handle import ModelHandle
from tritonnb.telemetry.quantiles import quantile

#: The update interval, and the window of the rate and the latencies.
_UPDATE_S, _WINDOW_S = 0.2, 2.0
_BINS = 32
#: The least number of responses for percentiles.
_ENOUGH = 20
_OPEN = "open loop"
_IDLE = "This panel sends no requests."

_SETTINGS: dict[str, Any] = {
    "loop": _OPEN, "arrivals": "poisson", "rate": 200.0, "burst": 8, "clients": 8, "rows": 1,
    "sequence_length": SEQUENCE_LENGTH, "http": False, "shapes": {}, "revision": 0,
}  # fmt: skip


def open_traffic(model: Model, **options: Any) -> Traffic:
    """Open a panel that sends traffic to the model. Every call returns the same panel until it is closed.

    Parameters
    ----------
    **options
        Options of `tritonnb.load`, such as ``inputs`` and ``shapes``, for the next start.

    Examples
    --------
    >>> import tritonnb as tnb
    >>> with tnb.Server(port=0) as server:
    ...     @server.model(max_batch_size=8)
    ...     def double(X: tnb.FP32[1]) -> tnb.FP32[1]:
    ...         return X * 2
    ...     server["double"].traffic().close()
    """
    panel = open_view(Traffic, model.server, model.name, lambda: Traffic(model))
    shapes = options.pop("shapes", None)
    panel.options |= options
    if shapes:
        panel.change(shapes={name: ", ".join(map(str, shape)) for name, shape in shapes.items()})
    return panel


class Traffic(StaticFallback, anywidget.AnyWidget):
    """Controls for sending requests to a model.

    Parameters
    ----------
    model : ModelHandle

    Attributes
    ----------
    load : Load or None
        The current or the last load.
    options : dict of str to Any
        Arguments of `tritonnb.load` without a control in the panel.
    sending : bool
        Whether requests are sent; setting it starts or stops the traffic.
    settings : dict
        ``loop`` (``"open loop"`` or ``"closed loop"``), ``arrivals``, ``rate`` (requests/s), ``burst``, ``clients``,
        ``rows``, ``sequence_length``, ``http``, ``shapes`` (text by input), and ``revision``, which the browser
        increments with each change.
    status : dict
        What was measured; ``outcome`` instead while nothing is sent; ``revision`` of the settings that took effect.

    Examples
    --------
    >>> import tritonnb as tnb
    >>> with tnb.Server(port=0) as server:
    ...     @server.model(max_batch_size=8, dynamic_batching={})
    ...     def double(X: tnb.FP32[1]) -> tnb.FP32[1]:
    ...         return X * 2
    ...     traffic = server["double"].traffic()
    ...     traffic.change(rate=50, rows=2)
    ...     print(traffic.settings["rate"], traffic.sending)
    ...     traffic.close()
    50 False
    """

    _esm = javascript("traffic")
    _css = stylesheet("traffic")
    model = traitlets.Unicode().tag(sync=True)
    sending = traitlets.Bool(False).tag(sync=True)
    settings = traitlets.Dict().tag(sync=True)
    limits = traitlets.Dict().tag(sync=True)
    status = traitlets.Dict().tag(sync=True)

    def __init__(self, model: Model) -> None:
        self.load: Load | None = None
        self.options: dict[str, Any] = {}
        self._handle = model
        self._used: dict[str, Any] | None = None  # the options of the running load
        # For `status`: messages of the browser may arrive on several threads.
        self._following = fork_safe(threading.RLock())
        config = model.running_config()
        self._sequences = config.HasField("sequence_batching")
        super().__init__(
            model=model.name,
            settings=_SETTINGS,
            limits={
                "sequences": self._sequences,
                "remote": not isinstance(model, ModelHandle),  # another server is reached as its connection says
                "max_rows": max(1, config.max_batch_size),
                "variable_inputs": variable_inputs(config),
            },
            status={"outcome": _IDLE, "level": "", "revision": 0},
        )
        self.observe(self._follow_settings, ["sending", "settings"])

    def change(self, **settings: Any) -> None:
        """Change some of the settings.

        Parameters
        ----------
        **settings
            Keys of `settings`, with their new values.
        """
        self.settings = {**self.settings, **settings}

    def close(self) -> None:
        """Stop the load and close the widget."""
        forget_view(self._handle.server, self)
        if self.load is not None:
            self.load.stop()
        super().close()

    def last_state(self) -> str:
        """Return the last numbers as HTML."""
        return f"<p><b>Traffic on '{html.escape(self.model)}'</b>: {html.escape(_in_words(self.status))}</p>"

    # --- user input ---------------------------------------------------------------------------

    def _follow_settings(self, change: object) -> None:
        """Start, restart or stop the load if the settings differ from the running load."""
        with self._following:
            try:
                self._switch(self._load_options() if self.sending else None)
            except (TritonError, RuntimeError) as error:
                self._used = None
                self.sending = False
                self._show_outcome(f"Not sent: {error}", "error")
            self.status = {**self.status, "revision": self.settings["revision"]}

    def _switch(self, wanted: dict[str, Any] | None) -> None:
        if wanted == self._used:
            return
        previous = self.load if self._used is not None else None
        self._used = wanted
        if wanted is not None:
            current = self.load = load(self._handle, **wanted)
            ViewThread("tritonnb traffic", partial(self._follow, current), self._end_at_exit).start()
        if previous is not None:
            previous.stop()

    def _load_options(self) -> dict[str, Any]:
        settings = self.settings
        options: dict[str, Any] = {"over": "http" if settings["http"] else "process", "rows": settings["rows"]}
        if settings["loop"] == _OPEN:
            options |= {name: settings[name] for name in ("rate", "arrivals", "burst")}
        else:
            options["clients"] = settings["clients"]
        if self._sequences:
            options["sequence_length"] = settings["sequence_length"]
        if self.limits["variable_inputs"] and "inputs" not in self.options:
            options["shapes"] = parse_shapes(self.limits["variable_inputs"], settings["shapes"])
        return options | self.options

    # --- display, on its own thread -----------------------------------------------------------

    def _end_at_exit(self) -> None:
        self.load = None  # the load ends with its process, perhaps in the middle of a request

    def _follow(self, current: Load) -> None:
        while not current.done and current is self.load and not close_disconnected(self):
            numbers = measure(current)
            with self._following:
                self.status = {"outcome": "", "revision": self.status["revision"], **numbers}
            self.keep_last_state()
            with suppress(Exception):  # `_outcome` shows the exception that ended the load
                current.wait(_UPDATE_S)
        with self._following:  # or `_follow_settings` could write the status that it has read before
            if current is not self.load:
                return
            self._used = None
            self.sending = False
            self._show_outcome(*_outcome(current))
        self.keep_last_state(at_once=True)

    def _show_outcome(self, outcome: str, level: str) -> None:
        self.status = {"outcome": outcome, "level": level, "revision": self.status["revision"]}


def variable_inputs(config: pb.ModelConfig) -> list[dict[str, Any]]:
    """Return the required inputs with variable dimensions: ``name`` and ``dims``, without the batch dimension."""
    required = [tensor for tensor in config.input if not tensor.optional]
    return [{"name": tensor.name, "dims": list(tensor.dims)} for tensor in required if -1 in tensor.dims]


def parse_shapes(variable: Sequence[Mapping[str, Any]], texts: Mapping[str, str]) -> dict[str, list[int]]:
    """Return the entered shapes of inputs with variable dimensions.

    Raises
    ------
    InvalidArgumentError
        If a shape is missing or has something else than positive integers.

    Examples
    --------
    >>> parse_shapes([{"name": "IMAGE", "dims": [-1, -1, 3]}], {"IMAGE": "64, 32, 3"})
    {'IMAGE': [64, 32, 3]}
    """
    shapes = {}
    for tensor in variable:
        name, dims, text = tensor["name"], tensor["dims"], texts.get(tensor["name"], "")
        values = text.replace("×", " ").replace("x", " ").replace(",", " ").strip("[]() ").split()
        if not all(value.isdecimal() and int(value) > 0 for value in values) or len(values) != len(dims):
            raise InvalidArgumentError(
                f"input '{name}' has variable dimensions {dims}: expected {len(dims)} positive integers, got "
                f"{text.strip() or 'nothing'}: enter its shape"
            )
        shapes[name] = [int(value) for value in values]
    return shapes


def measure(current: Load) -> dict[str, Any]:
    """Return the numbers of a load: totals, and the rate and latencies of the last two seconds."""
    totals = {"sent": current.sent, "in_flight": current.in_flight, "failed": current.failed}
    responses = current.latest_responses(20_000)
    recent = responses[responses[:, COMPLETED] > time.monotonic_ns() - _WINDOW_S * 1e9]
    succeeded = recent[recent[:, ERROR] == 0]
    if not len(succeeded):
        return {**totals, "rate": 0.0, "latency": None}
    seconds = max(1e-3, min(_WINDOW_S, (time.monotonic_ns() - int(responses[0, INTENDED])) / 1e9))
    latencies_ms = np.sort(succeeded[:, COMPLETED] - succeeded[:, INTENDED]) / 1e6
    described = describe_latencies(latencies_ms) if len(latencies_ms) >= _ENOUGH else {"n": len(latencies_ms)}
    return {**totals, "rate": len(succeeded) / seconds, "latency": described}


def describe_latencies(ordered_ms: npt.NDArray[np.float64]) -> dict[str, Any]:
    """Return number, p50, p99 and a histogram with logarithmic bins of latencies, which are sorted.

    Examples
    --------
    >>> described = describe_latencies(np.array([1.0, 2.0, 10.0]))
    >>> described["n"], described["p50_ms"], sum(described["counts"])
    (3, 2.0, 3)
    """
    low = max(1e-3, float(ordered_ms[0]))
    edges = np.geomspace(low, max(low * 1.5, float(ordered_ms[-1]) * 1.001), _BINS + 1)
    counts, _ = np.histogram(ordered_ms, edges)
    return {
        "n": len(ordered_ms),
        "p50_ms": quantile(ordered_ms, 0.5),
        "p99_ms": quantile(ordered_ms, 0.99),
        "edges_ms": edges.tolist(),
        "counts": counts.tolist(),
    }


def _outcome(ended: Load) -> tuple[str, str]:
    try:
        return f"{_IDLE} Last: {ended.result.verdict()}", ""
    except Exception as error:  # shown to the user, whatever it is
        return f"The traffic ended: {error}", "error"


def _in_words(status: Mapping[str, Any]) -> str:
    if status["outcome"]:
        return str(status["outcome"])
    words = f"{status['sent']:,} sent, {status['in_flight']:,} in flight, {status['failed']:,} failed"
    latency = status["latency"]
    if latency is None or "p50_ms" not in latency:
        return words
    return (
        f"{words}; {status['rate']:,.0f} responses/s, latency p50 {latency['p50_ms']:.2f} ms, "
        f"p99 {latency['p99_ms']:.2f} ms (n = {latency['n']:,}, last {_WINDOW_S:.0f} s)"
    )
