"""The parts of a dashboard that are drawn in the browser: list of models, tiles, charts over time, ensemble graph."""

from __future__ import annotations

import anywidget
import traitlets

from tritonnb.notebook.widget_files import javascript, stylesheet


class ModelList(anywidget.AnyWidget):
    """The models of a server, one of them selected.

    Attributes
    ----------
    models : list of dict
        ``name``, ``state``, ``reason``, ``scheduling``, ``rate`` (requests/s) and ``curve``, the rates of the last
        intervals.
    selected : str
        The model that was selected in the browser, or by `Dashboard.show`.
    shown : str
        The model that the dashboard shows: the selected one as soon as the kernel could react.
    """

    _esm = javascript("model_list")
    _css = stylesheet("dashboard")
    models = traitlets.List(traitlets.Dict()).tag(sync=True)
    selected = traitlets.Unicode().tag(sync=True)
    shown = traitlets.Unicode().tag(sync=True)
    ended = traitlets.Bool(False).tag(sync=True)


class Tiles(anywidget.AnyWidget):
    """The most important numbers: a list of ``label``, ``value``, ``unit`` and ``note``."""

    _esm = javascript("tiles")
    tiles = traitlets.List(traitlets.Dict()).tag(sync=True)


class Charts(anywidget.AnyWidget):
    """Throughput, latency percentiles and utilization over time.

    Attributes
    ----------
    series : dict
        ``time`` (seconds since the epoch), ``rate``, ``p50_ms``, ``p99_ms``, ``n`` and ``busy`` by interval.
    marks : list of dict
        ``time`` and ``text`` of each applied configuration.
    """

    _esm = javascript("charts")
    series = traitlets.Dict().tag(sync=True)
    marks = traitlets.List(traitlets.Dict()).tag(sync=True)


class Graph(anywidget.AnyWidget):
    """The graph of an ensemble: ``nodes`` with their texts, ``edges``, and a ``description``."""

    _esm = javascript("ensemble_graph")
    graph = traitlets.Dict().tag(sync=True)
