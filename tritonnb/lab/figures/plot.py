"""``rec.plot``: the static figures of a recording; and both recordings of a comparison."""

from __future__ import annotations

from types import ModuleType
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from tritonnb.core.errors import InvalidArgumentError
from tritonnb.lab.analysis.comparison import Comparison
from tritonnb.lab.figures import (
    batch_sizes,
    ensemble_graph,
    generations,
    latency,
    latency_cdf,
    queue,
    slots,
    steps,
    timeline,
    waterfall,
)
from tritonnb.lab.figures.picture import WIDTH, Picture, axes_for, figure_of
from tritonnb.lab.figures.scale import draw_empty
from tritonnb.recording.pipelines import PipelineRequest
from tritonnb.recording.recording import Recording

_FIGURES: dict[str, ModuleType] = {
    "timeline": timeline, "slots": slots, "generations": generations, "steps": steps, "waterfall": waterfall,
    "graph": ensemble_graph, "batch_sizes": batch_sizes, "latency": latency, "latency_cdf": latency_cdf, "queue": queue,
}  # fmt: skip


def plot(recording: Recording) -> Plot:
    """Draw static figures: ``rec.plot()`` for an overview; ``rec.plot.timeline()``, ``slots``, ``steps``, ...

    Each takes ``start_ms=`` and ``end_ms=`` to select a time range and returns a figure.

    Examples
    --------
    >>> from tritonnb import fixed, poisson, simulate
    >>> recording = simulate("max_batch_size: 8 dynamic_batching { }", poisson(100, 1, seed=1), fixed(10))
    >>> recording.plot.timeline(start_ms=100, end_ms=200).alt.startswith("Timeline")
    True
    """
    return Plot(recording)


