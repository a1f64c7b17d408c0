"""``rec.plot``: the still figures of a recording."""

from __future__ import annotations

from types import ModuleType
from typing import TYPE_CHECKING, Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from tritonnb.core.errors import InvalidArgumentError
from tritonnb.figures import batch_sizes, latency, overview, queue, slots, steps, timeline
from tritonnb.figures.picture import Picture, axes_for, figure_of
from tritonnb.figures.scale import draw_empty

if TYPE_CHECKING:
    from tritonnb.recording.recording import Recording

_FIGURES: dict[str, ModuleType] = {
    "timeline": timeline, "slots": slots, "steps": steps,
    "batch_sizes": batch_sizes, "latency": latency, "queue": queue,
}  # fmt: skip


class Plot:
    """Draws one recording: ``rec.plot()`` for an overview, its methods for one figure each.

    Every figure is drawn into ``ax``, or into a new figure when there is none, and the figure is returned. A notebook
    shows it when a cell ends with it; ``rec.plot.timeline().savefig("name.svg")`` saves it. ``start_ms`` and
    ``end_ms`` select a part of the time, in milliseconds from the beginning of the recording: its requests are those
    that were in the server then.

    A dark notebook shows new figures dark. It leaves those of pyplot as they are, also with ours in their axes; for
    them there is ``plt.style.use("dark_background")``.

    Examples
    --------
    >>> rec.plot()  # doctest: +SKIP
    >>> rec.plot.timeline(start_ms=100, end_ms=200)  # doctest: +SKIP
    >>> rec.plot.alt("timeline")  # doctest: +SKIP
    """

    def __init__(self, recording: Recording) -> None:
        self._recording = recording

    def __repr__(self) -> str:
        return f"<figures of a recording: {', '.join(f'{name}()' for name in _FIGURES)}; plot() for an overview>"

    def __call__(self, *, start_ms: float | None = None, end_ms: float | None = None) -> Figure:
        """An overview: the timeline or the slots, with the batch sizes and the latency below."""
        return overview.draw(self._part(start_ms, end_ms))

    def timeline(self, ax: Axes | None = None, *, start_ms: float | None = None, end_ms: float | None = None) -> Figure:
        """Batches on their instances, the requests that wait for them, and the queue's depth.

        A box is a batch: as wide as it ran, as high as its part of ``max_batch_size``.
        """
        return self._draw("timeline", ax, start_ms, end_ms)

    def slots(self, ax: Axes | None = None, *, start_ms: float | None = None, end_ms: float | None = None) -> Figure:
        """Sequences in the slots of their instances, null requests, and the backlog.

        Raises
        ------
        InvalidArgumentError
            If the recording is of no stateful model.
        """
        return self._draw("slots", ax, start_ms, end_ms)

    def steps(self, ax: Axes | None = None, *, start_ms: float | None = None, end_ms: float | None = None) -> Figure:
        """Requests of an ensemble on their way through the models of its steps.

        Raises
        ------
        InvalidArgumentError
            If the recording is of no ensemble.
        """
        return self._draw("steps", ax, start_ms, end_ms)

    def batch_sizes(
        self, ax: Axes | None = None, *, start_ms: float | None = None, end_ms: float | None = None
    ) -> Figure:
        """How many batches of each size there were, what one took, and what a row of it cost."""
        return self._draw("batch_sizes", ax, start_ms, end_ms)

    def latency(self, ax: Axes | None = None, *, start_ms: float | None = None, end_ms: float | None = None) -> Figure:
        """The latency of requests with its quantiles."""
        return self._draw("latency", ax, start_ms, end_ms)

    def queue(self, ax: Axes | None = None, *, start_ms: float | None = None, end_ms: float | None = None) -> Figure:
        """Time in the queue against time in execution, and the queue's depth."""
        return self._draw("queue", ax, start_ms, end_ms)

    def alt(self, name: str) -> str:
        """What a figure shows, in words and numbers.

        Raises
        ------
        InvalidArgumentError
            If there is no figure of this name, or none of this recording.
        """
        words: str = _figure(name).describe(self._recording)
        return words

    def svg(self, name: str) -> str:
        """A figure as an SVG document with its description, for print and for the web.

        Raises
        ------
        InvalidArgumentError
            If there is no figure of this name, or none of this recording.
        """
        figure = figure_of(_figure(name).draw(self._recording))
        assert isinstance(figure, Picture)
        return figure.svg()

    def _draw(self, name: str, ax: Axes | None, start_ms: float | None, end_ms: float | None) -> Figure:
        figure, part = _figure(name), self._part(start_ms, end_ms)
        if part is not self._recording and not (part.batches or part.refused):
            figure.describe(self._recording)  # says where this figure is not one of this recording at all
            return figure_of(draw_empty(axes_for(ax, 1.0, "Nothing was executed in this part of the time.")))
        return figure_of(figure.draw(part, ax))

    def _part(self, start_ms: float | None, end_ms: float | None) -> Recording:
        if start_ms is None and end_ms is None:
            return self._recording
        return self._recording.between(start_ms, end_ms)


def _figure(name: str) -> Any:
    if name not in _FIGURES:
        raise InvalidArgumentError(f"there is no figure '{name}', only {', '.join(_FIGURES)}")
    return _FIGURES[name]
