"""``rec.plot``: the still figures of a recording."""

from __future__ import annotations

from types import ModuleType
from typing import TYPE_CHECKING

from matplotlib.axes import Axes

from tritonnb.core.errors import InvalidArgumentError
from tritonnb.recording.figures import batch_sizes, latency, queue, slots, steps, timeline
from tritonnb.recording.figures.picture import Picture

if TYPE_CHECKING:
    from tritonnb.recording.recording import Recording

_FIGURES: dict[str, ModuleType] = {
    "timeline": timeline, "slots": slots, "steps": steps,
    "batch_sizes": batch_sizes, "latency": latency, "queue": queue,
}  # fmt: skip


class Plot:
    """Draws one recording.

    Every figure is drawn into ``ax``, or into a new figure when there is none, and gives its axes, which a
    notebook shows when a cell ends with them. ``ax.figure.savefig("name.svg")`` saves it. A dark notebook shows new
    figures dark. It leaves those of pyplot as they are, also with ours in their axes; for them there is
    ``plt.style.use("dark_background")``.

    Examples
    --------
    >>> rec.plot.timeline()  # doctest: +SKIP
    >>> rec.plot.alt("timeline")  # doctest: +SKIP
    """

    def __init__(self, recording: Recording) -> None:
        self._recording = recording

    def timeline(self, ax: Axes | None = None) -> Axes:
        """Batches on their instances, the requests that wait for them, and the queue's depth.

        A box is a batch: as wide as it ran, as high as its part of ``max_batch_size``.
        """
        return timeline.draw(self._recording, ax)

    def slots(self, ax: Axes | None = None) -> Axes:
        """Sequences in the slots of their instances, null requests, and the backlog.

        Raises
        ------
        InvalidArgumentError
            If the recording is of no stateful model.
        """
        return slots.draw(self._recording, ax)

    def steps(self, ax: Axes | None = None) -> Axes:
        """Requests of an ensemble on their way through the models of its steps.

        Raises
        ------
        InvalidArgumentError
            If the recording is of no ensemble.
        """
        return steps.draw(self._recording, ax)

    def batch_sizes(self, ax: Axes | None = None) -> Axes:
        """How many batches of each size there were, what one took, and what a row of it cost."""
        return batch_sizes.draw(self._recording, ax)

    def latency(self, ax: Axes | None = None) -> Axes:
        """The latency of requests with its quantiles."""
        return latency.draw(self._recording, ax)

    def queue(self, ax: Axes | None = None) -> Axes:
        """Time in the queue against time in execution, and the queue's depth."""
        return queue.draw(self._recording, ax)

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
        figure = _figure(name).draw(self._recording).get_figure(root=True)
        assert isinstance(figure, Picture)
        return figure.svg()


def _figure(name: str) -> ModuleType:
    if name not in _FIGURES:
        raise InvalidArgumentError(f"there is no figure '{name}', only {', '.join(_FIGURES)}")
    return _FIGURES[name]