class Plot:
    """The figures of one recording: ``rec.plot()`` draws an overview, its methods one figure each.

    Each figure is drawn into ``ax``, or into a new figure by default, and the figure is returned. A notebook displays
    it if it is the last expression of a cell; ``rec.plot.timeline().savefig("name.svg")`` saves it. ``start_ms`` and
    ``end_ms`` select a time range, in milliseconds from the beginning of the recording, and the requests that were in
    the server then.

    In a dark notebook new figures are dark. Figures created with pyplot stay as they are, even if one of these is
    drawn into their axes: use ``plt.style.use("dark_background")`` for them.

    Examples
    --------
    >>> from tritonnb import fixed, poisson, simulate
    >>> rec = simulate("max_batch_size: 8 dynamic_batching { }", poisson(100, 1, seed=1), fixed(10))
    >>> figures = rec.plot.timeline(start_ms=100, end_ms=200), rec.plot.batch_sizes()
    >>> figures += rec.plot.latency(), rec.plot.queue()
    >>> rec.plot.alt("timeline")[:18], rec.plot.svg("timeline").lstrip()[:4]
    ('Timeline of 1008.6', '<svg')
    """

    def __init__(self, recording: Recording) -> None:
        self._recording = recording

    def __repr__(self) -> str:
        return f"<figures of a recording: {', '.join(f'{name}()' for name in _FIGURES)}; plot() for an overview>"

    def __call__(self, *, start_ms: float | None = None, end_ms: float | None = None) -> Figure:
        """Draw an overview: the timeline or the slots, the batch sizes and the latency."""
        self._recording.require_every_request("plot()")
        return _overview(self._excerpt(start_ms, end_ms))

    def timeline(self, ax: Axes | None = None, *, start_ms: float | None = None, end_ms: float | None = None) -> Figure:
        """Draw the batches of each instance, the waiting requests, and the queue depth.

        A box is a batch: its width is the execution time, its height the share of ``max_batch_size``.
        """
        return self._draw("timeline", ax, start_ms, end_ms)

    def slots(self, ax: Axes | None = None, *, start_ms: float | None = None, end_ms: float | None = None) -> Figure:
        """Draw the sequences in the slots of their instances, null requests, and the backlog.

        Raises
        ------
        InvalidArgumentError
            If the recording is not of a stateful model.

        Examples
        --------
        >>> from tritonnb import fixed, sequences, simulate
        >>> config = "max_batch_size: 2 sequence_batching { }"
        >>> rec = simulate(config, [*sequences([3, 2], every_ms=5)], fixed(2))
        >>> rec.plot.slots().alt[:31]
        'Slots over 12.0 ms: 2 sequences'
        """
        return self._draw("slots", ax, start_ms, end_ms)

    def generations(
        self, ax: Axes | None = None, *, start_ms: float | None = None, end_ms: float | None = None
    ) -> Figure:
        """Draw the generations in their slots, or in the places of static batches: a cell for each step.

        Raises
        ------
        InvalidArgumentError
            If the recording contains no generations: see `Recording.generations`.

        Examples
        --------
        >>> from tritonnb import Arrival, fixed, simulate
        >>> config = "max_batch_size: 2 sequence_batching { iterative_sequence: true }"
        >>> rec = simulate(config, [Arrival(ms=0, steps=3), Arrival(ms=1, steps=2)], fixed(2))
        >>> rec.plot.generations().alt[:33]
        '2 generations of at most 3 tokens'
        """
        return self._draw("generations", ax, start_ms, end_ms)

    def steps(self, ax: Axes | None = None, *, start_ms: float | None = None, end_ms: float | None = None) -> Figure:
        """Draw the requests of an ensemble through the models of its steps.

        Raises
        ------
        InvalidArgumentError
            If the recording is not of an ensemble.

        Examples
        --------
        >>> import tempfile
        >>> from pathlib import Path
        >>> import tritonnb as tnb
        >>> config = '''platform: "ensemble"
        ... input { name: "A" data_type: TYPE_FP32 dims: 1 } output { name: "B" data_type: TYPE_FP32 dims: 1 }
        ... ensemble_scheduling { step { model_name: "double" model_version: -1
        ...   input_map { key: "X" value: "A" } output_map { key: "OUTPUT" value: "B" } } }'''
        >>> repository = Path(tempfile.mkdtemp())
        >>> (repository / "once" / "1").mkdir(parents=True)
        >>> _ = (repository / "once" / "config.pbtxt").write_text(config)
        >>> with tnb.Server(repository, port=0, model_control_mode="explicit") as server:
        ...     @server.model(max_batch_size=0)
        ...     def double(X: tnb.FP32[1]) -> tnb.FP32[1]:
        ...         return X * 2
        ...     once = server.load("once")
        ...     with server.record() as rec:
        ...         _ = once(A=[1.0])
        >>> rec.plot.steps().alt[:10]
        'Steps over'
        """
        return self._draw("steps", ax, start_ms, end_ms)

    def waterfall(self, request: PipelineRequest | None = None, ax: Axes | None = None) -> Figure:
        """Draw a request of a pipeline and the requests that it caused, with the critical path.

        Parameters
        ----------
        request : PipelineRequest, optional
            One of `Recording.pipelines`; by default the slowest.
        ax : matplotlib.axes.Axes, optional

        Raises
        ------
        InvalidArgumentError
            If the recording contains no request of a pipeline.

        Examples
        --------
        >>> import tritonnb as tnb
        >>> with tnb.Server(port=0) as server:
        ...     @server.model(max_batch_size=8)
        ...     def double(X: tnb.FP32[1]) -> tnb.FP32[1]:
        ...         return X * 2
        ...     @server.model(max_batch_size=8)
        ...     def caller(X: tnb.FP32[1]) -> tnb.FP32[1]:
        ...         return server["double"](X=X)["OUTPUT"]
        ...     with server.record() as rec:
        ...         _ = server["caller"](X=[[1.0]])
        >>> rec.plot.waterfall().alt.startswith("Waterfall of request")
        True
        """
        return figure_of(waterfall.draw(self._recording, ax, request))

    def batch_sizes(
        self, ax: Axes | None = None, *, start_ms: float | None = None, end_ms: float | None = None
    ) -> Figure:
        """Draw the number of batches of each size, their execution time and the time per row."""
        return self._draw("batch_sizes", ax, start_ms, end_ms)

    def latency(self, ax: Axes | None = None, *, start_ms: float | None = None, end_ms: float | None = None) -> Figure:
        """Draw a histogram of the latency with its quantiles."""
        return self._draw("latency", ax, start_ms, end_ms)

    def latency_cdf(
        self, ax: Axes | None = None, *, log: bool = True, start_ms: float | None = None, end_ms: float | None = None
    ) -> Figure:
        """Draw the cumulative distribution of the latency: the share of requests that were at least this fast.

        Percentiles are labelled only if enough requests ran: p99 from 1,000 on. ``log`` selects a logarithmic axis.

        Examples
        --------
        >>> from tritonnb import constant, fixed, simulate
        >>> rec = simulate("max_batch_size: 8 dynamic_batching { }", constant(50, 20), fixed(10))
        >>> rec.plot.latency_cdf().alt[:57]
        'Cumulative distribution of the latency of 1,000 requests,'
        """
        return self._draw("latency_cdf", ax, start_ms, end_ms, log=log)

    def graph(self, ax: Axes | None = None, *, start_ms: float | None = None, end_ms: float | None = None) -> Figure:
        """Draw the graph of an ensemble, with the mean queue and execution time of each step.

        Raises
        ------
        InvalidArgumentError
            If the recording is not of an ensemble.

        Examples
        --------
        >>> import tempfile
        >>> from pathlib import Path
        >>> import tritonnb as tnb
        >>> repository = Path(tempfile.mkdtemp())
        >>> (repository / "twice" / "1").mkdir(parents=True)
        >>> step = 'model_name: "double" model_version: -1 input_map { key: "X" value: "%s" }'
        >>> config = '''platform: "ensemble"
        ... input { name: "A" data_type: TYPE_FP32 dims: 1 } output { name: "C" data_type: TYPE_FP32 dims: 1 }
        ... ensemble_scheduling {
        ...   step { %s output_map { key: "OUTPUT" value: "B" } }
        ...   step { %s output_map { key: "OUTPUT" value: "C" } }
        ... }''' % (step % "A", step % "B")
        >>> _ = (repository / "twice" / "config.pbtxt").write_text(config)
        >>> with tnb.Server(repository, port=0, model_control_mode="explicit") as server:
        ...     @server.model(max_batch_size=0)
        ...     def double(X: tnb.FP32[1]) -> tnb.FP32[1]:
        ...         return X * 2
        ...     twice = server.load("twice")
        ...     with server.record() as rec:
        ...         _ = twice(A=[1.0])
        >>> rec.plot.graph().alt[:49]
        'Graph of the ensemble twice: 2 steps in 2 layers.'
        """
        return self._draw("graph", ax, start_ms, end_ms)

    def queue(self, ax: Axes | None = None, *, start_ms: float | None = None, end_ms: float | None = None) -> Figure:
        """Draw queue time and execution time of requests, and the queue depth, over time."""
        return self._draw("queue", ax, start_ms, end_ms)

    def alt(self, name: str) -> str:
        """Return the alternative text of a figure.

        Raises
        ------
        InvalidArgumentError
            If the figure does not exist, or cannot be drawn of this recording.
        """
        text: str = _figure(name).describe(self._recording)
        return text

    def svg(self, name: str) -> str:
        """Return a figure as an SVG document with its alternative text.

        Raises
        ------
        InvalidArgumentError
            If the figure does not exist, or cannot be drawn of this recording.
        """
        figure = figure_of(_figure(name).draw(self._recording))
        assert isinstance(figure, Picture)
        return figure.svg()

    def _draw(
        self, name: str, ax: Axes | None, start_ms: float | None, end_ms: float | None, **options: bool
    ) -> Figure:
        if name not in ("latency", "latency_cdf"):
            self._recording.require_every_request(f"plot.{name}()")
        figure, excerpt = _figure(name), self._excerpt(start_ms, end_ms)
        if excerpt is not self._recording and not (excerpt.batches or excerpt.refused):
            figure.describe(self._recording)  # raises if the figure cannot be drawn of this recording
            return figure_of(draw_empty(axes_for(ax, 1.0, "Nothing was executed in this time range.")))
        return figure_of(figure.draw(excerpt, ax, **options))

    def _excerpt(self, start_ms: float | None, end_ms: float | None) -> Recording:
        if start_ms is None and end_ms is None:
            return self._recording
        return self._recording.between(start_ms, end_ms)


