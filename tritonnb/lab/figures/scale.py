"""The time axis of figures: from the beginning of the recording, in s, ms or µs; and helpers to draw lanes."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.axis import Axis
from matplotlib.ticker import FuncFormatter, LogLocator, MaxNLocator, NullFormatter, NullLocator
from matplotlib.transforms import offset_copy
from mpl_toolkits.axes_grid1 import make_axes_locatable

from tritonnb.lab.figures.picture import figure_of
from tritonnb.recording.recording import Recording

_UNITS = ((1e9, "s", 20e9), (1e6, "ms", 1e6), (1e3, "µs", 0.0))
_POINTS_PER_INCH = 72.0
#: Separates labels from marks: ordinary spaces at their ends disappear in SVG.
SPACE = "\u00a0"
#: Maximum number of characters of a lane name, and of a row of the legend, where a mark is as wide as some characters.
_NAME, _LEGEND, _MARK = 32, 140, 6
#: The distance of the legend from the time axis, in points.
_BELOW = -27


@dataclass(frozen=True, slots=True)
class TimeScale:
    """The conversion of clock times in ns to positions on the time axis.

    Attributes
    ----------
    origin_ns : int
        Time at position 0: the beginning of the recording.
    begin_ns, end_ns : int
        Time range that is drawn.
    unit_ns : float
    unit : str
    """

    origin_ns: int
    begin_ns: int
    end_ns: int
    unit_ns: float
    unit: str

    @classmethod
    def for_recording(cls, rec: Recording) -> TimeScale:
        """Return the scale for a recording."""
        return cls.between(*rec.span_ns, rec.origin_ns)

    @classmethod
    def between(cls, begin_ns: int, end_ns: int, origin_ns: int | None = None) -> TimeScale:
        """Return the scale for a time range, which begins at 0 unless an origin is given."""
        unit_ns, unit = next((size, name) for size, name, least in _UNITS if end_ns - begin_ns >= least)
        return cls(begin_ns if origin_ns is None else origin_ns, begin_ns, end_ns, unit_ns, unit)

    def at(self, time_ns: float) -> float:
        """Return the position of a time, clipped to the drawn range."""
        return (min(max(time_ns, self.begin_ns), self.end_ns) - self.origin_ns) / self.unit_ns

    def shows(self, begin_ns: int, end_ns: int) -> bool:
        """Return whether an interval overlaps the drawn range."""
        return begin_ns <= self.end_ns and end_ns >= self.begin_ns

    @property
    def ends(self) -> tuple[float, float]:
        """Positions of the begin and end of the drawn range."""
        return self.at(self.begin_ns), self.at(self.end_ns)

    @property
    def length(self) -> float:
        """Length of the drawn range."""
        return max((self.end_ns - self.begin_ns) / self.unit_ns, 1e-9)

    def points(self, ax: Axes) -> float:
        """Return how many points of a figure a unit of the axis is long."""
        return float(figure_of(ax).get_figwidth() * ax.get_position().width * _POINTS_PER_INCH / (self.length * 1.04))

    def fitting(self, ax: Axes) -> Callable[[str, float, float], bool]:
        """Return a predicate: whether text in a font size (points) probably fits into a width on the axis."""
        points = self.points(ax)
        return lambda text, width, fontsize: len(text) * fontsize * 0.58 <= width * points

    def frame(self, ax: Axes) -> None:
        """Set the limits of the time axis."""
        left, right = self.ends
        ax.set_xlim(left - 0.02 * self.length, right + 0.02 * self.length)


def duration(ns: float) -> str:
    """Return a time with its unit.

    Examples
    --------
    >>> duration(4_900_000)
    '4.9 ms'
    """
    if ns >= 10e9:
        return f"{ns / 1e9:.1f} s"
    return f"{ns / 1e6:.1f} ms" if ns >= 1e5 or ns == 0 else f"{ns / 1e3:.1f} µs"


def label_lanes(ax: Axes, scale: TimeScale, names: Mapping[float, str], marks: Sequence[Artist]) -> None:
    """Label the lanes and the time axis, and explain marks by their labels.

    Long names of lanes keep their end, which distinguishes the instances.
    """
    shown = [name if len(name) <= _NAME else f"…{name[1 - _NAME :]}" for name in names.values()]
    ax.set_yticks(list(names), shown)
    ax.set_xlabel(f"time ({scale.unit})", fontsize=8)
    draw_legend(ax, marks)
    strip_spines(ax)


def label_axes(ax: Axes, x: str, y: str = "") -> None:
    """Label the axes of a chart, and hide the other two spines."""
    ax.set_xlabel(x, fontsize=8)
    ax.set_ylabel(y, fontsize=8)
    strip_spines(ax, keep="bottom left")


def draw_legend(ax: Axes, marks: Sequence[Artist]) -> None:
    """Explain marks by their labels, below the time axis."""
    lengths = [len(str(mark.get_label())) + _MARK for mark in marks]
    fitting = (n for n in range(len(marks), 1, -1) if sum(map(max, np.array_split(lengths, n))) <= _LEGEND)
    place = offset_copy(ax.transAxes, figure_of(ax), y=_BELOW, units="points")
    ax.legend(
        handles=marks, fontsize=7.5, frameon=False, ncols=next(fitting, 1), columnspacing=1.6, borderpad=0,
        loc="upper center", bbox_to_anchor=(0.5, 0), bbox_transform=place,
    )  # fmt: skip


def draw_empty(ax: Axes) -> Axes:
    """Draw the placeholder of an empty figure."""
    ax.set_axis_off()
    ax.text(0.5, 0.5, "Nothing was executed.", transform=ax.transAxes, fontsize=9, ha="center", va="center")
    return ax


def draw_cumulative(ax: Axes, ordered: Sequence[float] | npt.NDArray[np.float64], **style: Any) -> None:
    """Draw the cumulative distribution of values, which are sorted: the share up to each of them, in percent."""
    shares = np.arange(len(ordered) + 1) / len(ordered) * 100
    ax.step(np.concatenate([ordered[:1], ordered]), shares, where="post", **style)
    ax.set_ylim(0, 103)


def strip_spines(ax: Axes, *, keep: str = "bottom") -> None:
    """Hide spines and ticks that carry no information."""
    for side, spine in ax.spines.items():
        spine.set_visible(side in keep.split())
    ax.tick_params(axis="y", length=0)
    ax.tick_params(labelsize=8)


def label_log_axis(axis: Axis) -> None:
    """Label a logarithmic axis with plain numbers instead of powers of ten."""
    formatter = FuncFormatter(lambda value, position: f"{value:g}")
    low, high = sorted(axis.get_view_interval())
    decades = math.log10(high / low)
    if decades < 2.5:  # powers of ten alone would leave a part without a label
        axis.set_major_locator(MaxNLocator(6) if decades < 1 else LogLocator(subs=(1.0, 2.0, 5.0)))
        axis.set_minor_locator(NullLocator())
    axis.set_major_formatter(formatter)
    axis.set_minor_formatter(NullFormatter())


def panels_above(ax: Axes, *panels: tuple[float, str]) -> list[Axes]:
    """Split off panels above the axes that share their horizontal axis: shares of the height and titles, upwards."""
    divider = make_axes_locatable(ax)
    drawn = []
    for share, title in panels:
        above: Axes = divider.append_axes("top", size=f"{share:.0%}", pad=0.16, sharex=ax)
        above.text(1, 0.99, title, transform=above.transAxes, fontsize=8, ha="right", va="top")
        above.tick_params(labelbottom=False)
        strip_spines(above, keep="bottom left")
        drawn.append(above)
    return drawn


def range_text(counts: Collection[int]) -> str:
    """Return a number, or the smallest and the largest of several.

    Examples
    --------
    >>> range_text([2000, 1500]), range_text([7, 7])
    ('1,500 to 2,000', '7')
    """
    least, most = min(counts), max(counts)
    return f"{least:,}" if least == most else f"{least:,} to {most:,}"


def box(left: float, right: float, low: float, high: float) -> list[tuple[float, float]]:
    """Return the corners of a rectangle for a PolyCollection, which is much faster than a patch per rectangle."""
    return [(left, low), (right, low), (right, high), (left, high)]