def _figure(name: str) -> Any:
    if name not in _FIGURES:
        raise InvalidArgumentError(f"figure expected one of {', '.join(_FIGURES)}, got '{name}'")
    return _FIGURES[name]


def _overview(rec: Recording) -> Picture:
    """Return the timeline or the slots, batch sizes, and latency, one above the other."""
    above: ModuleType = slots if rec.slot_occupancy and rec.batches else timeline
    lanes = 0.36 * sum(map(rec.slots_of, rec.instances)) if above is slots else 0.75 * len(rec.instances)
    heights, panels = [2.6 + lanes, 3.6, 2.6], (above, batch_sizes, latency)
    alt = " ".join(panel.describe(rec) for panel in panels)
    figure = Picture(figsize=(WIDTH, sum(heights)), layout="constrained", alt=alt)
    for panel, ax in zip(panels, figure.subplots(3, 1, height_ratios=heights), strict=True):
        panel.draw(rec, ax)
    return figure


def plot_comparison(comparison: Comparison, *, start_ms: float | None = None, end_ms: float | None = None) -> Picture:
    """Draw both timelines, one above the other, on the same time axis.

    Parameters
    ----------
    start_ms, end_ms : float, optional
        Time range, in milliseconds from the beginning of each recording.

    Returns
    -------
    matplotlib.figure.Figure
        Displayed by a notebook if it is the last expression of a cell.

    Examples
    --------
    >>> from tritonnb import constant, fixed, simulate
    >>> recording = simulate("max_batch_size: 4 dynamic_batching { }", constant(200, 1), fixed(8))
    >>> figure = recording.what_if(count=2).plot(end_ms=100)
    >>> figure.alt.startswith("With count")
    True
    """
    before, after = comparison.names
    if comparison.recorded is not None:
        edits = ", ".join(f"{name}: {value}" for name, value in comparison.edits.items()) or "no edit"
        after = f"{after} ({edits})"
    runs = {before: comparison.before, after: comparison.after}
    if (start_ms, end_ms) != (None, None):
        runs = {name: rec.between(start_ms, end_ms) for name, rec in runs.items()}
    lanes = sum(len(run.instances) for run in runs.values())
    figure = Picture(figsize=(WIDTH, 4.6 + 0.75 * lanes), layout="constrained")
    panels = figure.subplots(2, 1)
    for ax, (title, rec) in zip(panels, runs.items(), strict=True):
        timeline.draw(rec, ax)
        summary = rec.summary()
        ax.set_title(
            f"{title}: {summary['batches']} batches of {summary['mean_batch_size']:.1f} rows, latency p50 "
            f"{summary['latency_p50_ms']:.1f} ms, p99 {summary['latency_p99_ms']:.1f} ms",
            loc="left",
            fontsize=9,
        )
    left, right = zip(*(ax.get_xlim() for ax in panels), strict=True)
    for ax in panels:
        ax.set_xlim(min(left), max(right))
    panels[0].set_xlabel("")
    figure.alt = " ".join([comparison.verdict(), *(f"{name}: {timeline.describe(rec)}" for name, rec in runs.items())])
    return figure
